"""Finds what prevents an exact capture, each with the SQL that fixes it. Changes nothing.

A start refuses a server with `shortcomings`; `cdcflow doctor` shows them along with everything else that can be
checked.

Foreign keys can cascade without being logged in the binary log (M10), so that captured tables silently differ:

    server                                        a parent's DELETE, or UPDATE of its key, is logged with
    MySQL 9.6 and later                           the children's rows, before the parent's
    the same with innodb_native_foreign_keys=ON   the parent's row alone: InnoDB changes the children by itself
    MySQL before 9.6, MariaDB                     the parent's row alone

If the log contains the children's rows, they are changes like any other. If it does not, the log does not reveal which
children a parent had. Then the affected tables are named in `cdcflow doctor`, and in `cdcflow status` for as long as
they are captured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pymysql

from cdcflow.capture.ports.findings import Finding
from cdcflow.config import MySQL
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.model.table import TableId, word
from cdcflow.sources.engine import findings as findings_of
from cdcflow.sources.engine.findings import Checks, created_at_first_start, of_error, ok, problem, warning
from cdcflow.sources.engine.replica_wait import SETTING, remedy
from cdcflow.sources.engine.selection import advice, table_id
from cdcflow.sources.mysql import binlog_status, second_opinion, topology
from cdcflow.sources.mysql.backfill_replica import find_problem
from cdcflow.sources.mysql.catalog import Catalog, CatalogTable, Selected, table_names
from cdcflow.sources.mysql.connection import NAMES, Connection, Connector, query, query_row, version_of
from cdcflow.sources.mysql.decoders import COMPILED, Compiled
from cdcflow.sources.mysql.errors import CHANGING, NO_SUCH_TABLE, map_error, parts
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.marks import WrittenMarks
from cdcflow.sources.mysql.retention import is_rds, retention
from cdcflow.sources.mysql.sql import quote_name

# ── the server ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Shortcoming:
    """A property of the server that prevents an exact capture."""

    subject: str
    text: str
    remedy: str


def variables(connection: Connection, *names: str) -> dict[str, Any]:
    """Return global variables with their values as text, without variables that the server does not have."""
    listed = ", ".join(f"'{name}'" for name in names)
    rows = query(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({listed})")
    return {str(name).lower(): value for name, value in rows}


ASKED = (
    *("log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_order_commits", "gtid_mode"),
    *("enforce_gtid_consistency", "log_slave_updates", "log_replica_updates", "read_only", "super_read_only"),
    *("binlog_expire_logs_seconds", "expire_logs_days", "max_binlog_total_size", "version", "server_id"),
    *("binlog_row_value_options", "binlog_legacy_event_pos", "sql_log_bin", "require_secure_transport"),
    *("binlog_storage_engine", "binlog_row_event_fragment_threshold", "wsrep_on"),
)

ROW_EVENT_BYTES_MAX = 1 << 30
"""The required value of `binlog_row_event_fragment_threshold`, in bytes. MariaDB 12.3 and later split larger row events
into PARTIAL_ROW_DATA events, which cdcflow does not read; no packet is larger than this value."""


def shortcomings(connection: Connection, settings: MySQL) -> Iterator[Shortcoming]:
    """Return the properties of the server that make a capture impossible, or wrong."""
    found = variables(connection, *ASKED)
    if found.get("log_bin") != "ON":
        yield Shortcoming(
            "log_bin",
            "is OFF: the server writes no binary log, so there are no changes to read",
            "set log_bin in the server's configuration, and restart it",
        )
        return
    if engine := found.get("binlog_storage_engine"):
        yield Shortcoming(
            "binlog_storage_engine",
            f"is {engine}: the server keeps its binary log inside {engine} and does not give its events a file "
            f"and an offset, which cdcflow needs to find its position again",
            "take binlog_storage_engine out of the server's configuration, and restart it",
        )
        return
    if int(found.get("binlog_row_event_fragment_threshold") or ROW_EVENT_BYTES_MAX) < ROW_EVENT_BYTES_MAX:
        yield Shortcoming(
            "binlog_row_event_fragment_threshold",
            f"is {found['binlog_row_event_fragment_threshold']}: the server cuts larger row events into fragments, "
            "which cdcflow does not read",
            f"run SET GLOBAL binlog_row_event_fragment_threshold = {ROW_EVENT_BYTES_MAX}{_also(settings)}",
        )
    if found.get("binlog_format", "ROW") != "ROW":
        yield Shortcoming(
            "binlog_format",
            f"is {found['binlog_format']}: the log lacks the rows that statements change",
            "run SET GLOBAL binlog_format = 'ROW' (and in the server's configuration), and reconnect open sessions",
        )
    if found.get("binlog_row_metadata") != "FULL":
        yield Shortcoming(
            "binlog_row_metadata",
            f"is {found.get('binlog_row_metadata')}: the log does not name the columns of its rows",
            f"run {_persist(settings)} binlog_row_metadata = 'FULL'{_also(settings)}",
        )
    if not topology.logs_foreign_changes(found) and topology.has_foreign_changes(connection, settings.kind, found):
        name = "log_replica_updates" if "log_replica_updates" in found else "log_slave_updates"
        yield Shortcoming(
            name,
            "is OFF, and the server applies changes of another: they do not reach its binary log",
            f"set {name} = ON in the server's configuration, and restart it; or point source.url at the other server",
        )
    if filters := binlog_status.end(connection).filters:
        yield Shortcoming(
            "binary log",
            f"excludes databases ({filters}): no reader gets their changes",
            "take binlog_do_db and binlog_ignore_db out of the server's configuration, and restart it",
        )
    if settings.kind == "mysql":
        yield from _order(found, settings)


def _order(found: dict[str, Any], settings: MySQL) -> Iterator[Shortcoming]:
    has_gtids = found.get("gtid_mode") == "ON"
    if settings.fence == "marks" and found.get("binlog_order_commits") == "OFF":
        remedy = "run SET PERSIST binlog_order_commits = ON"
        yield Shortcoming(
            "binlog_order_commits",
            "is OFF: commits may become visible in another order than in the log, so marks do not prove a backfill's "
            "order",
            f"{remedy}, or set source.fence: read-only" if has_gtids else remedy,
        )
    if settings.fence == "read-only" and not has_gtids:
        yield Shortcoming(
            "gtid_mode",
            f"is {found.get('gtid_mode')}: without GTIDs only marks can show what is visible",
            "set source.fence: marks, or switch GTIDs on (SET PERSIST gtid_mode = OFF_PERMISSIVE, ON_PERMISSIVE, ON)",
        )


def _persist(settings: MySQL) -> str:
    return "SET PERSIST" if settings.kind == "mysql" else "SET GLOBAL"


def _also(settings: MySQL) -> str:
    return "" if settings.kind == "mysql" else " (and in the server's configuration)"


def check(connection: Connection, settings: MySQL) -> None:
    """Raise ConfigurationError with all shortcomings, if the server has any."""
    found = list(shortcomings(connection, settings))
    if found:
        raise ConfigurationError(
            "; ".join(f"{s.subject} {s.text}" for s in found),
            remedy=";\n  ".join(s.remedy for s in found),
            runbook="server-settings",
        )


_FACTS = (
    *("version_comment", "lower_case_table_names", "max_allowed_packet", "character_set_server", "time_zone"),
    *("sync_binlog", "innodb_flush_log_at_trx_commit", "max_binlog_size", "max_connections", "wait_timeout"),
    *("net_read_timeout", "net_write_timeout", "binlog_transaction_compression", "log_bin_compress"),
)


def facts(connection: Connection, flavor: Flavor) -> dict[str, str]:
    """Return the server's version and settings, for the analysis of a problem."""
    found = {name: str(value) for name, value in variables(connection, *ASKED, *_FACTS).items()}
    end = binlog_status.end(connection)
    return {**found, "binlog_end": f"{end.file}:{end.pos}", "binlog_filters": end.filters}


# ── what reaches the log ───────────────────────────────────────────────────────────────────────────────────────

_THERE = "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE'"


def uncovered_tables(connection: Connection, settings: MySQL, captured: Collection[TableId]) -> dict[TableId, str]:
    """Return why changes of captured tables may be missing in the binary log, with the server's current settings.

    A session with `sql_log_bin = 0` cannot be detected: only that session can see its setting.
    """
    if found := list(shortcomings(connection, settings)):
        return dict.fromkeys(captured, "; ".join(f"{s.subject} {s.text}" for s in found))
    there = {TableId(str(schema), str(name)) for schema, name in query(connection, _THERE)}
    names = table_names(connection)
    known = {names.key(t) for t in there}
    reasons = {t: "it was dropped or renamed since the capture began" for t in captured if names.key(t) not in known}
    for table, constraints in unlogged_tables(connection, settings.kind, captured.__contains__).items():
        reasons[table] = f"foreign key {', '.join(constraints)} changes its rows, and the server does not log that"
    return reasons


# ── foreign keys ───────────────────────────────────────────────────────────────────────────────────────────────

LOGGED_FROM = (9, 6)
"""Since this MySQL version the server, not InnoDB, carries out cascades and logs them."""

_KEYS = """
SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME, CONSTRAINT_NAME FROM information_schema.KEY_COLUMN_USAGE
WHERE REFERENCED_TABLE_NAME IS NOT NULL
"""
_RULES = """
SELECT CONSTRAINT_SCHEMA, TABLE_NAME, CONSTRAINT_NAME,
DELETE_RULE IN ('CASCADE', 'SET NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL')
FROM information_schema.REFERENTIAL_CONSTRAINTS
"""
_SHOWN = re.compile(r"^\s*CONSTRAINT [`\"]?(.+?)[`\"]? FOREIGN KEY .* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL)", re.M)

Unlogged = Mapping[TableId, tuple[str, ...]]
"""Tables whose rows are inserted, changed or deleted without being logged, each with the foreign keys that do so."""


def unlogged_tables(connection: Connection, flavor: Flavor, is_captured: Callable[[TableId], bool]) -> Unlogged:
    """Return the captured tables that a cascade can change without being logged; empty if the server logs cascades."""
    if _are_logged(connection, flavor):
        return {}
    keys: dict[TableId, set[str]] = {}
    for schema, name, constraint in query(connection, _KEYS):
        if is_captured(table := TableId(schema, name)):
            keys.setdefault(table, set()).add(constraint)
    rules = {(TableId(s, t), c): bool(cascades) for s, t, c, cascades in query(connection, _RULES)} if keys else {}
    found: dict[TableId, tuple[str, ...]] = {}
    for table, constraints in sorted(keys.items()):
        if all((table, c) in rules for c in constraints):
            cascading = [c for c in constraints if rules[table, c]]
        else:
            # MariaDB shows rules only to accounts with more privileges than SELECT, which a capture need not have.
            cascading = _SHOWN.findall(_definition(connection, table))
        if cascading:
            found[table] = tuple(sorted(cascading))
    return found


def _are_logged(connection: Connection, flavor: Flavor) -> bool:
    if flavor != "mysql" or version_of(connection.get_server_info()) < LOGGED_FROM:
        return False
    return variables(connection, "innodb_native_foreign_keys").get("innodb_native_foreign_keys") != "ON"


def _definition(connection: Connection, table: TableId) -> str:
    """Return the statement that creates a table; empty if another session has dropped the table in the meantime."""
    try:
        return str(query(connection, f"SHOW CREATE TABLE {quote_name(table.schema)}.{quote_name(table.name)}")[0][1])
    except pymysql.Error as error:
        if parts(error)[0] in CHANGING:
            return ""
        raise


# ── cdcflow doctor ─────────────────────────────────────────────────────────────────────────────────────────────

_PRIVILEGES = {
    "mysql": {"REPLICATION SLAVE": "REPLICATION SLAVE", "REPLICATION CLIENT": "REPLICATION CLIENT"},
    "mariadb": {"REPLICATION SLAVE": "REPLICATION SLAVE", "BINLOG MONITOR": "BINLOG MONITOR"},
}
_TOO_MUCH = ("SUPER", "SHUTDOWN", "CREATE USER", "DROP")


def findings(connector: Connector, settings: MySQL, catalog: Catalog) -> list[Finding]:
    """Return the results of all checks; a check that fails to run is a finding too."""
    checks = Checks(connector, lambda: connector.connect("doctor"), map_error)

    def run(subject: str, looking: Iterator[Finding]) -> Iterator[Finding]:
        return checks.run_one(subject, f"checking {subject}", looking)

    def everything(connection: Connection) -> Iterator[Finding]:
        yield from _link(connection, connector, settings)
        yield from run("server", _server(connection, settings))
        yield from run("privileges", _privileges(connection, settings))
        yield from run("source.marks_table", _marks(connection, settings))
        try:
            selected = catalog.selected_tables()
        except CdcflowError as error:
            yield of_error("source.tables", error)
            return
        yield from run("source.tables", _tables(connection, selected, catalog))
        yield from run("foreign keys", _cascades(connection, settings, selected))
        yield from _backfill_replica(connector, settings, catalog)

    return checks.run(everything, decoders(), second_decoder())


def decoders(compiled: Compiled | None = COMPILED) -> Finding:
    return findings_of.decoders(are_compiled=compiled is not None, times="several")


def second_decoder() -> Finding:
    """Return a finding on whether a second decoder is installed for the shadow check."""
    if second_opinion.is_installed():
        return ok("second opinion", "mysql-replication is installed; the shadow check compares row events with it, too")
    return ok("second opinion", f"{second_opinion.NOT_INSTALLED}: the shadow check compares rows with the server alone")


def _backfill_replica(connector: Connector, settings: MySQL, catalog: Catalog) -> Iterator[Finding]:
    if settings.backfill.url is None:
        return
    reading = connector.to(settings.backfill.url)
    try:
        why = find_problem(reading, catalog)
    except CdcflowError as error:
        yield of_error(SETTING, error)
        return
    finally:
        reading.close()
    if why is not None:
        yield problem(SETTING, f"no rows can be read from {reading.address}: {why}", remedy())
    else:
        yield ok(SETTING, f"rows are read from {reading.address}, a replica of this server")


def _link(connection: Connection, connector: Connector, settings: MySQL) -> Iterator[Finding]:
    where = f"{connector.address} as {connector.address.user}"
    if settings.tls.mode == "off" and not connector.address.is_local:
        yield warning(
            "connection",
            f"rows travel from {connector.address} unencrypted",
            "set source.tls: {mode: verify, ca: …} (ca: the authority that signed the server's certificate)",
        )
    elif settings.tls.mode == "verify-ca":
        yield warning(
            "connection",
            f"{where}, with TLS, but cdcflow does not check the name in the server's certificate",
            "set source.tls.mode: verify",
        )
    else:
        yield ok("connection", f"{where}, {connector.machine if connector.address.is_local else 'with TLS'}")


_IN_GROUP = (
    "set it in the instance's DB parameter group (Aurora: in the DB cluster parameter group), and reboot where the "
    "parameter is static; the binary log itself needs automated backups (Aurora: binlog_format = ROW)"
)
"""How to change a setting on Amazon RDS and Aurora, where SET GLOBAL is refused."""


def _server(connection: Connection, settings: MySQL) -> Iterator[Finding]:
    found = variables(connection, *ASKED, "basedir")
    on_rds = is_rds(connection, found)
    yield ok("server", f"{NAMES[settings.kind]} {found.get('version')}{', Amazon RDS or Aurora' if on_rds else ''}")
    wrong = {s.subject: s for s in shortcomings(connection, settings)}
    for shortcoming in wrong.values():
        yield problem(shortcoming.subject, shortcoming.text, _IN_GROUP if on_rds else shortcoming.remedy)
    without_gtids = found.get("gtid_mode", "ON") != "ON"
    for name in ("log_bin", "binlog_format", "binlog_row_metadata", *(() if without_gtids else ("gtid_mode",))):
        if name in found and name not in wrong:
            yield ok(name, f"is {found[name]}")
    if found.get("binlog_row_image", "FULL") != "FULL":
        yield warning(
            "binlog_row_image",
            f"is {found['binlog_row_image']}: the log does not repeat columns that a change left alone, so the "
            f"history of a row has gaps",
            "run SET GLOBAL binlog_row_image = 'FULL' (and in the server's configuration)",
        )
    if without_gtids:
        yield warning(
            "gtid_mode",
            f"is {found['gtid_mode']}: after a failover the capture cannot continue at another server",
            "run SET PERSIST gtid_mode = OFF_PERMISSIVE, then ON_PERMISSIVE, then ON",
        )
    yield from topology.findings(connection, settings.kind)
    yield from _names(connection)
    yield from retention(connection, found)


def _names(connection: Connection) -> Iterator[Finding]:
    """Return a finding unless names are case-sensitive, like those in `source.tables`."""
    match table_names(connection).mode:
        case 1:
            yield ok("lower_case_table_names", "is 1: case does not count in names of tables, nor in source.tables")
        case 2:
            yield ok(
                "lower_case_table_names",
                "is 2: case does not count in names of tables; source.tables needs them as SHOW TABLES has them",
            )


def _privileges(connection: Connection, settings: MySQL) -> Iterator[Finding]:
    user = str(query_row(connection, "SELECT CURRENT_USER()")[0])
    name, _, host = user.rpartition("@")
    account = f"'{name}'@'{host}'"
    held = {
        row[0] for row in query(connection, "SELECT DISTINCT PRIVILEGE_TYPE FROM information_schema.USER_PRIVILEGES")
    }
    missing = [grant for shown, grant in _PRIVILEGES[settings.kind].items() if not held & {shown, "SUPER"}]
    if missing:
        yield problem(
            "privileges",
            f"{account} lacks {', '.join(missing)} (unless a role gives it)",
            f"run GRANT {', '.join(missing)} ON *.* TO {account}",
        )
    else:
        yield ok("privileges", f"{account} may read the binary log")
    if len(held & set(_TOO_MUCH)) > 1:
        yield warning(
            "privileges",
            f"{account} may do far more than a capture needs",
            "make a user for it with SELECT on the tables and the privileges in docs/mysql.md",
        )


def _marks(connection: Connection, settings: MySQL) -> Iterator[Finding]:
    if settings.fence == "read-only":
        yield ok("source.fence", "is read-only: nothing is written to the server")
        return
    marks = WrittenMarks(table_id(settings.marks_table), "")
    try:
        marks.check(connection)
    except pymysql.Error as error:
        if error.args and error.args[0] in (NO_SUCH_TABLE, 1049):
            yield created_at_first_start("source.marks_table", settings.marks_table)
        else:
            yield of_error("source.marks_table", marks.map_error(connection, error))
    else:
        yield ok("source.marks_table", f"{settings.marks_table} can be written")


def _tables(connection: Connection, selected: Selected, catalog: Catalog) -> Iterator[Finding]:
    for text in selected.ignored:
        yield warning("tables", f"not captured: {text}")
    if not selected.tables and catalog.is_empty():
        yield warning("tables", "source.tables matches no table; tables are captured when they are created")
    elif not selected.tables:
        yield problem("tables", "source.tables matches no table", catalog.if_none())
    for table in selected.tables:
        problems = [problem(str(table.id), text, advice(remedy)) for text, remedy in selected.refused.get(table.id, ())]
        yield from problems or [_table(connection, table)]


def _table(connection: Connection, table: CatalogTable) -> Finding:
    try:
        query(connection, f"SELECT 1 FROM {table.sql} LIMIT 0")  # noqa: S608  quoted
    except pymysql.Error as error:
        return of_error(str(table.id), map_error(error, f"reading {table.id}"))
    if not table.key:
        return warning(
            str(table.id),
            "has no key: all columns together identify a row, and a backfill reads it in one piece into memory",
            f"run ALTER TABLE {table.sql} ADD PRIMARY KEY (…) if it is large",
        )
    return ok(str(table.id), f"key ({', '.join(table.key)})")


def _cascades(connection: Connection, settings: MySQL, selected: Selected) -> Iterator[Finding]:
    captured = frozenset(t.id for t in selected.good)
    for table, constraints in unlogged_tables(connection, settings.kind, captured.__contains__).items():
        yield warning(
            str(table),
            f"has a foreign key that cascades ({', '.join(constraints)}): when a row of the parent is deleted, or its "
            "key changes, this server changes rows here without logging it, so the copy silently differs after that",
            f"change these rows with their own statements before the parent's, or run `cdcflow backfill {word(table)}` "
            "after such a change",
        )
