"""What stands in the way of a capture, each with the SQL that mends it. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator

import pymysql

from cdcflow.config import MySQL
from cdcflow.errors import CdcflowError
from cdcflow.ports import Finding
from cdcflow.sources.engine import findings as findings_of
from cdcflow.sources.engine.findings import of_error, ok, problem, warning
from cdcflow.sources.engine.selection import table_id
from cdcflow.sources.mysql import server
from cdcflow.sources.mysql.cascades import unlogged
from cdcflow.sources.mysql.catalog import Catalog, CatalogTable, Selected
from cdcflow.sources.mysql.connection import NAMES, Connection, Connector, one, query
from cdcflow.sources.mysql.decoders import COMPILED, Compiled
from cdcflow.sources.mysql.marking import WrittenMarks
from cdcflow.sources.mysql.refusals import NO_SUCH_TABLE, explained

KEPT_SECONDS_MIN = 86_400

_PRIVILEGES = {
    "mysql": {"REPLICATION SLAVE": "REPLICATION SLAVE", "REPLICATION CLIENT": "REPLICATION CLIENT"},
    "mariadb": {"REPLICATION SLAVE": "REPLICATION SLAVE", "BINLOG MONITOR": "BINLOG MONITOR"},
}
_TOO_MUCH = ("SUPER", "SHUTDOWN", "CREATE USER", "DROP")


def findings(connector: Connector, settings: MySQL, catalog: Catalog) -> list[Finding]:
    """Everything that can be looked at; an answer that cannot be had is a finding too."""
    found: list[Finding] = [decoders()]
    try:
        connection = connector.connect("doctor")
    except CdcflowError as error:
        return [*found, of_error("connection", error)]
    try:
        found += _link(connection, connector, settings)
        found += _looked("server", _server(connection, settings))
        found += _looked("privileges", _privileges(connection, settings))
        found += _looked("source.marks_table", _marks(connection, settings))
        try:
            selected = catalog.selected()
        except CdcflowError as error:
            return [*found, of_error("source.tables", error)]
        found += _looked("source.tables", _tables(connection, selected))
        found += _looked("foreign keys", _cascades(connection, settings, selected))
    finally:
        connector.discard(connection)
    return found


def _looked(subject: str, looking: Iterator[Finding]) -> list[Finding]:
    """What a look brings, and what ended it."""
    found: list[Finding] = []
    try:
        for finding in looking:
            found.append(finding)  # noqa: PERF402  what came before an error counts
    except pymysql.Error as error:
        found.append(of_error(subject, explained(error, f"looking at {subject}")))
    except CdcflowError as error:
        found.append(of_error(subject, error))
    return found


def decoders(compiled: Compiled | None = COMPILED) -> Finding:
    return findings_of.decoders(are_compiled=compiled is not None, times="several")


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
            f"{where}, with TLS, but the name in the server's certificate is not looked at",
            "set source.tls.mode: verify",
        )
    else:
        yield ok("connection", f"{where}, {'on this machine' if connector.address.is_local else 'with TLS'}")


def _server(connection: Connection, settings: MySQL) -> Iterator[Finding]:
    found = server.variables(connection, *server.ASKED)
    yield ok("server", f"{NAMES[settings.kind]} {found.get('version')}")
    wrong = {s.subject: s for s in server.shortcomings(connection, settings)}
    for shortcoming in wrong.values():
        yield problem(shortcoming.subject, shortcoming.text, shortcoming.remedy)
    without_gtids = found.get("gtid_mode", "ON") != "ON"
    for name in ("log_bin", "binlog_format", "binlog_row_metadata", *(() if without_gtids else ("gtid_mode",))):
        if name in found and name not in wrong:
            yield ok(name, f"is {found[name]}")
    if found.get("binlog_row_image", "FULL") != "FULL":
        yield warning(
            "binlog_row_image",
            f"is {found['binlog_row_image']}: columns that a change left alone are not repeated in the log, and a "
            "history of a row knows them only from its last whole state",
            "run SET GLOBAL binlog_row_image = 'FULL' (and in the server's configuration)",
        )
    if without_gtids:
        yield warning(
            "gtid_mode",
            f"is {found['gtid_mode']}: after a failover the capture cannot go on at another server",
            "run SET PERSIST gtid_mode = OFF_PERMISSIVE, then ON_PERMISSIVE, then ON",
        )
    yield from _retention(found)


def _retention(found: dict[str, object]) -> Iterator[Finding]:
    seconds = float(str(found.get("binlog_expire_logs_seconds") or 0))
    seconds = seconds or 86_400 * float(str(found.get("expire_logs_days") or 0))
    if not seconds:
        yield ok("binary log", "is kept until somebody purges it")
    elif seconds < KEPT_SECONDS_MIN:
        yield warning(
            "binary log",
            f"is kept for {int(seconds)} s: a backfill is due when cdcflow is stopped for that long",
            f"run SET GLOBAL binlog_expire_logs_seconds = {7 * KEPT_SECONDS_MIN} (and in the server's configuration)",
        )
    else:
        yield ok("binary log", f"is kept for {seconds / 86_400:.0f} days: cdcflow may be stopped for that long")


def _privileges(connection: Connection, settings: MySQL) -> Iterator[Finding]:
    user = str(one(connection, "SELECT CURRENT_USER()")[0])
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
            yield ok("source.marks_table", f"{settings.marks_table} is made at the first start")
        else:
            yield of_error("source.marks_table", marks.explained(connection, error))
    else:
        yield ok("source.marks_table", f"{settings.marks_table} can be written")


def _tables(connection: Connection, selected: Selected) -> Iterator[Finding]:
    for text in selected.ignored:
        yield warning("tables", f"not captured: {text}")
    if not selected.tables:
        yield problem("tables", "source.tables matches no table", "check the names in source.tables")
    for table in selected.tables:
        problems = [
            problem(str(table.id), text, f"run {remedy}") for text, remedy in selected.refused.get(table.id, ())
        ]
        yield from problems or [_table(connection, table)]


def _table(connection: Connection, table: CatalogTable) -> Finding:
    try:
        query(connection, f"SELECT 1 FROM {table.sql} LIMIT 0")  # noqa: S608  quoted
    except pymysql.Error as error:
        return of_error(str(table.id), explained(error, f"reading {table.id}"))
    if not table.key:
        return warning(
            str(table.id),
            "has no key: told apart by all of its columns, read in one piece and held in memory",
            f"run ALTER TABLE {table.sql} ADD PRIMARY KEY (…) if it is large",
        )
    return ok(str(table.id), f"key ({', '.join(table.key)})")


def _cascades(connection: Connection, settings: MySQL, selected: Selected) -> Iterator[Finding]:
    captured = frozenset(t.id for t in selected.good)
    for table, constraints in unlogged(connection, settings.kind, captured.__contains__).items():
        yield warning(
            str(table),
            f"has a foreign key that cascades ({', '.join(constraints)}): when a row of the parent is deleted, or its "
            "key changes, this server changes rows here without logging it, so the log and the tables differ from then "
            "on without a word",
            f"change these rows by statements of their own before the parent's, or run `cdcflow backfill {table}` "
            "after such a change",
        )
