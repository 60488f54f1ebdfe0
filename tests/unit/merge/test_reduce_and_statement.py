"""Families, quoting, bounds, types: the parts of the merge that are decided before Spark runs."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.model.sqltypes import literal, name_sql, stored_type, text_sql, widens
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.tables.merge import statement
from cdcflow.tables.merge.acts import Fill, MissAlso, MissOnly, Rename
from cdcflow.tables.merge.evolution import evolve
from cdcflow.tables.merge.format import ANY
from cdcflow.tables.merge.reduce import ColumnLayout, families, read_schema
from cdcflow.tables.merge.target import TargetColumn


def table(*names: str, key: tuple[str, ...] = ("id",)) -> Table:
    columns = tuple(Column(n, i, ColumnType("text", pa.string())) for i, n in enumerate(names, start=1))
    return Table(TableId("public", "t"), 1, columns, key)


def layout_of(*shapes: Table) -> ColumnLayout:
    return ColumnLayout.of(evolve(None, shapes), shapes)


def test_columns_that_always_travel_together_are_one_family() -> None:
    """One aggregate per family: the cost grows with the kinds of partial rows, not with the columns."""
    found = families(layout_of(table("id", "a", "b", "doc", "note")), [frozenset({3}), frozenset({3, 4})])
    assert [(f.columns, f.masked) for f in found] == [((1, 2), False), ((3,), True), ((4,), True)]


def test_without_partial_rows_there_is_one_family() -> None:
    """The usual case is the cheap one."""
    found = families(layout_of(table("id", "a", "b")), [])
    assert [f.always for f in found] == [True]


def test_a_column_that_an_older_shape_lacks_is_its_own_family() -> None:
    """G26: rows of the older shape do not contain it."""
    found = families(layout_of(table("id", "a"), table("id", "a", "b")), [])
    assert [(f.columns, sorted(f.lacking)) for f in found] == [((1,), []), ((2,), [0])]


@pytest.mark.parametrize("name", ["x`; DROP TABLE important; --", "order id", "a.b", "'", '"', "\\"])
def test_a_name_stays_a_name(name: str) -> None:
    """S01: whatever its name, a column ends where its quotes end."""
    quoted = name_sql(name)
    assert quoted[0] == quoted[-1] == "`"
    assert quoted[1:-1].replace("``", "").count("`") == 0
    assert name in quoted.replace("``", "`")


def test_a_text_stays_a_text() -> None:
    """S01: a default or a property may hold quotes and backslashes."""
    assert text_sql("it's \\ fine") == "'it\\'s \\\\ fine'"


@pytest.mark.parametrize(
    ("type_", "ends", "expected"),
    [
        ("int", [("9", "10"), ("-3", "2")], ("CAST('-3' AS int)", "CAST('10' AS int)")),
        ("date", [("2020-01-31", "2020-02-01")], ("CAST('2020-01-31' AS date)", "CAST('2020-02-01' AS date)")),
        ("string", [("a", "b")], None),
        ("int", [("1", "2"), (None, None)], None),
        ("date", [("0044-03-15 BC", "2020-01-01")], None),
        ("int", [], None),
        ("smallint", [("7", "9"), ("8", "10")], ("CAST('7' AS smallint)", "CAST('10' AS smallint)")),
        ("bigint", [("7", "9")], ("CAST('7' AS bigint)", "CAST('9' AS bigint)")),
        ("bigint", [(None, "9")], None),
        ("bigint", [("7", None)], None),
        (
            "timestamp_ntz",
            [("2020-01-31 10:00:00", "2020-02-01 00:00:00.5")],
            ("CAST('2020-01-31 10:00:00' AS timestamp_ntz)", "CAST('2020-02-01 00:00:00.5' AS timestamp_ntz)"),
        ),
        (
            "timestamp",
            [("2020-01-31 10:00:00+00:00", "2020-02-01 00:00:00+00:00")],
            ("CAST('2020-01-31 10:00:00+00:00' AS timestamp)", "CAST('2020-02-01 00:00:00+00:00' AS timestamp)"),
        ),
        ("timestamp", [("2020-01-31 10:00:00", "2020-02-01 00:00:00+00:00"), ("2020-01-31 10:00:00+00:00",) * 2], None),
        ("tinyint", [("-7", "9")], ("CAST('-7' AS tinyint)", "CAST('9' AS tinyint)")),
        (
            "decimal(20,0)",
            [("9", "18446744073709551615")],
            ("CAST('9' AS decimal(20,0))", "CAST('18446744073709551615' AS decimal(20,0))"),
        ),
        ("double", [("1", "2")], None),
        ("decimal(10,2)", [("1", "2")], None),
    ],
)
def test_bounds_are_given_only_where_the_order_is_the_same_everywhere(
    type_: str, ends: list[tuple[str | None, str | None]], expected: tuple[str, str] | None
) -> None:
    """A wrong bound would hide rows of the table from the merge, and insert them twice."""
    found = statement.bounds(type_, ends)
    assert (None if found is None else (found.least, found.greatest)) == expected


Runs = list[tuple[str, str]]


@pytest.mark.parametrize(
    ("type_", "runs", "proven"),
    [
        ("bigint", [[("1", "9")], [("10", "20")]], True),
        ("bigint", [[("9", "10")], [("1", "8"), ("11", "11")]], True),
        ("bigint", [[("1", "9")], [("9", "20")]], False),
        ("bigint", [[("1", "100")], [("20", "20")]], False),
        ("bigint", [[("5", "5")], [("5", "5")]], False),
        ("bigint", [[("1", "9")], None], False),
        ("bigint", [None], False),
        ("decimal(20,0)", [[("9", "10")], [("18446744073709551614", "18446744073709551615")]], True),
        ("tinyint", [[("-9", "-3")], [("-2", "2")]], True),
        ("date", [[("2020-01-31", "2020-02-01")], [("2020-02-02", "2020-02-02")]], True),
        ("date", [[("2020-01-31", "2020-02-01")], [("2020-02-01", "2020-02-02")]], False),
        ("date", [[("-10000-01-31", "2020-02-01")]], False),
        ("timestamp", [[("2020-01-31 10:00:00.000001Z",) * 2], [("2020-01-31 10:00:00.000002Z",) * 2]], True),
        ("timestamp", [[("2020-01-31 10:00:00Z",) * 2], [("2020-01-31 11:00:00+01:00",) * 2]], False),
        ("timestamp", [[("2020-01-31 10:00:00Z",) * 2], [("2020-01-31 11:00:00",) * 2]], False),
        ("timestamp_ntz", [[("2020-01-31", "2020-02-01")], [("2020-02-01 00:00:00", "2020-02-02")]], False),
        ("string", [[("1", "2")]], False),
        ("decimal(38,0)", [[("1", "2")]], False),
    ],
)
def test_runs_of_files_that_do_not_touch_prove_that_each_key_comes_once(
    type_: str, runs: list[Runs | None], proven: bool
) -> None:
    """Compared by their type: as text 10 precedes 9."""
    assert statement.each_key_once(type_, runs) is proven
    assert statement.each_key_once(type_, runs[::-1]) is proven


@pytest.mark.parametrize("seed", range(300))
def test_nothing_is_proven_where_two_files_have_a_key(seed: int) -> None:
    """The row would be inserted twice. And disjoint files are proven disjoint, or every first merge would check."""
    chance = random.Random(seed)
    files: list[list[range]] = []
    for _ in range(chance.randrange(1, 5)):
        at, runs = chance.randrange(-20, 20), []
        for _ in range(chance.randrange(1, 4)):
            runs.append(range(at, at + chance.randrange(1, 6)))
            at = runs[-1].stop + chance.randrange(0, 12)
        files.append(runs)
    keys = [key for runs in files for run in runs for key in run]
    told = [[(str(run[0]), str(run[-1])) for run in runs] for runs in files]
    assert statement.each_key_once("int", told) is (len(keys) == len(set(keys))), f"seed {seed}: {told}"


@pytest.mark.parametrize(
    "instead",
    [
        {"empty": True},
        {"emptied": True},
        {"sweep_before": 1},
        {"ending": statement.Ending(before=1)},
        {"ending": statement.Ending(truncated_at=1)},
        {"layout": layout_of(table("id", "a", key=()))},
    ],
    ids=str,
)
def test_range_whose_changes_concern_more_than_the_row_of_their_key_is_not_merged_by_key(
    instead: dict[str, Any],
) -> None:
    """After a truncate such a merge would leave the table's old rows."""
    by_key = statement.Folding(layout_of(table("id", "a")), "changes", (), empty=False, emptied=False)
    assert by_key.is_by_key
    assert by_key.brings_whole_rows
    assert not replace(by_key, **instead).is_by_key


def test_a_sweep_lifts_the_bounds() -> None:
    """Rows outside the range's keys must be swept too."""
    layout = layout_of(table("id", "a"))
    limits = statement.Bounds("1", "2")
    kinds = families(layout, [])
    swept = statement.merge("t1", layout.target, kinds, "(q)", sweep_before=5, limits=limits)
    plain = statement.merge("t1", layout.target, kinds, "(q)", sweep_before=0, limits=limits)
    assert ">= 1" in plain
    assert ">= 1" not in swept
    assert "NOT MATCHED BY SOURCE" in swept


def test_a_rename_also_renames_what_rows_miss() -> None:
    """Otherwise a row would permanently miss a column that it got under its new name."""
    target = evolve(None, [table("id", "old")]).target
    acts = list(evolve(target, [table("id", "new")]).acts())
    assert acts[1:-1] == [MissAlso("old", "new"), Rename("old", "new"), MissOnly(("id", "new"))]
    (also,), (renamed,), (only,) = (statement.alter("t1", ANY, act) for act in acts[1:-1])
    assert "concat(_missing, array('new')) WHERE _missing IS NOT NULL AND array_contains(_missing, 'old')" in also
    assert renamed == "ALTER TABLE t1 RENAME COLUMN `old` TO `new`"
    assert "array_except(_missing, array('id', 'new'))" in only


@pytest.mark.parametrize(
    ("arrow", "type_"),
    [
        (pa.uint64(), "decimal(20,0)"),
        (pa.uint32(), "bigint"),
        (pa.duration("us"), "string"),
        (pa.decimal256(50, 3), "string"),
        (pa.decimal128(38, 10), "decimal(38,10)"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.timestamp("us"), "timestamp_ntz"),
        (pa.list_(pa.decimal256(50, 3)), "array<string>"),
        (
            pa.struct([("months", pa.int32()), ("microseconds", pa.int64())]),
            "struct<`months`:int,`microseconds`:bigint>",
        ),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
    ],
    ids=str,
)
def test_spark_holds_every_value_exactly(arrow: pa.DataType, type_: str) -> None:
    """Where Spark has no such type the table holds the exact text, never something rounded."""
    assert stored_type(arrow).table == type_


def test_type_that_spark_cannot_hold_is_refused_with_an_error_that_names_it() -> None:
    """Better no table than a wrong one."""
    with pytest.raises(ConfigurationError, match="timestamp"):
        stored_type(pa.timestamp("ns"))


@pytest.mark.parametrize(
    ("old", "new", "holds"),
    [
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("decimal(10,2)", "decimal(12,4)", True),
        ("decimal(10,2)", "decimal(11,4)", False),
        ("bigint", "decimal(20,0)", True),
        ("bigint", "decimal(19,0)", False),
        ("string", "int", False),
    ],
)
def test_widening_never_loses_a_digit(old: str, new: str, holds: bool) -> None:
    """G23, G24."""
    assert widens(old, new) is holds


def test_a_default_is_written_in_the_column_s_type() -> None:
    """P18: the server's text of the constant becomes a constant of Spark's."""
    assert literal("t", "boolean") == "CAST('t' AS boolean)"
    assert literal("\\x00ff", "binary") == "X'00ff'"
    assert literal("{1,2}", "array<int>") == "CAST(array(CAST('1' AS int), CAST('2' AS int)) AS array<int>)"


def test_the_files_are_read_with_the_shape_s_own_types() -> None:
    """Spark need not open a file to learn its schema, and a wide decimal is read as bytes."""
    wide = Table(TableId("s", "t"), 1, (Column("id", 1, ColumnType("numeric", pa.decimal256(50, 3))),), ("id",))
    assert "`id` binary" in read_schema(wide, moved=False)
    assert "_before struct<`id`: binary>" in read_schema(wide, moved=True)


def test_a_default_is_filled_in_once_a_column_and_what_may_be_done_again_has_no_name() -> None:
    """A run that died after it must not fill the column again, over later NULLs."""
    fills = [Fill(TargetColumn(name, number, "int"), "7") for name, number in (("a", 3), ("b", 4))]
    names = [statement.transaction(fill, incarnation) for fill in fills for incarnation in (1, 2)]
    assert len(set(names)) == 4
    assert all(names)
    assert statement.transaction(Fill(TargetColumn("renamed", 3, "int"), "7"), 1) == names[0]
    assert statement.transaction(Rename("a", "b"), 1) == ""
