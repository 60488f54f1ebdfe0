"""Foresee what a statement will do before it is executed at the source: to rows, tables in the warehouse, and settings.

    text ──▶ the dialect's rules ──▶ per table: read again or not, next shape
    next shape ──▶ policies, row rules ──▶ tables in the warehouse ──▶ contracts, routes, derived tables
                                      └──▶ targets, published topics

Nothing is changed, neither at the source nor in the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from cdcflow.capture.plan import Cost, Rates, TablePlan, cost
from cdcflow.capture.ports.source import Described, Preview
from cdcflow.config import Config, MySQL, Postgres
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.selection import Selection
from cdcflow.sources.engine.statement_rules import (
    ColumnEdit,
    Numbers,
    StatementEffect,
    StatementPart,
    edit_table,
    plain_text,
    unknown_statement,
)
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.sources.privacy.stored_rules import read_stored
from cdcflow.tables.merge.foreseen_columns import ForeseenTable, foresee
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.wiring.captures import open_source, policy_rules
from cdcflow.wiring.foreseen_readers import ForeseenRows, reader_findings
from cdcflow.wiring.logs import log_id, log_reader, newest_checkpoint
from cdcflow.wiring.source_load import reading_calendar
from cdcflow.wiring.type_names import column_type
from cdcflow.wiring.warehouses import policies, warehouse

_STRONGEST: tuple[StatementEffect, ...] = (
    *("stops", "fails", "refused", "unknown", "emptied", "kept", "added", "read again", "depends", "nothing"),
    "not captured",
)
_NO_RULE: tuple[StatementEffect, ...] = ("unknown", "not captured")
_FAULTS: tuple[StatementEffect, ...] = ("stops", "fails", "refused", "unknown")


@dataclass(frozen=True, slots=True)
class SettingFinding:
    """The effect of a statement on a setting. `breaks`: something stops, or is excluded, unless the settings change."""

    setting: str
    text: str
    remedy: str = ""
    breaks: bool = True


@dataclass(frozen=True, slots=True)
class RehearsedTable:
    """The effects of the statements on one table at the source and on its table in the warehouse (`destination`).

    `parts`: effect, statement ("" if no rule answers) and answer of each part of the statements; `columns`: changes of
    the table in the warehouse; `destination_columns`: the names and types of its columns from the source after that.
    """

    name: str
    effect: StatementEffect
    parts: tuple[tuple[StatementEffect, str, str], ...]
    rows: int | None = None
    bytes: int | None = None
    source_columns: tuple[str, ...] = ()
    destination: str = ""
    columns: tuple[str, ...] = ()
    findings: tuple[SettingFinding, ...] = ()
    destination_columns: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "table": self.name,
            "effect": self.effect,
            "statements": [{"effect": e, "statement": s, "answer": a} for e, s, a in self.parts],
            "rows": self.rows,
            "bytes": self.bytes,
            "columns_at_source": list(self.source_columns),
            "destination": self.destination,
            "columns": list(self.columns),
            "destination_columns": dict(self.destination_columns),
            "findings": [_finding_json(one) for one in self.findings],
        }


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The effects of the rehearsed statements. `derived`: those on derived tables. `cost`: the cost of the tables
    that are read; `cost_at_most`: including those that may be read."""

    tables: tuple[RehearsedTable, ...]
    derived: tuple[SettingFinding, ...]
    cost: Cost
    cost_at_most: Cost

    @property
    def breaks(self) -> bool:
        found = [*self.derived, *(one for table in self.tables for one in table.findings)]
        return any(one.breaks for one in found) or any(table.effect in _FAULTS for table in self.tables)

    def to_json(self) -> dict[str, object]:
        return {
            "tables": [table.to_json() for table in self.tables],
            "derived": [_finding_json(one) for one in self.derived],
            "seconds": self.cost.seconds,
            "seconds_at_most": self.cost_at_most.seconds,
            "breaks": self.breaks,
        }


def _finding_json(one: SettingFinding) -> dict[str, object]:
    return {"setting": one.setting, "text": one.text, "remedy": one.remedy, "breaks": one.breaks}


# ── statements ──────────────────────────────────────────────────────────────────────────────────────────────

Read = Callable[[Mapping[TableId, Table]], Sequence[StatementPart]]
"""A function for one statement: it returns what the statement does to tables with these shapes."""


@dataclass(slots=True)
class _Walk:
    """The tables in their states after each statement."""

    config: Config
    numbers: Numbers
    tables: dict[TableId, Table]
    parts: list[StatementPart] = field(default_factory=list)
    ended: set[TableId] = field(default_factory=set)

    def take(self, read: Read) -> None:
        found = read(self.tables)
        self.parts += found
        edits: dict[TableId, list[ColumnEdit]] = {}
        for part in found:
            if part.table is not None and part.edits:
                edits.setdefault(part.table, []).extend(part.edits)
        for table, some in edits.items():
            self.tables[table] = edit_table(self.tables[table], some, partial(column_type, self.config), self.numbers)
        for part in found:
            if part.table in self.tables and part.is_end:
                self.ended.add(part.table)
                left = self.tables.pop(part.table)
                if part.becomes is not None:
                    self.tables[part.becomes] = replace(left, id=part.becomes)


def rehearse_ddl(config: Config, text: str, rows_per_second: float | None = None) -> Rehearsal:
    """Return the effects that the statements of this text will have. `rows_per_second`: how fast rows were read lately.

    Raises:
        ConfigurationError: cdcflow does not know a statement, or it does not fit the tables.
        SourceUnavailable: the source cannot be queried.
    """
    settings = config.database
    if not isinstance(settings, Postgres | MySQL):
        raise unknown_statement("only statements of PostgreSQL, MySQL and MariaDB can be rehearsed")
    checkpoint = newest_checkpoint(config)
    source = open_source(config)
    try:
        preview = source.preview(checkpoint, log_id(config))
        facts = source.facts() if isinstance(source, Described) else {}
    finally:
        source.close()
    return rehearse(config, text, preview, facts, checkpoint, rows_per_second)


def rehearse(
    config: Config,
    text: str,
    preview: Preview,
    facts: Mapping[str, str],
    checkpoint: Checkpoint,
    rows_per_second: float | None = None,
) -> Rehearsal:
    """Return the same as `rehearse_ddl`, for tables that the source has described in `preview`."""
    before = {t.id: t.shape for t in preview.tables if t.shape is not None}
    statements, numbers = _statements(config, text, facts)
    if not statements:
        raise unknown_statement("there is no statement", 'write it in quotes: --ddl "ALTER TABLE …"')
    walk = _Walk(config, numbers, dict(before))
    for read in statements:
        walk.take(read)
    settings = _SettingsCheck(config, checkpoint, before, walk.tables)
    sizes = {t.id: (t.rows, t.bytes) for t in preview.tables}
    named = dict.fromkeys(part.table for part in walk.parts)
    tables = tuple(
        _table_report(table, [p for p in walk.parts if p.table == table], walk, before, sizes, settings)
        for table in named
    )
    derived = settings.derived_findings([t for t in tables if t.effect in ("read again", "emptied", "added")])
    return Rehearsal(tables, derived, *_costs(config, tables, rows_per_second))


def _statements(config: Config, text: str, facts: Mapping[str, str]) -> tuple[list[Read], Numbers]:
    settings = config.database
    assert isinstance(settings, Postgres | MySQL)  # noqa: S101  checked above
    selects = Selection.parse(settings.tables).selects
    if isinstance(settings, Postgres):
        from cdcflow.sources.postgres import ddl, ddl_tokens

        found = re.match(r"\d+", facts.get("server_version", ""))
        version = 0 if found is None else int(found[0])

        def in_postgres(tokens: Sequence[ddl_tokens.DdlToken], tables: Mapping[TableId, Table]) -> list[StatementPart]:
            return ddl.statement_parts(tokens, ddl.ServerTables(tables, selects, version))

        return [partial(in_postgres, tokens) for tokens in ddl_tokens.split_statements(text)], ddl.keep_numbers
    from cdcflow.sources.mysql import rehearsed_statements as mysql
    from cdcflow.sources.mysql.sql import split_statements
    from cdcflow.sources.mysql.table_names import TableNames

    names = TableNames(int(facts.get("lower_case_table_names") or 0))

    def in_mysql(one: str, tables: Mapping[TableId, Table]) -> list[StatementPart]:
        return mysql.statement_parts(one, mysql.StatementTables(tables, selects, settings.kind, names))

    return [partial(in_mysql, one) for one in split_statements(text, settings.kind)], mysql.number_by_name


def _table_report(
    table: TableId | None,
    parts: Sequence[StatementPart],
    walk: _Walk,
    before: Mapping[TableId, Table],
    sizes: Mapping[TableId, tuple[int | None, int | None]],
    settings: _SettingsCheck,
) -> RehearsedTable:
    effect = min((p.effect for p in parts), key=_STRONGEST.index)
    said = tuple((p.effect, "" if p.effect in _NO_RULE else plain_text(p.rule.statement), p.why) for p in parts)
    if table is None:
        return RehearsedTable("", effect, said)
    if table not in before:
        came_from = next((p.table for p in walk.parts if p.becomes == table and p.table in sizes), None)
        found = settings.reader_findings(table, effect)
        return RehearsedTable(str(table), effect, said, *sizes.get(came_from or table, (None, None)), findings=found)
    rows, size = sizes.get(table, (None, None))
    after = walk.tables.get(table)
    if after is None or table in walk.ended:
        found = (*settings.end_findings(table), *settings.reader_findings(table, effect))
        return RehearsedTable(str(table), effect, said, rows, size, (), settings.destination(table), (), found)
    columns, found = settings.table(table)
    found = (*found, *settings.reader_findings(table, effect))
    there = settings.destination_columns(table)
    names = tuple(c.name for c in after.columns)
    return RehearsedTable(
        str(table), effect, said, rows, size, names, settings.destination(table), columns, found, there
    )


def _costs(config: Config, tables: Sequence[RehearsedTable], rows_per_second: float | None) -> tuple[Cost, Cost]:
    limit = config.database.backfill.rows_per_second_max or 0
    rates = Rates(rows_per_second, limit, calendar=reading_calendar(config))
    listed = [(t.effect, TablePlan(t.name, "read again", rows=t.rows, bytes=t.bytes)) for t in tables]
    is_read = [plan for effect, plan in listed if effect in ("read again", "added")]
    may_be = [plan for effect, plan in listed if effect in ("read again", "added", "depends", "unknown")]
    return cost(is_read, rates), cost(may_be, rates)


# ── settings ────────────────────────────────────────────────────────────────────────────────────────────────


class _SettingsCheck:
    """Compares the results of the settings for the tables before and after the statements."""

    def __init__(
        self, config: Config, checkpoint: Checkpoint, before: Mapping[TableId, Table], after: Mapping[TableId, Table]
    ) -> None:
        self._config = config
        self._before = before
        self._after = after
        self._policies = policies(config)
        rules = policy_rules(config)
        rules.learn(read_stored(checkpoint.source).values())
        self._rules: PolicyRules = rules
        self._logged = _logged_shapes(config)
        self._foreseen: dict[TableId, ForeseenTable | None] = {}

    def destination(self, table: TableId) -> str:
        """Return the table in the warehouse that gets the rows of a table."""
        return str(self._policies.routes.destination(table).table)

    def table(self, table: TableId) -> tuple[tuple[str, ...], tuple[SettingFinding, ...]]:
        """Return how a captured table's table in the warehouse changes, and the findings about its settings
        after that."""
        before, after = self._before[table], self._after[table]
        found = [*self._values(table)]
        try:
            self._rules.table_leaving(before)
            self._rules.table_leaving(after)
        except ConfigurationError as error:
            found.append(SettingFinding(f"tables: {table}", *_text_and_remedy(error)))
            return (), tuple(found)
        found += self._without_policy(table)
        foreseen = self._foresee(table)
        if foreseen is None:
            return (), tuple(found)
        if foreseen.refusal is not None:
            found.append(SettingFinding(f"merge.tables: {table}", *_text_and_remedy(foreseen.refusal)))
        else:
            found += self._contract(table, foreseen)
        return tuple(str(column) for column in foreseen.columns), tuple(found)

    def destination_columns(self, table: TableId) -> tuple[tuple[str, str], ...]:
        """Return the columns that a captured table's table in the warehouse has afterwards; empty if they are
        unknown."""
        foreseen = self._foreseen.get(table)
        return () if foreseen is None else tuple((c.name, c.type) for c in foreseen.after.columns)

    def end_findings(self, table: TableId) -> tuple[SettingFinding, ...]:
        """Return findings about settings that name a table which is no longer captured under its name."""
        name = str(table)
        config = self._config
        named = [
            setting
            for setting, there in (
                ("tables", config.tables),
                ("contracts", config.contracts),
                ("merge.tables.each", config.merge.tables.each),
                ("merge.tables.routes", config.merge.tables.routes),
            )
            if name in there
        ]
        text = f"{name} ends: this setting names a table that gets no more changes"
        return tuple(
            SettingFinding(f"{setting}: {name}", text, "give the settings of this table to the new name", breaks=False)
            for setting in named
        )

    def reader_findings(self, table: TableId, effect: StatementEffect) -> tuple[SettingFinding, ...]:
        """Return findings about what targets and published topics get of a table afterwards; none for a table whose
        settings do not fit, because it stops."""
        shapes = (self._before.get(table), self._after.get(table))
        try:
            before, after = (None if shape is None else self._rules.table_leaving(shape) for shape in shapes)
        except ConfigurationError:
            return ()
        listed = reader_findings(self._config, ForeseenRows(table, effect, before, after))
        return tuple(SettingFinding(setting, text, breaks=False) for setting, text in listed)

    def _values(self, table: TableId) -> list[SettingFinding]:
        """Return the policies for values (`source.columns`) of columns that are gone."""
        given = getattr(self._config.database, "columns", {})
        gone = {c.name for c in self._before[table].columns} - {c.name for c in self._after[table].columns}
        names = [f"{table}.{name}" for name in sorted(gone) if f"{table}.{name}" in given]
        text = "the column does not exist then under this name"
        remedy = "give the policy to the new name, or remove it"
        return [SettingFinding(f"source.columns: {name}", text, remedy, breaks=False) for name in names]

    def _without_policy(self, table: TableId) -> list[SettingFinding]:
        """Return findings about new columns of a table with policies: they are captured unchanged."""
        found = self._rules.shape(self._before[table])
        if found is None or found.private is None:
            return []
        known = {c.number for c in self._before[table].columns}
        listed = self._rules.text_of(self._after[table])
        new = [c.name for c in self._after[table].columns if c.number not in known and c.name not in listed]
        return [
            SettingFinding(
                f"tables: {table}",
                f"column {name} has no policy, so its values leave the source unchanged",
                "give it a policy before the statement, if it needs one: docs/columns.md",
                breaks=False,
            )
            for name in new
        ]

    # ── tables in the warehouse ─────────────────────────────────────────────────────────────────────────────

    def _foresee(self, table: TableId) -> ForeseenTable | None:
        """Return the foreseen table in the warehouse; `None` if it cannot be computed."""
        if table not in self._foreseen:
            self._foreseen[table] = self._foresee_one(table)
        return self._foreseen[table]

    def _foresee_one(self, table: TableId) -> ForeseenTable | None:
        from cdcflow.tables.formats import rules_of
        from cdcflow.tables.merge.modes import decide_mode

        policy = self._policies.of(str(table))
        before = self._rules.table_leaving(self._before[table])
        after = self._rules.table_leaving(self._after.get(table, self._before[table]))
        shapes = [s for s in self._logged.get(table, ()) if s.incarnation == before.incarnation]
        if not shapes or shapes[-1] != before:
            shapes.append(before)
        try:
            mode = decide_mode(table, None, policy)
            format_ = rules_of(self._format)
            return foresee(shapes, after, policy, format_, mode, is_member=self._is_member(table))
        except CannotFollow:
            return None

    @property
    def _format(self) -> str:
        from cdcflow.tables.formats import format_for

        return format_for(warehouse(self._config), self._config.merge.format)

    def _is_member(self, table: TableId) -> bool:
        routes = self._policies.routes
        place = routes.destination(table)
        others = [t for t in self._before if t != table and routes.destination(t).table == place.table]
        return bool(place.key or others)

    # ── contracts and derived tables ────────────────────────────────────────────────────────────────────────

    def _contract(self, table: TableId, foreseen: ForeseenTable) -> list[SettingFinding]:
        from cdcflow.tables.local.foreseen_queries import condition_columns, condition_fault
        from cdcflow.tables.merge.contract import check_columns

        contract = self._policies.of(str(table)).contract
        if not contract:
            return []
        found: list[SettingFinding] = []
        setting = f"contracts: {table}"
        routed = dict.fromkeys(self._policies.routes.destination(table).key, "string")
        columns = routed | {c.name: c.type for c in foreseen.after.columns}
        try:
            warned = check_columns(table, contract, columns)
            found += [SettingFinding(setting, f"column {c} {why}", breaks=False) for c, why in warned.items()]
        except CannotFollow as error:
            return [SettingFinding(setting, *_text_and_remedy(error))]
        left = {c.after[0] for c in foreseen.columns if c.is_left and c.after is not None}
        for promise in contract:
            if promise.not_null and promise.column in left:
                text = f"column {promise.column} is promised to have no NULL, and new rows have NULL in it"
                remedy = f"take {promise.column} out of the contract before the statement"
                found.append(SettingFinding(setting, text, remedy, breaks=promise.on_violation == "stop"))
            if promise.check is None:
                continue
            if fault := condition_fault(promise.check, columns):
                text = f"the condition for {promise.column} cannot be used then: {fault}"
                found.append(SettingFinding(setting, text, "change the condition together with the statement"))
            elif used := left & set(condition_columns(promise.check, columns)):
                text = f"the condition for {promise.column} uses {', '.join(sorted(used))}, which is NULL in new rows"
                found.append(SettingFinding(setting, text, "take it out of the condition", breaks=False))
        return found

    def derived_findings(self, changed: Sequence[RehearsedTable]) -> tuple[SettingFinding, ...]:
        """Return the effects on derived tables. `changed`: tables most of whose rows change."""
        queries = self._policies.derived
        if not queries:
            return ()
        from cdcflow.tables.local.foreseen_queries import derived_columns, inputs_of_query

        tables = [t for t in self._before if t in self._after]
        foreseen = {self._policies.routes.destination(t).table: self._foresee(t) for t in tables if self._fits(t)}
        known = {(t.schema, t.name): one for t, one in foreseen.items() if one is not None}
        before = derived_columns(
            queries, {name: {c.name: c.type for c in one.before.columns} for name, one in known.items()}
        )
        after = derived_columns(
            queries, {name: {c.name: c.type for c in one.after.columns} for name, one in known.items()}
        )
        paths = {f"{schema}.{name}": (schema, name) for schema, name in known}
        rows = {t.destination for t in changed}
        found = []
        for name, query in queries.items():
            setting, was, now = f"merge.derive: {name}", before[name], after[name]
            if isinstance(was, str):
                text = f"its query cannot be used with the current tables: {was}"
                found.append(SettingFinding(setting, text, breaks=False))
            elif isinstance(now, str):
                text = f"its query cannot be used then: {now}"
                remedy = "change the query when the statement is executed"
                found.append(SettingFinding(setting, text, remedy))
            elif was != now:
                found.append(_other_columns(setting, was, now))
            elif rows & set(inputs_of_query(query, paths)):
                text = "most rows of an input change, so it is computed as a whole"
                found.append(SettingFinding(setting, text, breaks=False))
        return tuple(found)

    def _fits(self, table: TableId) -> bool:
        try:
            self._rules.table_leaving(self._before[table])
            self._rules.table_leaving(self._after[table])
        except ConfigurationError:
            return False
        return True


def _other_columns(setting: str, was: Mapping[str, str], now: Mapping[str, str]) -> SettingFinding:
    changed = [name for name in was if now.get(name) != was[name]]
    new = [name for name in now if name not in was]
    if changed:
        text = f"its query gives other columns than the table has: {', '.join(changed)}"
        remedy = "let the query give the same columns; or move the table's folder away in the warehouse, and merge"
        return SettingFinding(setting, text, remedy)
    return SettingFinding(setting, f"it gets new columns: {', '.join(new)}", breaks=False)


def _logged_shapes(config: Config) -> dict[TableId, list[Table]]:
    reader = log_reader(config)
    if not reader.exists():
        return {}
    return {table: list(shapes.values()) for table, shapes in reader.table_shapes().items()}


def _text_and_remedy(error: ConfigurationError) -> tuple[str, str]:
    return str(error).splitlines()[0], error.remedy or ""
