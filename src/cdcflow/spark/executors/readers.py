"""The capture's side of processes that read parts of chunks: it tracks which are connected, busy or lost.

Any free process takes the next part; only the process that read rows can write them. If a process is lost, its pending
requests fail, and the rows that it kept are lost. A part without offsets is read again in another window; if rows
already have offsets, the attempt ends, and the capture starts again from the last durable cut.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from cdcflow.capture.interleave.messages import Chunk
from cdcflow.capture.ports.part_readers import HeldPart, PartReader
from cdcflow.errors import CdcflowError, SinkUnavailable, SourceUnavailable
from cdcflow.sources.engine.errors import PasswordRefused
from cdcflow.spark.executors.chunk_reader_process import (
    PIECE_BYTES,
    Answer,
    HeldRowsFile,
    Hello,
    Invitation,
    Read,
    Write,
    bare,
)

LOST_AFTER_S = 120.0
"""A process that has not answered for this long is lost."""
ABSENT_S = 60.0
"""How long a part waits for a process to connect if there are none."""


@dataclass(eq=False)
class _Process:
    """One process: its connection, and the requests that only it can serve."""

    connection: Connection[Any, Any]
    own: deque[_Asked] = field(default_factory=deque)
    gone: bool = False


@dataclass(frozen=True, slots=True)
class _Asked:
    request: Read | Write
    answer: Future[Any]


class Processes:
    """Implements `cdcflow.capture.ports.part_readers.Readers` for processes that run `chunk_reader_process.serve`. A
    context manager."""

    def __init__(self, number: int, host: str, folder: Path, *, lost_after_s: float = LOST_AFTER_S) -> None:
        """`number` processes are expected, and connect to `host`. Those that see `folder`, the log's folder, write into
        it themselves; the others send their files, which are written there by this process."""
        self.count = number
        self._lost_after_s = lost_after_s
        self._secret = secrets.token_bytes(32)
        self._listener = Listener((host, 0), backlog=16)
        self._probe = folder / f".{secrets.token_hex(8)}.tmp"
        self._probe_text = secrets.token_hex(16)
        self._turn = threading.Condition()
        self._there: dict[int, _Process] = {}
        self._waiting: deque[_Asked] = deque()
        self._ids = count(1)
        self._error: CdcflowError | None = None
        self.closed = False
        self.answered = 0
        """Number of answered requests."""
        self.lost = 0
        """Number of processes that were lost."""
        self._thread = threading.Thread(target=self._listen, name="cdcflow-readers", daemon=True)

    def __enter__(self) -> Processes:
        self._probe.write_text(self._probe_text)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._turn:
            self.closed = True
            there = list(self._there.values())
            self._turn.notify_all()
        for process in there:
            _hang_up(process.connection)
        with contextlib.suppress(OSError):
            socket.create_connection(self._listener.address, 1.0).close()  # wakes the thread that accepts
        self._listener.close()
        self._probe.unlink(missing_ok=True)

    def invitation(self, open_reader: Callable[[], PartReader]) -> Invitation:
        """Return the invitation that is sent to each process."""
        host, port = self._listener.address[:2]
        return Invitation((str(host), int(port)), self._secret, self._probe, self._probe_text, open_reader)

    def wait(self, seconds: float) -> None:
        """Wait until all processes are connected.

        Raises:
            SourceUnavailable: no process connected within this time.
            ConfigurationError: they cannot be started; the message is the reason.
        """
        with self._turn:
            self._turn.wait_for(lambda: self._error or len(self._there) >= self.count, seconds)
            if self._error is not None:
                raise self._error
            if not self._there:
                raise SourceUnavailable(
                    f"waiting for executors: no executor has begun to read within {seconds:.0f} s",
                    remedy="check on the cluster's page for free cores, and whether executors reach this machine",
                )

    def fail(self, error: CdcflowError) -> None:
        """Record that no process will connect: every caller gets this error."""
        with self._turn:
            self._error = self._error or error
            waiting, self._waiting = self._waiting, deque()
            self._turn.notify_all()
        for asked in waiting:
            asked.answer.set_exception(error)

    # ── cdcflow.capture.ports.part_readers.Readers ────────────────────────────────────────────────────────────────────

    @property
    def unavailable(self) -> bool:
        return self._error is not None

    def read(self, chunk: Chunk, part: Any) -> Future[HeldPart]:
        found: Future[HeldPart] = Future()
        with self._turn:
            self._turn.wait_for(lambda: self._there or self._error or self.closed, ABSENT_S)
            number = next(self._ids)
            asked = _Asked(Read(number, chunk, part), Future())
            error = self._error or (None if self._there and not self.closed else _executor_gone(chunk))
            if error is None:
                self._waiting.append(asked)
                self._turn.notify_all()
        if error is not None:
            found.set_exception(error)
            return found
        asked.answer.add_done_callback(lambda answered: self._on_held(found, answered, number))
        return found

    def _on_held(self, found: Future[HeldPart], answered: Future[Any], number: int) -> None:
        if (error := answered.exception()) is not None:
            found.set_exception(error)
            return
        process, (told, rows, size, seconds) = answered.result()
        found.set_result(HeldPart(told, _ExecutorRows(self, process, number, rows, size), seconds))

    def write(self, process: _Process, read: int, path: Path, numbers: tuple[int, int, int]) -> Future[Any]:
        """Request that the process which holds the rows writes them."""
        first_offset, transaction, commit_ts = numbers
        with self._turn:
            request = Write(next(self._ids), read, path, first_offset, transaction, commit_ts)
            asked = _Asked(request, Future())
            gone = process.gone or self.closed
            if not gone:
                process.own.append(asked)
                self._turn.notify_all()
        if gone:
            asked.answer.set_exception(_rows_lost())
        return asked.answer

    # ── processes that come and go ──────────────────────────────────────────────────────────────────────────

    def _listen(self) -> None:
        while not self.closed:
            try:
                connection = self._listener.accept()
            except OSError:
                continue
            threading.Thread(target=self._attend, args=(connection,), name="cdcflow-reader", daemon=True).start()

    def _attend(self, connection: Connection[Any, Any]) -> None:
        try:
            # Nothing is unpickled before the other side has proved that it has the secret.
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            hello = connection.recv()
        except Exception:  # noqa: BLE001  not one of cdcflow's processes
            _hang_up(connection)
            return
        if isinstance(hello, Hello):
            _limit_waits(connection, self._lost_after_s)
            self._serve(hello.number, _Process(connection))
        connection.close()

    def _serve(self, number: int, process: _Process) -> None:
        with self._turn:
            before = self._there.get(number)
            self._there[number] = process  # a restarted one; the old one gets no more requests
            self._turn.notify_all()
        if before is not None:
            self._lose(number, before, None)
        asked: _Asked | None = None
        try:
            while (asked := self._next(process)) is not None:
                answer = _answer(process.connection, asked.request, self._lost_after_s)
                if process.gone:  # too late: another process has its number
                    break
                done, asked = asked, None
                self.answered += 1
                if answer.error is not None:
                    done.answer.set_exception(answer.error)
                    if isinstance(answer.error, PasswordRefused):
                        break  # the next process gets the new password
                else:
                    done.answer.set_result((process, answer.result))
        except (EOFError, OSError):
            pass
        self._lose(number, process, asked)

    def _next(self, process: _Process) -> _Asked | None:
        """Wait for this process's next request and return it; `None` if there are no more."""
        with self._turn:
            self._turn.wait_for(lambda: process.gone or self.closed or process.own or self._waiting)
            if process.gone or self.closed:
                return None
            return process.own.popleft() if process.own else self._waiting.popleft()

    def _lose(self, number: int, process: _Process, asked: _Asked | None) -> None:
        with self._turn:
            was_there, process.gone = not process.gone, True
            if self._there.get(number) is process:
                del self._there[number]
            self.lost += was_there and not self.closed
            failed = [*([] if asked is None else [asked]), *process.own]
            process.own.clear()
            if not self._there:
                failed += self._waiting
                self._waiting.clear()
            self._turn.notify_all()
        _hang_up(process.connection)
        for one in failed:
            error = _executor_gone(one.request.chunk) if isinstance(one.request, Read) else _rows_lost()
            one.answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class _ExecutorRows:
    """Implements `cdcflow.model.change.HeldRows`."""

    _of: Processes
    _process: _Process
    _read: int
    rows: int
    bytes: int

    def write(self, path: str, first_offset: int, transaction: int, commit_ts: int) -> Callable[[], Mapping[str, Any]]:
        written = self._of.write(self._process, self._read, Path(path), (first_offset, transaction, commit_ts))

        def wait() -> Mapping[str, Any]:
            _, told = written.result()
            found: Mapping[str, Any] = told
            return found

        return wait


def _limit_waits(connection: Connection[Any, Any], seconds: float) -> None:
    """Limit how long a read waits for the rest of a message. A read that waits longer raises OSError."""
    whole = int(seconds)
    limit = struct.pack("ll", whole, int((seconds - whole) * 1e6))
    with bare(connection) as stream:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _answer(connection: Connection[Any, Any], request: Read | Write, seconds: float) -> Answer:
    """Send a request and return its answer. Raises EOFError or OSError if no answer arrives, or if it belongs to
    another request."""
    connection.send(request)
    if not connection.poll(seconds):
        raise EOFError
    answer = connection.recv()
    if not isinstance(answer, Answer) or answer.id != request.id:
        raise EOFError
    return _with_file(connection, request.path, answer) if answer.follows and isinstance(request, Write) else answer


def _with_file(connection: Connection[Any, Any], path: Path, answer: Answer) -> Answer:
    """Write the file that follows an answer, and return the answer. If writing fails, return an answer with the error;
    the process stays connected.

    Raises:
        EOFError: the process is gone.
    """
    pieces, digest = _pieces(connection, answer.follows), hashlib.sha256()
    try:
        with contextlib.closing(HeldRowsFile(path)) as file:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
    except OSError as error:
        for _ in pieces:  # unread bytes would be taken for the next answer
            pass
        text = f"writing rows of a chunk to {path}: {error.strerror or type(error).__name__}"
        return Answer(answer.id, error=SinkUnavailable(text))
    if digest.hexdigest() != answer.result["sha256"]:  # a network's own checksums are short
        return Answer(answer.id, error=SinkUnavailable(f"writing rows of a chunk to {path}: it was changed on its way"))
    return answer


def _pieces(connection: Connection[Any, Any], size: int) -> Iterator[memoryview]:
    """Yield the `size` bytes that follow a message; each piece is valid until the next.

    Raises:
        EOFError: the process ended before it sent all of them.
    """
    room = memoryview(bytearray(min(size, PIECE_BYTES)))
    with bare(connection) as stream:
        while size > 0:
            try:
                count = stream.recv_into(room, min(size, len(room)))
            except OSError as error:
                raise EOFError from error
            if not count:
                raise EOFError
            size -= count
            yield room[:count]


def _executor_gone(chunk: Chunk) -> SourceUnavailable:
    return SourceUnavailable(f"reading {chunk.table}: the executor that read it is gone")


def _rows_lost() -> SinkUnavailable:
    return SinkUnavailable("writing rows of a chunk: the executor that has them is gone; they are read again")


def _hang_up(connection: Connection[Any, Any]) -> None:
    """Close a connection, so that reads on both sides end."""
    with contextlib.suppress(OSError), bare(connection) as stream:
        stream.shutdown(socket.SHUT_RDWR)
