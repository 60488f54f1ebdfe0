"""The publication: which tables the server includes in cdcflow's stream, and how.

A publication under the name that cdcflow gives it is cdcflow's: it is created, repaired and kept equal to the selected
tables. One that the settings name has another owner: tables are added and dropped, but how it publishes is only
checked.

A change that the stream did not carry is lost silently, so a publication must never have been different in between.
`fingerprint` shows that: it holds the numbers of the publication and of each table's entry in it, and a new number is a
new entry, whatever its name (P61). PostgreSQL 18 continues without a publication's rows when it is dropped.

A publication that was altered to publish less, and then to publish everything again, has the same settings as before;
so the fingerprint also holds the transaction that wrote each of its rows (`xmin`). ALTER PUBLICATION … OWNER TO and
RENAME TO write the publication's row too. The row does not show which statement it was, so these are taken for a loss
as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import psycopg

from cdcflow.capture.ports.findings import Dropped
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.catalog_entries import CatalogTable, Relid
from cdcflow.sources.postgres.connection import Connection, history_lost, map_error, query_row, quote_name

_PUBLICATION = """
SELECT oid::bigint, xmin::text::bigint, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,
       coalesce(to_jsonb(p) ->> 'pubgencols', 's'), coalesce((to_jsonb(p) ->> 'puballsequences')::bool, false)
FROM pg_catalog.pg_publication p WHERE pubname = %s
"""

_SCHEMAS = """
SELECT n.nspname, n.oid::bigint, s.oid::bigint, s.xmin::text::bigint
FROM pg_catalog.pg_publication_namespace s JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid
WHERE s.pnpubid = %s
"""

_ENTRIES = """
SELECT r.oid::bigint, r.xmin::text::bigint, r.prrelid::bigint, n.nspname, c.relname,
       to_jsonb(r) ->> 'prqual' IS NOT NULL, to_jsonb(r) ->> 'prattrs' IS NOT NULL,
       coalesce((to_jsonb(r) ->> 'prexcept')::bool, false)
FROM pg_catalog.pg_publication_rel r
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE r.prpubid = %s
"""

# pg_depend also records which schema a table is in. Only ALTER TABLE … SET SCHEMA writes that row again.
_MEMBERS = """
SELECT d.objid::bigint, d.xmin::text::bigint FROM pg_catalog.pg_depend d
WHERE d.refclassid = 'pg_catalog.pg_namespace'::regclass AND d.refobjid = ANY (%s::oid[])
  AND d.classid = 'pg_catalog.pg_class'::regclass AND d.objsubid = 0
"""


_NAMED = """
SELECT c.oid::bigint, n.nspname, c.relname FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s::oid[])
"""

# The locks on tables that ALTER PUBLICATION would wait for, whether a session holds them or waits for them.
# Autovacuum's are not listed, because it gives way.
_LOCKED = """
SELECT l.relation::bigint, l.mode, l.pid, a.usename,
       extract(epoch FROM clock_timestamp() - a.xact_start)::bigint
FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = ANY (%s::oid[])
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
  AND l.mode IN ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                 'AccessExclusiveLock')
  AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid() AND a.backend_type IS DISTINCT FROM 'autovacuum worker'
ORDER BY l.granted DESC, a.xact_start
"""

_COVERED = "SELECT schemaname, tablename FROM pg_catalog.pg_publication_tables WHERE pubname = %s"


GENERATED = "publish_generated_columns = stored"
"""What a publication needs since PostgreSQL 18, and lacks after an upgrade from an earlier version."""

Exists = Callable[[Literal["pg_class", "pg_namespace"], int], bool]
"""Returns whether this catalog still has an entry with this oid."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """One table in a publication. `number` changes when the table is dropped from it and added again; `written` is the
    transaction that wrote the entry."""

    number: int
    written: int
    table_oid: int
    table: TableId
    filtered: bool


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication in its current state. `wrong`: settings with which it does not publish what cdcflow needs, each
    with the value that fixes it.

    `written` is the transaction that wrote its row. `schemas`: the schemas that it publishes as a whole, each with its
    oid, and with the number of its entry and the transaction that wrote it. `members`: the tables in them by oid, each
    with the transaction that moved it there. `excepted`: the tables in its list of exceptions (PostgreSQL 19, FOR ALL
    TABLES EXCEPT), by oid; None: this server has no such list. `all_sequences`: it also publishes all sequences, which
    cdcflow does not capture.
    """

    name: str
    number: int
    written: int
    all_tables: bool
    wrong: tuple[str, ...]
    entries: Mapping[int, PublishedTable]
    schemas: Mapping[str, tuple[int, int, int]]
    members: Mapping[int, int] = field(default_factory=dict)
    excepted: Mapping[int, TableId] | None = None
    all_sequences: bool = False

    @property
    def broad(self) -> bool:
        """Whether it publishes more than individually listed tables: all tables, or all tables of some schemas."""
        return self.all_tables or bool(self.schemas)

    def fingerprint(self, tables: Sequence[CatalogTable]) -> str:
        """Return the numbers of the publication and of its entries for these tables or their schemas, and the
        transactions that wrote them."""
        entries = {
            json.dumps([t.rel.id.schema, t.rel.id.name]): [t.rel.oid, entry.number, entry.written]
            for t in tables
            if (entry := self.entries.get(t.rel.oid)) is not None
        }
        wanted = {t.rel.id.schema for t in tables}
        schemas = {name: list(entry) for name, entry in self.schemas.items() if name in wanted}
        members = {
            json.dumps([t.rel.id.schema, t.rel.id.name]): [t.rel.oid, self.members[t.rel.oid]]
            for t in tables
            if t.rel.oid in self.members and t.rel.oid not in self.entries
        }
        state = {"publication": self.number, "written": self.written, "tables": entries, "schemas": schemas}
        if members:
            state["members"] = members
        if self.all_tables and self.excepted is not None:
            state["all"] = sorted(t.rel.oid for t in tables if t.rel.oid not in self.excepted)
        return json.dumps(state, separators=(",", ":"))


def read(connection: Connection, name: str) -> Publication | None:
    version = connection.info.server_version
    row = connection.execute(_PUBLICATION, (name,)).fetchone()
    if row is None:
        return None
    oid, written, all_tables, inserts, updates, deletes, truncates, via_root, generated, all_sequences = row
    wrong = []
    if not (inserts and updates and deletes and truncates):
        wrong.append("publish = 'insert, update, delete, truncate'")
    if not via_root:
        wrong.append("publish_via_partition_root = true")
    if version >= 180000 and generated != "s":
        wrong.append(GENERATED)
    entries, excepted = {}, {}
    for number, wrote, table_oid, schema, table, has_filter, has_columns, is_excepted in connection.execute(
        _ENTRIES, (oid,)
    ):
        if is_excepted:
            excepted[table_oid] = TableId(schema, table)
        else:
            entries[table_oid] = PublishedTable(
                number, wrote, table_oid, TableId(schema, table), has_filter or has_columns
            )
    schemas = {}
    if version >= 150000:
        schemas = {row[0]: (row[1], row[2], row[3]) for row in connection.execute(_SCHEMAS, (oid,))}
    members: dict[int, int] = {}
    if schemas and not all_tables:
        members = dict(connection.execute(_MEMBERS, ([entry[0] for entry in schemas.values()],)).fetchall())
    return Publication(
        name,
        oid,
        written,
        all_tables,
        tuple(wrong),
        entries,
        schemas,
        members,
        excepted if version >= 190000 else None,
        all_sequences,
    )


def check_unbroken(found: Publication | None, name: str, before: str, exists: Exists) -> None:
    """Check that this publication has carried the tables of `before` (a fingerprint) all the time since.

    A dropped table or schema has no entry and lost nothing. Facts that a fingerprint of an earlier version does not
    hold are not compared.

    Raises:
        HistoryLost: the publication was gone or altered, or a table was dropped from it, and changes may have been
            missed.
    """
    then = json.loads(before)
    if found is None:
        raise history_lost(
            f"publication {name} is gone; changes since then are not in the stream", runbook="publication-changed"
        )
    if found.number != then["publication"]:
        raise history_lost(
            f"publication {name} was dropped and recreated; changes in between are not in the stream",
            runbook="publication-changed",
        )
    if found.wrong:
        raise history_lost(
            f"publication {name} was changed (it needs {', '.join(found.wrong)}); changes that it excludes are "
            f"not in the stream",
            runbook="publication-changed",
        )
    if found.written != then.get("written", found.written):
        raise history_lost(
            f"publication {name} was altered (ALTER PUBLICATION … SET, OWNER TO or RENAME TO); it is correct now, "
            f"but changes that it excluded in the meantime are not in the stream",
            runbook="publication-changed",
        )
    for table_oid in then.get("all", ()):
        if table_oid in (found.excepted or {}):
            raise history_lost(
                f"table {(found.excepted or {})[table_oid]} was excepted from publication {name} (ALTER PUBLICATION … "
                "SET ALL TABLES EXCEPT); its changes since then are not in the stream",
                runbook="publication-changed",
            )
    schemas = {
        entry[0]: list(entry) for entry in found.schemas.values()
    }  # by oid, because a schema may have a new name
    for schema, entry in then.get("schemas", {}).items():
        if schemas.get(entry[0]) == entry or not exists("pg_namespace", entry[0]):
            continue
        raise history_lost(
            f"schema {schema} was taken out of publication {name}; "
            "changes of its tables since then are not in the stream",
            runbook="publication-changed",
        )
    for table, (table_oid, put_there) in then.get("members", {}).items():
        if found.members.get(table_oid) == put_there or not exists("pg_class", table_oid):
            continue
        raise history_lost(
            f"table {'.'.join(json.loads(table))} was moved out of its schema (ALTER TABLE … SET SCHEMA), and so out "
            f"of publication {name}; its changes meanwhile are not in the stream",
            runbook="publication-changed",
        )
    for table, (table_oid, *entry) in then["tables"].items():
        now = found.entries.get(table_oid)
        if now is not None and [now.number, now.written][: len(entry)] == entry:
            continue
        whole = found.all_tables or json.loads(table)[0] in then.get("schemas", {})
        if whole or not (now or exists("pg_class", table_oid)):
            continue
        raise history_lost(
            f"table {'.'.join(json.loads(table))} was taken out of publication {name}; "
            "its changes since then are not in the stream",
            runbook="publication-changed",
        )


def uncovered_tables(connection: Connection, name: str, captured: Mapping[TableId, int]) -> dict[TableId, str]:
    """Return why changes of captured tables (each with its oid) may not be in the stream of this publication in its
    current state."""
    found = read(connection, name)
    if found is None:
        return dict.fromkeys(captured, f"publication {name} is gone")
    if found.wrong:
        return dict.fromkeys(captured, f"publication {name} was changed: it needs {', '.join(found.wrong)}")
    named = {oid: (schema, table) for oid, schema, table in connection.execute(_NAMED, (list(captured.values()),))}
    covers = _covers(connection, found)
    reasons = {}
    for table, oid in captured.items():
        entry = found.entries.get(oid)
        if named.get(oid) != (table.schema, table.name):
            reasons[table] = "it was dropped, renamed or recreated since the capture began"
        elif entry is not None and entry.filtered:
            reasons[table] = f"publication {name} excludes rows or columns of it"
        elif entry is None and not covers(oid, table):
            reasons[table] = f"it is not in publication {name}"
    return reasons


def locked_tables(connection: Connection, name: str, tables: Sequence[CatalogTable]) -> dict[TableId, str]:
    """Return those of these tables that cannot be added to the publication now, each with the sessions that have locked
    it."""
    wanted = _tables_to_add(read(connection, name), tables)
    return {wanted[oid].id: who for oid, who in _holders(connection, wanted).items()}


def unpublished_tables(connection: Connection, name: str, tables: Sequence[CatalogTable]) -> dict[TableId, str]:
    """Return those of these tables that the publication of a standby's primary lacks, each with the statement that adds
    it."""
    statement = f"ALTER PUBLICATION {quote_name(name)} ADD"
    wanted = _tables_to_add(read(connection, name), tables)
    return {t.rel.id: f"{statement} {_table_list([t])}" for t in tables if t.rel.oid in wanted}


def _tables_to_add(found: Publication | None, tables: Sequence[CatalogTable]) -> dict[int, Relid]:
    """Return the tables that would have to be added to a publication, by oid."""
    if found is not None and found.broad:
        return {}
    return {t.rel.oid: t.rel for t in tables if found is None or t.rel.oid not in found.entries}


def _holders(connection: Connection, oids: Iterable[int]) -> dict[int, str]:
    holders: dict[int, str] = {}
    for oid, mode, pid, user, seconds in connection.execute(_LOCKED, (list(oids),)):
        who = "a prepared transaction" if pid is None else f"pid {pid} of {user or '?'}"
        since = "" if seconds is None else f" for {seconds} s"
        holders.setdefault(oid, f"its lock ({mode}) is held by {who}{since}")
    return holders


def has_newcomers(before: str, now: str) -> bool:
    """Whether `now` (a fingerprint) has tables or schemas that `before` does not have, or has with another number."""
    then, since = json.loads(before), json.loads(now)
    known = {tuple(entry[:2]) for entry in then["tables"].values()}
    schemas = {tuple(entry) for entry in then.get("schemas", since["schemas"]).values()}
    return not (
        known.issuperset(tuple(entry[:2]) for entry in since["tables"].values())
        and schemas.issuperset(tuple(entry) for entry in since["schemas"].values())
    )


def ensure(
    connection: Connection, name: str, tables: Sequence[CatalogTable], *, ours: bool, at_standby: bool = False
) -> Publication:
    """Make the publication have exactly these tables, with all rows and columns, and partitions published through their
    roots. At a standby it may have others, too.

    Raises:
        ConfigurationError: cdcflow's rights do not suffice to create or repair the publication; or it has another owner
            and publishes differently; or it has to be changed at the primary. The message has the SQL.
    """
    found = read(connection, name)
    if found is None:
        _run(connection, creation(connection.info.server_version, name, tables), name)
        return _must(read(connection, name), name)
    _mend(connection, found, ours=ours)
    if found.broad:
        _check_covered(connection, found, tables)
        return _must(read(connection, name), name)
    wanted = {t.rel.oid: t for t in tables}
    filtered = [e for e in found.entries.values() if e.filtered and e.table_oid in wanted]
    if filtered:
        names = ", ".join(quote_name(e.table.schema, e.table.name) for e in filtered)
        raise ConfigurationError(
            f"publication {name} excludes rows or columns of {names}, but a backfill would read them",
            remedy=f"run ALTER PUBLICATION {quote_name(name)} DROP TABLE {names}; cdcflow then adds it as a whole",
            runbook="publication-unusable",
        )
    added = [t for oid, t in wanted.items() if oid not in found.entries]
    dropped = [] if at_standby else [e for oid, e in found.entries.items() if oid not in wanted]
    if dropped:  # a locked table stays until a later start; its changes are skipped
        held = _holders(connection, [e.table_oid for e in dropped])
        dropped = [e for e in dropped if e.table_oid not in held]
    if added:
        _run(connection, f"ALTER PUBLICATION {quote_name(name)} ADD {_table_list(added)}", name)
    if dropped:
        names = ", ".join(quote_name(e.table.schema, e.table.name) for e in dropped)
        _run(connection, f"ALTER PUBLICATION {quote_name(name)} DROP TABLE {names}", name, gone_is_fine=True)
    return _must(read(connection, name), name)


def creation(version: int, name: str, tables: Sequence[CatalogTable]) -> str:
    """Return the SQL that creates the publication."""
    listed = f" FOR {_table_list(tables)}" if tables else ""
    options = ["publish = 'insert, update, delete, truncate'", "publish_via_partition_root = true"]
    if version >= 180000:
        options.append(GENERATED)
    return f"CREATE PUBLICATION {quote_name(name)}{listed} WITH ({', '.join(options)})"


def newcomers(before: str, found: Publication, tables: Sequence[CatalogTable]) -> list[PublishedTable]:
    """Return the entries of these tables that `before` (a fingerprint) does not have, or has with another number."""
    known = {tuple(entry[:2]) for entry in json.loads(before)["tables"].values()}
    entries = (found.entries.get(t.rel.oid) for t in tables)
    return [entry for entry in entries if entry is not None and (entry.table_oid, entry.number) not in known]


def next_transaction(connection: Connection) -> int:
    """Return an id above those of all transactions that have an id now."""
    return _number(connection, "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text")


def oldest_transaction(connection: Connection) -> int:
    """Return an id below which every transaction has ended."""
    return _number(connection, "SELECT pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text")


def _number(connection: Connection, query: str) -> int:
    return int(query_row(connection, query)[0])


def wait_for_older(connection: Connection, timeout_s: float, what: str) -> None:
    """Wait until every transaction that runs now has ended.

    A transaction that ran when its table was added to a publication may have rows that are not decoded (P62, on
    older minor versions), so a backfill must not begin before it is over.
    """
    bound = next_transaction(connection)
    deadline = time.monotonic() + timeout_s
    while True:
        if oldest_transaction(connection) >= bound:
            return
        if time.monotonic() > deadline:
            raise SourceUnavailable(
                f"{what}: waiting for older transactions to end; {blocker(connection)}", runbook="old-transaction"
            )
        time.sleep(0.05)


def blocker(connection: Connection) -> str:
    """Describe the oldest transaction with an id, which others wait for, as far as this user may see it."""
    row = connection.execute(
        """
        SELECT 'pid ' || pid || ' of ' || coalesce(usename::text, '?') || ', for '
               || extract(epoch FROM clock_timestamp() - coalesce(xact_start, backend_start))::int || ' s'
        FROM pg_catalog.pg_stat_activity
        WHERE backend_xid IS NOT NULL AND pid <> pg_catalog.pg_backend_pid()
        ORDER BY age(backend_xid) DESC LIMIT 1
        """
    ).fetchone()
    if row is not None:
        return f"the oldest is {row[0]}"
    row = connection.execute(
        "(SELECT 'prepared transaction in database ' || database || ', since ' || prepared "
        "FROM pg_catalog.pg_prepared_xacts ORDER BY age(transaction) DESC LIMIT 1) UNION ALL "
        "SELECT 'transaction of the primary (pg_stat_activity shows it there)' WHERE pg_catalog.pg_is_in_recovery()"
    ).fetchone()
    return f"the oldest is a {row[0]}" if row else "this user may not see the oldest (GRANT pg_read_all_stats)"


def _mend(connection: Connection, found: Publication, *, ours: bool) -> None:
    if not found.wrong:
        return
    statement = f"ALTER PUBLICATION {quote_name(found.name)} SET ({', '.join(found.wrong)})"
    if not ours:
        raise ConfigurationError(
            f"publication {found.name} does not publish everything that a full copy needs",
            remedy=f"run {statement}",
            runbook="publication-unusable",
        )
    _run(connection, statement, found.name)


def _check_covered(connection: Connection, found: Publication, tables: Sequence[CatalogTable]) -> None:
    covers = _covers(connection, found)
    missing = [t.rel.sql for t in tables if not covers(t.rel.oid, t.rel.id)]
    if missing and found.all_tables and found.excepted:
        raise ConfigurationError(
            f"publication {found.name} is for all tables except {', '.join(missing)}, which are to be captured",
            remedy=f"run {_all_tables_but_for_others(found, tables)}",
            runbook="publication-unusable",
        )
    if missing:
        raise ConfigurationError(
            f"publication {found.name} is for all tables of some schemas and does not have {', '.join(missing)}",
            remedy=f"run ALTER PUBLICATION {quote_name(found.name)} ADD TABLE {', '.join(missing)}",
            runbook="publication-unusable",
        )


def _covers(connection: Connection, found: Publication) -> Callable[[int, TableId], bool]:
    """Return a function that tests whether the publication has a table of this oid and name."""
    if found.all_tables and connection.info.server_version >= 190000:  # EXCEPT
        names = {(row[0], row[1]) for row in connection.execute(_COVERED, (found.name,))}
        return lambda oid, table: (table.schema, table.name) in names
    # The server's view is not queried here: it waits for each table that another session has locked.
    return lambda oid, table: found.all_tables or oid in found.entries or table.schema in found.schemas


def _all_tables_but_for_others(found: Publication, tables: Sequence[CatalogTable]) -> str:
    """Return the statement that removes these tables from the publication's list of exceptions."""
    captured = {t.rel.oid for t in tables}
    others = [quote_name(t.schema, t.name) for oid, t in (found.excepted or {}).items() if oid not in captured]
    left_out = f" EXCEPT (TABLE {', TABLE '.join(others)})" if others else ""
    sequences = ", ALL SEQUENCES" if found.all_sequences else ""
    return f"ALTER PUBLICATION {quote_name(found.name)} SET ALL TABLES{left_out}{sequences}"


def _table_list(tables: Sequence[CatalogTable]) -> str:
    # A table that only inherits from its parent is captured as a separate table: a read of ONLY the parent does not
    # return its rows.
    return "TABLE " + ", ".join(t.rel.sql if t.rel.kind == "p" else f"ONLY {t.rel.sql}" for t in tables)


def remove(connection: Connection, name: str, ours: str) -> Dropped:
    """Drop the publication if cdcflow created it for a log. `ours`: the name that cdcflow gives it."""
    subject, sql = f"publication {name}", f"DROP PUBLICATION {quote_name(name)};"
    if connection.execute("SELECT FROM pg_catalog.pg_publication WHERE pubname = %s", (name,)).fetchone() is None:
        return Dropped(subject, "absent")
    if name != ours:
        return Dropped(subject, "left", "the settings name it, so others may read it", sql)
    try:
        connection.execute(f"DROP PUBLICATION IF EXISTS {quote_name(name)}".encode())
    except psycopg.errors.InsufficientPrivilege:
        return Dropped(subject, "left", "the user of source.url does not own it; its owner may", sql)
    except psycopg.Error as error:
        raise map_error(error, f"dropping publication {name}") from None
    return Dropped(subject, "removed")


def _run(connection: Connection, statement: str, name: str, *, gone_is_fine: bool = False) -> None:
    try:
        connection.execute(statement.encode())
    except psycopg.errors.UndefinedObject as error:
        if not gone_is_fine:
            raise map_error(error, f"changing publication {name}") from None
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        # The table existed when the tables were listed; the next attempt lists them again.
        raise SourceUnavailable(
            f"changing publication {name}: a table was renamed or dropped at the same time"
        ) from None
    except psycopg.errors.ReadOnlySqlTransaction:
        raise ConfigurationError(
            f"the server is a standby, and publication {name} does not have what is to be captured",
            remedy=f"run on the primary: {statement}",
            runbook="publication-unusable",
        ) from None
    except psycopg.errors.InsufficientPrivilege as error:
        grant = ""
        if "for database" in (error.diag.message_primary or ""):
            database, user = quote_name(connection.info.dbname), quote_name(connection.info.user)
            grant = f"run GRANT CREATE ON DATABASE {database} TO {user}, if that role owns the tables; or "
        raise ConfigurationError(
            f"the user of source.url may not make or change publication {name}",
            remedy=f"{grant}run as an owner: {statement}",
            runbook="publication-unusable",
        ) from None
    except psycopg.Error as error:
        raise map_error(error, f"changing publication {name}") from None


def _must(found: Publication | None, name: str) -> Publication:
    if found is None:
        raise SourceUnavailable(f"publication {name} was dropped just after cdcflow created it")
    return found
