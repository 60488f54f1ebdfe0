"""A folder of a warehouse in an object store: a prefix of a bucket (see `cdcflow.tables.folders`).

A commit is a conditional write: of two writers that create an object of one name the store accepts one. The store may
create an object although its answer is lost; the object's content then shows which writer created it.

Small files stay in memory, and so do the ends of large ones, which contain their descriptions: they are never changed,
and the next merge of a table reads most of them again.
"""

from __future__ import annotations

import io
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import IO, TypeVar
from uuid import uuid4

import pyarrow as pa

from cdcflow.errors import SinkUnavailable
from cdcflow.stores.bucket import AlreadyThere, Bucket
from cdcflow.stores.ranged_files import RangedFile
from cdcflow.tables.folders import FolderEntry, RandomAccess, Span, WarehouseFolder

_Answer = TypeVar("_Answer")

WHOLE_BYTES = 1 << 20
"""A file up to this size is read whole, and stays in memory."""

END_BYTES = 128 << 10
"""When a larger file is opened, this many bytes at its end are read: they have the file's description, from which the
next reads are planned."""

MEMORY_BYTES = 64 << 20
"""The maximum number of bytes that stay in memory. What was used last stays."""

AT_ONCE = 8
"""How many requests for parts of files run at the same time."""

WAITS_S = (0.1, 0.4)
"""The pauses before a request that failed quickly is sent again. The client itself repeats only requests that the
store cannot have received; the requests here may be sent twice without harm."""

QUICK_S = 2.0
"""A request that took longer than this to fail is not sent again here: the next merge tries it."""

CREATED_TRIES = 5
"""How often a conditional write is tried that a store refuses although the object does not exist, as it may during a
concurrent write."""


class _FileCache:
    """Contents of files that are never changed, keyed by name. May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, name: str) -> bytes | None:
        with self._lock:
            found = self._parts.get(name)
            if found is not None:
                self._parts.move_to_end(name)
            return found

    def add(self, name: str, content: bytes) -> None:
        with self._lock:
            self._bytes += len(content) - len(self._parts.pop(name, b""))
            self._parts[name] = content
            while self._bytes > MEMORY_BYTES:
                self._bytes -= len(self._parts.popitem(last=False)[1])


class _Connection:
    """The connection to a bucket, with the threads and the cache that all of its folders share."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.memory = _FileCache()

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="cdcflow store")

    def close(self) -> None:
        """End the threads; a later request starts new ones."""
        threads = self.__dict__.pop("threads", None)
        if threads is not None:
            threads.shutdown()


class BucketFolder(WarehouseFolder):
    """A prefix of a bucket. `location`: its URL; `prefix`: its name in the bucket's own prefix, "" or ending in `/`."""

    def __init__(self, bucket: Bucket | _Connection, location: str, prefix: str = "") -> None:
        self._connection = bucket if isinstance(bucket, _Connection) else _Connection(bucket)
        self._bucket = self._connection.bucket
        self._prefix = prefix
        self.location = location

    @property
    def path(self) -> Path | None:
        return None

    def folder(self, *names: str) -> BucketFolder:
        inside = "/".join(names)
        return BucketFolder(self._connection, f"{self.location}/{inside}", f"{self._prefix}{inside}/")

    def exists(self) -> bool:
        return _repeat(lambda: next(self._bucket.each_listed(self._prefix), None)) is not None

    def read(self, name: str) -> bytes:
        return _repeat(lambda: self._bucket.get(self._prefix + name))

    def read_kept(self, name: str) -> bytes:
        """Return the content of a small file that is never changed; it stays in memory."""
        key, memory = self._prefix + name, self._connection.memory
        found = memory.get(key)
        if found is None:
            found = self.read(name)
            if len(found) <= WHOLE_BYTES:
                memory.add(key, found)
        return found

    def size_of(self, name: str) -> int:
        """Return a file's bytes."""
        return _repeat(lambda: self._bucket.describe(self._prefix + name)).bytes

    def read_each(self, names: Sequence[str]) -> list[bytes | None]:
        if len(names) < 2:
            return [self._read_existing(name) for name in names]
        return list(self._connection.threads.map(self._read_existing, names))

    def _read_existing(self, name: str) -> bytes | None:
        try:
            return self.read(name)
        except FileNotFoundError:
            return None

    def read_part(self, name: str, start: int, size: int) -> bytes:
        key = self._prefix + name
        held = self._connection.memory.get(key)
        if held is not None:
            return held[start : start + size]
        return _repeat(lambda: self._bucket.get_part(key, start, start + size))

    def open(self, name: str, size: int | None = None) -> RandomAccess:
        key, memory = self._prefix + name, self._connection.memory
        held = memory.get(key)
        if size is None:
            size = _repeat(lambda: self._bucket.describe(key)).bytes
        if held is None:
            held = self.read(name) if size <= WHOLE_BYTES else self._end_of(name, size)
            memory.add(key, held)
        if len(held) == size:
            return RandomAccess(pa.BufferReader(held))
        file = RangedFile(lambda spans: self._parts(key, spans), size, [(size - len(held), held)])
        return RandomAccess(file, file.fetch)

    def _end_of(self, name: str, size: int) -> bytes:
        """Return the end of a file, at least its whole description (footer)."""
        found = self.read_part(name, size - END_BYTES, END_BYTES)
        described = int.from_bytes(found[-8:-4], "little") + 8
        if found[-4:] == b"PAR1" and END_BYTES < described < size:
            found = self.read_part(name, size - described, described - END_BYTES) + found
        return found

    def _parts(self, key: str, spans: Sequence[Span]) -> list[bytes]:
        def part(span: Span) -> bytes:
            return _repeat(lambda: self._bucket.get_part(key, *span))

        return [part(span) for span in spans] if len(spans) < 2 else list(self._connection.threads.map(part, spans))

    def names(self, after: str = "") -> list[str]:
        found = _repeat(lambda: list(self._bucket.each_listed(self._prefix, after)))
        return [name for name, _ in found if "/" not in name]

    def entries(self) -> Iterator[FolderEntry]:
        for name, found in self._bucket.each_listed(self._prefix):
            yield FolderEntry(name, found.bytes, found.modified)

    def modified_at(self, name: str) -> float:
        return _repeat(lambda: self._bucket.describe(self._prefix + name)).modified

    def create(self, name: str, content: bytes) -> None:
        key = self._prefix + name
        for tried in range(CREATED_TRIES):
            lost, began = None, time.monotonic()
            try:
                self._bucket.put_new(key, content)
                return
            except AlreadyThere:
                pass
            except SinkUnavailable as error:
                lost = error  # the store may have done it
            found = self._read_existing(name)
            if found == content:
                return
            if found is not None:
                raise FileExistsError(17, "another process has created it", self.place_of(name))
            if lost is not None and (tried >= len(WAITS_S) or time.monotonic() - began > QUICK_S):
                raise lost
            time.sleep(WAITS_S[min(tried, len(WAITS_S) - 1)] if WAITS_S else 0)
        raise SinkUnavailable(
            f"creating {self.place_of(name)}: the store refuses it and has no object of that name",
            remedy="try again; nothing is lost",
            runbook="store-unreachable",
        )

    def replace(self, name: str, content: bytes) -> None:
        _repeat(lambda: self._bucket.put(self._prefix + name, content))

    def write(self, name: str, fill: Callable[[IO[bytes]], object]) -> int:
        file = io.BytesIO()
        fill(file)
        content = file.getvalue()
        key = self._prefix + name
        _repeat(lambda: self._bucket.upload(key, content))
        if len(content) <= WHOLE_BYTES:
            self._connection.memory.add(key, content)
        return len(content)

    def delete(self, names: Sequence[str]) -> None:
        _repeat(lambda: self._bucket.delete([self._prefix + name for name in names]))

    def close(self) -> None:
        self._connection.close()

    def sync(self) -> None:
        """Do nothing: an object is durable when the store has answered."""

    def is_safe(self) -> bool:
        probe = f"_cdcflow_probe_{uuid4()}"
        key = self._prefix + probe
        with suppress(AlreadyThere):  # this very call has created it, and its answer was lost
            _repeat(lambda: self._bucket.put_new(key, b"1"))
        try:
            _repeat(lambda: self._bucket.put_new(key, b"2"))
            return False
        except AlreadyThere:
            return self.read(probe) == b"1"
        finally:
            self.delete([probe])


def _repeat(request: Callable[[], _Answer]) -> _Answer:
    """Send a request, and send it again if it fails quickly."""
    for wait_s in WAITS_S:
        began = time.monotonic()
        try:
            return request()
        except SinkUnavailable:
            if time.monotonic() - began > QUICK_S:
                raise
        time.sleep(wait_s)
    return request()
