"""Values as a test writes them, and rows that differ."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.config import Config
from cdcflow.model.table import TableId
from cdcflow.rehearsal.cells import text_of, value_of
from cdcflow.rehearsal.differences import NO_ROW, differences
from cdcflow.wiring.type_names import column_type

UTC_TIME = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("cell", "arrow", "value"),
    [
        ("7", pa.int32(), 7),
        ("1.10", pa.decimal128(12, 2), Decimal("1.10")),
        (5, pa.decimal128(12, 2), Decimal("5.00")),
        ("true", pa.bool_(), True),
        ("0x0aff", pa.binary(), b"\x0a\xff"),
        ("plain", pa.binary(), b"plain"),
        ("2026-01-31", pa.date32(), dt.date(2026, 1, 31)),
        ("2026-01-31 12:00:00", pa.timestamp("us"), dt.datetime(2026, 1, 31, 12)),
        ("2026-01-31 12:00:00+02:00", UTC_TIME, dt.datetime(2026, 1, 31, 10, tzinfo=dt.UTC)),
        ("-25:00:01.5", pa.duration("us"), -dt.timedelta(hours=25, seconds=1, milliseconds=500)),
        (["1", None], pa.list_(pa.int64()), [1, None]),
        ({"a": "1"}, pa.struct({"a": pa.int8(), "b": pa.string()}), {"a": 1, "b": None}),
        ("NULL", pa.string(), "NULL"),
        (None, pa.int8(), None),
    ],
)
def test_text_becomes_the_value_of_its_columns_type(cell: Any, arrow: pa.DataType, value: Any) -> None:
    found = value_of(cell, arrow)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("cell", "arrow"),
    [
        ("x", pa.int32()),
        ("300", pa.int8()),
        ("1.123", pa.decimal128(12, 2)),
        ("yes", pa.bool_()),
        ("2026-01-31 12:00:00", UTC_TIME),
        ("2026-01-31 12:00:00+00:00", pa.timestamp("us")),
        ("1", pa.list_(pa.int32())),
        ({"c": "1"}, pa.struct({"a": pa.int8()})),
        ("0xzz", pa.binary()),
    ],
)
def test_text_that_does_not_fit_its_type_is_refused(cell: Any, arrow: pa.DataType) -> None:
    """A value that is rounded or moved to another zone makes a test pass or fail for the wrong reason."""
    with pytest.raises(ValueError, match=r"is no|must be"):
        value_of(cell, arrow)


def test_rows_are_compared_by_key_with_each_column_that_differs() -> None:
    expected: list[dict[str, Any]] = [{"id": 1, "a": "x", "b": 1}, {"id": 2, "a": None, "b": 2}]
    found: list[dict[str, Any]] = [{"id": 1, "a": "y", "b": 1}, {"id": 3, "a": "z", "b": 3}]
    differ = differences("t", ["id"], ["id", "a", "b"], expected, found)
    assert [(d.row, d.column, d.expected, d.found) for d in differ] == [
        ("id=1", "a", "x", "y"),
        ("id=2", "", "a=NULL, b=2", NO_ROW),
        ("id=3", "", NO_ROW, "a=z, b=3"),
    ]


def test_rows_without_a_key_are_counted() -> None:
    """In a table of changes a key occurs several times, and the same row may, too."""
    rows = [{"id": 1, "a": "x"}, {"id": 1, "a": "x"}]
    assert differences("t", ["id"], ["id", "a"], rows, rows) == []
    [one] = differences("t", ["id"], ["id", "a"], rows, rows[:1])
    assert (one.expected, one.found) == ("id=1, a=x", NO_ROW)
    [one] = differences("t", [], ["id", "a"], rows[:1], rows)
    assert (one.expected, one.found) == (NO_ROW, "id=1, a=x")


def test_null_is_not_the_text_null_and_a_zero_has_a_sign() -> None:
    assert differences("t", [], ["a"], [{"a": None}], [{"a": "NULL"}])
    assert differences("t", [], ["a"], [{"a": 0.0}], [{"a": -0.0}])
    assert not differences("t", [], ["a"], [{"a": float("nan")}], [{"a": float("nan")}])
    assert text_of([None, b"\x01", Decimal("1.10"), {"x": True}]) == "[NULL, 0x01, 1.10, {x: true}]"


def settings(kind: str, **more: str) -> Config:
    url = "postgresql://u@h/d" if kind == "postgres" else "mysql://u@h/"
    tables = {} if kind == "postgres" else {"tables": ["shop.*"]}
    return Config.model_validate({"source": {"kind": kind, "url": url, **tables, **more}, "log": {"path": "log"}})


@pytest.mark.parametrize(
    ("kind", "name", "text", "arrow"),
    [
        ("postgres", "int", "integer", pa.int32()),
        ("postgres", "numeric(12, 2)", "numeric(12,2)", pa.decimal128(12, 2)),
        ("postgres", "numeric", "numeric", pa.string()),
        ("postgres", "timestamptz", "timestamp with time zone", UTC_TIME),
        ("postgres", "timestamp(3) with time zone", "timestamp(3) with time zone", UTC_TIME),
        ("postgres", "varchar(20)", "character varying(20)", pa.string()),
        ("postgres", "int[]", "integer[]", pa.list_(pa.field("element", pa.int32()))),
        ("mysql", "bigint unsigned", "bigint unsigned", pa.uint64()),
        ("mysql", "decimal(12,2)", "decimal(12,2)", pa.decimal128(12, 2)),
        ("mysql", "varchar(20)", "varchar(20)", pa.string()),
        ("mysql", "varbinary(20)", "varbinary(20)", pa.binary()),
        ("mysql", "enum('a','B')", "enum('a','B')", pa.string()),
        ("mysql", "datetime(6)", "datetime(6)", pa.timestamp("us")),
        ("mariadb", "uuid", "uuid", pa.string()),
    ],
)
def test_type_by_its_name_is_that_of_the_catalog(kind: str, name: str, text: str, arrow: pa.DataType) -> None:
    found = column_type(settings(kind), TableId("shop", "t"), "c", name)
    assert (found.source, found.arrow) == (text, arrow)


def test_settings_of_the_source_change_the_type() -> None:
    """With `special_values: text` a date is a text in the log, and so it is in a test."""
    assert column_type(settings("postgres", special_values="text"), TableId("s", "t"), "c", "date").arrow == pa.string()
    assert column_type(settings("mysql", zero_dates="text"), TableId("s", "t"), "c", "date").arrow == pa.string()
    changed = settings("postgres", unconstrained_numeric="decimal(20,4)")
    assert column_type(changed, TableId("s", "t"), "c", "numeric").arrow == pa.decimal128(20, 4)


@pytest.mark.parametrize(("kind", "name"), [("postgres", "integr"), ("mysql", "bigin"), ("postgres", "(1)")])
def test_unknown_type_is_refused(kind: str, name: str) -> None:
    with pytest.raises(ValueError, match=r"did you mean|not the name"):
        column_type(settings(kind), TableId("s", "t"), "c", name)
