"""A whole capture of a source into a log in memory, for scenarios whose outcome is a table, not an event.

How a dialect learns of a statement differs: rows are read again, a truncate or another shape arrives, or a check of the
catalog finds it. The end must be the same everywhere: the folded log equals the source.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cdcflow.capture.attempt import LoopIntervals, Orders
from cdcflow.capture.capture import Capture
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.progress import RepairRecord, repairs_of
from cdcflow.capture.requests import Arguments
from cdcflow.model.change import READ
from cdcflow.sinks.memory import Memory, MemoryLog
from cdcflow.testing.folded import Unmergeable, current, read
from cdcflow.testing.sources import reading
from cdcflow.testing.sources.kit import SourceKit

OnEvent = Callable[[str, Mapping[str, object]], None]
Rows = list[tuple[tuple[str, Any], ...]]


class Captured:
    """A log that outlives captures, and its contents for the source's tables.

    `heartbeat_s`: how often a capture calls the source's heartbeat, which may also notice that the server was changed.
    """

    def __init__(self, kit: SourceKit, *, heartbeat_s: float = 0.5) -> None:
        self._kit = kit
        self._heartbeat_s = heartbeat_s
        self._log = Memory()
        self.on_event: OnEvent = lambda event, fields: None
        self.error: BaseException | None = None
        self._capture: Capture | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Capture while the block runs."""
        capture = Capture(
            open_source=self._kit.open_source,
            open_log=lambda identity, accept: MemoryLog(self._log, reading.LOG_ID),
            limits=Limits(),
            orders=Orders(),
            pace=LoopIntervals(heartbeat_s=self._heartbeat_s, tables_look_s=0.2),
            on_event=lambda event, fields: self.on_event(event, fields),
            newest_checkpoint=lambda: self._log.checkpoint,
        )
        self._capture = capture
        thread = threading.Thread(target=self._run, args=(capture,), name="cdcflow-captured")
        thread.start()
        try:
            yield
        finally:
            capture.stop()
            thread.join()
        if self.error is not None:
            raise self.error

    def order(self, op: str, *names: str, **arguments: Any) -> Mapping[str, Any]:
        """Send the running capture a command, and return its answer."""
        assert self._capture is not None
        return self._capture.request(op, [str(self._kit.named(name)) for name in names], Arguments(**arguments))

    def ids_read(self, name: str) -> list[int]:
        """Return the ids of a table's rows that chunks brought into the log, in the log's order."""
        logged, _ = read(self._log)
        return [int(str(change.values["id"])) for _, change in logged[self._kit.named(name)] if change.op == READ]

    def tail(self, name: str, count: int) -> list[tuple[str, int]]:
        """Return op and id of the latest `count` rows of a table in the log."""
        logged, _ = read(self._log)
        return [(change.op, int(str(change.values["id"]))) for _, change in logged[self._kit.named(name)]][-count:]

    def wait_for(self, name: str, op: str, key: int) -> None:
        """Wait until a table's latest row in the log has this op and key."""
        deadline = time.monotonic() + reading.PATIENCE_S
        while self.tail(name, 1) != [(op, key)]:
            assert self.error is None, f"the capture stopped: {self.error}"
            assert time.monotonic() < deadline, f"the log's latest row is {self.tail(name, 1)}"
            time.sleep(0.02)

    def repairs(self) -> list[RepairRecord]:
        """The repairs in the log's latest cut."""
        return repairs_of(self._log.checkpoint.progress)

    def _run(self, capture: Capture) -> None:
        try:
            capture.run()
        except BaseException as error:  # noqa: BLE001  raised again by the test's thread
            self.error = error

    def settle(self, *names: str) -> None:
        """Wait until these tables are the same in the log and in the source, and their backfills are done."""
        wanted = {name: rows_of_source(self._kit, name) for name in names}
        found: dict[str, object] = {}
        deadline = time.monotonic() + reading.PATIENCE_S
        while found != wanted:
            assert self.error is None, f"the capture stopped: {self.error}"
            assert time.monotonic() < deadline, f"the log has {found}, and the source {wanted}"
            time.sleep(0.02)
            found = {name: self._rows(name) for name in names}

    def _rows(self, name: str) -> object:
        logged, progress = read(self._log)
        table = self._kit.named(name)
        known = progress.tables.get(table)
        if known is None or known.state != "done":
            return f"nothing yet: {known.state if known else 'unknown'}"
        if table not in logged:
            return []
        try:
            _, rows = current(logged[table], known)
        except Unmergeable as why:
            try:
                _, rows = current(logged[table], known, since_backfill=True)
            except Unmergeable:
                return f"nothing that fits together yet: {why}"
        return in_order(rows)


def rows_of_source(kit: SourceKit, name: str) -> Rows:
    return in_order(kit.rows(name))


def in_order(rows: Any) -> Rows:
    return sorted((tuple(sorted(row.items())) for row in rows), key=repr)
