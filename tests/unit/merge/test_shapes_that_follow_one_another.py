"""Evolutions of several steps at once, and what a recreated table is compared with."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.model.sqltypes import stored_type, widens
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.tables.formats.delta import RULES as DELTA
from cdcflow.tables.merge.acts import Add, Rename, Widen
from cdcflow.tables.merge.evolution import evolve
from cdcflow.tables.merge.statement import alter, create, describe, fill
from cdcflow.tables.merge.target import Target, TargetColumn

INT, BIG, TEXT = pa.int32(), pa.int64(), pa.string()


def shape(*columns: tuple[str, int, pa.DataType], key: tuple[str, ...] = ("id",), incarnation: int = 1) -> Table:
    made = tuple(Column(name, number, ColumnType(str(arrow), arrow)) for name, number, arrow in columns)
    return Table(TableId("public", "orders"), incarnation, made, key)


def test_columns_after_a_dropped_one_are_followed_too() -> None:
    """A dropped column ends nothing: the columns after it may be renamed, widened and added in the same pass."""
    before = evolve(None, [shape(("id", 1, INT), ("gone", 2, TEXT), ("qty", 3, INT), ("note", 4, TEXT))]).target
    found = evolve(before, [shape(("id", 1, INT), ("qty", 3, BIG), ("remark", 4, TEXT), ("added", 5, TEXT))])
    assert found.steps == (
        Widen("qty", "bigint"),
        Rename("note", "remark"),
        Add(TargetColumn("added", 5, "string"), None),
    )
    assert [(c.name, c.number, c.type) for c in found.target.columns] == [
        ("id", 1, "int"),
        ("gone", 2, "string"),
        ("qty", 3, "bigint"),
        ("remark", 4, "string"),
        ("added", 5, "string"),
    ]


def test_key_that_is_spelled_differently_in_the_recreated_table_stops_with_an_error_that_names_it() -> None:
    """What else happened to that table is unknown; its folder is moved away, and nothing is guessed."""
    before = evolve(None, [shape(("Id", 1, INT), key=("Id",))]).target
    with pytest.raises(ConfigurationError, match=r"its key was \(Id\) and is \(id\) now"):
        evolve(before, [shape(("id", 1, INT), incarnation=2)])


def test_struct_is_kept_only_where_all_of_its_fields_are_kept_unchanged() -> None:
    """One field that Spark would change makes the whole value a different one."""
    fine, wide = ("a", pa.int32()), ("b", pa.decimal256(50, 1))
    assert stored_type(pa.struct([fine])).convert is None
    for fields in ([fine, wide], [wide, fine]):
        with pytest.raises(ConfigurationError, match="Spark has no type"):
            stored_type(pa.struct(fields))


def test_positions_of_the_key_are_those_of_its_columns_in_its_order() -> None:
    """Joins go by position; without a key all columns are it."""
    columns = tuple(TargetColumn(name, number, "int") for number, name in enumerate("abc", start=1))
    assert Target(1, ("c", "a"), columns).key_positions == (2, 0)
    assert Target(1, (), columns).key_positions == (0, 1, 2)


@pytest.mark.parametrize("arrow", [pa.time64("us"), pa.duration("us")], ids=str)
def test_times_are_read_as_the_numbers_that_parquet_has(arrow: pa.DataType) -> None:
    """Spark has no type for them: it reads microseconds, and the table shows their text."""
    assert (stored_type(arrow).read, stored_type(arrow).table) == ("bigint", "string")
    assert (stored_type(pa.list_(arrow)).read, stored_type(pa.list_(arrow)).table) == ("array<bigint>", "array<string>")


@pytest.mark.parametrize(
    ("type_", "needed"), [("timestamp_ntz", 1), ("array<timestamp_ntz>", 1), ("timestamp", 0), ("int", 0)]
)
def test_a_column_without_a_time_zone_needs_a_feature_of_the_table_first(type_: str, needed: int) -> None:
    """Delta refuses the column without it; and no other column needs it."""
    *before, added = alter("t1", DELTA, Add(TargetColumn("at", 3, type_), None))
    assert added == f"ALTER TABLE t1 ADD COLUMNS (`at` {type_})"
    feature = "ALTER TABLE t1 SET TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
    assert before == [feature] * needed


def test_a_wider_column_is_widened_once_the_table_allows_it() -> None:
    """A new column's default is written into the existing rows, and the description last."""
    assert alter("t1", DELTA, Widen("qty", "bigint")) == [
        "ALTER TABLE t1 SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
        "ALTER TABLE t1 ALTER COLUMN `qty` TYPE bigint",
    ]
    assert (
        fill("t1", Add(TargetColumn("qty", 3, "int"), "CAST('7' AS int)")) == "UPDATE t1 SET `qty` = CAST('7' AS int)"
    )
    target = Target(1, ("id",), (TargetColumn("id", 1, "int"),))
    assert describe("t1", target) == f"ALTER TABLE t1 SET TBLPROPERTIES ('cdcflow.table' = '{target.to_json()}')"


def test_table_is_created_with_properties_that_identify_its_source() -> None:
    """These properties identify it for the next merge; tables of older versions have them."""
    target = Target(1, ("id",), (TargetColumn("id", 1, "int"), TargetColumn("it's", 2, "string")))
    described = target.to_json().replace("'", "\\'")
    assert create("w.t1", DELTA, target, '{"log": "x"}', 7) == (
        "CREATE TABLE IF NOT EXISTS w.t1 (`id` int, `it's` string, _offset bigint, _missing array<string>) USING delta"
        " TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableDeletionVectors' = 'true',"
        " 'delta.checkpointInterval' = '50',"
        f" 'cdcflow.table' = '{described}', 'cdcflow.source' = '{{\"log\": \"x\"}}', 'cdcflow.begun' = '7')"
    )


@pytest.mark.parametrize(
    ("old", "new", "holds"),
    [
        ("int", "decimal(9,2)", False),
        ("int", "decimal(10,1)", False),
        ("int", "decimal(11,1)", True),
        ("smallint", "decimal(9,0)", False),
        ("bigint", "decimal(20,1)", False),
        ("bigint", "decimal(21,1)", True),
        ("decimal(5,2)", "decimal(5,3)", False),
        ("decimal(5,2)", "decimal(6,3)", True),
        ("decimal(5,2)", "decimal(9,1)", False),
    ],
)
def test_a_decimal_holds_a_number_with_all_digits_before_its_point(old: str, new: str, holds: bool) -> None:
    """Digits after the point do not make room for digits before it."""
    assert widens(old, new) is holds
