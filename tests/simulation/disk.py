"""The file log under the model: the same entries and cuts in `sinks.files.log.FileLog`, on a disk that loses what it
may.

A crash builds one of the states that the disk may be in (`testing.disks.Recording`), and the next start recovers it.
Then the model continues at the cut that was found, if the model wrote it and no sync has returned a later one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import UUID

import numpy as np
import pyarrow as pa
from tests.servers.disks import Recording, Tree
from tests.simulation.database import Database
from tests.simulation.executors import held
from tests.simulation.log import Clock, ModelLog, Violation
from tests.simulation.steps import Steps
from tests.simulation.transactions import Plain, Row, Shape

from cdcflow.capture.ports.log import Numbered
from cdcflow.config import Seal
from cdcflow.errors import SinkUnavailable
from cdcflow.log.files.layout import LogFile
from cdcflow.log.read.reader import read_rows
from cdcflow.model.change import ChangeBatch, HeldRun, KeySet, Run, Uint64s
from cdcflow.model.position import Checkpoint, Offset, SourceIdentity
from cdcflow.model.table import BEFORE, OFFSET, OP, UNCHANGED, Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sinks.files.log import FileLog

IDENTITY = SourceIdentity("model", "1", "public")
BIGINT = ColumnType("bigint", pa.int64())
EXECUTORS_EVERY = 80
"""One of this many seeds has its chunks read by executors."""
SEAL_SETTINGS = Seal(bytes_max=8_000, age_max=10.0)


class DiskLog(ModelLog):
    """A `ModelLog` with a `FileLog` under it, which has to be at one with it."""

    def __init__(self, database: Database, clock: Clock, root: Path, seed: int) -> None:
        super().__init__(database, clock)
        self._root = root
        self._chance = Random(f"disk {seed}")
        self._by_executors = seed % EXECUTORS_EVERY == 0
        self._fates = Random(f"executors {seed}")
        self._crashes = 0
        # The file that creates a log already exists: its id must be the same when the seed is played again.
        made = LogFile(str(UUID(int=seed)), IDENTITY, "2026-01-01T00:00:00+00:00").to_json().encode()
        self._begin_disk(Tree({2: made}, {0: {"log": 1}, 1: {"log.json": 2}}))
        self._file: FileLog | None = None
        self._unsaid: int | None = None

    @property
    def file(self) -> FileLog:
        assert self._file is not None
        return self._file

    def _begin_disk(self, tree: Tree) -> None:
        place = self._root / str(self._crashes)
        place.mkdir()
        self._disk = Recording.from_tree(place, tree)

    # ── starts and ends ─────────────────────────────────────────────────────────────────────────────────────

    def open(self, steps: Steps) -> None:
        super().open(steps)
        self._file = FileLog.open(self._disk.root / "log", IDENTITY, SEAL_SETTINGS, layer=self._disk)
        self._file.file_bytes_min = 1  # each chunk in a separate file
        self.epoch = self._file.epoch
        found = self._index(self._file.checkpoint)
        if found is None or found < self.durable:
            cut = self._file.checkpoint.cut
            raise Violation(f"I6: cut {self.cuts[self.durable].checkpoint.cut} was durable, recovery found {cut}")
        del self.cuts[found + 1 :]
        self.durable = found
        self._drop()
        self._compare()
        self._unsaid = None

    def close(self) -> None:
        if self._file is not None:
            with suppress(SinkUnavailable):  # an executor died at the end
                self._file.close()
            if self._file._dead is not None:
                return  # what of it counts, the next start finds out
        super().close()

    def crash(self, rng: Random) -> None:
        """The power fails: now, or in the middle of a sync that has not been reported yet."""
        count = len(self._disk.operations)
        if self._unsaid is not None and self._chance.random() < 0.7:
            count = self._chance.randint(self._unsaid, count)
            self.counts["crashes inside of a sync"] += 1
        tree = self._disk.after(count, self._chance)
        self.file._dead = SinkUnavailable("the power is gone")
        self.file.close()
        self._crashes += 1
        self._begin_disk(tree)

    def _index(self, checkpoint: Checkpoint) -> int | None:
        text = checkpoint.to_json()
        return next((i for i, cut in enumerate(self.cuts) if cut.checkpoint.to_json() == text), None)

    def _compare(self) -> None:
        """The rows that the file log shows are those that were appended."""
        found: dict[int, object] = {}
        for table, _, rows in read_rows(self._disk.root / "log"):
            names = [n for n in rows.column_names if n in (OP, UNCHANGED, BEFORE) or not n.startswith("_")]
            for offset, row in zip(rows.column(OFFSET).to_pylist(), rows.select(names).to_pylist(), strict=True):
                found[offset] = (str(table.id), row)
        expected = {
            entry.first_offset + number: (str(row.table), _as_logged(row))
            for entry in self.entries
            for number, row in enumerate(_rows_of(entry.run))
        }
        if found != expected:
            wrong = sorted(o for o in found.keys() | expected.keys() if found.get(o) != expected.get(o))
            raise Violation(f"I8: the file log differs from what was appended at offsets {wrong[:5]}")

    # ── Log ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def checkpoint(self) -> Checkpoint:
        return self.file.checkpoint

    def append(self, numbered: Numbered) -> None:
        super().append(numbered)
        assert isinstance(numbered.run, Plain)
        run: Run | HeldRun = in_columns(numbered.run)
        if self._by_executors and isinstance(run, Run):
            run = held(run, self._disk, self._fates, self.counts)
        self.file.append(Numbered(run, numbered.first_offset, numbered.first_transaction, numbered.commit_clock))
        if self._chance.random() < 0.5:
            self.file._write()  # as it does by itself when much is waiting

    def cut(self, checkpoint: Checkpoint) -> None:
        super().cut(checkpoint)
        self.file.cut(checkpoint)

    def _synced(self) -> Iterator[Checkpoint | None]:
        yield None
        self._unsaid = len(self._disk.operations) if self._unsaid is None else self._unsaid
        checkpoint = self.file.sync()
        self._clock.now_s += self._clock.sync_s
        yield None
        self._unsaid = None
        self.durable = max(self.durable, self._index(checkpoint) or 0)
        yield checkpoint

    def delivered(self, xids: Uint64s) -> Uint64s:
        found = self.file.delivered(xids)
        if not np.array_equal(found, super().delivered(xids)):
            raise Violation("I8: the file log knows other delivered ids than were appended")
        return found

    def partial_keys(self, table: TableId, since: Offset) -> KeySet | None:
        keys, found = super().partial_keys(table, since), self.file.partial_keys(table, since)
        if set(getattr(keys, "plain", ())) != set(found.keys.column("id").to_pylist() if found else ()):
            raise Violation(f"I8: the file log knows other keys of partial rows of {table} than were appended")
        return keys

    def seal_due(self, now_s: float) -> bool:
        return self.file.seal_due(now_s)

    def roll(self) -> bool:
        self.counts["rolled"] += 1
        return self.file.roll()

    def seal_pending(self) -> object:
        self._unsaid = len(self._disk.operations) if self._unsaid is None else self._unsaid
        self.counts["sealed"] += 1
        return self.file.seal_pending()


def in_columns(run: Plain) -> Run:
    """The same transactions as the product has them."""
    placed: dict[Table, list[tuple[int, Row]]] = {}
    for number, row in enumerate(_rows_of(run)):
        placed.setdefault(table_of(row.table, row.shape), []).append((number, row))
    batches = tuple(
        ChangeBatch(
            table,
            np.array([number for number, _ in rows], np.int64),
            pa.RecordBatch.from_pylist([_as_logged(row) for _, row in rows], schema=table.change_schema),
        )
        for table, rows in placed.items()
    )
    ends = np.cumsum([len(t.rows) for t in run.items]).astype(np.int64)
    places = pa.array([f"{t.lsn:08d}" for t in run.items], pa.string())
    return Run(run.xids, places, run.commit_ts, ends, batches, run.kind)


def table_of(table: TableId, shape: Shape) -> Table:
    columns = tuple(Column(name, number, BIGINT) for number, name in enumerate(shape.columns, 1))
    return Table(table, shape.incarnation, columns, ("id",) if "id" in shape.columns else ())


def _rows_of(run: Plain) -> Sequence[Row]:
    return [row for t in run.items for row in t.rows]


def _as_logged(row: Row) -> dict[str, object]:
    """A row's columns in the log, and what cdcflow adds to them."""
    values = {name: row.values.get(name) for name in row.shape.columns}
    unchanged = [name for name in row.shape.columns if name in row.unchanged] or None
    return {**values, OP: row.op, UNCHANGED: unchanged, BEFORE: row.before}
