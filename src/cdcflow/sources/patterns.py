"""Which tables the settings mean: `public.*`, `!public.audit_*`, `sales."Strange.Name"`. Pure.

A pattern is schema and name with a dot between. `*` stands for any characters, `?` for one. A part in double quotes is
taken as it is, with "" for one quote. Names are matched as the catalog has them, case and all. `!` takes tables out
again, wherever it stands in the list.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import TableId

_PART = r'("(?:[^"]|"")+"|[^".]+)'
_PATTERN = re.compile(rf"(!?){_PART}\.{_PART}")


@dataclass(frozen=True, slots=True)
class Pattern:
    """One entry of `source.tables`. `exact` is the only name it can mean, None when it has wildcards."""

    text: str
    excludes: bool
    schema: re.Pattern[str]
    name: re.Pattern[str]
    exact: TableId | None

    @classmethod
    def parse(cls, text: str) -> Pattern:
        found = _PATTERN.fullmatch(text.strip())
        if found is None:
            raise ConfigurationError(
                f"source.tables: {text!r} is not a table pattern",
                remedy='write schema.table, with * and ? as wildcards, or schema."Table" for a name taken literally',
            )
        schema, name = found[2], found[3]
        exact = None if _is_wild(schema) or _is_wild(name) else TableId(_literal(schema), _literal(name))
        return cls(text, found[1] == "!", _compiled(schema), _compiled(name), exact)

    def matches(self, table: TableId) -> bool:
        return self.schema.fullmatch(table.schema) is not None and self.name.fullmatch(table.name) is not None


@dataclass(frozen=True, slots=True)
class Selection:
    """All of `source.tables`."""

    patterns: tuple[Pattern, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Selection:
        return cls(tuple(Pattern.parse(text) for text in texts))

    def selects(self, table: TableId) -> bool:
        taken = any(p.matches(table) for p in self.patterns if not p.excludes)
        return taken and not any(p.matches(table) for p in self.patterns if p.excludes)

    def names(self, table: TableId) -> bool:
        """This very table is asked for, not just caught by a wildcard."""
        return self.selects(table) and any(p.exact == table for p in self.patterns if not p.excludes)

    def unknown(self, tables: Iterable[TableId]) -> list[str]:
        """Names without wildcards that no table has."""
        known = set(tables)
        return [p.text for p in self.patterns if not p.excludes and p.exact is not None and p.exact not in known]


def _is_wild(part: str) -> bool:
    return not part.startswith('"') and ("*" in part or "?" in part)


def _literal(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def _compiled(part: str) -> re.Pattern[str]:
    if part.startswith('"'):
        return re.compile(re.escape(_literal(part)))
    # Only * and ? are wildcards; a bracket in a name is a bracket.
    return re.compile(fnmatch.translate(part.replace("[", "[[]")))


def table_id(text: str) -> TableId:
    """The one table that a name without wildcards means.

    Raises:
        ConfigurationError: it is no such name.
    """
    exact = Pattern.parse(text).exact
    if exact is None:
        raise ConfigurationError(f"{text!r} is not the name of one table", remedy="write schema.table")
    return exact
