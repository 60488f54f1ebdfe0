"""The log that a PostgreSQL server keeps for a slot: how much it is, how old, and its release."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from cdcflow.capture.ports.budgeted_log import Release
from cdcflow.config import Postgres
from cdcflow.model.log_budget import KeptLog, LogBudget, LogLimit
from cdcflow.sources.engine.connections import Session
from cdcflow.sources.engine.load import PassingTimes
from cdcflow.sources.engine.passwords import Secret
from cdcflow.sources.postgres import slot, slot_release
from cdcflow.sources.postgres.connection import Connection, Connector
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.recovery import end_of_log

_KEPT = f"""
SELECT {end_of_log("pg_current_wal_lsn")}::text, s.restart_lsn::text, s.safe_wal_size,
       pg_catalog.pg_size_bytes(current_setting('wal_segment_size'))
FROM (SELECT 1) AS one LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = %s
"""  # noqa: S608  constants
# The age of a log file since it was last written: all log in it is at least that old.
_FILE_AGE = """
SELECT extract(epoch FROM clock_timestamp() - modification)::float8 FROM pg_catalog.pg_ls_waldir()
WHERE name = pg_catalog.pg_walfile_name(%s)
"""
_LIMIT = "SELECT pg_catalog.pg_size_bytes(current_setting('max_slot_wal_keep_size'))"


class PostgresKeptLog:
    """Implements `BudgetedLog`. A slot of another kind than cdcflow's is neither measured nor released. `name` returns
    the slot's name, or None if it is not known yet."""

    def __init__(self, settings: Postgres, secret: Secret, name: Callable[[], str | None]) -> None:
        self._connector = connector = Connector.of(settings, secret)
        self._session: Session[Connection] = Session(
            connector, lambda: connector.connect("log budget", statement_timeout="60s", lock_timeout="60s")
        )
        self._name = name
        age_max_s = settings.log_budget_age
        self._ends: PassingTimes[Lsn] | None = None
        if age_max_s is not None:  # otherwise ages do not matter
            self._ends = PassingTimes(2 * age_max_s / PassingTimes.KEPT)

    def measure(self) -> KeptLog:
        name = self._name()
        if name is None:
            return KeptLog(None)
        return self._session.ask(f"measuring what the server keeps for slot {name}", lambda c: self._measure(c, name))

    def _measure(self, connection: Connection, name: str) -> KeptLog:
        found = slot.read(connection, name)
        if found is not None:
            found.check_kind(connection.info.dbname)
        row = connection.execute(_KEPT, (name,)).fetchone()
        assert row is not None  # noqa: S101 - one row, whatever slots exist
        end, restart, safe, segment = row
        if self._ends is not None:
            self._ends.record(Lsn.parse(end))
        if restart is None:
            return KeptLog(None)
        kept = max(0, Lsn.parse(end) - Lsn.parse(restart))
        limit = LogBudget(None if safe is None else max(0, kept + safe))
        # The server always keeps the file that it is writing, so log in it has no age here.
        age_s = self._age_s(connection, Lsn.parse(restart)) if kept >= segment else None
        return KeptLog(kept, age_s, limit)

    def _age_s(self, connection: Connection, restart: Lsn) -> float | None:
        if self._ends is None:
            return None
        ages = [self._ends.age_s(lambda end: end > restart) or None, self._file_age_s(connection, restart)]
        return max((age for age in ages if age is not None), default=None)

    def _file_age_s(self, connection: Connection, restart: Lsn) -> float | None:
        try:
            row = connection.execute(_FILE_AGE, (str(restart),)).fetchone()
        except psycopg.errors.InsufficientPrivilege:  # it needs pg_monitor
            return None
        except psycopg.errors.ObjectNotInPrerequisiteState:  # a standby cannot name the file
            return None
        return None if row is None else float(row[0])

    def limits(self) -> tuple[LogLimit, ...]:
        row = self._session.ask("reading max_slot_wal_keep_size", lambda c: c.execute(_LIMIT).fetchone())
        assert row is not None  # noqa: S101 - one row
        return () if row[0] < 0 else (LogLimit("max_slot_wal_keep_size", bytes=row[0]),)

    def is_release_begun(self) -> bool:
        name = self._name()
        if name is None:
            return False
        found = self._session.ask(f"looking for a release of slot {name}", lambda c: slot_release.find(c, name))
        return found is not None and not found.is_dropped

    def release(self, why: str, by: str) -> Release:
        name = self._name()
        if name is None:
            return Release("absent", "there is no slot yet")
        is_done = self._session.ask(f"releasing slot {name}", lambda c: slot_release.release(c, name, why=why, by=by))
        if not is_done:
            return Release("absent", f"slot {name} does not exist, or another process has released it")
        return Release("released", f"slot {name} was released: {why}")

    def close(self) -> None:
        self._session.close()
        self._connector.close()
