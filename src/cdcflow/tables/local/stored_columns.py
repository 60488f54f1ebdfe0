"""Arrays computed from a column of a data file, stored in the table's folder for later processes.

    orders/part-….parquet ──▶ orders/_cdcflow_columns/….arrow    the column decoded, or an index of its values

A stored file is only a shorter way to what the data file contains. It begins with a description: which data file it
belongs to (path, size, time of its last change), which column, and what was computed. It ends with its size and a sum
of its content. If any of this differs, the stored file is ignored, and replaced. It gets its name after it was synced,
so a process that is killed leaves at most a file that nothing reads.

Readers of Delta and Iceberg ignore folders whose names begin with an underscore. In an object store nothing is stored.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import structlog

from cdcflow.tables.durable import sync_folder
from cdcflow.tables.local.mapped_memory import MappedMemory

FOLDER = "_cdcflow_columns"
"""The folder in a table's folder."""

FORMAT = 1
"""The version of these files. Files of other versions are ignored."""

ABANDONED_S = 86_400.0
"""The age, in seconds, at which an unfinished file counts as abandoned."""

_ABOUT = b"cdcflow"
_SUFFIX, _UNFINISHED = ".arrow", ".tmp"
_MAGIC = 0x6364_6366_6C6F_7731
_END_WORDS = 3
"""A file ends with this many whole numbers: `_MAGIC`, the bytes before them, and the sum of these."""
_WORD = 8
_SUMMED_AT_ONCE = 1 << 17

Words = np.ndarray[Any, np.dtype[np.uint64]]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class StoredPlace:
    """Where an array of a data file is stored, and what describes it.

    `folder`: the table's own; `data`: the path of the data file; `content`: identifies the values of the column; `what`
    was computed from them.
    """

    folder: Path
    data: Path
    content: Hashable
    what: str

    @property
    def path(self) -> Path:
        name = hashlib.sha256(json.dumps([self.content, self.what]).encode()).hexdigest()[:32]
        return self.folder / FOLDER / f"{name}{_SUFFIX}"

    def about(self) -> bytes:
        """Return the description of a file that belongs here.

        Raises:
            FileNotFoundError: the data file does not exist.
        """
        now = self.data.stat()
        found = {"format": FORMAT, "data": str(self.data), "bytes": now.st_size, "modified_ns": now.st_mtime_ns}
        return json.dumps({**found, "content": self.content, "what": self.what}, sort_keys=True).encode()


@dataclass(frozen=True, slots=True)
class MappedArrays:
    """Arrays in a file that is mapped into memory. `notes`: whole numbers that were stored with them."""

    memory: MappedMemory
    parts: tuple[pa.Array, ...]
    notes: tuple[int, ...] = ()


Parts = Callable[[], tuple[pa.DataType, Iterable[pa.Array], tuple[int, ...]]]
"""A function that computes what is stored: the type of the arrays, the arrays, and notes."""


def open_or_store(place: StoredPlace | None, compute: Parts) -> MappedArrays:
    """Return stored arrays, or compute and store them. `place`: `None` if nothing can be stored; then
    they are in a temporary file without a name, which ends with this process."""
    if place is None:
        return _in_temporary_file(compute)
    found = _open(place)
    if found is not None:
        return found
    try:
        about = place.about()
        _store(place, about, compute)
        found = _open(place)
    except OSError as error:
        # A full disk, or a folder that may not be written. Nothing depends on the file.
        _log.warning("column not stored for later merges", reason=type(error).__name__, errno=error.errno)
    return found or _in_temporary_file(compute)


def drop_stored(folder: Path, needed: Collection[Path]) -> None:
    """Remove the stored files whose data file is not among `needed`, and abandoned ones. `folder`: the table's."""
    kept = set(map(str, needed))
    for path in _files_in(folder / FOLDER):
        with suppress(OSError):  # another process has removed it
            if path.suffix == _UNFINISHED:
                if path.stat().st_mtime < time.time() - ABANDONED_S:
                    path.unlink()
            elif path.suffix == _SUFFIX and _data_of(path) not in kept:
                path.unlink()


def _files_in(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _data_of(path: Path) -> str:
    """Return the path of the data file that a stored file belongs to; "" if that is unreadable."""
    try:
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            return str(json.loads(stream.schema.metadata[_ABOUT])["data"])
    except (OSError, KeyError, TypeError, ValueError):  # also Arrow's
        return ""


# ── read ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _open(place: StoredPlace) -> MappedArrays | None:
    try:
        about = place.about()
        with place.path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # missing, unreadable, or empty
        return None
    return _read(memory, about) if _is_whole(memory) else None


def _is_whole(memory: mmap.mmap) -> bool:
    """Return whether a file has the size and the content that it ends with."""
    if len(memory) % _WORD or len(memory) <= _WORD * _END_WORDS:
        return False
    words = np.frombuffer(memory, np.uint64)
    magic, size, total = (int(word) for word in words[-_END_WORDS:])
    held = words[:-_END_WORDS]
    parts = (held[first : first + _SUMMED_AT_ONCE] for first in range(0, len(held), _SUMMED_AT_ONCE))
    return magic == _MAGIC and size == held.nbytes and total == _sum_of(parts)


def _sum_of(parts: Iterable[Words]) -> int:
    """Return a sum of all words, which depends on the order of the parts. It costs what reading them costs."""
    total = 0
    for words in parts:
        total = (total * 31 + int(np.add.reduce(words, dtype=np.uint64))) % (1 << 64)
    return total


def _read(memory: mmap.mmap, about: bytes) -> MappedArrays | None:
    try:
        with pa.ipc.open_stream(pa.py_buffer(memory)) as stream:
            held = stream.schema.metadata or {}
            if about and held.get(_ABOUT) != about:
                return None
            batches = stream.read_all().to_batches()
            notes = tuple(int(note) for note in json.loads(held[b"notes"]))
    except (OSError, KeyError, ValueError):  # also Arrow's
        return None
    return MappedArrays(MappedMemory(memory), tuple(batch.column(0) for batch in batches), notes)


# ── write ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _in_temporary_file(compute: Parts) -> MappedArrays:
    with tempfile.TemporaryFile(prefix="cdcflow-column-") as file:
        _write(file, b"", compute)
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found = _read(memory, b"")
    assert found is not None  # noqa: S101  it was just written
    return found


def _store(place: StoredPlace, about: bytes, compute: Parts) -> None:
    """Write a stored file, and make it durable before it gets its name.

    Raises:
        OSError: it cannot be written; no file is left.
    """
    place.path.parent.mkdir(exist_ok=True)
    unfinished = place.path.with_name(f"{uuid4()}{_UNFINISHED}")
    try:
        with unfinished.open("w+b") as file:
            _write(file, about, compute)
            os.fsync(file.fileno())
        os.replace(unfinished, place.path)
        sync_folder(place.path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def _write(file: IO[bytes], about: bytes, compute: Parts) -> None:
    type_, parts, notes = compute()
    metadata = {_ABOUT: about, b"notes": json.dumps(notes).encode()}
    schema = pa.schema([pa.field("values", type_)], metadata)
    with pa.ipc.new_stream(file, schema) as stream:
        for part in parts:
            stream.write_batch(pa.record_batch([part], schema=schema))
    file.flush()
    size = file.tell()
    if about:
        file.seek(0)
        total = _sum_of(_words(file))
        file.seek(size)
        file.write(np.array([_MAGIC, size, total], np.uint64).tobytes())
        file.flush()


def _words(file: IO[bytes]) -> Iterator[Words]:
    while part := file.read(_WORD * _SUMMED_AT_ONCE):
        yield np.frombuffer(part, np.uint64)
