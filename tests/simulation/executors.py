"""Executors of the simulation: they keep a chunk's rows until these have their offsets, and die at the worst times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from cdcflow.errors import SinkUnavailable
from cdcflow.log.disk.layer import DurableFile, FileLayer, write_all
from cdcflow.log.files import rowfile
from cdcflow.model.change import HeldRun, Run, reads
from cdcflow.model.position import Position


@dataclass(frozen=True)
class Kept:
    """Implements `cdcflow.model.change.HeldRows`. What happens to its process is drawn when it is to write."""

    batch: pa.RecordBatch
    run: Run
    layer: FileLayer
    chance: Random
    counts: Counter[str]

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)

    @property
    def bytes(self) -> int:
        return int(self.batch.nbytes)

    def write(self, path: str, first_offset: int, transaction: int, commit_ts: int) -> Callable[[], Mapping[str, Any]]:
        fate = self.chance.choice(["writes"] * 12 + ["dies before", "dies within", "dies behind"])

        place = Path(path)

        def wait() -> Mapping[str, Any]:
            self.counts[f"executor {fate}"] += 1
            if fate == "dies before":
                raise SinkUnavailable("the executor is gone")
            if fate == "dies within":
                fd = self.layer.create(place)
                write_all(self.layer, fd, [b"PAR1 and half of it"])
                self.layer.close(fd)
                raise SinkUnavailable("the executor is gone")
            numbers = {"first_offset": first_offset, "transaction": transaction}
            table = self.run.batches[0].table
            run = reads(table, [self.batch], Position(""), commit_ts)
            told = asdict(rowfile.write(run, table, place.name, DurableFile(self.layer, place), **numbers))
            if fate == "dies behind":
                raise SinkUnavailable("the executor is gone")
            return told

        return wait


def held(run: Run, layer: FileLayer, chance: Random, counts: Counter[str]) -> Run | HeldRun:
    """A chunk's run as executors keep it, in one part or in two; another run unchanged."""
    table = rowfile.table_of(run)
    if table is None or len(run.batches) != 1 or set(run.batches[0].rows.column("_op").to_pylist()) != {"r"}:
        return run
    rows = run.batches[0].rows.select(table.row_schema.names)
    middle = chance.randrange(rows.num_rows)
    parts = [part for part in (rows.slice(0, middle), rows.slice(middle)) if part.num_rows]
    pieces = tuple(Kept(part, run, layer, chance, counts) for part in parts)
    return HeldRun(table, run.last_position, run.last_commit_ts, pieces)
