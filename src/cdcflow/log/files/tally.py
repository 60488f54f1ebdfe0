"""Count a manifest's figures about a file's rows while they are written."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.log.files.parquet import PLAIN_ORDER, Parquet
from cdcflow.log.format.keyruns import KeyRuns
from cdcflow.log.format.rows import NO_BEFORE, NO_UNCHANGED, ShapeEntry
from cdcflow.log.format.segment import SegmentFile
from cdcflow.model.change import DELETE, INSERT, READ
from cdcflow.model.table import BEFORE, OFFSET, OP, UNCHANGED


@dataclass(slots=True)
class ShapeTally:
    """The manifest's figures about one shape's rows."""

    shape: ShapeEntry
    first_offset: int = 0
    last_offset: int = 0
    ops: dict[str, int] = field(default_factory=dict)
    partial: int = 0
    moved: int = 0
    key_min: pa.Scalar | None = None
    key_max: pa.Scalar | None = None
    key_runs: KeyRuns = field(default_factory=KeyRuns)

    def add(self, batch: pa.RecordBatch, left_out: int) -> None:
        """Count rows of the log; `left_out` is the set of their columns that were not stored (see `rows`)."""
        offsets = batch.column(OFFSET)
        self.first_offset = self.first_offset or offsets[0].as_py()
        self.last_offset = offsets[-1].as_py()
        for entry in pc.value_counts(batch.column(OP)).to_pylist():  # at most one entry per op
            self.ops[entry["values"]] = self.ops.get(entry["values"], 0) + entry["counts"]
        if not left_out & NO_UNCHANGED:
            self.partial += _count(batch, UNCHANGED, pc.not_equal(batch.column(OP), DELETE))
        if not left_out & NO_BEFORE:
            self.moved += _count(batch, BEFORE, pc.equal(batch.column(OP), INSERT))
        self._bound_key(batch)
        self._run_key(batch)

    def file(self, parquet: Parquet) -> SegmentFile:
        """Close the file that has these rows, and return its entry in the manifest."""
        return self.entry(parquet.name, *parquet.close())

    def entry(self, name: str, size: int, sha256: str) -> SegmentFile:
        """Return the manifest's entry for a file of this name, size and content."""
        return SegmentFile(
            name,
            sum(self.ops.values()),
            size,
            sha256,
            self.shape.table.to_json(),
            self.shape.version,
            self.first_offset,
            self.last_offset,
            _text(self.key_min),
            _text(self.key_max),
            dict(sorted(self.ops.items())),
            self.partial,
            self.moved,
            self.key_runs.text(),
        )

    def _run_key(self, batch: pa.RecordBatch) -> None:
        key = self.shape.table.key[:1]
        if key and self.ops.keys() <= {INSERT, READ}:
            self.key_runs.add(batch.column(key[0]))
        else:  # a merge has to reduce it in any case
            self.key_runs.give_up()

    def _bound_key(self, batch: pa.RecordBatch) -> None:
        key = self.shape.table.key[:1]
        if not key or not any(plain(batch.schema.field(key[0]).type) for plain in PLAIN_ORDER):
            return
        found = pc.min_max(batch.column(key[0]))
        if found["min"].is_valid:
            # Not `min_element_wise`: Arrow does not implement it for times with a zone.
            ends = pa.array([self.key_min, self.key_max, found["min"], found["max"]], found["min"].type)
            found = pc.min_max(ends)
            self.key_min, self.key_max = found["min"], found["max"]


def _count(batch: pa.RecordBatch, column: str, where: pa.Array) -> int:
    """Return how many of the rows of `where` have a value in `column`."""
    values = batch.column(column)
    if values.null_count == len(values):
        return 0
    return int(pc.sum(pc.and_(pc.is_valid(values), where)).as_py() or 0)


def _text(scalar: pa.Scalar | None) -> str | None:
    return None if scalar is None else str(scalar.cast(pa.string()).as_py())
