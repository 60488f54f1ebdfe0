"""Tables as `information_schema` currently describes them: columns, key, and why a table cannot be captured.

A row's key is the primary key, or else the first unique key without NULLs in the server's own order; the log names the
same key for each table. Only the catalog knows that a MariaDB column is a `uuid`, an `inet4` or `inet6`. So
`Catalog.describe` combines the two: the log's description where it has one, the catalog's for the rest. While the
stream has not reached a change of the table, the two describe different times; a key that the log's columns no longer
have stops the stream with an error that names the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pymysql

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.table import Identity, Table, TableId
from cdcflow.sources.engine import selection as selection_rules
from cdcflow.sources.engine.connections import Session
from cdcflow.sources.engine.selection import (
    Refusal,
    Selection,
    ignored_object,
    name_refusals,
    not_there,
)
from cdcflow.sources.mysql.connection import Connection, Connector, query, query_row
from cdcflow.sources.mysql.errors import (
    CHANGING,
    engine_refusal,
    history_refusal,
    parts,
)
from cdcflow.sources.mysql.locked_tables import LockedTables, block_ddl
from cdcflow.sources.mysql.rights import reads_all_of, select_missing, unseen
from cdcflow.sources.mysql.sql import literal, quote_name, string_list
from cdcflow.sources.mysql.table_names import TableNames
from cdcflow.sources.mysql.tables import DescribedTable, TableMap, describe
from cdcflow.sources.mysql.types.columns import ASKED, CatalogColumn, Policy, ServerColumn
from cdcflow.sources.mysql.types.registry import extra_of, server_column

SYSTEM_SCHEMAS = frozenset(("mysql", "information_schema", "performance_schema", "sys"))
_SHADOW = re.compile(r"_.+_(gho|ghc|del|new|old)", re.DOTALL)
ENGINES = frozenset(("InnoDB", "ROCKSDB"))
"""Engines whose rows a consistent snapshot shows."""
LOOKS_MAX = 5
PRIMARY = "PRIMARY"
"""The name of each primary key."""

_TABLES = """
SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE, TABLE_ROWS FROM information_schema.TABLES
WHERE TABLE_TYPE NOT IN ('SYSTEM VIEW', 'SEQUENCE') AND TABLE_SCHEMA NOT IN ({system})
"""

_COLUMNS = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, COALESCE(GENERATION_EXPRESSION, '') <> '', {asked} "
    "FROM information_schema.COLUMNS WHERE {where} ORDER BY ORDINAL_POSITION"
)

_KEYS = """
SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, NULLABLE, SUB_PART FROM information_schema.STATISTICS
WHERE NON_UNIQUE = 0 AND {where} ORDER BY INDEX_NAME, SEQ_IN_INDEX
"""

COLLATIONS: Mapping[str, str] = {
    "mysql": "SELECT COLLATION_NAME, ID FROM information_schema.COLLATIONS",
    "mariadb": (
        "SELECT FULL_COLLATION_NAME, ID FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY "
        "UNION SELECT COLLATION_NAME, ID FROM information_schema.COLLATIONS WHERE ID IS NOT NULL"
    ),
}


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table's current definition. `key`: the columns that identify a row, in the key's order, empty without a key;
    `index`: the name of that key. `rows`: the server's estimate. `is_computed`: it has generated columns."""

    id: TableId
    columns: tuple[ServerColumn, ...]
    key: tuple[str, ...]
    index: str
    engine: str
    is_versioned: bool = False
    rows: int = 0
    is_computed: bool = False

    @property
    def sql(self) -> str:
        return f"{quote_name(self.id.schema)}.{quote_name(self.id.name)}"

    @property
    def lacks_transactions(self) -> bool:
        """Whether its engine keeps changes that are rolled back, and shows no snapshot of its rows."""
        return self.engine not in ("", *ENGINES)


Selected = selection_rules.Selected[CatalogTable]


# ── reading the catalog ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class CaptureSelection:
    """The tables to capture: the selected ones, except the one with cdcflow's marks. `keyless`: also those without a
    key."""

    selection: Selection
    marks: TableId
    keyless: bool

    def is_shadow(self, table: TableId) -> bool:
        """Whether the table has a name like those of gh-ost or pt-online-schema-change (M37), and no pattern names it
        exactly."""
        return _SHADOW.fullmatch(table.name) is not None and not self.selection.names(table)

    def as_stored(self, names: TableNames) -> CaptureSelection:
        """Return the selection with names as the server's catalog stores them."""
        patterns = [names.as_stored(p.text) for p in self.selection.patterns]
        marks = TableId(names.as_stored(self.marks.schema), names.as_stored(self.marks.name))
        return replace(self, selection=Selection.parse(patterns), marks=marks)

    def selects(self, table: TableId) -> bool:
        return table != self.marks and table.schema not in SYSTEM_SCHEMAS and self.selection.selects(table)


def table_names(connection: Connection) -> TableNames:
    """Query how the server compares the names of tables."""
    return TableNames(int(str(query_row(connection, "SELECT @@GLOBAL.lower_case_table_names")[0])))


def select(
    connection: Connection, wanted: CaptureSelection, collations: Mapping[str, int], only: TableId | None = None
) -> tuple[Selected, Sequence[str]]:
    """Return the tables that the settings select, and the names without wildcards that match no table.

    With `only`, just this table, if it exists.

    Raises:
        ConfigurationError: a name without wildcards is a view.
    """
    seen: list[TableId] = []
    ignored: list[str] = []
    found: dict[TableId, tuple[str, bool, int]] = {}
    asked = _TABLES.format(system=string_list(sorted(SYSTEM_SCHEMAS)))
    if only is not None:
        asked += f" AND TABLE_SCHEMA = {literal(only.schema)} AND TABLE_NAME = {literal(only.name)}"
    for schema, name, kind, engine, rows in query(connection, asked):
        table = TableId(schema, name)
        seen.append(table)
        if not wanted.selects(table) or only not in (None, table):
            continue
        if wanted.is_shadow(table):
            ignored.append(
                f"{table} looks like a shadow table of an online schema change (if it is not, name it in source.tables)"
            )
            continue
        if kind == "VIEW":
            why = "is a view: it has no changes itself"
            ignored.append(ignored_object(wanted.selection, table, why, "name the tables it reads"))
            continue
        found[table] = engine or "", kind == "SYSTEM VERSIONED", int(rows or 0)
    tables, refused = _load_tables(connection, found, collations)
    for loaded in tables:
        if problems := refusals(loaded, keyless=wanted.keyless):
            refused[loaded.id] = (*refused.get(loaded.id, ()), *problems)
    unknown = wanted.selection.unknown(seen) if only is None else ()
    return Selected(tuple(tables), refused, tuple(ignored)), unknown


Problems = dict[TableId, tuple[Refusal, ...]]


def _load_tables(
    connection: Connection, found: Mapping[TableId, tuple[str, bool, int]], collations: Mapping[str, int]
) -> tuple[list[CatalogTable], Problems]:
    """Return columns and keys of these tables, sorted by name; and the tables that have a column of an unknown type.

    The statements that read them do not share a snapshot, so a table may be dropped, or recreated, between two of them.
    A table that has no key, or is inconsistent, is read once more; if it is still inconsistent, it is treated as
    missing.
    """
    tables, problems = _read(connection, found, collations)
    unsure = [t.id for t in tables if not (t.key and _fits_together(t)) and t.id not in problems]
    again, more = _read(connection, {table: found[table] for table in unsure}, collations)
    whole = [t for t in tables if t.id not in unsure] + [t for t in again if _fits_together(t) or t.id in more]
    return sorted(whole, key=lambda t: t.id), {**problems, **more}


def _fits_together(table: CatalogTable) -> bool:
    """Whether the table is consistent: it has columns, and its key consists of some of them."""
    return bool(table.columns) and {c.name for c in table.columns} >= set(table.key)


def _read(
    connection: Connection, found: Mapping[TableId, tuple[str, bool, int]], collations: Mapping[str, int]
) -> tuple[list[CatalogTable], Problems]:
    if not found:
        return [], {}
    where, is_mariadb = _where(found), "MariaDB" in connection.get_server_info()
    columns: dict[TableId, list[ServerColumn]] = {t: [] for t in found}
    problems: Problems = {}
    computed: set[TableId] = set()
    for schema, name, is_computed, *row in query(connection, _COLUMNS.format(asked=ASKED, where=where)):
        table = TableId(schema, name)
        if table not in columns:
            continue
        if is_computed:
            computed.add(table)
        try:
            found_column = server_column(CatalogColumn.of(tuple(row)), collations, is_mariadb=is_mariadb)
            columns[table].append(found_column)
        except ConfigurationError as error:
            problems[table] = ((f"{table}: {str(error).splitlines()[0]}", error.remedy or ""),)
    keys = _keys(connection, where, columns)
    return [
        CatalogTable(
            table, tuple(columns[table]), *keys.get(table, ((), "")), engine, is_versioned, rows, table in computed
        )
        for table, (engine, is_versioned, rows) in sorted(found.items())
    ], problems


def _where(tables: Iterable[TableId]) -> str:
    """Return a condition that holds for these tables, and for few others.

    In a list of names MariaDB treats names that differ only in case as equal, and returns one of them.
    """
    wanted = list(tables)
    if len(wanted) == 1:
        return f"TABLE_SCHEMA = {literal(wanted[0].schema)} AND TABLE_NAME = {literal(wanted[0].name)}"
    schemas = sorted({t.schema for t in wanted})
    if len({s.casefold() for s in schemas}) < len(schemas):
        return "TRUE"
    return f"TABLE_SCHEMA IN ({string_list(schemas)})"


def _keys(
    connection: Connection, where: str, tables: Mapping[TableId, object]
) -> dict[TableId, tuple[tuple[str, ...], str]]:
    """Return the columns and the name of each table's key."""
    candidates: dict[TableId, dict[str, list[str]]] = {}
    unfit: set[tuple[TableId, str]] = set()
    for schema, name, index, column, nullable, part in query(connection, _KEYS.format(where=where)):
        table = TableId(schema, name)
        if table not in tables:
            continue
        candidates.setdefault(table, {}).setdefault(index, []).append(column)
        # A key over an expression names no column. A primary key over the beginning of a text is fit: whole texts
        # differ where their beginnings do.
        if column is None or nullable == "YES" or (part is not None and index != PRIMARY):
            unfit.add((table, index))
    found: dict[TableId, tuple[tuple[str, ...], str]] = {}
    for table, indexes in candidates.items():
        fit = {name: tuple(names) for name, names in indexes.items() if (table, name) not in unfit}
        if len(fit) > 1 and PRIMARY not in fit:
            ordered = query(connection, f"SHOW INDEX FROM {quote_name(table.schema)}.{quote_name(table.name)}")
            fit = {row[2]: fit[row[2]] for row in ordered if row[2] in fit}
        if fit:
            name = PRIMARY if PRIMARY in fit else next(iter(fit))
            found[table] = fit[name], name
    return found


def refusals(table: CatalogTable, *, keyless: bool) -> tuple[Refusal, ...]:
    """Return why this table cannot be captured, and what fixes it; empty if it can."""
    found: list[Refusal] = []
    if table.is_versioned:
        found.append(history_refusal(table.id))
    if not table.engine:  # a MERGE table whose tables changed their engine, or an engine that was uninstalled
        found.append(
            (
                f"{table.id} cannot be opened by the server, which names no storage engine for it",
                f"repair the table: CHECK TABLE {table.sql} reports what is wrong with it",
            )
        )
    elif table.lacks_transactions:
        found.append(engine_refusal(table.id, table.engine))
    if not table.key and not keyless:
        found.append(
            (
                f"{table.id} has no primary key, and no unique key over whole columns without NULLs",
                f"ALTER TABLE {table.sql} ADD PRIMARY KEY (…), or set source.tables_without_key: whole",
            )
        )
    found += name_refusals(
        table.id,
        [column.name for column in table.columns],
        lambda name: f"ALTER TABLE {table.sql} RENAME COLUMN {quote_name(name)} TO …",
    )
    return tuple(found)


class Catalog(Session[Connection]):
    """Reads the catalog through one dedicated connection. Thread-safe."""

    def __init__(self, connector: Connector, wanted: CaptureSelection, policy: Policy) -> None:
        super().__init__(connector, lambda: connector.connect("catalog"))
        self._server = connector
        self.wanted = wanted
        self._policy = policy
        self.fits: Callable[[Table], object] = lambda table: None
        """Raises ConfigurationError for tables that are refused (`cdcflow.ports.Choosy`)."""
        self._collations: Mapping[str, int] = {}
        self._names: TableNames | None = None
        self._interned: dict[tuple[Table, tuple[ServerColumn, ...]], DescribedTable] = {}
        self._known: dict[TableId, CatalogTable] = {}
        self._listed: frozenset[TableId] = frozenset()
        self._captured: frozenset[TableId] = frozenset()
        self._followed: frozenset[TableId] = frozenset()

    def names(self) -> TableNames:
        """Return how the server compares names; after the first call `wanted` has names as the server stores them."""
        if self._names is None:
            found = self.ask(f"querying how {self._server.address} compares names", table_names)
            self._names, self.wanted = found, self.wanted.as_stored(found)
        return self._names

    def selected_tables(self, known: Iterable[TableId] = ()) -> Selected:
        """Return the tables that the settings select. `known`: those that an earlier run captured.

        Raises:
            ConfigurationError: a name without wildcards is not a table, or is a view.
            RightMissing: a captured table may no longer be read, and so is not visible.
            SourceUnavailable: the server does not answer, or a table was changed while the catalog was read.
        """
        self.names()
        named = {p.exact for p in self.wanted.selection.patterns if p.exact is not None and not p.excludes}
        captured = self._listed | frozenset(known)
        self._captured |= captured
        self._followed |= frozenset(known)
        found = self._look(f"reading the catalog of {self._server.address}", captured | named, None, captured)
        self._known = {t.id: t for t in found.tables}
        self._listed = frozenset(self._known)
        self._followed |= {t.id for t in found.good}
        return found

    def look_up(self, table: TableId) -> CatalogTable:
        """Return a captured table's current definition.

        Raises:
            SourceUnavailable: the table does not exist, or cannot be captured. A rename may bring it back, and an ALTER
                may make it capturable; otherwise the next read of the list of tables decides, and prints the remedy.
            RightMissing: cdcflow may no longer read the table.
        """
        selected = self._only(table)
        if not selected.tables:
            raise not_there(table)
        if problems := selected.refused.get(table):
            raise SourceUnavailable(problems[0][0], remedy=f"run {problems[0][1]}", runbook="table-not-capturable")
        return selected.tables[0]

    def now(self, table: TableId) -> CatalogTable | None:
        """Return a captured table's current definition, even if it can no longer be captured; None if it does not
        exist."""
        return next(iter(self._only(table).tables), None)

    def _only(self, table: TableId) -> Selected:
        return self._look(f"looking for table {table}", (table,), table, frozenset((table,)))

    def _look(
        self, attempted: str, expected: Iterable[TableId], only: TableId | None, captured: frozenset[TableId]
    ) -> Selected:
        self.names()
        # Tables, columns and keys are read one after another: a table that is altered, renamed or created in between
        # appears as a mixture of two, or without a key; MariaDB does not even list it while an ALTER ends. So a problem
        # of a table, or its absence, counts only if no other session could change the table during the reads.
        wanted = frozenset(t for t in expected if self.wanted.selects(t))
        doubted: frozenset[TableId] = frozenset()
        for _ in range(LOOKS_MAX):
            looked = self.ask(attempted, partial(self._select_held, doubted=doubted, only=only))
            if isinstance(looked, str):
                changed = looked
                continue
            found, unknown, held = looked
            wrong = found.refused.keys() | _inconsistent_tables(found)
            lacking = wanted - {t.id for t in found.tables}
            unsure = (wrong - held.unchanged - held.locked) | (lacking - held.unchanged - held.gone)
            if not unsure:
                if hidden := lacking & held.denied & captured:
                    # The catalog hides tables from accounts without a right to them: the table exists, and its changes
                    # continue.
                    raise self.ask(attempted, partial(select_missing, tables=hidden))
                unknown = [text for text in unknown if not self._was_captured(text)]
                if unknown:
                    raise ConfigurationError(
                        f"source.tables: there is no table {', '.join(unknown)} on the server",
                        remedy=self._if_unknown(unknown, held),
                        runbook="table-not-found",
                    )
                return found
            doubted |= unsure
            changed = f"{', '.join(map(str, sorted(unsure)))} was altered or renamed while cdcflow read it"
        raise SourceUnavailable(f"{attempted}: {changed}, several times in a row")

    def _was_captured(self, text: str) -> bool:
        """Whether a table with this name in the settings was captured and no longer exists, so that the name is not an
        error."""
        return any(p.text == text and p.exact in self._captured for p in self.wanted.selection.patterns)

    def check(self, selected: Selected, *, had_some: bool) -> None:
        """Raise ConfigurationError with every refusal, or if no table is selected and that may be an error.

        `had_some`: the log captured tables that no longer exist.
        """
        empty = not selected.tables and (had_some or self.is_empty())
        selected.check(self.if_none(), may_be_empty=empty)

    def is_empty(self) -> bool:
        """Whether wildcards match no table because no table exists yet. This is certain if cdcflow may read all schemas
        that they name."""
        selection = self.wanted.selection
        schemas = {p.in_schema for p in selection.patterns if not p.excludes}
        if not selection.only_wildcards or None in schemas:
            return False
        return self.ask("looking for tables", lambda c: all(reads_all_of(c, s) for s in schemas if s is not None))

    def if_none(self) -> str:
        """Return the remedy if no table is selected."""
        return unseen(self._server.account, self.wanted.selection.patterns)

    def _if_unknown(self, names: Sequence[str], held: LockedTables) -> str:
        patterns = [p for p in self.wanted.selection.patterns if p.text in names and p.exact in held.denied]
        return unseen(self._server.account, patterns) if patterns else "check the name (case counts)"

    def _select_held(
        self, connection: Connection, doubted: frozenset[TableId], only: TableId | None
    ) -> tuple[Selected, Sequence[str], LockedTables] | str:
        """Return the tables, or the server's message about one that was altered or dropped during a query."""
        collations = self._collation_ids(connection)
        with block_ddl(connection, doubted) as held:
            try:
                found, unknown = select(connection, self.wanted, collations, only=only)
            except pymysql.Error as error:
                number, said = parts(error)
                if number in CHANGING:
                    return f"{said} ({number})"
                raise
            return found.refusing(self._check_entry), unknown, held

    def _check_entry(self, table: CatalogTable) -> None:
        self.fits(self.describe_entry(table).table)

    def describe_entry(self, table: CatalogTable) -> DescribedTable:
        return self._intern(describe(table.id, table.columns, table.key, Identity.KEY, self._policy_of(table.id)))

    def describe_failing(self, table: CatalogTable) -> DescribedTable:
        """Describe a table that cannot be captured now, if need be without columns."""
        try:
            return self.describe_entry(table)
        except ConfigurationError:
            return describe(table.id, (), (), Identity.KEY, self._policy_of(table.id))

    def _policy_of(self, table: TableId) -> Policy:
        """Return the settings for a table's values.

        A table's setting for a column may be needed for rows in the log that were written when its type was different.
        So for a table that was captured before it is not an error if the current type does not support the setting.
        """
        return replace(self._policy, of_another_type=table in self._followed)

    def describe(self, told: TableMap, logged: Table | None, *, is_gone: bool) -> DescribedTable | None:
        """Describe the table of a table map, as of the time of the event (see the top of this module).

        `logged`: the shape of its latest rows in the change log. Return None for a table that `is_gone` and had no key
        then: at its end all of its rows are removed anyway.

        Raises:
            ConfigurationError: the table had no key then, or a key with columns that it does not have in the log.
        """
        now = self._known.get(told.id)
        if not is_gone and (now is None or not _names_all(now, told)):
            now = next((t for t in self.selected_tables().tables if t.id == told.id), now)
        key = self._key(told, now, logged)
        if key is None and is_gone:
            return None
        if key is None:
            raise _without_key(told.id)
        columns = _complete_columns(told.columns, now, logged)
        return self._intern(describe(told.id, columns, key, Identity.KEY, self._policy_of(told.id)))

    def forget(self) -> None:
        """Read the catalog again before the next answer, because it changed."""
        self._known = {}

    def loose_collations(self) -> Mapping[TableId, Mapping[str, str]]:
        """The collations of text columns in which different texts are equal, such as `a` and `A`."""
        tables = self.selected_tables().tables
        ids = self.ask(f"querying the collations of {self._server.address}", self._collation_ids)
        # One id may have several names in MariaDB; the last one names the character set, too.
        names = {number: name for name, number in ids.items() if not name.endswith("_bin") and name != "binary"}
        return {t.id: {c.name: names[c.collation] for c in t.columns if c.collation in names} for t in tables}

    def _collation_ids(self, connection: Connection) -> Mapping[str, int]:
        if not self._collations:
            self._collations = {n: i for n, i in query(connection, COLLATIONS[self._server.flavor]) if i}
        return self._collations

    def _key(self, told: TableMap, now: CatalogTable | None, logged: Table | None) -> tuple[str, ...] | None:
        """Return the key that a table had when rows of it were written; None if it had none. Table maps name only the
        primary key.

        Of the possible keys the current one is preferred: a statement that changed it has the table read again.
        """
        if told.key or not told.has_names:  # `tables.describe` refuses columns without names
            return told.key_names
        if now is not None and not now.key and self.wanted.keyless:
            return ()
        filled = {c.name for c in told.columns if not c.nullable}
        for known in (now, logged):
            if known is not None and known.key and filled >= set(known.key):
                return known.key
        return () if self.wanted.keyless else None

    def _intern(self, described: DescribedTable) -> DescribedTable:
        # Two shapes can be equal and still decode differently: a table's shape does not contain its character sets.
        return self._interned.setdefault((described.table, described.columns), described)


def _inconsistent_tables(found: Selected) -> frozenset[TableId]:
    """Return the tables whose key names columns that they do not have."""
    return frozenset(t.id for t in found.good if not set(t.key) <= {c.name for c in t.columns})


def _without_key(table: TableId) -> ConfigurationError:
    return ConfigurationError(
        f"table {table} has a change in the log from a time when it had no key, or another key",
        remedy=f"ALTER TABLE {quote_name(table.schema)}.{quote_name(table.name)} ADD PRIMARY KEY (…)",
        runbook="schema-not-followed",
    )


def _names_all(now: CatalogTable, told: TableMap) -> bool:
    return [c.name for c in now.columns] == [c.name for c in told.columns]


def _complete_columns(
    columns: Sequence[ServerColumn], now: CatalogTable | None, logged: Table | None
) -> tuple[ServerColumn, ...]:
    """Return the log's columns, completed by facts that only the catalog has, if they are still the same columns.

    For a table that is gone, the change log's types provide these facts.
    """
    extras = {c.name: c for c in (now.columns if now else ()) if c.extra}
    types = {} if now or not logged else {c.name: c.type.source for c in logged.columns}
    return tuple(
        replace(c, extra=extras[c.name].extra)
        if c.name in extras and replace(extras[c.name], extra="", nullable=c.nullable) == c
        else replace(c, extra=extra_of(c, types.get(c.name, "")))
        for c in columns
    )
