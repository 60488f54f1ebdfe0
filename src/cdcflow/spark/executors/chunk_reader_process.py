"""A process that reads parts of chunks for the capture, keeps the rows, and writes them to a file when they get
offsets.

    capture ──Read────▶ reader      in its own snapshot; the rows stay here
            ◀──Answer──             the dialect's information on them, and their number
            ──Write───▶             the first offset, and a path
            ◀──Answer──             the file's manifest entry; the file is already durable if the reader sees
                                    that path; otherwise the file follows, and the capture makes it durable

It serves one request at a time. Rows that are never written are dropped when the window after the next is read: rows
read in a window are written, if at all, before that window opens.
"""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from cdcflow.capture.interleave.messages import Chunk
from cdcflow.capture.ports.part_readers import PartReader, PartRows
from cdcflow.errors import CdcflowError, InvariantViolated, SinkUnavailable
from cdcflow.log.files import rowfile
from cdcflow.model.change import reads
from cdcflow.model.position import Position

PIECE_BYTES = 1 << 20
"""A file is sent and received in pieces of this size."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a reader gets in order to connect to the capture, and to read. It contains secrets, and is sent with a
    function.

    `probe` is a file in the log's folder that contains `probe_text`: a reader that can read it can write there; others
    send their files.
    """

    address: tuple[str, int]
    secret: bytes = field(repr=False)
    probe: Path
    probe_text: str
    open_reader: Callable[[], PartReader] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Hello:
    """The message with which a reader introduces itself. It replaces an earlier reader with the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class Read:
    id: int
    chunk: Chunk
    part: Any


@dataclass(frozen=True, slots=True)
class Write:
    """The request to write the rows that request `read` has read."""

    id: int
    read: int
    path: Path
    first_offset: int
    transaction: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the request with this id: `result` or `error`. The result of a read has the dialect's information,
    rows, bytes and seconds. `follows`: this many bytes of a file follow the answer."""

    id: int
    result: Any = None
    error: Exception | None = None
    follows: int = 0


class RequestReader:
    """Answers requests. `held` has the rows by the request that read them, each with its window. `sees_log`: files are
    written to the requested path; otherwise `file` is the file that follows the last answer."""

    def __init__(self, source: PartReader, *, sees_log: bool = True) -> None:
        self._source = source
        self._sees_log = sees_log
        self.held: dict[int, tuple[tuple[str, int], PartRows]] = {}
        self.file = memoryview(b"")

    def answer(self, request: Read | Write) -> Answer:
        try:
            match request:
                case Read():
                    return Answer(request.id, self._read(request))
                case Write():
                    return self._write(request)
        except CdcflowError as error:
            return Answer(request.id, error=error)
        except OSError as error:
            text = f"writing rows on an executor: {error.strerror or type(error).__name__}"
            return Answer(request.id, error=SinkUnavailable(text))
        except Exception as error:  # noqa: BLE001  the capture raises it; its text may contain values
            told = error if not error.args else InvariantViolated(f"reading on an executor: {type(error).__name__}")
            return Answer(request.id, error=told)

    def _read(self, request: Read) -> tuple[Any, int, int, float]:
        window = window_of(request.chunk)
        self.held = {number: kept for number, kept in self.held.items() if _is_near(kept[0], window)}
        found = self._source.read_part(request.chunk, request.part)
        self.held[request.id] = window, found
        rows, size = sum(b.num_rows for b in found.batches), sum(b.nbytes for b in found.batches)
        return found.told, rows, size, found.seconds

    def _write(self, request: Write) -> Answer:
        if request.read not in self.held:
            raise SinkUnavailable("writing rows on an executor: it no longer has them")
        _, found = self.held.pop(request.read)
        run = reads(found.table, found.batches, Position(""), request.commit_ts)
        target: HeldRowsFile | io.BytesIO = HeldRowsFile(request.path) if self._sees_log else _Memory()
        numbers = {"first_offset": request.first_offset, "transaction": request.transaction}
        told = asdict(rowfile.write(run, found.table, request.path.name, target, **numbers))
        entry = {name: value for name, value in told.items() if name not in ("table", "version")}
        if isinstance(target, HeldRowsFile):
            return Answer(request.id, entry)
        self.file = target.getbuffer()
        return Answer(request.id, entry, follows=len(self.file))

    def pieces(self) -> Iterator[memoryview]:
        """Yield the file in pieces, once."""
        file, self.file = self.file, memoryview(b"")
        for begin in range(0, len(file), PIECE_BYTES):
            yield file[begin : begin + PIECE_BYTES]


class HeldRowsFile:
    """A new file that is durable when it is closed. The caller makes its name durable."""

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640), "wb")

    def write(self, content: bytes | memoryview, /) -> int:
        return self._file.write(content)

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


class _Memory(io.BytesIO):
    """A file in memory that can be read after its writer has closed it."""

    def close(self) -> None:
        """Do nothing: the content is still needed."""


def bare(connection: Connection[Any, Any]) -> socket.socket:
    """Return the socket of a connection; closing it does not close the connection."""
    return socket.socket(fileno=os.dup(connection.fileno()))


def window_of(chunk: Chunk) -> tuple[str, int]:
    """Return epoch and number of the window that a chunk belongs to, from its low mark."""
    epoch, number, _ = chunk.low.text.split("/")
    return epoch, int(number)


def _is_near(held: tuple[str, int], now: tuple[str, int]) -> bool:
    return held[0] == now[0] and held[1] >= now[1] - 1


def serve(number: int, invitation: Invitation) -> None:
    """Serve requests of the capture that sent the invitation, until it closes the connection."""
    try:
        sees = invitation.probe.read_text() == invitation.probe_text
    except OSError:
        sees = False
    with Client(invitation.address, authkey=invitation.secret) as connection:
        connection.send(Hello(number))
        _answer_all(connection, invitation, sees_log=sees)


def _answer_all(connection: Connection[Any, Any], invitation: Invitation, *, sees_log: bool) -> None:
    source = invitation.open_reader()
    reader = RequestReader(source, sees_log=sees_log)
    try:
        while True:
            connection.send(reader.answer(connection.recv()))
            # Not as messages: those are copied twice, and this exists to save the capture's CPU.
            with bare(connection) as stream:
                for piece in reader.pieces():
                    stream.sendall(piece)
    except (EOFError, ConnectionError):
        return
    finally:
        source.close()
