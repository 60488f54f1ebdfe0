"""The rules of each table as a checkpoint stores them, and the tables as their source had them. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace

from cdcflow.model.table import Column, Table, TableId, table_from_text
from cdcflow.sources.privacy.lost_names import ENTRY as LOST_NAMES
from cdcflow.sources.privacy.successors import ENTRY as SUCCESSORS
from cdcflow.sources.privacy.table_entries import WHERE, setting_of
from cdcflow.sources.rows.row_rules import FIRST_NUMBER

ENTRY = "columns"
"""The name of the policies' entry in a checkpoint's `source`."""


@dataclass(frozen=True, slots=True)
class StoredRowRules:
    """The filter and the computed columns of a table at a start, and new names by the names at the source."""

    where: str | None = None
    computed: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """For each expression: the numbers of the columns that it uses under an earlier name."""

    def __bool__(self) -> bool:
        return self.where is not None or bool(self.computed or self.renamed)

    @property
    def texts(self) -> dict[str, str]:
        """The texts of its expressions, by their settings' names."""
        found = {} if self.where is None else {WHERE: self.where}
        return found | {setting_of(name): text for name, text in self.computed.items()}

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if value or name != "numbers"}

    def differences(self, now: StoredRowRules) -> list[str]:
        pairs = [("where", self.where or "all rows", now.where or "all rows")]
        computed = dict.fromkeys([*now.computed, *self.computed], "no column")
        pairs += [
            (name, self.computed.get(name, none), now.computed.get(name, none)) for name, none in computed.items()
        ]
        renamed = {name: name for name in (*now.renamed, *self.renamed)}
        pairs += [(name, self.renamed.get(name, name), now.renamed.get(name, name)) for name in renamed]
        return [f"{name}: {before} → {after}" for name, before, after in pairs if before != after]

    def raw(self, logged: Table, source: Table) -> Table:
        """Return a table of the log (`logged`) with the names and columns of the source. `source`: its shape there at
        the start.

        Columns are matched by their numbers: the log may have no row yet since the settings gave a column another name.
        """
        names = {c.number: c.name for c in source.columns if c.name in self.renamed}
        olds = {c.name: names.get(c.number, c.name) for c in logged.columns}
        return replace(
            logged,
            columns=tuple(replace(c, name=olds[c.name]) for c in logged.columns if not self._is_computed(c, source)),
            key=tuple(olds.get(name, name) for name in logged.key),
        )

    def _is_computed(self, column: Column, source: Table) -> bool:
        """Whether a column is a computed one. Numbers alone show that only if the source counts its columns: otherwise
        numbers are hashes of names."""
        numbers = [c.number for c in source.columns]
        is_counted = max(numbers) < _COUNTED_BELOW
        is_listed = column.name in self.computed and column.number not in numbers
        return is_listed or (is_counted and column.number >= FIRST_NUMBER)


_COUNTED_BELOW = 1 << 16
"""A source that numbers its columns by counting has only smaller numbers."""
NO_ROW_RULES = StoredRowRules()


@dataclass(frozen=True, slots=True)
class StoredPolicies:
    """The policies of a table at a start: a text for each column that had one, and the table as the source had it.

    `names`: maps the numbers of columns to the names that the settings had, if these differ from the columns' own.
    """

    texts: Mapping[str, str]
    raw: Table
    rows: StoredRowRules = NO_ROW_RULES
    names: Mapping[int, str] = field(default_factory=dict)

    @property
    def settings_names(self) -> frozenset[str]:
        """The names by which the settings had the policies of its columns."""
        own = {c.name: self.names.get(c.number, c.name.lower()) for c in self.raw.columns}
        return frozenset(own.get(name, name.lower()) for name in self.texts)

    @property
    def names_by_number(self) -> Mapping[int, str]:
        """Maps the number of each column with a policy, dropped or not, to the name that the settings had."""
        return {**{c.number: c.name.lower() for c in self.raw.columns if c.name in self.texts}, **self.names}

    def differences(self, now: StoredPolicies) -> list[str]:
        """Return how the policies `now` differ from these, each difference as a text."""
        then = self._texts_in(now.raw)
        names = [n for n in dict.fromkeys([*now.texts, *then]) if then.get(n) != now.texts.get(n)]
        found = [f"{n}: {then.get(n, 'no policy')} → {now.texts.get(n, 'no policy')}" for n in names]
        return [*found, *self.rows.differences(now.rows)]

    def _texts_in(self, table: Table) -> Mapping[str, str]:
        """Return the texts by the names that the columns have in this shape, without those of columns that were
        dropped."""
        if self.raw.incarnation != table.incarnation:
            return self.texts
        names = {c.number: c.name for c in self.raw.columns}
        computed = {name: text for name, text in self.texts.items() if name not in names.values()}
        own = {c.name: self.texts.get(names.get(c.number, c.name)) for c in table.columns}
        return computed | {name: text for name, text in own.items() if text is not None}


def read_stored(source: Mapping[str, str]) -> dict[TableId, StoredPolicies]:
    """The policies that a checkpoint's `source` has; empty if there were none."""
    found = {}
    for texts, raw, *more in json.loads(source.get(ENTRY, "[]")):
        table = table_from_text(raw)
        rows = StoredRowRules(**more[0]) if more else NO_ROW_RULES
        names = {int(number): name for one in more[1:] for number, name in one.items()}
        found[table.id] = StoredPolicies(texts, table, rows, names)
    return found


def without_stored(source: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in source.items() if name not in (ENTRY, SUCCESSORS, LOST_NAMES)}


def stored_entry(tables: Iterable[StoredPolicies]) -> dict[str, str]:
    """Return the entry of a checkpoint's `source` for the tables that have rules; empty if none has."""
    found = [
        (stored.texts, without_values(stored.raw, stored.texts).to_text(), *_further_parts(stored))
        for stored in tables
        if stored.texts or stored.rows or stored.names
    ]
    return {ENTRY: json.dumps(found, separators=(",", ":"))} if found else {}


def _further_parts(stored: StoredPolicies) -> list[object]:
    if stored.names:
        return [stored.rows.to_json(), stored.names]
    return [stored.rows.to_json()] if stored.rows else []


def without_values(table: Table, names: Collection[str]) -> Table:
    """Return the table without the values that older rows have in these columns: a policy applies to those, too."""
    return replace(table, columns=tuple(replace(c, missing=None) if c.name in names else c for c in table.columns))


def raw_of(logged: Table, stored: StoredPolicies | None) -> Table:
    """Return a table as the source had it, given its shape in the log."""
    if stored is None or stored.raw.incarnation != logged.incarnation:
        return logged
    logged = stored.rows.raw(logged, stored.raw)
    known = {c.number: c for c in stored.raw.columns if c.name in stored.texts}
    numbers = {c.number for c in logged.columns}
    columns = [replace(known[c.number], name=c.name) if c.number in known else c for c in logged.columns]
    columns += [c for number, c in known.items() if number not in numbers and stored.texts[c.name] == "drop"]
    return replace(logged, columns=tuple(sorted(columns, key=lambda c: _place(c, stored.raw))))


def _place(column: Column, table: Table) -> int:
    return next((i for i, c in enumerate(table.columns) if c.number == column.number), len(table.columns))
