"""`merge.tables.partition_by` and `sort_by`, as text."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cdcflow.config import load
from cdcflow.config.changes import changes, settings_as_text
from cdcflow.errors import ConfigurationError
from cdcflow.model.file_layout import PartitionField, SortColumn
from cdcflow.wiring.warehouses import policies


def file(tmp_path: Path, **tables: object) -> Path:
    path = tmp_path / "cdcflow.yaml"
    source = {"kind": "postgres", "url": "postgresql://cdc@db/shop", "password": "${env:SHOP}", "tables": ["public.*"]}
    path.write_text(yaml.safe_dump({"source": source, "log": {"path": "log"}, "merge": {"tables": tables}}))
    return path


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("region", PartitionField("region")),
        ("identity(region)", PartitionField("region")),
        ("day(created_at)", PartitionField("created_at", "day")),
        ("Days( created_at )", PartitionField("created_at", "day")),
        ("bucket(16, id)", PartitionField("id", "bucket", 16)),
        ('truncate(4,"it""s a code")', PartitionField('it"s a code', "truncate", 4)),
        ('"day(s)"', PartitionField("day(s)")),
        ('hour("Ünï")', PartitionField("Ünï", "hour")),
    ],
)
def test_a_transform_is_read_and_written(text: str, field: PartitionField) -> None:
    """A table records its settings as text, and reads them again."""
    assert PartitionField.parse(text) == field
    assert PartitionField.parse(str(field)) == field


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("id", SortColumn("id")),
        ("id ASC", SortColumn("id")),
        ("created_at desc", SortColumn("created_at", descending=True)),
        ('"a desc" desc', SortColumn("a desc", descending=True)),
        ("desc", SortColumn("desc")),
    ],
)
def test_a_column_of_an_order_is_read_and_written(text: str, column: SortColumn) -> None:
    """As above."""
    assert SortColumn.parse(text) == column
    assert SortColumn.parse(str(column)) == column


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("partition_by", ["week(a)"], "there is no transform week"),
        ("partition_by", ["bucket(id)"], r"takes a number above 0 and a column, such as bucket\(16, id\)"),
        ("partition_by", ["bucket(0, id)"], "takes a number above 0"),
        ("partition_by", ["day(3, a)"], r"takes a column only, such as day\(created_at\)"),
        ("partition_by", ["order date"], "double quotes"),
        ("partition_by", ["day(a)", "month(a)"], "has two times of a"),
        ("partition_by", ["a", "identity(a)"], "has twice a"),
        ("sort_by", ["a down"], "write a column"),
        ("sort_by", ["a", "a desc"], "has a twice"),
    ],
)
def test_what_cannot_be_is_refused_with_an_example(tmp_path: Path, name: str, value: list[str], says: str) -> None:
    """When the file is read, and not by the first merge."""
    with pytest.raises(ConfigurationError, match=says):
        load(file(tmp_path, each={"public.orders": {name: value}}))


def test_a_table_has_its_own_or_that_of_all(tmp_path: Path) -> None:
    """As every setting of tables; `[]` takes that of all tables away."""
    found = policies(load(file(tmp_path, sort_by=["id"], each={"public.a": {"sort_by": []}, "public.b": {}})))
    assert found.of("public.a").sort_by == ()
    assert found.of("public.b").sort_by == found.of("public.c").sort_by == (SortColumn("id"),)
    assert found.of("public.c").partition_by is None


def test_a_plan_reports_what_a_change_costs(tmp_path: Path) -> None:
    """Nothing by itself: only new files follow it."""
    before = settings_as_text(load(file(tmp_path)))
    each = {"public.orders": {"partition_by": ["day(created_at)"], "mode": "history"}}
    found = {c.name: c for c in changes(before, settings_as_text(load(file(tmp_path, each=each))))}
    layout = found.pop("merge.tables.each.public.orders.partition_by")
    assert (layout.taken, layout.now) == ("merge", "day(created_at)")
    assert "existing files stay unchanged" in layout.why
    assert [c.why for c in found.values()] == [""]
