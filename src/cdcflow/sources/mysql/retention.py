"""How long a server keeps its binary log, by its own settings or by those of the service that runs it.

On Amazon RDS and Aurora `binlog_expire_logs_seconds` has no effect. The table `mysql.rds_configuration` decides
instead, and only procedures change it; if nothing is set there, the log is purged as soon as the service no longer
needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pymysql

from cdcflow.capture.ports.findings import Finding
from cdcflow.sources.engine.findings import ok, run, warning
from cdcflow.sources.mysql.connection import Connection, query

KEPT_SECONDS_MIN = 86_400
_WEEK_HOURS = 168
_RDS = "SELECT value FROM mysql.rds_configuration WHERE name = 'binlog retention hours'"
_RDS_PROGRAMS = "/rdsdbbin"
"""The directory of the server's programs on RDS and Aurora."""


def is_rds(connection: Connection, found: Mapping[str, object]) -> bool:
    """Whether Amazon RDS or Aurora runs the server. `found`: its variables, including `basedir`."""
    return str(found.get("basedir") or "").startswith(_RDS_PROGRAMS) or _rds_retention(connection) is not None


def retention(connection: Connection, found: Mapping[str, object]) -> Iterator[Finding]:
    """Return a finding on how long cdcflow may be stopped. `found`: the server's variables."""
    if is_rds(connection, found):
        yield _of_rds(_rds_retention(connection))
        return
    seconds = _expiry_seconds(found)
    if not seconds:
        yield ok("binary log", "is kept until it is purged by hand")
    elif seconds < KEPT_SECONDS_MIN:
        statement = f"SET GLOBAL binlog_expire_logs_seconds = {7 * KEPT_SECONDS_MIN}"
        yield warning(
            "binary log",
            f"is kept for {int(seconds)} s: if cdcflow is stopped for longer, it has to read all tables again",
            run(statement, note="and in the server's configuration"),
        )
    else:
        yield ok("binary log", f"is kept for {seconds / 86_400:.0f} days: cdcflow may be stopped for that long")


def kept_seconds(connection: Connection, found: Mapping[str, object]) -> float:
    """Return how long the server keeps a file of its binary log, in seconds; 0 without a limit, or if it is unknown.

    `found`: the server's variables, including `basedir`.
    """
    if not is_rds(connection, found):
        return _expiry_seconds(found)
    rows = _rds_retention(connection) or [(None,)]
    return 3600 * float(str(rows[0][0] or 0))


def name_of_setting(connection: Connection, found: Mapping[str, object]) -> str:
    """Return the name of the setting whose value `kept_seconds` returns."""
    if is_rds(connection, found):
        return "binlog retention hours"
    return "binlog_expire_logs_seconds" if found.get("binlog_expire_logs_seconds") else "expire_logs_days"


def _expiry_seconds(found: Mapping[str, object]) -> float:
    seconds = float(str(found.get("binlog_expire_logs_seconds") or 0))
    return seconds or 86_400 * float(str(found.get("expire_logs_days") or 0))


def _rds_retention(connection: Connection) -> list[tuple[object, ...]] | None:
    """Return the retention in RDS's table; None if the table does not exist, or cannot be read."""
    try:
        return [*query(connection, _RDS)]
    except pymysql.Error:
        return None


def _of_rds(rows: list[tuple[object, ...]] | None) -> Finding:
    remedy = run(f"CALL mysql.rds_set_configuration('binlog retention hours', {_WEEK_HOURS})")
    if rows is None:
        return warning(
            "binary log",
            "is kept for the time in Amazon RDS's `binlog retention hours`, which this user may not read",
            run("CALL mysql.rds_show_configuration", note="as the master user; set it to a week if it is NULL"),
        )
    hours = rows[0][0] if rows else None
    if hours is None or not float(str(hours)):
        return warning(
            "binary log",
            "`binlog retention hours` is not set: Amazon RDS purges the binary log as soon as it does not need it, and"
            " cdcflow then has to read all tables again",
            remedy,
        )
    if float(str(hours)) * 3600 < KEPT_SECONDS_MIN:
        text = f"is kept for {hours} hours: if cdcflow is stopped for longer, it has to read all tables again"
        return warning("binary log", text, remedy)
    return ok("binary log", f"is kept for {hours} hours (Amazon RDS): cdcflow may be stopped for that long")
