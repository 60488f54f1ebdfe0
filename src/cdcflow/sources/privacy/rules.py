"""Which policy each column of each table has, and what must stop because a policy's column is missing.

A column that disappears may have another name now, and would leave the source without its policy. So a column with a
policy must be in every shape of its table in which it is expected:

- a column that the table's own name lists in `tables`: in all of them;
- a column that a pattern lists: since a start, or a message of the log, showed it in this table.

`optional` is an operator's word that it may be missing: before it is added, and after it was dropped or renamed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cdcflow.config.columns import TableRules
from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import Column, Table, TableId, table_from_text
from cdcflow.sources.engine.selection import Pattern
from cdcflow.sources.privacy.person_keys import PersonKeys, missing_person_keys
from cdcflow.sources.privacy.policies import PrivacyPolicy, misfit
from cdcflow.sources.privacy.shapes import PrivateTable


@dataclass(frozen=True, slots=True)
class _TableEntry:
    """One entry of `tables`. Names of columns are compared without case, as servers and readers do."""

    pattern: Pattern
    policies: Mapping[str, PrivacyPolicy]
    optional: frozenset[str]


class PolicyRules:
    """The entries of `tables`. Thread-safe: what it remembers are results that are always the same, and sets that
    only grow."""

    def __init__(self, settings: Mapping[str, TableRules], person_keys: PersonKeys | None = None) -> None:
        """`person_keys`: for policies with `key_by`."""
        entries = [_entry(name, rules, person_keys) for name, rules in settings.items()]
        with_persons = any(policy.persons is not None for entry in entries for policy in entry.policies.values())
        self.person_keys = person_keys if with_persons else None
        self._entries = sorted(entries, key=lambda entry: entry.pattern.exact is None)
        self._known: dict[Table, PrivateTable | None] = {}
        self._latest: dict[TableId, PrivateTable | None] = {}
        self._seen: dict[TableId, frozenset[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __getstate__(self) -> Mapping[str, object]:
        """For other processes: the entries with their keys, which those processes cannot read."""
        return {"_entries": self._entries, "person_keys": None, "_known": {}, "_latest": {}, "_seen": {}}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.__dict__.update(state)

    def shape(self, table: Table) -> PrivateTable | None:
        """How a table leaves the source; None: unchanged.

        Raises:
            ConfigurationError: a policy makes no sense for its column, or its column is missing.
        """
        if table not in self._known:
            self._check_columns(table, self._seen.get(table.id, frozenset()))
            policies = self._policies(table)
            self._known[table] = PrivateTable.of(table, policies) if policies else None
            self._seen[table.id] = self._seen.get(table.id, frozenset()) | _lower(policies)
        found = self._latest[table.id] = self._known[table]
        return found

    def latest(self, table: TableId) -> PrivateTable | None:
        """How a table last left the source; None: unchanged.

        Raises:
            InvariantViolated: it has policies, and never left it.
        """
        if table not in self._latest and any(entry.pattern.matches(table) for entry in self._entries):
            raise InvariantViolated(f"keys of table {table} arrived before its columns are known")
        return self._latest.get(table)

    def table_leaving(self, table: Table) -> Table:
        """The table as it leaves the source. Raises ConfigurationError as `shape`."""
        found = self.shape(table)
        return table if found is None else found.table

    def text_of(self, table: Table) -> dict[str, str]:
        """The policies of a table's columns as texts."""
        return {name: self._text_of(policy) for name, policy in self._policies(table).items()}

    def _text_of(self, policy: PrivacyPolicy) -> str:
        if policy.persons is None or self.person_keys is None or not (keys := self.person_keys.identity()):
            return policy.text
        return policy.text + _IN_KEYS + keys

    def check(
        self, tables: Sequence[Table], before: Mapping[TableId, StoredPolicies], captured: Collection[TableId]
    ) -> None:
        """Check the tables of a start. `before`: the policies of the last start; `captured`: the tables of the log.

        Raises:
            ConfigurationError: see `check_names`; a column is missing; a policy makes no sense; or the keys of persons
                are not those of the last start.
        """
        self.check_names((t.id for t in tables), captured, before)
        for table in tables:
            then = before.get(table.id)
            self._check_columns(table, frozenset() if then is None else _lower(then.texts))
            self.shape(table)
            if self.person_keys is not None and then is not None:
                _check_person_keys(table, then.texts, self.text_of(table))

    def check_names(
        self, tables: Iterable[TableId], captured: Collection[TableId], private: Collection[TableId] = ()
    ) -> None:
        """Check that each table that `tables` names is captured. `captured`: those that were before; `private`: those
        of them that had policies.

        Raises:
            ConfigurationError: one is not. If it was before, it may have been dropped; but if a new table is captured
                that has no policies, it may be that one, under another name.
        """
        known = frozenset(tables)
        new = [t for t in known.difference(captured) if not any(e.pattern.matches(t) for e in self._entries)]
        exact = [entry.pattern.exact for entry in self._entries if entry.pattern.exact is not None]
        for table in sorted({*exact, *private} - known):
            if table in captured and not new:
                continue
            if table in captured:
                remedy = (
                    f"if it is {', '.join(map(str, sorted(new)))} now, give that table its policies; otherwise name "
                    "that table with `columns: {}`"
                )
            else:
                remedy = f"{did_you_mean(str(table), map(str, known))}correct its name (case counts)"
            raise ConfigurationError(
                f"tables: {table} has policies, and is no captured table", remedy=remedy, runbook="column-policies"
            )

    def unused_names(self, tables: Sequence[Table]) -> list[str]:
        """Patterns that match no table, and columns that no table which their pattern matches has."""
        found = []
        for entry in self._entries:
            matched = [t for t in tables if entry.pattern.matches(t.id)]
            if not matched:
                found.append(f"{entry.pattern.text} matches no captured table")
                continue
            names = {c.name.lower() for t in matched for c in t.columns}
            missing = sorted(set(entry.policies) - names - entry.optional)
            found += [f"no table that {entry.pattern.text} matches has a column {name}" for name in missing]
        return found

    def _policies(self, table: Table) -> dict[str, PrivacyPolicy]:
        found: dict[str, PrivacyPolicy] = {}
        names = {c.name.lower(): c.name for c in table.columns}
        for entry in self._entries:
            if entry.pattern.matches(table.id):
                for name, policy in entry.policies.items():
                    if name in names:
                        found.setdefault(names[name], policy)
        return found

    def _check_columns(self, table: Table, seen: frozenset[str]) -> None:
        mine = [entry for entry in self._entries if entry.pattern.matches(table.id)]
        if not mine:
            return
        named = {name for entry in mine if entry.pattern.exact is not None for name in entry.policies}
        optional = {name for entry in mine for name in entry.optional}
        names = {c.name.lower(): c.name for c in table.columns}
        for name in sorted((named | seen) - optional - names.keys()):
            raise misfit(
                table.id,
                f"it has no column {name}, which has a policy",
                f"{did_you_mean(name, names.values())}correct the name; or write `optional: [{name}]` if the column "
                f"was dropped; or, if it was renamed, give the new name a policy, too, and list both under `optional`",
            )


def _entry(name: str, rules: TableRules, person_keys: PersonKeys | None) -> _TableEntry:
    policies = {column.lower(): PrivacyPolicy.of(rule, person_keys) for column, rule in rules.columns.items()}
    return _TableEntry(Pattern.parse(name), policies, _lower(rules.optional))


def _lower(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


_IN_KEYS = ", with person keys "
"""Begins what a policy's text has of the keys of persons."""


def _check_person_keys(table: Table, then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Check that policies which are the same as then have the same keys of persons: with others, who was erased would
    be unknown."""
    for name, text in then.items():
        policy, _, keys = text.partition(_IN_KEYS)
        same, _, current = now.get(name, "").partition(_IN_KEYS)
        if keys and same == policy and current != keys:
            found = "those are missing" if not current else "the file has others"
            raise missing_person_keys(f"table {table.id} was captured with the keys of persons {keys}, and {found}")


# ── what a checkpoint has of it ─────────────────────────────────────────────────────────────────────────────

ENTRY = "columns"
"""The name of the policies' entry in a checkpoint's `source`."""


@dataclass(frozen=True, slots=True)
class StoredPolicies:
    """The policies of a table at a start: a text for each column that had one, and the table as the source had it."""

    texts: Mapping[str, str]
    raw: Table


def read_stored(source: Mapping[str, str]) -> dict[TableId, StoredPolicies]:
    """The policies that a checkpoint's `source` has; empty if there were none."""
    found = {}
    for texts, raw in json.loads(source.get(ENTRY, "[]")):
        table = table_from_text(raw)
        found[table.id] = StoredPolicies(texts, table)
    return found


def without_stored(source: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in source.items() if name != ENTRY}


def with_stored(
    source: Mapping[str, str], rules: PolicyRules, tables: Iterable[Table], before: Mapping[TableId, StoredPolicies]
) -> dict[str, str]:
    """`source` with the policies of these tables, and those of tables that are gone: the log still has rows of them."""
    now = {t.id: StoredPolicies(rules.text_of(t), t) for t in tables}
    found = [
        (stored.texts, _without_values(stored.raw, stored.texts).to_text())
        for stored in {**before, **now}.values()
        if stored.texts
    ]
    return {**source, **({ENTRY: json.dumps(found, separators=(",", ":"))} if found else {})}


def _without_values(table: Table, names: Collection[str]) -> Table:
    """The table without what older rows have in these columns: a policy applies to that, too."""
    return replace(table, columns=tuple(replace(c, missing=None) if c.name in names else c for c in table.columns))


def raw_of(logged: Table, stored: StoredPolicies | None) -> Table:
    """A table as the source had it, given its shape in the log."""
    if stored is None or stored.raw.incarnation != logged.incarnation:
        return logged
    known = {c.name: c for c in stored.raw.columns if c.name in stored.texts}
    names = {c.name for c in logged.columns}
    columns = [known.get(c.name, c) for c in logged.columns]
    columns += [c for name, c in known.items() if name not in names and stored.texts[name] == "drop"]
    return replace(logged, columns=tuple(sorted(columns, key=lambda c: _place(c, stored.raw))))


def _place(column: Column, table: Table) -> int:
    return next((i for i, c in enumerate(table.columns) if c.name == column.name), len(table.columns))


def changed_policies(
    before: Mapping[TableId, StoredPolicies], rules: PolicyRules, tables: Iterable[Table]
) -> dict[TableId, str]:
    """The captured tables whose policies differ from those of the last start, each with the differences."""
    found = {}
    for table in tables:
        then = before[table.id].texts if table.id in before else {}
        now = rules.text_of(table)
        names = [c.name for c in table.columns if then.get(c.name) != now.get(c.name)]
        if names:
            found[table.id] = ", ".join(
                f"{name}: {then.get(name, 'no policy')} → {now.get(name, 'no policy')}" for name in names
            )
    return found
