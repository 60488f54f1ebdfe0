"""The property of a table in which a merge records the layout of the table's files."""

from __future__ import annotations

from cdcflow.model.file_layout import FileLayout, PartitionField, SortColumn
from cdcflow.tables.merge.file_layouts import LAYOUT_PROPERTY, RecordedLayout, existing_order
from cdcflow.tables.merge.target import FormatColumn

RECORDED = RecordedLayout(
    FileLayout((PartitionField("created_at", "day"), PartitionField("id", "bucket", 16)), (SortColumn("id", True),)),
    {"created_at": 3, "id": 1},
)


def test_a_recorded_layout_is_read_again() -> None:
    """Each later merge reads it, and would otherwise not know how the table's files are laid out."""
    assert RecordedLayout.of({LAYOUT_PROPERTY: RECORDED.to_json()}) == RECORDED
    assert RecordedLayout.of({}) == RecordedLayout()


def test_order_follows_a_renamed_column() -> None:
    """The settings may still have its old name."""
    columns = [FormatColumn("number", 1, "bigint"), FormatColumn("created_at", 3, "timestamp")]
    assert existing_order({LAYOUT_PROPERTY: RECORDED.to_json()}, columns) == (SortColumn("number", True),)
