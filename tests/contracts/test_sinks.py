"""The sinks of this repository pass the public suite for sinks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdcflow.changelog.reader import check, read_rows
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import OFFSET, TableId
from cdcflow.sinks.files import FileLog
from cdcflow.sinks.memory import Memory, MemoryLog
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
        log._lease.release()

    def rows(self) -> list[tuple[TableId, Row]]:
        if self._seal_at_once and self.opened[-1].roll():
            self.opened[-1].seal_pending()
        found = [(table.id, row) for table, _, rows in read_rows(self.path) for row in rows.to_pylist()]
        return sorted(found, key=lambda f: int(str(f[1][OFFSET])))


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


class TestFileLog(SinkContract):
    @pytest.fixture(params=["journal", "segments"])
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
        found = FilePlace(tmp_path / "log", seal_at_once=request.param == "segments")
        yield found
        assert check(found.path, deep=True).faults == ()


class TestMemoryLog(SinkContract):
    @pytest.fixture
    def place(self) -> Place:
        return MemoryPlace()
