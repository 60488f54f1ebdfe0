"""The entries of `tables` by captured table: its row rules, its columns' policies and new names; and which missing
columns stop the capture.

A column that disappears may have another name now, and would leave the source without its policy. Where columns keep
their numbers when they are renamed (PostgreSQL), the policy follows the number, and a number that is gone was dropped.
Elsewhere a column with a policy must be in every shape of its table in which it is expected:

- a column that the table's own name lists in `tables`: in all of them;
- a column that a pattern lists: since a start, or a message of the log, showed it in this table.

`optional` is an operator's word that it may be missing: before it is added, and after it was dropped or renamed.

The columns of `where` and `computed` are treated likewise: with numbers, a name in an expression means the column that
had it when the expression was first used, until the settings have another expression. Without numbers, a statement that
gives such a name to another column stops the table (`mistaken_name`).

A table that was captured before and that the settings no longer fit stops no other: it is listed as it last left the
source, and fails when its next changes arrive (`known_leaving`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from cdcflow.config.columns import TableRules
from cdcflow.config.transforms import TransformSettings
from cdcflow.errors import ConfigurationError, InvariantViolated, TableMisfit
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import Table, TableId
from cdcflow.sources.privacy.leaving import LeavingTable
from cdcflow.sources.privacy.lost_names import (
    DoubtfulNames,
    LostNames,
    lost_names_as_json,
    lost_names_misfit,
    names_in_doubt,
)
from cdcflow.sources.privacy.person_keys import PersonKeys, missing_person_keys
from cdcflow.sources.privacy.policies import PrivacyPolicy, misfit
from cdcflow.sources.privacy.shapes import PrivateTable
from cdcflow.sources.privacy.stored_rules import StoredPolicies, StoredRowRules, stored_entry, without_values
from cdcflow.sources.privacy.successors import Successors, successor_misfit, successors, successors_as_json
from cdcflow.sources.privacy.table_entries import WHERE, RowExpression, RowTexts, lower_names, setting_of, table_entry
from cdcflow.sources.privacy.transforms import compile_transform
from cdcflow.sources.rows.compilation import (
    ColumnFunction,
    UnknownColumn,
    Unusable,
    compile_expression,
)
from cdcflow.sources.rows.row_rules import RowRules, rows_misfit


class PolicyRules:
    """The entries of `tables`. Thread-safe: it remembers only results that are always the same, and sets that only
    grow."""

    def __init__(
        self,
        settings: Mapping[str, TableRules],
        person_keys: PersonKeys | None = None,
        *,
        follows_numbers: bool = False,
    ) -> None:
        """`person_keys`: for policies with `key_by`; `follows_numbers`: a renamed column keeps its number."""
        entries = [table_entry(name, rules, person_keys) for name, rules in settings.items()]
        with_persons = any(policy.persons is not None for entry in entries for policy in entry.policies.values())
        self.person_keys = person_keys if with_persons else None
        self._entries = sorted(entries, key=lambda entry: entry.pattern.exact is None)
        self._known: dict[Table, LeavingTable | None] = {}
        self._latest: dict[TableId, LeavingTable | None] = {}
        self._seen: dict[TableId, frozenset[str]] = {}
        self._follows_numbers = follows_numbers
        self._names: dict[tuple[TableId, int], dict[int, str]] = {}
        self._numbers: dict[tuple[TableId, int], dict[str, dict[str, int]]] = {}
        """For each table, and each of its expressions (`where` or a computed column): the number of the column that
        each name in the expression means."""
        self._stored_raw: dict[TableId, Table] = {}
        self.successors: Successors = {}
        self.lost_names: LostNames = {}

    def __bool__(self) -> bool:
        return bool(self._entries or self.successors)

    @property
    def need_keys(self) -> bool:
        """Whether a policy hashes or encrypts."""
        return any(policy.key is not None for entry in self._entries for policy in entry.policies.values())

    def __getstate__(self) -> Mapping[str, object]:
        """Return the entries for other processes. Their keys are included, because other processes cannot read the
        secrets."""
        mine = {"_entries": self._entries, "person_keys": None, "_follows_numbers": self._follows_numbers}
        followed = {"_names": self._names, "_numbers": self._numbers, "successors": self.successors}
        followed["lost_names"] = self.lost_names
        return {**mine, **followed, "_known": {}, "_latest": {}, "_seen": {}, "_stored_raw": {}}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.__dict__.update(state)

    def shape(self, table: Table) -> LeavingTable | None:
        """Return how a table leaves the source; None if it leaves unchanged.

        Raises:
            TableMisfit: a policy or an expression makes no sense for its columns, or a column is missing; or the table
                may be one with policies under another name.
        """
        self._check_known(table.id)
        if table not in self._known:
            self._check_columns(table, self._seen.get(table.id, frozenset()))
            names = self._names_of(table)
            self._known[table] = self._leaving(table)
            renamed = lower_names(self._row_texts(table).renamed)
            self._seen[table.id] = self._seen.get(table.id, frozenset()) | frozenset(names.values()) | renamed
            if self._follows_numbers:
                numbers = {c.number: names[c.name] for c in table.columns if c.name in names}
                self._names[table.id, table.incarnation] = {**self.names_by_number(table), **numbers}
                self._numbers[table.id, table.incarnation] = self._numbers_of(table)
        found = self._latest[table.id] = self._known[table]
        return found

    def _check_known(self, table: TableId) -> None:
        if table in self.successors:
            raise successor_misfit(table, self.successors[table])
        if table in self.lost_names:
            raise lost_names_misfit(table, self.lost_names[table])

    def _leaving(self, table: Table) -> LeavingTable | None:
        texts = self._row_texts(table)
        rows = self._row_rules(table, texts)
        policies = self._policies(table)
        shaped = table if rows is None else rows.table
        private = PrivateTable.of(shaped, policies) if policies else None
        if rows is None and private is None and not texts.renamed:
            return None
        if rows is not None and private is not None:
            _check_computed(table.id, rows, policies)
        _check_new_names(table.id, texts.computed, self._new_names(table.id))
        return LeavingTable.of(table, rows, private, texts.renamed)

    def _row_rules(self, table: Table, texts: RowTexts) -> RowRules | None:
        if texts.where is None and not texts.computed:
            return None
        optional = self._optional_of(table.id)
        found = {
            setting: _compile(table, setting, text, optional, self._followed_names(table, setting))
            for setting, text in texts.settings.items()
        }
        computed = {name: found[setting_of(name)] for name in texts.computed}
        return RowRules.of(table, found.get(WHERE), computed)

    def check_names_suffice(self, table: Table) -> None:
        """Check that a process that does not know earlier names of columns gives this table's rows the same rules.

        Raises:
            TableMisfit: a policy or an expression follows a column that has another name now.
        """
        known = self._names_of(table)
        if any(column.lower() != name for column, name in known.items()) or self._follows_expressions(table):
            raise misfit(
                table.id,
                "a policy or an expression follows a column whose name changed, which executors do not know",
                "write the present names of its columns in tables, or run the same command without --on",
            )

    def _follows_expressions(self, table: Table) -> bool:
        return any(
            text.columns_in(table) != text.columns_in(table, self._followed_names(table, setting))
            for setting, text in self._row_texts(table).settings.items()
        )

    # ── columns that expressions use ────────────────────────────────────────────────────────────────────────

    def _followed_names(self, table: Table, setting: str) -> Mapping[str, str]:
        """Return the current names of an expression's columns whose numbers are known, by the names in the
        expression."""
        known = self._numbers.get((table.id, table.incarnation), {}).get(setting, {})
        names = {c.number: c.name for c in table.columns}
        return {name: names[number] for name, number in known.items() if number in names}

    def _numbers_of(self, table: Table) -> dict[str, dict[str, int]]:
        """Return, for each expression, the numbers known so far of the columns that it uses."""
        numbers = {c.name: c.number for c in table.columns}
        found = {}
        for setting, text in self._row_texts(table).settings.items():
            known = self._numbers.get((table.id, table.incarnation), {}).get(setting, {})
            used = text.columns_in(table, self._followed_names(table, setting))
            found[setting] = known | {name: numbers[column] for name, column in used.items()}
        return found

    def mistaken_name(self, table: TableId, renamed: Iterable[tuple[str, str]]) -> TableMisfit | None:
        """Return the error for a statement after which a name in the settings means another column; None if every name
        means the same as before.

        `renamed`: the earlier and new names of columns. If columns keep their numbers, no name can be mistaken.
        """
        last = self._last_leaving(table)
        if last is None or self._follows_numbers:
            return None
        names = {name.lower() for name in last.names_used} - self._optional_of(table)
        for earlier, new in renamed:
            if new.lower() in names and new.lower() != earlier.lower():
                return misfit(
                    table,
                    f"a statement gave the name of column {new}, which tables uses, to the column {earlier}",
                    f"write in tables what the column that is called {new} now is to have, and what the other one",
                )
        return None

    def lose_names(self, tables: Iterable[Table], shape_before: Callable[[TableId], Table | None]) -> None:
        """Note which names that the settings use may mean other columns, after a part of the source's log was lost
        (`lost_names`).

        `shape_before` returns a table's shape before that part, if the table had rules.
        """
        if self._follows_numbers:
            return
        for table in tables:
            before, fits = shape_before(table.id), self.misfit_of(table) is None
            names = names_in_doubt(before, table, self._names_by_settings(table)) if before and fits else ()
            if names:
                self.lost_names = {**self.lost_names, table.id: DoubtfulNames(names, self._rules_text(table))}

    def _names_by_settings(self, table: Table) -> list[str]:
        """Return the names of columns, in lower case, that the settings use and that the table may not lack."""
        used = {name.lower() for text in self._row_texts(table).settings.values() for name in text.columns_in(table)}
        used |= {name.strip('"') for name in used} | set(self._policies_by_name(table.id)) | self._new_names(table.id)
        return sorted(used & {c.name.lower() for c in table.columns} - self._optional_of(table.id))

    def _rules_text(self, table: Table) -> str:
        """Return a text of the table's rules, which differs if an operator has changed them."""
        stored = self.to_store(table)
        return json.dumps([dict(stored.texts), stored.rows.to_json(), sorted(self._optional_of(table.id))])

    def latest(self, table: TableId) -> LeavingTable | None:
        """Return how a table last left the source; None if it left unchanged.

        Raises:
            InvariantViolated: the table has policies, and has never left the source.
            TableMisfit: the table may be one that has policies under another name.
        """
        self._check_known(table)
        if table not in self._latest and self._is_named(table):
            raise InvariantViolated(f"keys of table {table} arrived before its columns are known")
        return self._latest.get(table)

    def table_leaving(self, table: Table) -> Table:
        """Return the table as it leaves the source. Raises TableMisfit as `shape`."""
        found = self.shape(table)
        return table if found is None else found.table

    def known_leaving(self, table: Table) -> Table:
        """Return the table as it leaves the source; if the settings no longer fit it, as it last left.

        A table that may be a different one of that name is returned without the values that older rows have.

        Raises:
            TableMisfit: the table never left with these settings.
        """
        if table.id in self.successors or table.id in self.lost_names:
            return without_values(table, [c.name for c in table.columns])
        try:
            return self.table_leaving(table)
        except TableMisfit:
            if (last := self._last_leaving(table.id)) is None:
                raise
            return replace(last.table, incarnation=table.incarnation)

    def check_new(self, table: Table) -> None:
        """Check a table that a source finds. A table that was captured with these settings is accepted even if they no
        longer fit it.

        Raises:
            TableMisfit: the table is new, and the settings do not fit it.
        """
        self.known_leaving(table)

    def misfit_of(self, table: Table) -> TableMisfit | None:
        """Return why the settings do not fit this shape of a table; None if they do."""
        try:
            self.shape(table)
        except TableMisfit as error:
            return error
        return None

    def _last_leaving(self, table: TableId) -> LeavingTable | None:
        """Return how a table last left the source: in this process, or before the start if these settings fit that."""
        found, stored = self._latest.get(table), self._stored_raw.get(table)
        if found is None and stored is not None and self.misfit_of(stored) is None:
            found = self._latest.get(table)
        return found

    def texts_compared(self, table: Table) -> frozenset[str]:
        """The columns of a table whose texts its condition and its computed columns compare."""
        found = None if self.misfit_of(table) is not None else self.shape(table)
        return frozenset() if found is None or found.row_rules is None else found.row_rules.texts_compared

    def text_of(self, table: Table) -> dict[str, str]:
        """Return the policies of a table's columns as texts."""
        return {name: self._text_of(policy) for name, policy in self._policies(table).items()}

    def learn(self, before: Iterable[StoredPolicies]) -> None:
        """Remember the tables of the last start, and follow their columns if columns keep their numbers."""
        for stored in before:
            self._stored_raw[stored.raw.id] = stored.raw
            if self._follows_numbers:
                place = stored.raw.id, stored.raw.incarnation
                self._names[place] = {**stored.names_by_number, **self._names.get(place, {})}
                self._numbers[place] = {**self._numbers_at(stored), **self._numbers.get(place, {})}

    def _numbers_at(self, stored: StoredPolicies) -> dict[str, dict[str, int]]:
        """Return, for the expressions that are unchanged since the last start, the numbers of the columns that they
        used then."""
        numbers = {c.name: c.number for c in stored.raw.columns}
        texts = stored.rows.texts
        return {
            setting: {name: numbers[column] for name, column in now.columns_in(stored.raw).items()}
            | dict(stored.rows.numbers.get(setting, {}))
            for setting, now in self._row_texts(stored.raw).settings.items()
            if texts.get(setting) == now.text
        }

    def names_by_number(self, table: Table) -> Mapping[int, str]:
        """Map the number of each column that ever had a policy in this table to its name in the settings, if numbers
        are followed."""
        return self._names.get((table.id, table.incarnation), {})

    def _text_of(self, policy: PrivacyPolicy) -> str:
        if policy.persons is None or self.person_keys is None or not (keys := self.person_keys.identity()):
            return policy.text
        return policy.text + _IN_KEYS + keys

    def to_store(self, table: Table) -> StoredPolicies:
        """Return the table's rules in the form that a checkpoint stores."""
        found = self._row_texts(table)
        where = None if found.where is None else found.where.text
        computed = {name: one.text for name, one in found.computed.items()}
        rows = StoredRowRules(where, computed, dict(found.renamed), self._numbers_to_store(table, found))
        own = {c.number: c.name.lower() for c in table.columns}
        names = {number: name for number, name in self.names_by_number(table).items() if own.get(number) != name}
        return StoredPolicies(self.text_of(table), table, rows, names)

    def _numbers_to_store(self, table: Table, texts: RowTexts) -> dict[str, dict[str, int]]:
        """Return the numbers of columns that expressions use under names that these columns no longer have."""
        own = {c.name: c.number for c in table.columns}
        found: dict[str, dict[str, int]] = {}
        for setting, known in self._numbers.get((table.id, table.incarnation), {}).items():
            if setting in texts.settings:
                by_name = texts.settings[setting].columns_in(table)
                others = {name: number for name, number in known.items() if own.get(by_name.get(name, "")) != number}
                found |= {setting: others} if others else {}
        return found

    def check(
        self, tables: Sequence[Table], before: Mapping[TableId, StoredPolicies], captured: Collection[TableId]
    ) -> None:
        """Check the tables of a start. `before`: the policies of the last start; `captured`: the tables of the log.

        Raises:
            ConfigurationError: see `check_names`. Or a table that never left its source with these settings lacks a
                column, or has one that a policy does not fit. Or the keys of persons are not those of the last start.
        """
        self.check_names((t.id for t in tables), captured, before)
        texts = {t.id: self._rules_text(t) for t in tables if t.id in self.lost_names}
        self.lost_names = {t: one for t, one in self.lost_names.items() if texts.get(t) == one.rules}
        for table in tables:
            then = before.get(table.id)
            try:
                self._check_columns(table, frozenset() if then is None else self._expected_of(then))
                self.shape(table)
            except TableMisfit:
                if table.id in self.successors or table.id in self.lost_names:
                    continue
                if then is None or self._last_leaving(table.id) is None:
                    raise
                continue
            if self.person_keys is not None and then is not None:
                _check_person_keys(table, then.texts, self.text_of(table))

    def check_names(
        self, tables: Iterable[TableId], captured: Collection[TableId], private: Collection[TableId] = ()
    ) -> None:
        """Check that each table that `tables` names is or was captured.

        `captured`: the tables that were captured before; `private`: the captured tables that had policies. A table that
        was captured before may have been dropped, or may be a new table without policies (`successors`).

        Raises:
            ConfigurationError: a table was never captured.
        """
        known = frozenset(tables)
        exact = [entry.pattern.exact for entry in self._entries if entry.pattern.exact is not None]
        for table in sorted(frozenset(exact).difference(known, captured)):
            raise ConfigurationError(
                f"tables: {table} has policies, and is no captured table",
                remedy=f"{did_you_mean(str(table), map(str, known))}correct its name (case counts)",
                runbook="column-policies",
            )
        self.successors = successors(known, captured, [*exact, *private], self._is_named, self.successors)

    def private_among(self, captured: Iterable[TableId]) -> list[TableId]:
        """Return those of the tables whose rows leave, or would leave, changed by the settings."""
        return [t for t in captured if self._latest.get(t) is not None or t in self.lost_names]

    def _is_named(self, table: TableId) -> bool:
        return any(entry.pattern.matches(table) for entry in self._entries)

    def _expected_of(self, then: StoredPolicies) -> frozenset[str]:
        """Return the names that a table's columns must still have: those with a policy at the last start, and those
        that had a new name then and have one now."""
        renamed = lower_names(then.rows.renamed) & self._new_names(then.raw.id)
        return (then.settings_names - lower_names(then.rows.computed)) | renamed

    def unused_names(self, tables: Sequence[Table]) -> list[str]:
        """Return the patterns that match no table, and the columns that are missing in every table that their pattern
        matches."""
        found = []
        for entry in self._entries:
            matched = [t for t in tables if entry.pattern.matches(t.id)]
            if not matched:
                found.append(f"{entry.pattern.text} matches no captured table")
                continue
            names = {c.name.lower() for t in matched for c in t.columns}
            missing = sorted(set(entry.columns) - names - entry.optional - lower_names(entry.computed))
            found += [f"no table that {entry.pattern.text} matches has a column {name}" for name in missing]
        return found

    def _policies(self, table: Table) -> dict[str, PrivacyPolicy]:
        given = self._policies_by_name(table.id)
        return {column: given[name] for column, name in self._names_of(table).items()}

    def _policies_by_name(self, table: TableId) -> dict[str, PrivacyPolicy]:
        """Return the policies for a table, by the names of columns in the settings."""
        found: dict[str, PrivacyPolicy] = {}
        for entry in self._entries:
            if entry.pattern.matches(table):
                for name, policy in entry.policies.items():
                    found.setdefault(name, policy)
        return found

    def _names_of(self, table: Table) -> dict[str, str]:
        """Map each column of the table that has a policy to its name in the settings: its own, or an earlier one if it
        was renamed."""
        given, earlier = self._policies_by_name(table.id), self.names_by_number(table)
        found = {}
        for column in table.columns:
            for name in (column.name.lower(), earlier.get(column.number, "")):
                if name in given:
                    found[column.name] = name
                    break
        computed = self._row_texts(table).computed
        return found | {name: name.lower() for name in computed if name.lower() in given}

    def _row_texts(self, table: Table) -> RowTexts:
        names = {c.name.lower(): c.name for c in table.columns}
        where: RowExpression | None = None
        computed: dict[str, RowExpression] = {}
        renamed: dict[str, str] = {}
        for entry in self._entries:
            if entry.pattern.matches(table.id):
                where = where or entry.where
                for name, one in entry.computed.items():
                    computed.setdefault(name, one)
                for name, new in entry.renamed.items():
                    if name in names:
                        renamed.setdefault(names[name], new)
        return RowTexts(where, computed, renamed)

    def _new_names(self, table: TableId) -> frozenset[str]:
        """The names, in lower case, of columns that the settings give a new name in this table."""
        return frozenset(name for entry in self._entries if entry.pattern.matches(table) for name in entry.renamed)

    def _optional_of(self, table: TableId) -> frozenset[str]:
        """The names, in lower case, of columns that the table may lack."""
        return frozenset(name for entry in self._entries if entry.pattern.matches(table) for name in entry.optional)

    def _check_columns(self, table: Table, seen: frozenset[str]) -> None:
        mine = [entry for entry in self._entries if entry.pattern.matches(table.id)]
        if not mine:
            return
        named = {name for entry in mine if entry.pattern.exact is not None for name in entry.columns}
        optional = {name for entry in mine for name in (*entry.optional, *lower_names(entry.computed))}
        names = {c.name.lower(): c.name for c in table.columns}
        private = {name for entry in mine for name in entry.policies}
        was_here = set(self.names_by_number(table).values()).difference(*(entry.renamed for entry in mine))
        for name in sorted((named | seen) - optional - names.keys() - was_here):
            raise misfit(
                table.id,
                f"it has no column {name}, which has a {'policy' if name in private else 'new name in tables'}",
                f"{did_you_mean(name, names.values())}correct the name; or write `optional: [{name}]` if the column "
                f"was dropped; or, if it was renamed, write the same for its new name, and list both under `optional`",
            )


def _compile(
    table: Table, setting: str, text: RowExpression, optional: frozenset[str], followed: Mapping[str, str]
) -> ColumnFunction:
    try:
        if isinstance(text.tree, TransformSettings):
            return compile_transform(text.tree, table, setting.removeprefix(setting_of("")), followed)
        sources = {c.name: c.type.source for c in table.columns if c.type.arrow == pa.string()}
        return compile_expression(text.tree, table.row_schema, optional, followed, sources)
    except UnknownColumn as error:
        remedy = "correct the name; if the source renamed the column, rows from before have its earlier name: "
        remedy += (
            f"take {setting} out of the settings, start, and add it with the new name once they are captured"
            if isinstance(text.tree, TransformSettings)
            else "write coalesce(NEW, OLD) with both names, and both under `optional`"
        )
        raise rows_misfit(table.id, f"{setting} {error}", remedy) from None
    except Unusable as error:
        raise rows_misfit(table.id, f"{setting} {error}", "correct the expression") from None


def _check_computed(table: TableId, rows: RowRules, policies: Mapping[str, PrivacyPolicy]) -> None:
    for name, one in rows.computed.items():
        used = sorted(one.columns & policies.keys())
        if used and name not in policies:
            raise misfit(
                table,
                f"the computed column {name} uses column {used[0]}, which has a policy, and would show its values",
                f"give {name} a policy in columns, too, or take it out",
            )


def _check_new_names(table: TableId, computed: Iterable[str], renamed: Collection[str]) -> None:
    for name in computed:
        if name.lower() in renamed:
            raise rows_misfit(
                table, f"the computed column {name} has a new name in columns, too", "give it that name in computed"
            )


_IN_KEYS = ", with person keys "
"""The beginning of the part of a policy's text that identifies the keys of persons."""


def _check_person_keys(table: Table, then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Check that policies which are the same at both starts have the same keys of persons: with others, it would be
    unknown who was erased."""
    for name, text in then.items():
        policy, _, keys = text.partition(_IN_KEYS)
        same, _, current = now.get(name, "").partition(_IN_KEYS)
        if keys and same == policy and current != keys:
            found = "those are missing" if not current else "the file has others"
            raise missing_person_keys(f"table {table.id} was captured with the keys of persons {keys}, and {found}")


def changed_policies(
    before: Mapping[TableId, StoredPolicies], rules: PolicyRules, tables: Iterable[Table]
) -> dict[TableId, str]:
    """The captured tables whose policies differ from those of the last start, each with the differences."""
    found = {}
    for table in tables:
        now = rules.to_store(table)
        if different := before.get(table.id, StoredPolicies({}, table)).differences(now):
            found[table.id] = ", ".join(different)
    return found


def with_stored(
    source: Mapping[str, str], rules: PolicyRules, tables: Iterable[Table], before: Mapping[TableId, StoredPolicies]
) -> dict[str, str]:
    """Return `source` with the policies of these tables, and those of tables that are gone: the log still has rows of
    them."""
    entry = stored_entry({**before, **{t.id: rules.to_store(t) for t in tables}}.values())
    return {**source, **entry, **successors_as_json(rules.successors), **lost_names_as_json(rules.lost_names)}
