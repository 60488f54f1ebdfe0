"""A table's shape: its columns as the log has them, and how each column's values become Arrow."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from cdcflow.model.table import Identity, Table, TableId
from cdcflow.sources.mysql.types import Policy, ServerColumn

__all__ = ["DescribedTable", "Policy", "ServerColumn", "describe"]


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table's shape with what decodes it. `columns` are all that rows of the binary log have, in that order."""

    table: Table
    columns: tuple[ServerColumn, ...]


def describe(
    table: TableId, columns: Sequence[ServerColumn], key: Sequence[str], identity: Identity, policy: Policy
) -> DescribedTable:
    """The table's shape. `columns` are all columns in the server's order; `key` names those that tell rows apart.

    Raises:
        ConfigurationError: a column's type is not captured, or a policy is not one that its type knows.
    """
    raise NotImplementedError


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
