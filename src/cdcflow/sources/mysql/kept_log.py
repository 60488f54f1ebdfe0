"""The binary log that a MySQL or MariaDB server still has after a position, and when the server will purge it.

Nothing keeps the log for a reader: the server purges a file when it is too old, or when all files together are too
large. Both can be foreseen from the reader's position, so a budget here is the server's own, or a tighter one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cdcflow.capture.ports.budgeted_log import Release
from cdcflow.config import MySQL
from cdcflow.model.log_budget import KeptLog, LogBudget, LogLimit
from cdcflow.model.position import Checkpoint
from cdcflow.sources.engine.connections import Session
from cdcflow.sources.engine.passwords import Secret
from cdcflow.sources.mysql import binlog_status, doctor, retention
from cdcflow.sources.mysql.connection import Connection, Connector
from cdcflow.sources.mysql.position import BinlogFile, BinlogPosition, binlog_position_of

LIMIT_EVERY_S = 60.0
"""How often the server's settings are read."""


class MySQLKeptLog:
    """Implements `BudgetedLog`. `newest` returns the log's latest checkpoint."""

    def __init__(self, settings: MySQL, secret: Secret, newest: Callable[[], Checkpoint]) -> None:
        self._connector = connector = Connector(settings, secret)
        self._session: Session[Connection] = Session(connector, lambda: connector.connect("log budget"))
        self._newest = newest
        self._limit = LogBudget()
        self._limit_due_at = 0.0

    def measure(self) -> KeptLog:
        checkpoint = self._newest()
        if checkpoint.position is None:
            return KeptLog(None)
        position, clock = binlog_position_of(checkpoint.position).start, checkpoint.commit_clock
        return self._session.ask(
            f"measuring the binary log of {self._connector.address}", lambda c: self._measure(c, position, clock)
        )

    def _measure(self, connection: Connection, position: BinlogPosition, clock_us: int | None) -> KeptLog:
        files = binlog_status.files(connection)
        limit = self._limit_now(connection)
        names = [name for name, _ in files]
        if position.file not in names:
            return KeptLog(None, limit=limit)
        return kept_log(files, position, limit, _age_s(clock_us))

    def _limit_now(self, connection: Connection) -> LogBudget:
        if time.monotonic() >= self._limit_due_at:
            self._limit, self._limit_due_at = _limit(connection), time.monotonic() + LIMIT_EVERY_S
        return self._limit

    def limits(self) -> tuple[LogLimit, ...]:
        return self._session.ask("reading how long the binary log is kept", _limits)

    def is_release_begun(self) -> bool:
        return False

    def release(self, why: str, by: str) -> Release:
        return Release("impossible", f"{why}; the server purges its binary log by itself, and keeps it until then")

    def close(self) -> None:
        self._session.close()
        self._connector.close()


def kept_log(
    files: list[tuple[BinlogFile, int]], position: BinlogPosition, limit: LogBudget, since_commit_s: float | None
) -> KeptLog:
    """Return how much log the server has after a position in one of its files, which are oldest first.

    `since_commit_s`: the age of the latest captured change; later changes are not older. Files are purged whole, and
    the last one never is.
    """
    at = [name for name, _ in files].index(position.file)
    size = sum(size for _, size in files[at:])
    if at == len(files) - 1:
        return KeptLog(max(0, size - position.pos), None, limit)
    return KeptLog(size, since_commit_s, limit)


def _limit(connection: Connection) -> LogBudget:
    limits = _limits(connection)
    sizes, ages = [one.bytes for one in limits if one.bytes], [one.age_s for one in limits if one.age_s]
    return LogBudget(min(sizes, default=None), min(ages, default=None))


def _limits(connection: Connection) -> tuple[LogLimit, ...]:
    """Return when the server purges a file: at an age, or when all files together have some size."""
    names = ("binlog_expire_logs_seconds", "expire_logs_days", "max_binlog_total_size", "basedir")
    found = doctor.variables(connection, *names)
    seconds = retention.kept_seconds(connection, found)
    size = int(str(found.get("max_binlog_total_size") or 0))
    age = LogLimit(retention.name_of_setting(connection, found), age_s=seconds)
    return tuple(one for one in (age, LogLimit("max_binlog_total_size", bytes=size)) if one.bytes or one.age_s)


def _age_s(clock_us: int | None) -> float | None:
    return None if not clock_us else max(0.0, time.time() - clock_us / 1e6)
