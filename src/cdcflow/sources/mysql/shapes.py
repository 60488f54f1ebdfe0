"""A table's shape: its columns as the log has them, and how each column's values become Arrow."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.engine.selection import check_columns
from cdcflow.sources.mysql.codecs import Codec, check_key, codec_of
from cdcflow.sources.mysql.losses import READ_ANEW
from cdcflow.sources.mysql.types import Policy, ServerColumn

__all__ = ["DescribedTable", "Policy", "ServerColumn", "describe"]


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table's shape with what decodes it. `columns` are all that rows of the binary log have, in that order.

    `layouts` belongs to the compiled decoder: what it makes of a shape once.
    """

    table: Table
    columns: tuple[ServerColumn, ...]
    codecs: tuple[Codec, ...]
    layouts: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)


def describe(
    table: TableId, columns: Sequence[ServerColumn], key: Sequence[str], identity: Identity, policy: Policy
) -> DescribedTable:
    """The table's shape. `columns` are all columns in the server's order; `key` names those that tell rows apart.

    Raises:
        ConfigurationError: a column's type is not captured, or a policy is not one that its type knows, or would make
            keys of different rows one.
    """
    unnamed = [number for number, column in enumerate(columns, 1) if not column.name]
    if unnamed:
        raise ConfigurationError(
            f"table {table}: the binary log does not name its columns",
            remedy=f"run SET GLOBAL binlog_row_metadata = 'FULL' (in the server's settings, too), then {READ_ANEW}",
        )
    check_columns(table, [column.name for column in columns])
    codecs = tuple(codec_of(column, table, policy) for column in columns)
    for column, codec in zip(columns, codecs, strict=True):
        if column.name in key:
            check_key(column, codec.where, policy)
    described = tuple(
        Column(column.name, number, ColumnType(codec.where.type_text, codec.arrow), column.nullable)
        for column, codec, number in zip(columns, codecs, numbers([c.name for c in columns]), strict=True)
    )
    return DescribedTable(Table(table, 1, described, tuple(key), identity), tuple(columns), codecs)


def numbers(names: Sequence[str]) -> list[int]:
    """A number for each column, made from its name: the binary log has none that stays with a column.

    A rename is therefore a drop and an add. Two names of one table with the same number: the later takes the next.
    """
    taken: dict[int, str] = {}
    for name in names:
        number = zlib.crc32(name.encode()) & 0x7FFFFFFF
        while number in taken:
            number = (number + 1) & 0x7FFFFFFF
        taken[number] = name
    return list(taken)
