"""A statement that changes a table's shape, and one that undoes it: its earlier rows differ from its later ones.

Every case is merged after each segment, at once, as one segment, and from within a compacted one. The tables must not
differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import Step, make_table

from cdcflow.model.table import Table
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.merge.policy import Mode, Policies, TablePolicy
from cdcflow.tables.paths import table_path

PLAIN = make_table("orders", id="int64", qty="int32")
NOTED = make_table("orders", id="int64", qty="int32", note="string", missing={"note": "x"})
AGAIN = make_table("orders", id="int64", qty="int32", note="string", numbers={"note": 4}, missing={"note": "y"})
RENAMED = make_table("orders", id="int64", amount="int32")
RETYPED = make_table("orders", id="int64", qty=pa.decimal128(12, 0))


def put(shape: Table, op: str, key: int, **values: Any) -> Step:
    return shape, op, {"id": key, **values}


ADDED: list[list[Step]] = [
    [put(PLAIN, "c", key, qty=key) for key in range(1, 7)],
    [
        put(NOTED, "u", 2, qty=12, note="n"),
        put(NOTED, "d", 3),
        put(NOTED, "c", 7, qty=17, note="m"),
        put(NOTED, "u", 4, qty=14, _unchanged=["note"]),
    ],
    [
        put(PLAIN, "u", 1, qty=21),
        put(PLAIN, "u", 4, qty=24),
        put(PLAIN, "c", 8, qty=28),
        put(PLAIN, "c", 3, qty=23),
        put(PLAIN, "d", 5),
    ],
]
"""A column is added with a default and dropped: row 6 never changes."""
TWICE: list[list[Step]] = [
    *ADDED,
    [put(AGAIN, "u", 8, qty=38, note="k"), put(AGAIN, "c", 9, qty=39, note="j")],
    [put(PLAIN, "c", 10, qty=40), put(PLAIN, "u", 2, qty=42)],
]
"""A second column of its name is added and dropped."""
NOTES: dict[Mode, list[tuple[int, Any]]] = {
    "current": [(1, "x"), (2, "n"), (3, None), (4, "x"), (6, "x"), (7, "m"), (8, None)],
    "soft_delete": [(1, "x"), (2, "n"), (3, None), (4, "x"), (5, "x"), (6, "x"), (7, "m"), (8, None)],
    "history": [
        (1, "x"),
        (1, None),
        (2, "x"),
        (2, "n"),
        (3, "x"),
        (3, None),
        (4, "x"),
        (4, "x"),
        (4, None),
        (5, "x"),
        (6, "x"),
        (7, "m"),
        (8, None),
    ],
}
"""The value of each row, or version, in the column that was added and dropped."""
RENAMES: list[list[Step]] = [
    [put(PLAIN, "c", 1, qty=1), put(PLAIN, "c", 2, qty=2)],
    [put(RENAMED, "u", 1, amount=11)],
    [put(PLAIN, "u", 2, qty=22), put(PLAIN, "c", 3, qty=23)],
]
RENAMES_TWICE: list[list[Step]] = [*RENAMES, [put(RENAMED, "u", 3, amount=33), put(RENAMED, "c", 4, amount=44)]]
"""Both shapes return, and the table has the second one's name."""
RETYPES: list[list[Step]] = [
    [put(PLAIN, "c", 1, qty=1), put(PLAIN, "c", 2, qty=2), put(PLAIN, "c", 4, qty=4)],
    [put(RETYPED, "u", 1, qty=Decimal(11)), put(RETYPED, "c", 3, qty=Decimal(13))],
    [put(PLAIN, "u", 2, qty=22), put(PLAIN, "d", 4)],
]


@dataclass
class Ways:
    """The rows of a table to which this happened, by the way in which it was merged."""

    folder: Path
    merge: Callable[..., MergeReport]
    format_name: str
    policy: TablePolicy

    def each(self, segments: Sequence[Sequence[Step]]) -> list[dict[str, Any]]:
        """A merge after each segment."""
        log, warehouse = self._log("each")
        for rows in segments:
            log.segment(rows)
            self._merge(log, warehouse)
        return self._rows(warehouse)

    def at_once(self, segments: Sequence[Sequence[Step]]) -> list[dict[str, Any]]:
        log, warehouse = self._log(f"at once {len(segments)}")
        for rows in segments:
            log.segment(rows)
        self._merge(log, warehouse)
        return self._rows(warehouse)

    def in_one_segment(self, segments: Sequence[Sequence[Step]]) -> list[dict[str, Any]]:
        return self.at_once([[step for rows in segments for step in rows]])

    def from_within(self, segments: Sequence[Sequence[Step]]) -> list[dict[str, Any]]:
        """The first row is merged alone, the others from a segment that contains it."""
        log, warehouse = self._log("from within")
        steps = [step for rows in segments for step in rows]
        log.segment(steps[:1])
        self._merge(log, warehouse)
        log.segment(steps[1:-1])
        log.segment(steps[-1:])
        log.compact(2)
        self._merge(log, warehouse)
        return self._rows(warehouse)

    def _log(self, name: str) -> tuple[HandLog, Path]:
        log = HandLog(self.folder / name / "log", has_transactions=True)
        log.state(PLAIN)
        return log, self.folder / name / "tables"

    def _merge(self, log: HandLog, warehouse: Path) -> None:
        report = self.merge(log.root, warehouse, policies=Policies(each={str(PLAIN.id): self.policy}))
        assert all(table.left_out is None for table in report.tables), report

    def _rows(self, warehouse: Path) -> list[dict[str, Any]]:
        with closing(LocalEngine(warehouse, self.format_name)) as engine:
            there = engine.table(table_path(PLAIN.id))
            assert there.snapshot() is not None
            found: list[dict[str, Any]] = there.rows().to_pylist()
        return sorted(found, key=lambda row: (row["id"], row.get("_valid_from") or row["_offset"]))


@pytest.fixture
def ways(tmp_path: Path, merge: Callable[..., MergeReport], format_name: str) -> Callable[..., Ways]:
    """ways(mode): of a table in this mode."""

    def of(mode: Mode, **policy: Any) -> Ways:
        return Ways(tmp_path, merge, format_name, TablePolicy(mode=mode, **policy))

    return of


@pytest.mark.spread(1)
@pytest.mark.parametrize("mode", NOTES)
def test_an_existing_row_has_the_default_of_a_column_that_was_added_and_dropped(
    ways: Callable[..., Ways], mode: Mode
) -> None:
    """The shape returned, so its earlier rows passed for rows that were inserted without the column."""
    of = ways(mode)
    for found in (of.each(ADDED), of.at_once(ADDED), of.in_one_segment(ADDED), of.from_within(ADDED)):
        assert [(row["id"], row["note"]) for row in found] == NOTES[mode]


@pytest.mark.spread(2)
@pytest.mark.parametrize("mode", ["current", "soft_delete", "append", "history"])
@pytest.mark.parametrize(
    "happened",
    [TWICE, RENAMES, RENAMES_TWICE, RETYPES, [*RETYPES, [put(RETYPED, "u", 1, qty=Decimal(31))]]],
    ids=["twice", "renames", "renames twice", "retypes", "retypes twice"],
)
def test_a_returning_shape_gives_the_same_table_for_any_number_of_merges(
    ways: Callable[..., Ways], mode: Mode, happened: list[list[Step]]
) -> None:
    """A version of a column, and the default of each of two columns of one name, go into the same rows."""
    of = ways(mode, incompatible="new_column")
    wanted = of.each(happened)
    assert of.at_once(happened) == wanted
    assert of.in_one_segment(happened) == wanted
    assert of.from_within(happened) == wanted
