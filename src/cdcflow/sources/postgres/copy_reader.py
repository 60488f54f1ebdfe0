"""Reads a connection in COPY state: returns everything that has arrived as joined bytes.

Compiled code reads it if it was built, otherwise psycopg.

The compiled code calls libpq's own functions, of the very library that psycopg has loaded, by their addresses. A call
through psycopg costs some microseconds and one object per message; the compiled code costs neither, and lets other
threads run. Both return the same.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psycopg
from psycopg import pq

from cdcflow.errors import SourceUnavailable
from cdcflow.sources.engine.buffers import PAD, protocol_error
from cdcflow.sources.engine.compiled_module import compiled_module
from cdcflow.sources.engine.descriptors import READABLE, WRITABLE, wait_until
from cdcflow.sources.postgres.wire import Joined, join_messages

compiled = compiled_module("cdcflow.sources.postgres.compiled.drain")

Kind = Literal["rows", "stream", "window"]
"""What a COPY contains. rows: rows, returned unchanged; stream: XLogData, with other messages listed separately;
window: rows that hold one pgoutput message each, returned as XLogData with an empty header."""

_MORE, _ENDED, _FAILED, _MALFORMED = 1, -1, -2, -4  # the compiled code's results
_NO_BOUND = 1 << 62
_DROPPED_BYTES = 1 << 20  # at a time
_NAP_S = 0.0004  # short enough that a socket's buffer does not fill up during it
_W = ord("w")
_SIGNATURE = b"PGCOPY\n\xff\r\n\x00"
_HEADER = len(_SIGNATURE) + 8
_EMPTY = b"w" + bytes(24)
_ONE_COLUMN = b"\x00\x01"
ANSWER_MAX_S = 30


@dataclass(frozen=True, slots=True)
class CopyBatch:
    """The messages that have arrived. `aside`: those that are not XLogData, each with the number of messages before it.
    `more`: a bound was reached, so more may have arrived. `ended`: no more messages follow, the connection has a
    result."""

    messages: Joined
    aside: Sequence[tuple[int, bytes]]
    more: bool
    ended: bool


class CopyReader:
    """Takes the messages that have arrived on one connection. The caller ensures that no other thread uses it at the
    same time.

    `plain`: read through psycopg, even if the compiled code exists.
    """

    def __init__(self, pg: pq.abc.PGconn, kind: Kind, *, plain: bool = False) -> None:
        self._pg = pg
        self._kind = kind
        self._begun = False
        address: int | None = getattr(pg, "pgconn_ptr", None)
        functions = None if plain or address is None else _functions()
        self._drain: Any = None
        if compiled is not None and functions is not None:
            self._drain = compiled.Drain(address, functions, kind)

    @property
    def is_compiled(self) -> bool:
        return self._drain is not None

    def take(self, bytes_max: int, messages_max: int, linger_s: float = 0.0) -> CopyBatch:
        """Return the messages that have arrived, up to about these bounds, and those that keep arriving, for `linger_s`
        at most.

        Never waits for the first message.

        Raises:
            psycopg.Error: the connection is broken.
            SourceUnavailable: rows that are not of the requested kind.
        """
        if self._drain is None:
            return self._take(bytes_max, messages_max, linger_s)
        data, lengths, aside, state = self._drain.take(bytes_max, messages_max, linger_s)
        self._check(state)
        return CopyBatch(Joined(data, lengths), aside, state == _MORE, state == _ENDED)

    def take_all(self, bytes_max: int = _NO_BOUND) -> tuple[Joined, bool]:
        """Return the messages up to the end of the COPY, or up to the one that brings them above `bytes_max`, and
        whether these are all.

        Waits for the network. Raises the errors of `take`.
        """
        if self._drain is not None:
            data, lengths, state = self._drain.take_all(self._pg.socket, bytes_max)
            self._check(state)
            return Joined(data, lengths), state == _ENDED
        found: list[Joined] = []
        size = 0
        while True:
            taken = self._take(bytes_max - size, _NO_BOUND)
            found.append(taken.messages)
            size += len(taken.messages.data) - PAD
            if taken.ended or taken.more:
                break
            # Never let libpq wait for the network itself: psycopg holds the interpreter's lock during the call.
            wait_until(READABLE, self._pg.socket)
        return join_messages([j.data[:-PAD] for j in found], np.concatenate([j.lengths for j in found])), taken.ended

    def drop_all(self) -> None:
        """Receive the rest of the COPY, and discard it."""
        while not self.take_all(_DROPPED_BYTES)[1]:
            pass

    def _check(self, state: int) -> None:
        if state == _FAILED:
            raise psycopg.OperationalError(self._pg.get_error_message())
        if state == _MALFORMED:
            raise _not_messages()

    # ── the reference decoder ──────────────────────────────────────────────────────────────────────────────────────

    def _take(self, bytes_max: int, messages_max: int, linger_s: float = 0.0) -> CopyBatch:
        messages: list[bytes] = []
        aside: list[tuple[int, bytes]] = []
        size = 0
        more = ended = has_read = has_new = False
        while not (more or ended):
            length, view = self._pg.get_copy_data(1)
            if length > 0:
                has_read, has_new = False, True
                data = view.tobytes()  # bytes, which the garbage collector need not scan: half the time
                if self._kind == "stream" and data[0] != _W:
                    aside.append((len(messages), data))
                    continue
                if self._kind == "window":
                    data = self._row_message(data)
                if data:
                    messages.append(data)
                    size += len(data)
                more = size > bytes_max or len(messages) >= messages_max
            elif length < 0:
                ended = True
            elif not has_read:
                # Read from the socket only once everything that libpq holds was taken, because libpq moves its whole
                # buffer at each read.
                self._pg.consume_input()
                has_read = True
            elif has_new and linger_s > 0:
                time.sleep(_NAP_S)
                linger_s -= _NAP_S
                has_read = has_new = False
            else:
                break
        return CopyBatch(join_messages(messages), aside, more, ended)

    def _row_message(self, data: bytes) -> bytes:
        """Return the message in a row; nothing for the header and the end of the rows."""
        if not self._begun:
            self._begun = True
            if data.startswith(_SIGNATURE):
                data = data[_HEADER:]
        if len(data) <= 2:
            return b""
        if data[:2] != _ONE_COLUMN or int.from_bytes(data[2:6]) != len(data) - 6:
            raise _not_messages()
        return _EMPTY + data[6:]


def begin_copy(pg: pq.abc.PGconn, command: str) -> None:
    """Send a command that begins a COPY in both directions, and wait for its beginning.

    Raises:
        psycopg.Error: the server refuses, or does not answer.
    """
    pg.send_query(command.encode())
    while pg.flush():
        _answer_awaited(WRITABLE, pg.socket)
    while pg.is_busy():
        _answer_awaited(READABLE, pg.socket)
        pg.consume_input()
    result = pg.get_result()
    if result is None or result.status != pq.ExecStatus.COPY_BOTH:
        while pg.get_result() is not None:
            pass
        raise error_of(result)


def error_of(result: pq.abc.PGresult | None) -> psycopg.Error:
    """Return the error that a result reports instead of success."""
    if result is None:
        return psycopg.OperationalError("the server did not answer")
    return psycopg.errors.error_from_result(result)


def _answer_awaited(event: int, descriptor: int) -> None:
    if not wait_until(event, descriptor, ANSWER_MAX_S):
        raise psycopg.OperationalError(f"the server did not answer in {ANSWER_MAX_S} s")


def _not_messages() -> SourceUnavailable:
    return protocol_error("a row that is not one message")


@cache
def _functions() -> tuple[int, int, int] | None:
    """Return the addresses of libpq's functions that the compiled code calls; None if the compiled code cannot be used.

    It can be used only if it is certain which library psycopg uses: the functions of a different one must never get its
    connections.
    """
    if compiled is None or pq.__impl__ not in ("binary", "c"):
        return None
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    mapped = {line.split(maxsplit=5)[5] for line in lines if "libpq" in line}
    found = {path for path in mapped if Path(path).name.startswith("libpq")}
    if pq.__impl__ == "binary":
        found = {path for path in found if "psycopg_binary" in path}
    if len(found) != 1:
        return None
    library = ctypes.CDLL(found.pop())
    get, consume, free = (
        ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        for name in ("PQgetCopyData", "PQconsumeInput", "PQfreemem")
    )
    return get, consume, free
