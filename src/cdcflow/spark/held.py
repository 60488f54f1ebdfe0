"""What a process does that reads parts of chunks for another one: it reads, keeps the rows, writes them once they have
their offsets.

    capture ──Read────▶ reader      in a snapshot of its own; the rows stay here
            ◀──Answer──             what the dialect tells of them, how many they are
            ──Write───▶             the first offset, and a place
            ◀──Answer──             what a manifest says of the file, which is durable by then where the reader sees
                                    that place; else the file follows, and whoever asked makes it durable

One request at a time. Rows that nobody wants written go when the window after the next is read: what was read in a
window is written, if it ever is, before that one opens.
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

from cdcflow.changelog import rowfile
from cdcflow.errors import CdcflowError, InvariantViolated, SinkUnavailable
from cdcflow.interleave.messages import Chunk
from cdcflow.model.change import reads
from cdcflow.model.position import Position
from cdcflow.ports.readers import PartReader, PartRows

PIECE_BYTES = 1 << 20
"""A file is sent and received in pieces of this size."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """Where a reader finds who asks it, and how it reads. It has secrets in it, and is sent with a function.

    `probe` is a file in the log's folder with `probe_text`: who sees it can write where the log lies; others send what
    they would write.
    """

    address: tuple[str, int]
    secret: bytes = field(repr=False)
    probe: Path
    probe_text: str
    open_reader: Callable[[], PartReader] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Hello:
    """A reader introduces itself. A number that comes again takes the place of the one before."""

    number: int


@dataclass(frozen=True, slots=True)
class Read:
    id: int
    chunk: Chunk
    part: Any


@dataclass(frozen=True, slots=True)
class Write:
    """Write what was read by request `read`."""

    id: int
    read: int
    path: Path
    first_offset: int
    transaction: int
    commit_ts: int


@dataclass(frozen=True, slots=True)
class Answer:
    """To the request with this id: `result` or `error`. Of a read: what the dialect tells, rows, bytes, seconds.
    `follows`: so many bytes of a file come behind it."""

    id: int
    result: Any = None
    error: Exception | None = None
    follows: int = 0


class Reader:
    """Answers requests; `held` are the rows by the request that read them, each with its window. `sees_log`: files are
    written to where they are asked for; else `file` is the one that the last answer speaks of."""

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
        except Exception as error:  # noqa: BLE001  whoever asked raises it; its text may hold values
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
            raise SinkUnavailable("writing rows on an executor: it does not have them any more")
        _, found = self.held.pop(request.read)
        run = reads(found.table, found.batches, Position(""), request.commit_ts)
        target: DurableFile | io.BytesIO = DurableFile(request.path) if self._sees_log else _Memory()
        numbers = {"first_offset": request.first_offset, "transaction": request.transaction}
        told = asdict(rowfile.write(run, found.table, request.path.name, target, **numbers))
        entry = {name: value for name, value in told.items() if name not in ("table", "version")}
        if isinstance(target, DurableFile):
            return Answer(request.id, entry)
        self.file = target.getbuffer()
        return Answer(request.id, entry, follows=len(self.file))

    def pieces(self) -> Iterator[memoryview]:
        """The file, once."""
        file, self.file = self.file, memoryview(b"")
        for begin in range(0, len(file), PIECE_BYTES):
            yield file[begin : begin + PIECE_BYTES]


class DurableFile:
    """A new file, durable when it is closed; its name is whoever's asked for it."""

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
    """A file that is read after whoever wrote it has closed it."""

    def close(self) -> None:
        """Nothing ends yet."""


def bare(connection: Connection[Any, Any]) -> socket.socket:
    """The socket of a connection, which stays open when this is closed."""
    return socket.socket(fileno=os.dup(connection.fileno()))


def window_of(chunk: Chunk) -> tuple[str, int]:
    """Epoch and number of the window that a chunk belongs to, by its low mark."""
    epoch, number, _ = chunk.low.split("/")
    return epoch, int(number)


def _is_near(held: tuple[str, int], now: tuple[str, int]) -> bool:
    return held[0] == now[0] and held[1] >= now[1] - 1


def serve(number: int, invitation: Invitation) -> None:
    """Read for who sent the invitation, until it hangs up."""
    try:
        sees = invitation.probe.read_text() == invitation.probe_text
    except OSError:
        sees = False
    with Client(invitation.address, authkey=invitation.secret) as connection:
        connection.send(Hello(number))
        _answer_all(connection, invitation, sees_log=sees)


def _answer_all(connection: Connection[Any, Any], invitation: Invitation, *, sees_log: bool) -> None:
    source = invitation.open_reader()
    reader = Reader(source, sees_log=sees_log)
    try:
        while True:
            connection.send(reader.answer(connection.recv()))
            # Not as messages: those are copied twice, and the capture's CPU is what this is to spare.
            with bare(connection) as stream:
                for piece in reader.pieces():
                    stream.sendall(piece)
    except (EOFError, ConnectionError):
        return
    finally:
        source.close()


__all__ = ["Answer", "DurableFile", "Hello", "Invitation", "Read", "Reader", "Write", "bare", "serve", "window_of"]
