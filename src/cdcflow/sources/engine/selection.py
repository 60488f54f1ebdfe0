"""Which tables the settings select (`public.*`, `!public.audit_*`, `sales."Strange.Name"`), and which are refused.
Pure.

A pattern is schema and name with a dot between them. `*` matches any characters, `?` exactly one. A part in double
quotes is taken literally, with "" for one quote. Names are matched exactly as in the catalog, including case. `!`
excludes tables, at any position in the list.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from cdcflow.errors import ConfigurationError, SourceUnavailable, TableMisfit
from cdcflow.model.table import LOG_COLUMNS, MERGE_COLUMNS, TableId

_PART = r'("(?:[^"]|"")+"|[^".]+)'
_PATTERN = re.compile(rf"(!?){_PART}\.{_PART}")


@dataclass(frozen=True, slots=True)
class Pattern:
    """One entry of `source.tables`. `exact` is the only name it can match, or None if it has wildcards; `in_schema` is
    the only schema, or None if the schema has wildcards."""

    text: str
    excludes: bool
    schema: re.Pattern[str]
    name: re.Pattern[str]
    exact: TableId | None
    in_schema: str | None

    @classmethod
    def parse(cls, text: str) -> Pattern:
        found = _PATTERN.fullmatch(text.strip())
        if found is None:
            raise ConfigurationError(
                f"source.tables: {text!r} is not a table pattern",
                remedy='write schema.table, with * and ? as wildcards, or schema."Table" for an exact name',
                runbook="settings",
            )
        schema, name = found[2], found[3]
        in_schema = None if _is_wild(schema) else _literal(schema)
        exact = None if in_schema is None or _is_wild(name) else TableId(in_schema, _literal(name))
        return cls(text, found[1] == "!", _compile_part(schema), _compile_part(name), exact, in_schema)

    def matches(self, table: TableId) -> bool:
        return self.schema.fullmatch(table.schema) is not None and self.name.fullmatch(table.name) is not None


@dataclass(frozen=True, slots=True)
class Selection:
    """All patterns of `source.tables`."""

    patterns: tuple[Pattern, ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Selection:
        return cls(tuple(Pattern.parse(text) for text in texts))

    def selects(self, table: TableId) -> bool:
        taken = any(p.matches(table) for p in self.patterns if not p.excludes)
        return taken and not any(p.matches(table) for p in self.patterns if p.excludes)

    def names(self, table: TableId) -> bool:
        """Whether a pattern names this very table, instead of only matching it by a wildcard."""
        return self.selects(table) and any(p.exact == table for p in self.patterns if not p.excludes)

    @property
    def only_wildcards(self) -> bool:
        """Whether no pattern names one table, so that it is not an error if no table exists yet."""
        return all(p.exact is None for p in self.patterns if not p.excludes)

    def unknown(self, tables: Iterable[TableId]) -> list[str]:
        """Return the names without wildcards that match no table."""
        known = set(tables)
        return [p.text for p in self.patterns if not p.excludes and p.exact is not None and p.exact not in known]


# ── what is selected, and why some of it cannot be captured ─────────────────────────────────────────────────

Refusal = tuple[str, str]
"""Why a table cannot be captured, and the statement that fixes it (or a sentence, see `advice`)."""


class SelectableTable(Protocol):
    """A table as a dialect's catalog describes it."""

    @property
    def id(self) -> TableId: ...


E = TypeVar("E", bound=SelectableTable)


@dataclass(frozen=True)  # without slots: a generic dataclass with frozen and slots cannot be instantiated by an alias
class Selected(Generic[E]):
    """The tables that the settings currently select.

    `refused`: the tables that cannot be captured, with the reasons: tables that the dialect refuses, and tables whose
    joined schema and name are equal to those of another. `ignored` explains which other objects a wildcard matched that
    are not tables to capture. `misfits`: the refused tables that other settings for their values would let in.
    `failing`: captured tables that cannot be captured now, with the reasons. They are not in `refused`: each of them
    fails, and the others continue.
    """

    tables: tuple[E, ...]
    refused: Mapping[TableId, tuple[Refusal, ...]]
    ignored: tuple[str, ...]
    misfits: frozenset[TableId] = frozenset()
    failing: Mapping[TableId, tuple[Refusal, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if twins := _of_one_name(t.id for t in self.tables):
            both = {t: tuple(dict.fromkeys((*self.refused.get(t, ()), *found))) for t, found in twins.items()}
            object.__setattr__(self, "refused", {**self.refused, **both})

    @property
    def good(self) -> tuple[E, ...]:
        return tuple(t for t in self.tables if t.id not in self.refused)

    def only(self, tables: Iterable[TableId]) -> Selected[E]:
        """Return the selection with only those refused tables that are in `tables`; the others are removed.

        If no table would remain, keep all refused ones, since they are why nothing can be captured. A table is no
        longer refused if its only reason was to share its joined name with a table that is removed.
        """
        wanted = frozenset(tables)
        names = {str(t) for t in wanted}
        rest = [t for t in self.tables if t.id in wanted or str(t.id) not in names]
        twins, still = (_of_one_name(t.id for t in listed) for listed in (self.tables, rest))
        gone = {t: frozenset(why) - frozenset(still.get(t, ())) for t, why in twins.items()}
        refused = {t: tuple(one for one in why if one not in gone.get(t, ())) for t, why in self.refused.items()}
        kept = {t: found for t, found in refused.items() if t in wanted and found}
        good = [t for t in rest if not refused.get(t.id)]
        if not good and not kept:
            return self
        left = tuple(t for t in rest if not refused.get(t.id) or t.id in kept)
        return replace(self, tables=left, refused=kept, misfits=self.misfits & kept.keys())

    def refusing(self, describe: Callable[[E], object]) -> Selected[E]:
        """Return the selection, also refusing the tables that `describe` raises ConfigurationError for.

        The settings for values do not fit such a table, and it must not stop the others.
        """
        refused = dict(self.refused)
        for table in self.good:
            try:
                describe(table)
            except ConfigurationError as error:
                refused[table.id] = (refusal_of(error),)
        misfits = self.misfits | (refused.keys() - self.refused.keys())
        return replace(self, refused=refused, misfits=misfits)

    def fail_alone(self, captured: Collection[TableId]) -> Selected[E]:
        """Return the selection, in which those of the `captured` tables that are refused stop no other table."""
        failing = {table: why for table, why in self.refused.items() if table in captured}
        refused = {table: why for table, why in self.refused.items() if table not in captured}
        return replace(self, refused=refused, failing={**self.failing, **failing})

    def without(self, tables: Collection[TableId]) -> Selected[E]:
        """Return the selection without these tables."""
        return replace(self, tables=tuple(t for t in self.tables if t.id not in tables))

    def for_start(
        self, known: frozenset[TableId], selection: Selection, *, is_first: bool = False
    ) -> tuple[Selected[E], tuple[TableId, ...]]:
        """Return the selection with which a capture of the tables `known` starts, and the refused tables that it
        excludes.

        A table that only a wildcard matches and that cannot be captured (perhaps its key is still to be added) must not
        stop the other tables; an event, doctor and status show it. A table that was captured, or that a pattern names,
        does stop it. So does one that the other settings do not fit, or whose joined name is another's, at the first
        start (`is_first`): the settings are to be corrected then.
        """
        wrong = self.misfits | _of_one_name(t.id for t in self.tables).keys() if is_first else frozenset()
        kept = self.only(t.id for t in self.tables if t.id in known or selection.names(t.id) or t.id in wrong)
        return kept, self.left_out_of(kept)

    def left_out_of(self, kept: Selected[E]) -> tuple[TableId, ...]:
        """Return the refused tables that `kept`, a part of this selection, does not contain."""
        return tuple(sorted(self.refused.keys() - kept.refused.keys() - {t.id for t in kept.tables}))

    def check(
        self, if_none: str = "check the names in source.tables (case counts)", *, may_be_empty: bool = False
    ) -> None:
        """Raise ConfigurationError with every refusal and its remedy, if any table is refused.

        Also raise it, with the remedy `if_none`, if no table is selected, unless the selection `may_be_empty` (a
        wildcard whose tables do not exist yet, or tables that were dropped).
        """
        problems = [p for found in self.refused.values() for p in found]
        if problems:
            raise ConfigurationError(
                "cannot capture: " + "; ".join(text for text, _ in problems),
                remedy=";\n  ".join(advice(remedy) for _, remedy in problems)
                + "\n  or take the table out of source.tables (write !schema.table)",
                runbook="table-not-capturable",
            )
        if not self.tables and not may_be_empty:
            raise ConfigurationError("source.tables matches no table", remedy=if_none, runbook="table-not-found")


def refusal_of(error: ConfigurationError) -> Refusal:
    """Return why a table cannot be captured, from the error that a use of it raised."""
    return str(error).splitlines()[0], error.remedy or "leave it out of source.tables"


class CapturedTableRefused(TableMisfit):
    """A captured table cannot be captured now. Next: it fails until it can be, and the others continue."""

    section = "table-not-capturable"

    def __init__(self, table: TableId, refusals: Sequence[Refusal]) -> None:
        super().__init__("; ".join(why for why, _ in refusals), remedy="; ".join(advice(r) for _, r in refusals))
        self.table = table

    @property
    def reason(self) -> str:
        """Why the table fails, and what helps, in one line."""
        return f"{self.args[0].splitlines()[0]}; {self.remedy}; the table is then read again"


def ignored_object(selection: Selection, table: TableId, why: str, remedy: str) -> str:
    """Return why an object that the settings select is not captured, for an object that is not a table to capture.

    Raises:
        ConfigurationError: a pattern names this very object.
    """
    if selection.names(table):
        raise ConfigurationError(f"source.tables: {table} {why}", remedy=remedy, runbook="table-not-capturable")
    return f"{table} {why}"


def advice(remedy: str) -> str:
    """Return a refusal's remedy as a sentence; most remedies are statements."""
    return f"run {remedy}" if remedy.split(" ", 1)[0].isupper() else remedy


def _of_one_name(tables: Iterable[TableId]) -> dict[TableId, tuple[Refusal, ...]]:
    """Return refusals of tables whose schema and name are the same text once joined by a dot: `"a.b".c` and `a."b.c"`.

    The log's progress, topics, metrics, cuts and commands identify a table by this text.
    """
    named: dict[str, set[TableId]] = {}
    for table in tables:
        named.setdefault(str(table), set()).add(table)
    return {
        table: ((f"{_quote(table)} has the name {name} of another table, {_quote(other)}", _RENAME),)
        for name, both in named.items()
        for table in both
        for other in sorted(both - {table})[:1]
    }


_RENAME = "rename one of the two at the source, so that schema and name joined by a dot are different texts"


def _quote(table: TableId) -> str:
    return f'"{table.schema}"."{table.name}"'


def not_there(table: TableId) -> SourceUnavailable:
    """Return the error for a captured table that the catalog currently does not have.

    A rename may be about to bring it back; if it stays missing, it is no longer captured as soon as the list of tables
    is checked.
    """
    return SourceUnavailable(f"table {table} no longer exists, or is no longer selected")


_RESERVED = frozenset(name.lower() for name in (*LOG_COLUMNS, *MERGE_COLUMNS))


def unfit_columns(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the columns whose names readers of the log could not distinguish from other names, each with the reason.

    The log adds its own columns to every row, and the merged tables add more; both, and every SQL engine that reads
    them, treat names that differ only in case as equal.
    """
    found: list[tuple[str, str]] = []
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in _RESERVED:
            found.append((name, f"a column {name}, a name that cdcflow uses for its own columns"))
        elif (other := seen.setdefault(name.lower(), name)) != name:
            found.append(
                (name, f"columns {other} and {name}, which differ only in case: readers cannot tell them apart")
            )
    return found


def name_refusals(table: TableId, names: Sequence[str], rename: Callable[[str], str]) -> list[Refusal]:
    """Return refusals for a table with columns of these names. `rename` returns the statement that renames a column."""
    return [(f"{table} has {why}", rename(name)) for name, why in unfit_columns(names)]


def check_columns(table: TableId, names: Sequence[str]) -> None:
    """Check that columns of these names can be captured, for a shape that appears in the stream.

    Raises:
        ConfigurationError: some columns cannot be captured; the message names them.
    """
    if problems := unfit_columns(names):
        listed = ", ".join(name for name, _ in problems)
        raise ConfigurationError(
            f"table {table} has {'; '.join(why for _, why in problems)}",
            remedy=f"rename {listed} at the source; then run `cdcflow run --accept-history-loss`, which continues "
            f"after this change and reads all tables again",
            runbook="schema-not-followed",
        )


def _is_wild(part: str) -> bool:
    return not part.startswith('"') and ("*" in part or "?" in part)


def _literal(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def _compile_part(part: str) -> re.Pattern[str]:
    if part.startswith('"'):
        return re.compile(re.escape(_literal(part)))
    # Only * and ? are wildcards; a bracket in a name is a bracket.
    return re.compile(fnmatch.translate(part.replace("[", "[[]")))


def table_id(text: str) -> TableId:
    """Return the one table that a name without wildcards means.

    Raises:
        ConfigurationError: the name is not that of one table.
    """
    exact = Pattern.parse(text).exact
    if exact is None:
        raise ConfigurationError(
            f"{text!r} is not the name of one table", remedy="write schema.table", runbook="settings"
        )
    return exact
