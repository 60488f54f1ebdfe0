"""Compares a target with the log, table by table: the rows that it has, and those that the log has at its place.

    target.read(table)   ──▶ place, rows (one snapshot)
    log at the place     ──▶ rows               both in the log's types ──▶ which rows only one of them has

The place of a table is the offset up to which its rows are. So both sides are compared at the same point, however far
the log is in the meantime, and neither the source nor a stopped delivery is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable, SourceUnavailable
from cdcflow.log.query.log import ChangeLog
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.selection import Selection
from cdcflow.targets.delivery import TablePlace
from cdcflow.targets.port import ReadableTarget, TargetRows, TargetTables

Verdict = Literal["equal", "equal but for", "different", "not compared"]
CountDifferences = Callable[[pa.Table, pa.Table], tuple[int, int]]
"""How many rows only the first table has, and how many only the second; both have the same columns."""
_REMEDY = "remove the table and its place from the target: the next delivery applies all of its rows"


@dataclass(frozen=True, slots=True)
class TargetComparison:
    """The comparison of one table of a target with the log at `offset` (0: not known).

    `lacks`: how many rows of the log the target lacks, or has with other values; `more`: how many rows of the target
    the log lacks, or has with other values. `not_compared`: columns whose values the target returns in another type,
    or not at all.
    """

    target: str
    table: str
    verdict: Verdict
    offset: int = 0
    rows: int = 0
    lacks: int = 0
    more: int = 0
    not_compared: tuple[str, ...] = ()
    reason: str = ""
    remedy: str = ""

    @property
    def is_clean(self) -> bool:
        return self.verdict == "equal"

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "not_compared": list(self.not_compared)}


class ComparedTarget:
    """A target to compare. `count` counts differences."""

    def __init__(
        self,
        name: str,
        log: ChangeLog,
        log_id: str,
        target: TargetTables,
        selection: Selection,
        count: CountDifferences,
    ) -> None:
        self._name = name
        self._log = log
        self._log_id = log_id
        self._target = target
        self._selection = selection
        self._count = count

    def tables(self) -> list[TableId]:
        """Return the tables that the target should have, or has."""
        self._log.now()
        return [table for table in sorted(self._log.rows.shapes()) if self._selection.selects(table)]

    def compare(self, table: TableId) -> TargetComparison:
        """Compare one table.

        Raises:
            SinkUnavailable: the target or the log does not answer.
        """
        if not isinstance(self._target, ReadableTarget):
            return self._not_compared(table, "its kind cannot be read", "compare it by its own means")
        try:
            return self._compare(self._target, table)
        except (SinkUnavailable, SourceUnavailable):
            raise
        except CdcflowError as error:
            return self._not_compared(table, str(error).split("\n")[0], error.remedy or "")

    def _not_compared(self, table: TableId, reason: str, remedy: str, offset: int = 0) -> TargetComparison:
        return TargetComparison(self._name, str(table), "not compared", offset, reason=reason, remedy=remedy)

    def _compare(self, target: ReadableTarget, table: TableId) -> TargetComparison:
        stored = target.places().get(table)
        if stored is None:
            return self._not_compared(table, "the target does not have it yet", "deliver it first")
        self._log.now()
        shape = self._log.known.shapes(table, TablePlace.of(stored).offset)[1]
        found = self._read(target, shape)
        place = TablePlace.of(found.place)
        if place.log != self._log_id:
            return self._not_compared(table, "the target has it from another log", "compare it with that log")
        self._log.now()  # the target may have got further
        if place.offset < self._log.known.first_offset - 1:
            expired = "the log's rows at its place have expired"
            return self._not_compared(table, expired, "compare it after the next delivery", place.offset)
        if self._log.known.shapes(table, place.offset)[1] != shape:
            changed = "its columns changed while it was read"
            return self._not_compared(table, changed, "compare it again", place.offset)
        _, expected = self._log.fold_table(str(table), place.offset)
        return self._verdict(table, place.offset, expected.select(shape.row_schema.names), found)

    def _read(self, target: ReadableTarget, shape: Table) -> TargetRows:
        try:
            return target.read(shape)
        except CdcflowError:
            raise
        except Exception as error:  # noqa: BLE001  a plug-in's; its text may hold a row's values
            raise ConfigurationError(
                f"reading it raised {type(error).__name__}",
                remedy="report this to the authors of its package",
                runbook="target-stopped",
            ) from None

    def _verdict(self, table: TableId, offset: int, expected: pa.Table, found: TargetRows) -> TargetComparison:
        columns = {field.name: ColumnInType.of(found.rows, field) for field in expected.schema}
        same = {name: column for name, column in columns.items() if column is not None}
        missing = tuple(name for name in columns if name not in same)
        lacks, more = self._differences(expected, same)
        count = found.rows.num_rows
        if lacks or more or count != expected.num_rows:
            unfit = ", ".join(name for name, column in same.items() if column.unfit is not None)
            reason = f"values of {unfit} do not fit the log's type" if unfit else ""
            return TargetComparison(
                self._name, str(table), "different", offset, count, lacks, more, missing, reason, _REMEDY
            )
        verdict: Verdict = "equal but for" if missing else "equal"
        return TargetComparison(self._name, str(table), verdict, offset, count, not_compared=missing)

    def _differences(self, expected: pa.Table, found: Mapping[str, ColumnInType]) -> tuple[int, int]:
        if not found:
            return 0, 0
        has = pa.table({name: column.values for name, column in found.items()})
        expected = expected.select(has.column_names)
        masks = [column.unfit for column in found.values() if column.unfit is not None]
        if masks:  # the log has no such row
            expected = expected.append_column(_UNFIT, pa.array(np.zeros(expected.num_rows, bool)))
            has = has.append_column(_UNFIT, pa.array(np.logical_or.reduce(masks)))
        return self._count(expected, has)


_UNFIT = "\0unfit"
"""The name of a column that no table has: whether a value of the row does not fit the log's type."""
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ColumnInType:
    """A target's column in the log's type. `unfit`: in which rows the value does not fit it; it is NULL there."""

    values: pa.ChunkedArray
    unfit: Bools | None = None

    @classmethod
    def of(cls, rows: pa.Table, field: pa.Field) -> ColumnInType | None:
        """Return a target's column in the log's type. None if the target does not return the column, or if no cast
        leads from its type to the log's."""
        if field.name not in rows.column_names:
            return None
        column = rows.column(field.name)
        try:
            return cls(column.cast(field.type))
        except pa.ArrowNotImplementedError:  # Arrow has no cast between these types
            return None
        except pa.ArrowInvalid:
            fits = _which_fit(column, field.type)
        kept = column.take(pa.array(np.arange(len(column)), mask=~fits))
        return cls(kept.cast(field.type), ~fits)


def _which_fit(values: pa.ChunkedArray, arrow: pa.DataType) -> Bools:
    """Return which values can be cast. Halves that contain a value which cannot be cast are split further."""
    try:
        values.cast(arrow)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return np.zeros(1, np.bool_)
        half = len(values) // 2
        return np.concatenate([_which_fit(values.slice(0, half), arrow), _which_fit(values.slice(half), arrow)])
    return np.ones(len(values), np.bool_)
