"""The abilities of a table format, and what else its statements need. The formats are in `cdcflow.tables.formats`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cdcflow.model import sqltypes

if TYPE_CHECKING:
    from cdcflow.tables.merge.acts import Act
    from cdcflow.tables.merge.target import TargetColumn


def _as_it_is(type_: str) -> str:
    return type_


def _nothing_else(columns: Sequence[TargetColumn]) -> Mapping[str, str]:
    return {}


def _nothing(act: Act) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Format:
    """A table format, as far as it matters for statements and shapes.

    `name`: its word in CREATE TABLE. `properties`: those of a new table. `holds`: returns the type that a column of a
    type gets (both in Spark's text). `widens`: whether the second type holds every value of the first exactly, and the
    format can change a column from the one to the other in place. `needs`: properties that the table must have before
    an act. `wide`: the properties of a new table with these columns that as many readers as possible can open.
    `has_partitions`: cdcflow can partition its tables.
    """

    name: str
    properties: Mapping[str, str] = field(default_factory=dict)
    holds: Callable[[str], str] = _as_it_is
    widens: Callable[[str, str], bool] = sqltypes.widens
    needs: Callable[[Act], Mapping[str, str]] = _nothing
    wide: Callable[[Sequence[TargetColumn]], Mapping[str, str]] = _nothing_else
    has_partitions: bool = False

    def making(self, columns: Sequence[TargetColumn], *, wide: bool) -> Format:
        """Return the format with the properties that a new table with these columns gets. `wide`: so that as many
        readers as possible can open it."""
        return replace(self, properties=self.wide(columns)) if wide else self


ANY = Format("any")
"""A format that holds every type of Spark and needs no property, for callers to whom the format does not matter."""
