r"""Decides which table of the warehouse gets the rows of a captured table. In settings, routes are a map of patterns to
names.

    public.orders                       shop.orders   this table, under another name
    shard_(?P<shard>\d+)\.orders        shop.orders   many tables in one; `shard` is a column of its key
    t_(?P<tenant>\d+)\.(?P<name>\w+)    shop.{name}   `tenant` is a column of the key; `name` is in the table's name

Constants are further columns of a table's key. Each pipeline sets its own values, which distinguish its rows from those
of other pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from cdcflow.model.table import TableId

_PLACE = re.compile(r"\{(\w+)\}")
_PLAIN = re.compile(r"[^\\()\[\]*+?^$|{}]+")
"""A pattern with no special character but dots is a table's name, and matches only that name."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The table of the warehouse that gets a captured table's rows. `key`: the values that these rows have in the
    additional columns of its key; empty without groups and constants."""

    table: TableId
    key: Mapping[str, str]


@dataclass(frozen=True)
class TableRoute:
    """One pattern, and the name of a table in the warehouse."""

    pattern: str
    name: str

    def check(self) -> None:
        """Check both texts.

        Raises:
            ValueError: the pattern is not a regular expression, the name is not like schema.table, or they do not fit
                together.
        """
        try:
            groups = self._expression.groupindex
        except re.error as error:
            raise ValueError(f"has {self.pattern}, which is not a regular expression: {error.msg}") from None
        if len(groups) != self._expression.groups:
            raise ValueError(
                f"has {self.pattern} with a group without a name, which would be lost: name it, (?P<shard>…), or do not"
                " make it one, (?:…)"
            )
        parts = self.name.split(".", 1)
        if len(parts) < 2 or not all(parts) or not all(_PLACE.sub("", part) or "{" in part for part in parts):
            raise ValueError(f"has {self.name}: write the name as schema.table")
        if strange := sorted(set(_PLACE.findall(self.name)) - set(groups)):
            raise ValueError(
                f"has {self.name}, and {self.pattern} has no group {strange[0]}: it has {', '.join(groups) or 'none'}"
            )
        if taken := next((name for name in groups if name.startswith("_")), None):
            raise ValueError(f"has {self.pattern}: a column's name cannot begin with _, as {taken} does")

    def find(self, table: str) -> Destination | None:
        """Return where a table of this name goes; `None` if the pattern does not match it."""
        found = self._expression.fullmatch(table)
        if found is None:
            return None
        groups = {name: value or "" for name, value in found.groupdict().items()}
        used = set(_PLACE.findall(self.name))
        schema, name = (_PLACE.sub(lambda m: groups[m[1]], part) for part in self.name.split(".", 1))
        return Destination(TableId(schema, name), {k: v for k, v in groups.items() if k not in used})

    def may_lead_to(self, table: str) -> bool:
        """Whether a table of the warehouse can get rows by this route."""
        return self.name == table or "{" in self.name

    def groups_of(self, table: str) -> tuple[str, ...]:
        """The columns that the groups of this route add to a table's key; none if it leads to another table."""
        return tuple(self._expression.groupindex) if self.name == table else ()

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.pattern) if _PLAIN.fullmatch(self.pattern) else self.pattern)


@dataclass(frozen=True, slots=True)
class Routes:
    """All routes; of several that match a table, the first counts. `constants`: for a table in the warehouse, columns
    of its key that have these values in all rows of this pipeline."""

    listed: tuple[TableRoute, ...] = ()
    constants: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.listed)

    @classmethod
    def of(cls, settings: Mapping[str, str], constants: Mapping[str, Mapping[str, str]] | None = None) -> Routes:
        return cls(tuple(TableRoute(pattern, name) for pattern, name in settings.items()), constants or {})

    def check(self) -> None:
        """Check all texts.

        Raises:
            ValueError: as `TableRoute.check`; or a constant has no valid name or value, or no route leads to its table.
        """
        for route in self.listed:
            route.check()
        for name, constants in self.constants.items():
            if taken := next((one for one in constants if one.startswith("_") or not one), None):
                raise ValueError(f'has "{taken}", and a column\'s name cannot be empty or begin with _')
            if empty := next((one for one, value in constants.items() if not value), None):
                raise ValueError(f"has {empty} without a value: its value distinguishes the rows of this pipeline")
            if not any(route.may_lead_to(name) for route in self.listed):
                raise ValueError(f"has {name}, to which no route leads: add it to merge.tables.routes")
            if twice := next((one for route in self.listed for one in route.groups_of(name) if one in constants), None):
                raise ValueError(f"has {name} with {twice}, which is also a group of its route: rename one of them")

    def find(self, table: str) -> Destination | None:
        """Return where a table of this name goes; `None` if no route matches: then it keeps its name."""
        found = next((found for route in self.listed if (found := route.find(table)) is not None), None)
        more = None if found is None else self.constants.get(str(found.table))
        return found if found is None or not more else replace(found, key={**found.key, **more})

    def destination(self, table: TableId) -> Destination:
        """Return the table of the warehouse that gets this table's rows."""
        return self.find(str(table)) or Destination(table, {})


NO_ROUTES = Routes()
"""Every table keeps its name."""
