"""How a table's rows are laid out in its files: by partitions, and in an order. In settings both are texts.

    partition_by   region   day(created_at)   bucket(16, id)   truncate(4, code)   identity("day(s)")
    sort_by        id   created_at desc   "order date"

The transforms are Iceberg's (https://iceberg.apache.org/spec/#partition-transforms). A column whose name contains other
characters than letters, digits and `_` is in double quotes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

TransformName = Literal["identity", "year", "month", "day", "hour", "bucket", "truncate"]
TIMES: tuple[TransformName, ...] = ("year", "month", "day", "hour")

_NAME = r'"(?:[^"]|"")+"|\w+'
_PARTITION = re.compile(rf"(?:(\w+)\s*\(\s*(?:(\d{{1,9}})\s*,\s*)?({_NAME})\s*\)|({_NAME}))")
_SORT = re.compile(rf"({_NAME})(?:\s+(asc|desc))?", re.IGNORECASE)
_WITH_NUMBER = ("bucket", "truncate")


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A part of the partition that a row belongs to: a transform of the value of a column. `number`: the number of
    buckets, the length of a truncated text, or the width of the ranges of numbers; 0 for other transforms."""

    column: str
    transform: TransformName = "identity"
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> PartitionField:
        """Parse a setting. Raises: ValueError: the text is not a column or a transform of a column."""
        found = _PARTITION.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                f"has {text}: write a column, or year, month, day, hour (column), bucket(number, column) or"
                ' truncate(width, column), with a name of several words in double quotes: day("order date")'
            )
        transform, number, inside, plain = found.groups()
        if transform is None:
            return cls(_plain(plain))
        name = transform.lower().removesuffix("s")  # Spark's days(c) is Iceberg's day(c)
        if name not in ("identity", *TIMES, *_WITH_NUMBER):
            raise ValueError(
                f"has {text}: there is no transform {transform}; choose one of identity, {', '.join(TIMES)},"
                f" {', '.join(_WITH_NUMBER)}"
            )
        if (name in _WITH_NUMBER) != (number is not None) or number == "0":
            with_ = "a number above 0 and a column" if name in _WITH_NUMBER else "a column only"
            raise ValueError(f"has {text}: {name} takes {with_}, such as {_EXAMPLES.get(name, f'{name}(created_at)')}")
        return cls(_plain(inside), name, int(number or 0))  # type: ignore[arg-type]  # one of the names above

    def __str__(self) -> str:
        name = _in_quotes(self.column)
        if self.transform == "identity":
            return name
        return f"{self.transform}({self.number}, {name})" if self.number else f"{self.transform}({name})"


_EXAMPLES = {"bucket": "bucket(16, id)", "truncate": "truncate(4, code)"}


@dataclass(frozen=True, slots=True)
class SortColumn:
    """A column by which rows are sorted. NULL comes before all values, with `descending` after them."""

    column: str
    descending: bool = False

    @classmethod
    def parse(cls, text: str) -> SortColumn:
        """Parse a setting. Raises: ValueError: the text is not a column."""
        found = _SORT.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                f"has {text}: write a column, `column desc`, or a name of several words in double quotes:"
                ' "order date" desc'
            )
        return cls(_plain(found[1]), (found[2] or "").lower() == "desc")

    def __str__(self) -> str:
        return f"{_in_quotes(self.column)}{' desc' if self.descending else ''}"

    @property
    def direction(self) -> str:
        """The words after the column in ORDER BY."""
        return "DESC NULLS LAST" if self.descending else "ASC NULLS FIRST"


@dataclass(frozen=True, slots=True)
class FileLayout:
    """How rows are laid out in files: which rows share a file, and the order of the rows in it."""

    partitions: tuple[PartitionField, ...] = ()
    order: tuple[SortColumn, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the layout names, each once."""
        partitions, order = [one.column for one in self.partitions], [one.column for one in self.order]
        return tuple(dict.fromkeys([*partitions, *order]))

    def with_names(self, names: Mapping[str, str]) -> FileLayout:
        """Return the same layout for a table whose columns have other names. `names`: the new names by the old ones."""
        return FileLayout(
            tuple(replace(one, column=names.get(one.column, one.column)) for one in self.partitions),
            tuple(replace(one, column=names.get(one.column, one.column)) for one in self.order),
        )


def check_partitions(fields: tuple[PartitionField, ...]) -> None:
    """Check that fields can be the partition of one table.

    Raises:
        ValueError: a field is listed twice, or two fields are units of time (such as day and hour) of the same column.
    """
    seen: set[object] = set()
    for field in fields:
        what = (field.column, "time") if field.transform in TIMES else field
        if what in seen:
            same = "two times of" if field.transform in TIMES else "twice"
            raise ValueError(f"has {same} {field.column if field.transform in TIMES else field}")
        seen.add(what)


def check_order(columns: tuple[SortColumn, ...]) -> None:
    """Check that no column is listed twice.

    Raises:
        ValueError: a column is listed twice.
    """
    names = [one.column for one in columns]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"has {name} twice")


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _in_quotes(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else '"' + name.replace('"', '""') + '"'
