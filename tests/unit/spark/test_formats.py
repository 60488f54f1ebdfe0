"""Which format a warehouse has, and the errors where a session or the settings do not fit it; without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.spark.formats import table_format
from cdcflow.spark.formats.iceberg import IcebergFormat
from cdcflow.tables.cut import Cut, CutTable
from cdcflow.tables.formats import FORMATS, format_for, format_in, rules_of
from cdcflow.tables.formats.iceberg import CATALOG, RULES
from cdcflow.tables.merge.evolution import evolve
from cdcflow.tables.merge.refusals import CannotFollow


class Conf:
    def __init__(self, extensions: str | None) -> None:
        self._extensions = extensions

    def get(self, name: str, default: str | None) -> str | None:
        assert name == "spark.sql.extensions"
        return self._extensions or default


class Session:
    def __init__(self, extensions: str | None) -> None:
        self.conf = Conf(extensions)


def test_warehouse_s_format_is_detected(tmp_path: Path) -> None:
    """A first merge may have died before its cut; and a user's Delta table may be in an Iceberg warehouse."""
    assert format_in(tmp_path) is None
    assert format_for(tmp_path, None) == "delta"
    assert format_for(tmp_path, "iceberg") == "iceberg"
    (tmp_path / "shop" / "orders" / "_delta_log").mkdir(parents=True)
    assert format_in(tmp_path) == "delta"
    with pytest.raises(ConfigurationError, match=r"are delta tables(?s:.*)set merge\.format to delta"):
        format_for(tmp_path, "iceberg")
    (tmp_path / CATALOG).touch()
    assert format_for(tmp_path, None) == "iceberg"


def test_unknown_format_is_named_with_the_supported_ones() -> None:
    with pytest.raises(ConfigurationError, match="to one of: delta, iceberg"):
        table_format("hudi")
    assert [rules_of(name).name for name in FORMATS] == list(FORMATS)


@pytest.mark.parametrize("extensions", [None, "io.delta.sql.DeltaSparkSessionExtension"])
def test_session_without_iceberg_gets_an_error_that_names_what_it_needs(tmp_path: Path, extensions: str | None) -> None:
    """Spark's own message is a class that is not found."""
    given: Any = Session(extensions)
    with pytest.raises(ConfigurationError, match=r"without Iceberg(?s:.*)table_formats=\['iceberg'\]"):
        IcebergFormat().table(given, tmp_path, ("public", "orders"))


def test_cut_survives_its_json_and_fields_of_a_newer_cdcflow() -> None:
    """It is stored in the commit that published it."""
    cut = Cut(7, "log", 90, "0/1", 5, {"a.b": CutTable("a/b", 3, True, 1, "id", "done")}, {"a.c": "why"})
    told = cut.to_json()
    assert Cut.from_json(told) == cut
    told["mood"] = "good"
    told["tables"]["a.b"]["weight"] = 3
    assert Cut.from_json(told) == cut


@pytest.mark.parametrize(
    ("old", "new", "holds"),
    [
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("float", "double", True),
        ("decimal(9,2)", "decimal(12,2)", True),
        ("decimal(9,2)", "decimal(12,3)", False),
        ("int", "decimal(12,0)", False),
        ("date", "timestamp_ntz", False),
    ],
)
def test_iceberg_widens_what_its_specification_names(old: str, new: str, holds: bool) -> None:
    """Anything else would fail in the middle of an evolution."""
    assert RULES.widens(old, new) is holds


def test_types_that_iceberg_cannot_widen_are_skipped_and_small_integers_fit_into_its_own_types() -> None:
    def shape(arrow: pa.DataType) -> Table:
        columns = (Column("id", 1, ColumnType("x", pa.int64())), Column("v", 2, ColumnType("x", arrow)))
        return Table(TableId("public", "t"), 1, columns, ("id",))

    small = evolve(None, [shape(pa.list_(pa.int16()))], format_=RULES)
    assert small.target.columns[1].type == "array<int>"
    target = evolve(None, [shape(pa.int8())], format_=RULES).target
    assert target.columns[1].type == "int"
    assert evolve(target, [shape(pa.int16())], format_=RULES).steps == ()
    with pytest.raises(CannotFollow, match=r"int and is decimal.*iceberg cannot widen that"):
        evolve(target, [shape(pa.decimal128(12, 0))], format_=RULES)
