"""The server's log over the replication protocol: COPY in both directions, drained in batches.

    server ──XLogData──XLogData──Keepalive(end)──▶  poll ──▶ decoder ──▶ events
    server ◀──Status(durable)──────────────────────  acknowledge

Three positions must not be mixed up: what the server has *sent*, what was *delivered* to the caller, and what is
*acknowledged*: durable in the change log. Only the last one is ever reported to the server, in all three fields of a
status message, because the server drops what it believes cdcflow has (P48).

A keepalive's end position. The server's `sentPtr` is the end of the last record that it decoded completely, and
keepalives travel in the same stream after everything that those records made it send. So every transaction that
committed up to that position has been sent before. If the last message before the keepalive ended a transaction and
the decoder holds no incomplete one, there is no unread change of a captured table up to that position, and the position
may advance although no captured table changed. While a commit is being sent, `sentPtr` is still before it.
(PostgreSQL 14 to 18, walsender.c: XLogSendLogical, WalSndKeepalive.)
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import psycopg
from psycopg import pq

from cdcflow.capture.interleave.messages import (
    Advanced,
    ChangesRefused,
    Committed,
    MarkSeen,
    RowsFilled,
    RowsIncomplete,
)
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import CdcflowError, ConfigurationError, SourceUnavailable
from cdcflow.model.position import Position
from cdcflow.sources.engine.buffers import PAD
from cdcflow.sources.engine.stream import BulkStream
from cdcflow.sources.postgres.connection import (
    Connector,
    has_no_encoding,
    history_lost,
    literal,
    map_error,
    quote_name,
)
from cdcflow.sources.postgres.copy_reader import CopyReader, begin_copy, error_of
from cdcflow.sources.postgres.lsn import EPOCH_US, START, Lsn, lsn_of, position_of
from cdcflow.sources.postgres.replay_marks import PlacedMarks
from cdcflow.sources.postgres.slot import slot_in_use
from cdcflow.sources.postgres.timeline_watch import TimelineWatch
from cdcflow.sources.postgres.unconvertible import SQLSTATES, unconvertible
from cdcflow.sources.postgres.wire import Joined, join_messages

MESSAGES_MAX = 20_000
BYTES_MAX = 8 << 20
LINGER_S = 0.004
BUSY_MESSAGES_MIN = 1000
"""If this many messages arrived at once, the reader waits briefly for more to gather: waking for each of them costs
more than the messages do. A change that arrives alone is never delayed."""
LARGE_BYTES_MIN = 256 << 10
"""If this many bytes arrived at once, the next ones are decoded in another thread."""
STATUS_INTERVAL_S = 1.0
SILENCE_MAX_S = 60.0
ACTIVE_WAIT_S = 5.0
STREAMED_FROM_KB = 16 << 10
"""The server keeps this much of open transactions before it sends them ahead of their commit (its default: 64 MB). The
part of a large transaction that it still keeps is sent after the commit, and cdcflow waits for that part."""

_STREAMED_SOONER = f"""
SELECT pg_catalog.set_config(name, least(setting::int, {STREAMED_FROM_KB})::text, false)
FROM pg_catalog.pg_settings WHERE name = 'logical_decoding_work_mem'
"""  # noqa: S608  our constant
_KEEPALIVE = struct.Struct(">xQqB")
_STATUS = struct.Struct(">cQQQqB")
_K = ord("k")
_KIND = 25  # where an XLogData's own message begins: 'w' and three int64
_BETWEEN = frozenset(b"CcAE")  # Commit, Stream Commit, Stream Abort, Stream Stop: a transaction's bytes end here


class MessageDecoder(Protocol):
    """Turns the messages of one connection into events."""

    @property
    def idle(self) -> bool: ...
    @property
    def gathering(self) -> bool: ...
    def decode(self, messages: Joined) -> list[StreamEvent]: ...
    def take_filled(self) -> Sequence[StreamEvent]: ...
    def close(self) -> None: ...


MakeDecoder = Callable[[Lsn, bool], MessageDecoder]
"""Returns a decoder that begins after a position. True: the values arrive in binary."""

CheckSlot = Callable[[Lsn], object]
"""Raises if the slot does not have everything since a position."""


class NeedsText(Exception):
    """Raised when a column appeared whose binary format has no decoder; the stream must be reopened with values as
    text."""


class PostgresStream(BulkStream):
    """Implements `cdcflow.ports.Stream`. `position` is where to begin; `binary` requests binary values.

    `acknowledged` is the position that is durable already (None: `position`). `check_slot` is called once this
    connection holds the slot. When a column appears that has no binary decoder, the stream restarts itself in text.
    `marks`: at a standby, the marks that are not in its log; `watch`: at a standby, ends the stream when the timeline
    ends.

    The server disconnects a silent consumer after its `wal_sender_timeout`. The caller may be silent for longer while
    it waits for its disk, so a separate thread keeps sending the acknowledged position (P47).
    """

    def __init__(
        self,
        connector: Connector,
        *,
        slot: str,
        publication: str,
        position: Lsn,
        binary: bool,
        streaming: bool,
        make_decoder: MakeDecoder,
        check_slot: CheckSlot,
        acknowledged: Lsn | None = None,
        marks: PlacedMarks | None = None,
        watch: TimelineWatch | None = None,
    ) -> None:
        self._connector = connector
        self._marks = marks
        self._watch = watch
        self._slot = slot
        self._publication = publication
        self._streaming = streaming
        self._make_decoder = make_decoder
        self._check_slot = check_slot
        self._delivered = position
        self._acknowledged = position if acknowledged is None else acknowledged
        self._binary = binary
        self._answer_due = self._is_busy = False
        self._between = True
        self._lock = threading.Lock()  # libpq's connection is one thread's at a time
        self._closed = threading.Event()
        self._start()
        super().__init__()
        self._keepalive = threading.Thread(target=self._keep_talking, name="cdcflow-status", daemon=True)
        self._keepalive.start()

    # ── cdcflow.ports.Stream ────────────────────────────────────────────────────────────────────────────────

    def acknowledge(self, position: Position) -> None:
        self._acknowledged = max(self._acknowledged, lsn_of(position))

    def _end(self) -> None:
        self._closed.set()
        with self._lock, contextlib.suppress(psycopg.Error, OSError, SourceUnavailable):
            # Acknowledge once more at the end, so that the server need not send again what is durable already.
            self._say()
        self._keepalive.join()
        self._decoder.close()
        if self._watch is not None:
            self._watch.close()
        self._connector.discard(self._connection)

    # ── a turn ──────────────────────────────────────────────────────────────────────────────────────────────

    def _socket_number(self) -> int:
        return self._pg.socket

    def _receive(self) -> list[StreamEvent]:
        """Receive and decode what has arrived, and send a status if due."""
        with self._lock:
            messages, end = self._drain()
        try:
            events = self._decoder.decode(messages) if len(messages) else []
        except NeedsText:
            filled = self._decoder.take_filled()
            self._begin_again_in_text()
            return [*filled]
        if events:
            self._delivered = max(self._delivered, lsn_of(position_after(events[-1])))
        if end > self._delivered and self._between and self._decoder.idle:
            self._delivered = end
            events.append(Advanced(position_of(end)))
        if self._watch is not None and (events or end > START):
            self._watch.check()
        if self._marks is not None:
            # Marks can be placed although the decoder still holds open transactions: the server sent every transaction
            # that ended before the keepalive's position before the keepalive.
            events = self._marks.place(events, end)
        self._converse()
        return events

    # ── receiving ───────────────────────────────────────────────────────────────────────────────────────────

    def _drain(self) -> tuple[Joined, Lsn]:
        """Return what has arrived, up to the bounds: the XLogData messages, and the end position of a keepalive that
        arrived after all of them (`START` if none did)."""
        end = START
        self._more = False
        linger = LINGER_S if self._is_busy or self._decoder.gathering else 0.0
        try:
            taken = self._reader.take(BYTES_MAX, MESSAGES_MAX, linger)
        except psycopg.Error as error:
            self._failure = self._connection_error(error)
            return join_messages([]), START
        messages = taken.messages
        self._is_busy = len(messages) >= BUSY_MESSAGES_MIN
        self._is_backlog = len(messages.data) >= LARGE_BYTES_MIN
        for before, message in taken.aside:
            heard = self._hear(message)
            if before == len(messages):
                end = heard
        self._more = taken.more
        if taken.ended:
            self._failure = self._end_error()
        if len(messages) or taken.aside:
            self._heard_at = time.monotonic()
        if len(messages):
            last = int(messages.lengths[-1])
            kind = len(messages.data) - PAD - last + _KIND
            self._between = last > _KIND and messages.data[kind] in _BETWEEN
        return messages, end

    def _hear(self, message: bytes) -> Lsn:
        """Return a keepalive's end position, and remember whether it requests an answer."""
        if message[0] != _K or len(message) != _KEEPALIVE.size:
            raise SourceUnavailable(f"reading slot {self._slot}: a message of unknown kind; connecting again")
        end, _, wants_answer = _KEEPALIVE.unpack(message)
        self._answer_due = self._answer_due or bool(wants_answer)
        return Lsn(end)

    # ── answering ───────────────────────────────────────────────────────────────────────────────────────────

    def _converse(self) -> None:
        now = time.monotonic()
        if now - self._heard_at > self._silence_max_s:
            raise SourceUnavailable(
                f"reading slot {self._slot}: the server at {self._connector.address} has been silent for "
                f"{self._silence_max_s:g} s; connecting again"
            )
        if self._failure is None and (self._answer_due or now - self._said_at >= STATUS_INTERVAL_S):
            with self._lock:
                try:
                    self._say()
                except psycopg.Error as error:
                    self._failure = self._connection_error(error)

    def _say(self) -> None:
        """Send a status message: everything up to the acknowledged position is durable.

        After some silence the message requests an answer, so that a dead connection is noticed.
        """
        now = time.monotonic()
        clock = time.time_ns() // 1000 - EPOCH_US
        done = self._acknowledged.value
        asks = now - self._heard_at > self._silence_max_s / 3
        self._pg.put_copy_data(_STATUS.pack(b"r", done, done, done, clock, asks))
        self._pg.flush()
        self._said_at = now
        self._answer_due = False

    def _keep_talking(self) -> None:
        while not self._closed.wait(STATUS_INTERVAL_S):
            if time.monotonic() - self._said_at < self._silence_max_s / 6:
                continue
            with self._lock, contextlib.suppress(psycopg.Error):  # `poll` finds out, and has the words for it
                if not self._closed.is_set():
                    self._say()

    # ── starting ────────────────────────────────────────────────────────────────────────────────────────────

    def _start(self) -> None:
        deadline = time.monotonic() + ACTIVE_WAIT_S
        while True:
            self._connection = self._connector.replicate()
            self._pg = self._connection.pgconn
            try:
                self._ask_for_copy()
                self._check_slot(self._delivered)
                break
            except psycopg.errors.ObjectInUse as error:
                self._connector.discard(self._connection)
                if time.monotonic() > deadline:
                    # The connection of a daemon that died may hold the slot until the server notices (P46).
                    raise slot_in_use(self._connector, self._slot, error) from None
                time.sleep(0.2)
            except psycopg.Error as error:
                self._connector.discard(self._connection)
                raise map_stream_error(error, f"acquiring slot {self._slot}", self._publication) from None
            except BaseException:
                self._connector.discard(self._connection)
                raise
        self._decoder = self._make_decoder(self._delivered, self._binary)
        self._reader = CopyReader(self._pg, "stream")
        self._between = True
        self._more = self._answer_due = False
        self._heard_at = time.monotonic()
        self._said_at = 0.0

    def _ask_for_copy(self) -> None:
        row = self._connection.execute("SHOW wal_sender_timeout").fetchone()
        self._silence_max_s = _seconds(row[0] if row else "0") or SILENCE_MAX_S
        if self._streaming:
            self._connection.execute(_STREAMED_SOONER.encode())
        if has_no_encoding(self._connection):
            self._connection.execute(b"SET client_encoding = 'SQL_ASCII'")
        begin_copy(self._pg, self._command())

    def _command(self) -> str:
        version = self._connection.info.server_version
        options = plugin_options(version, self._publication, binary=self._binary, streaming=self._streaming)
        listed = ", ".join(f"{name} {literal(value)}" for name, value in options.items())
        return f"START_REPLICATION SLOT {quote_name(self._slot)} LOGICAL {self._delivered} ({listed})"

    def _begin_again_in_text(self) -> None:
        with self._lock:
            self._connector.discard(self._connection)
            self._decoder.close()
            self._binary = False
            self._start()
        if self._marks is not None:
            self._marks.restart()

    # ── when it ends ────────────────────────────────────────────────────────────────────────────────────────

    def _end_error(self) -> CdcflowError:
        attempted = f"reading slot {self._slot}"
        try:
            result = self._pg.get_result()
        except psycopg.Error as error:
            return self._connection_error(error)
        if result is None or result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_IN):
            return SourceUnavailable(f"{attempted}: the server ended the stream, as it does when it shuts down")
        refusal = error_of(result)
        if refusal.sqlstate in SQLSTATES:
            return unconvertible(self._connector, self._command(), refusal, attempted)
        return map_stream_error(refusal, attempted, self._publication)

    def _connection_error(self, error: psycopg.Error) -> CdcflowError:
        if error.sqlstate:
            return map_stream_error(error, f"reading slot {self._slot}", self._publication)
        said = " ".join(str(error).split())
        return SourceUnavailable(f"reading slot {self._slot}: the connection is gone: {said}")


def plugin_options(version: int, publication: str, *, binary: bool, streaming: bool) -> dict[str, str]:
    """Return the options to pass to pgoutput."""
    options = {
        "proto_version": "4" if version >= 160000 else "2",
        "publication_names": quote_name(publication),
        "messages": "true",
    }
    if binary:
        options["binary"] = "true"
    if streaming:
        options["streaming"] = "on"
    if version >= 160000:
        options["origin"] = "any"
    return options


def map_stream_error(error: psycopg.Error, attempted: str, publication: str) -> CdcflowError:
    """Return the error for a refusal to send changes."""
    said = " ".join((error.diag.message_primary or str(error)).split())
    match error.sqlstate:
        case "42704" if "publication" in said:
            # The publication did not exist when these changes were committed, so the server cannot determine which of
            # them to send (P60).
            return history_lost(
                f"{attempted}: publication {publication} is gone, or was created after the slot",
                runbook="publication-changed",
            )
        case "42704" | "58P01":
            return history_lost(f"{attempted}: {said}")
        case "55000" if "wal_level" in said:
            return ConfigurationError(
                f"{attempted}: {said}",
                remedy="run ALTER SYSTEM SET wal_level = logical, and restart the server",
                runbook="server-settings",
            )
        case "55000":
            return history_lost(f"{attempted}: {said}")
    return map_error(error, attempted)


def position_after(event: StreamEvent) -> Position:
    """Return the position that an event reaches."""
    match event:
        case Committed(run):
            return run.last_position
        case (
            MarkSeen(position=position)
            | Advanced(position)
            | RowsFilled(position=position)
            | RowsIncomplete(position=position)
            | ChangesRefused(position=position)
        ):
            return position


def _seconds(text: str) -> float:
    """Parse a server setting such as `1min`, `90s`, `500ms` or `0`."""
    for unit, factor in (("ms", 0.001), ("min", 60.0), ("s", 1.0), ("h", 3600.0), ("d", 86400.0)):
        if text.endswith(unit):
            return float(text[: -len(unit)]) * factor
    return float(text) / 1000
