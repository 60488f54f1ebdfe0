"""The sinks of this repository pass the public suite for sinks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.kill.abandoned_logs import gone
from tests.support.log.replicated import ReplicatedLog, peers_in_threads
from tests.support.polling import wait_until

from cdcflow.config import Objects
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.reader import check, read_rows
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import OFFSET, TableId
from cdcflow.sinks.files.log import FileLog
from cdcflow.sinks.memory import Memory, MemoryLog
from cdcflow.sinks.objects.store import BucketStore
from cdcflow.sinks.objects.uploads import Uploads
from cdcflow.stores.bucket import Bucket
from cdcflow.testing.sinks import OpenedLog, Place, Row, SinkContract

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")


class FilePlace:
    """A directory. `seal_at_once` rolls and seals after every sync, so that the same promises are seen of segments."""

    def __init__(self, path: Path, *, seal_at_once: bool) -> None:
        self.path = path
        self._seal_at_once = seal_at_once
        self.opened: list[FileLog] = []

    def open(self) -> FileLog:
        for log in self.opened:
            self.crash(log)
        log = FileLog.open(self.path, IDENTITY)
        self.opened.append(log)
        return log

    def crash(self, log: OpenedLog) -> None:
        assert isinstance(log, FileLog)
        gone(log)

    def rows(self) -> list[tuple[TableId, Row]]:
        if self._seal_at_once and self.opened[-1].roll():
            self.opened[-1].seal_pending()
        found = [(table.id, row) for table, _, rows in read_rows(self.path) for row in rows.to_pylist()]
        return sorted(found, key=lambda f: int(str(f[1][OFFSET])))

    def seal(self, log: OpenedLog) -> None:
        assert log.roll()
        log.seal_pending()

    def expire(self, log: OpenedLog) -> None:
        assert isinstance(log, FileLog)
        assert log.expire(before_cut=log.checkpoint.cut)


class MemoryPlace:
    def __init__(self) -> None:
        self._memory = Memory()

    def open(self) -> MemoryLog:
        return MemoryLog(self._memory)

    def crash(self, log: OpenedLog) -> None:
        pass

    def rows(self) -> list[tuple[TableId, Row]]:
        found = [(table.id, row) for table, rows in self._memory.rows() for row in rows.to_pylist()]
        return sorted(found, key=lambda f: int(str(f[1][OFFSET])))

    def seal(self, log: OpenedLog) -> None:
        """Memory forgets everything at once."""

    def expire(self, log: OpenedLog) -> None:
        self._memory.expire()


class ObjectPlace:
    """A directory and a bucket. Every poll seals what exists, uploads it to the bucket, drops it here, and reads it
    from the bucket, so that except for the hot end nothing is left to read in the directory."""

    def __init__(self, path: Path, objects: Objects) -> None:
        self.layout = Layout(path, BucketStore(Bucket(objects), path.parent / "cache", 1 << 20))
        self._objects = objects
        self.opened: list[tuple[FileLog, Uploads]] = []

    def open(self) -> FileLog:
        for log, uploads in self.opened:
            uploads.close()
            self.crash(log)
        uploads = Uploads(Layout(self.layout.root), Bucket(self._objects), keep_local_s=0)
        log = FileLog.open(self.layout, IDENTITY, uploads=uploads)
        self.opened.append((log, uploads))
        return log

    def crash(self, log: OpenedLog) -> None:
        assert isinstance(log, FileLog)
        gone(log)

    def rows(self) -> list[tuple[TableId, Row]]:
        log, uploads = self.opened[-1]
        if log.roll():
            log.seal_pending()
        settled(self.layout, uploads)
        found = [(table.id, row) for table, _, rows in read_rows(self.layout) for row in rows.to_pylist()]
        return sorted(found, key=lambda f: int(str(f[1][OFFSET])))

    def seal(self, log: OpenedLog) -> None:
        assert log.roll()
        log.seal_pending()
        settled(self.layout, self.opened[-1][1])

    def expire(self, log: OpenedLog) -> None:
        assert isinstance(log, FileLog)
        assert log.expire(before_cut=log.checkpoint.cut)


def settled(layout: Layout, uploads: Uploads) -> None:
    """Wait until everything sealed is in the bucket and nowhere else."""

    def all_dropped() -> bool:
        assert uploads.error is None
        if all(len(list(folder.iterdir())) <= 1 for folder in layout.segments.iterdir()):
            return True
        uploads.wake()
        return False

    wait_until(all_dropped, "the files of all segments to be uploaded and dropped")


class TestObjectLog(SinkContract):
    @pytest.fixture
    def place(self, objects: Objects, tmp_path: Path) -> Iterator[Place]:
        found = ObjectPlace(tmp_path / "log", objects)
        yield found
        log, uploads = found.opened[-1]
        if log._is_open:
            log.close()
        settled(found.layout, uploads)
        assert check(found.layout, deep=True).faults == ()
        bucket_alone = Layout(tmp_path / "nothing", BucketStore(Bucket(objects), tmp_path / "other", 1 << 20))
        assert check(bucket_alone, deep=True).faults == ()


class ReplicatedPlace:
    """Peers, and two machines that write the log in turn: each opening is on the other one."""

    def __init__(self, log: ReplicatedLog) -> None:
        self._log = log
        self._machine = "b"

    def open(self) -> FileLog:
        self._log.kill_all()
        self._machine = "a" if self._machine == "b" else "b"
        return self._log.open(self._machine)

    def crash(self, log: OpenedLog) -> None:
        self._log.kill_all()

    def rows(self) -> list[tuple[TableId, Row]]:
        layout = self._log.layout(self._machine)
        found = [(table.id, row) for table, _, rows in read_rows(layout) for row in rows.to_pylist()]
        return sorted(found, key=lambda f: int(str(f[1][OFFSET])))

    def seal(self, log: OpenedLog) -> None:
        assert log.roll()
        log.seal_pending()

    def expire(self, log: OpenedLog) -> None:
        assert isinstance(log, FileLog)
        assert log.expire(before_cut=log.checkpoint.cut)


class TestReplicatedLog(SinkContract):
    @pytest.fixture
    def place(self, objects: Objects, tmp_path: Path) -> Iterator[Place]:
        with peers_in_threads(tmp_path) as peers:
            log = ReplicatedLog(tmp_path, objects, peers)
            found = ReplicatedPlace(log)
            yield found
            log.kill_all()
            assert check(log.layout(found._machine), deep=True).faults == ()


class TestFileLog(SinkContract):
    @pytest.fixture(params=["journal", "segments"])
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
        found = FilePlace(tmp_path / "log", seal_at_once=request.param == "segments")
        yield found
        for log in found.opened:
            gone(log)
        assert check(found.path, deep=True).faults == ()


class TestMemoryLog(SinkContract):
    @pytest.fixture
    def place(self) -> Place:
        return MemoryPlace()
