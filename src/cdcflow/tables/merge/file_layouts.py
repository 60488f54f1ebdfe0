"""The layout that the files of a table get (`merge.tables.partition_by`, `sort_by`), and whether the table can have it.

A property of the table records the settings of its layout, with the table format's ids of their columns. So a column
that was renamed since is still the same one, although the settings have its old name.

    settings       day(created_at)
    property       day(created_at), created_at is column 3        the table is so: nothing to do
    column 3       is called created by now                       still nothing to do
    settings       day(created)                                   the same partition; the property is renewed
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cdcflow.model.file_layout import FileLayout, PartitionField, SortColumn
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import TableId
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import ModeRules
from cdcflow.tables.merge.policy import TablePolicy
from cdcflow.tables.merge.refusals import CannotFollow, setting
from cdcflow.tables.merge.target import FormatColumn, Target, check_version

LAYOUT_PROPERTY = "cdcflow.layout"
LAYOUT_VERSION = 1

_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_MOMENTS = ("timestamp", "timestamp_ntz")
_SUITABLE: Mapping[str, tuple[str, ...]] = {
    "identity": (*_INTEGERS, "decimal", "boolean", "string", "date", *_MOMENTS),
    "year": ("date", *_MOMENTS),
    "month": ("date", *_MOMENTS),
    "day": ("date", *_MOMENTS),
    "hour": _MOMENTS,
    "bucket": (*_INTEGERS, "decimal", "string", "binary", "date", *_MOMENTS),
    "truncate": (*_INTEGERS, "string", "binary"),
}
"""The types, as Spark names them, whose values each transform takes here. Iceberg itself also takes truncate of
decimals, and identity of floating-point numbers and binary values."""


@dataclass(frozen=True, slots=True)
class RecordedLayout:
    """The layout that a table's property records: the settings, and the format's ids of their columns."""

    layout: FileLayout = field(default_factory=FileLayout)
    ids: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": LAYOUT_VERSION,
                "partition_by": [str(one) for one in self.layout.partitions],
                "sort_by": [str(one) for one in self.layout.order],
                "columns": dict(self.ids),
            },
            separators=(",", ":"),
        )

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> RecordedLayout:
        """Read the property of a table; a table without it has no layout.

        Raises:
            ConfigurationError: a newer cdcflow wrote it.
        """
        text = properties.get(LAYOUT_PROPERTY)
        if text is None:
            return cls()
        value = json.loads(text)
        check_version(value["version"], LAYOUT_VERSION, "layout")
        layout = FileLayout(
            tuple(map(PartitionField.parse, value["partition_by"])), tuple(map(SortColumn.parse, value["sort_by"]))
        )
        return cls(layout, value["columns"])

    def with_names_of(self, columns: Mapping[int, str]) -> FileLayout:
        """Return the layout with the current names of its columns, given by their ids."""
        return self.layout.with_names({name: columns.get(id_, name) for name, id_ in self.ids.items()})


def existing_order(properties: Mapping[str, str], columns: Sequence[FormatColumn]) -> tuple[SortColumn, ...]:
    """Return the order of the rows in the files of a table."""
    return RecordedLayout.of(properties).with_names_of({c.id: c.name for c in columns}).order


def decide_layout(
    policy: TablePolicy,
    properties: Mapping[str, str],
    columns: Sequence[FormatColumn],
    target: Target,
    mode: ModeRules,
    format_: Format,
    table: TableId,
) -> FileLayout | None:
    """Return the layout that a table gets once it has the columns of `target`; `None` if it keeps its layout.
    `properties` and `columns`: of the existing table, both empty for a new one.

    Raises:
        CannotFollow: the table cannot have the layout of the settings; the message names the column.
    """
    recorded = RecordedLayout.of(properties)
    names = {c.id: c.name for c in columns if c.name in mode.own}
    names |= {c.id: c.name for c in target.columns if c.id is not None}
    now = recorded.with_names_of(names)
    partitions, order = policy.partition_by, policy.sort_by
    # If a column was dropped, its name in the settings may mean a different one now.
    if partitions is None or (partitions == recorded.layout.partitions and _are_alive(now.partitions, target)):
        partitions = now.partitions
    if order is None or (order == recorded.layout.order and _are_alive(now.order, target)):
        order = now.order
    given = FileLayout(partitions, order)
    types = {c.name: c.type for c in target.columns} | dict(mode.columns)
    for one in given.partitions:
        _check(one, types, target, format_, table)
    for column in given.order:
        _check(column, types, target, format_, table)
    is_said = policy.partition_by in (None, recorded.layout.partitions)
    is_said = is_said and policy.sort_by in (None, recorded.layout.order)
    return None if is_said and given == now else given


def _are_alive(parts: Sequence[PartitionField | SortColumn], target: Target) -> bool:
    return not {one.column for one in parts}.intersection(target.left_names)


def _check(
    one: PartitionField | SortColumn, types: Mapping[str, str], target: Target, format_: Format, table: TableId
) -> None:
    name = "partition_by" if isinstance(one, PartitionField) else "sort_by"
    says = f"table {table}: {setting(table, name)} (or that of all tables) has {one}"
    if isinstance(one, PartitionField) and not format_.has_partitions:
        raise CannotFollow(
            f"{says}, and cdcflow partitions Iceberg tables only",
            remedy=f"take {name} out, and use sort_by; or set merge.format to iceberg for a new warehouse",
        )
    if one.column in target.left_names:
        raise CannotFollow(
            f"{says}, and the source no longer has column {one.column}",
            remedy=f"set {setting(table, name)} to other columns, or to [], and run `cdcflow merge`",
        )
    if one.column not in types:
        raise CannotFollow(
            f"{says}, and it has no column {one.column}",
            remedy=f"{did_you_mean(one.column, types)}correct the setting, and run `cdcflow merge`",
        )
    type_ = types[one.column]
    plain = type_.partition("(")[0].partition("<")[0]
    if isinstance(one, PartitionField) and plain not in _SUITABLE[one.transform]:
        takes = ", ".join(_SUITABLE[one.transform])
        raise CannotFollow(
            f"{says}, and {one.transform} takes no column of type {type_}",
            remedy=f"choose a column whose type is one of {takes}, or another transform, and run `cdcflow merge`",
        )
    if isinstance(one, SortColumn) and plain in ("array", "map", "struct"):
        raise CannotFollow(
            f"{says}, and rows cannot be sorted by a column of type {type_}",
            remedy="choose another column, and run `cdcflow merge`",
        )
