"""Measures how busy a PostgreSQL server is.

The lag of a standby is measured by its position, not by `replay_lag`: that is NULL while nothing is replayed, also if
replay was paused (https://www.postgresql.org/docs/current/monitoring-stats.html, pg_stat_replication).
"""

from __future__ import annotations

import psycopg

from cdcflow.config import Postgres
from cdcflow.model.source_load import Gauge, LoadLimits
from cdcflow.sources.engine.load import PassingTimes, Reading, SqlProbe, Unknown
from cdcflow.sources.engine.passwords import Secret
from cdcflow.sources.postgres.connection import Connection, Connector
from cdcflow.sources.postgres.lsn import Lsn

PROBE_PREFIX = "cdcflow_probe"
"""The prefix of the messages that a probe commits. No capture reads such messages."""

# Standbys only: the readers of logical slots, and backups, are excluded.
_REPLICAS = """
SELECT (CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
             ELSE pg_catalog.pg_current_wal_lsn() END)::text,
       count(*), count(*) FILTER (WHERE r.state IS NULL), min(r.replay_lsn)::text
FROM pg_catalog.pg_stat_replication r LEFT JOIN pg_catalog.pg_replication_slots s ON s.active_pid = r.pid
WHERE s.slot_type IS DISTINCT FROM 'logical' AND r.state IS DISTINCT FROM 'backup'
"""
# Every role may read pg_locks, while only pg_monitor may read the wait events of other roles' sessions.
_LOCK_WAITS = "SELECT count(DISTINCT pid) FROM pg_catalog.pg_locks WHERE NOT granted"
_CPU = "SELECT pg_catalog.pg_read_file('/proc/stat')"
_COMMIT = f"SELECT pg_catalog.pg_logical_emit_message(true, '{PROBE_PREFIX}', '')"


def source_probe(settings: Postgres, secret: Secret, limits: LoadLimits) -> SqlProbe[Connection]:
    """Return a probe that measures the gauges that have a limit. It connects at the first query."""
    connector = Connector.of(settings, secret)
    readings: dict[Gauge, Reading[Connection]] = {
        "replica_lag": ReplicaLag(limits.replica_lag or 0.0),
        "lock_waits": lock_waits,
        "cpu_used": CpuUsed(),
    }
    return SqlProbe(
        connector,
        lambda: connector.connect("load", statement_timeout="30s"),
        limits,
        readings,
        lambda c: c.execute(_COMMIT),
    )


class ReplicaLag:
    """Measures for how many seconds the slowest standby has not replayed the log's end."""

    def __init__(self, limit_s: float) -> None:
        self._ends: PassingTimes[Lsn] = PassingTimes(limit_s / 100)

    def __call__(self, connection: Connection) -> float:
        row = connection.execute(_REPLICAS.encode()).fetchone()
        assert row is not None  # noqa: S101  an aggregate has one row
        end, _, hidden, replayed = row
        if hidden:
            raise Unknown(f"the lag of standbys is hidden from this user; run GRANT pg_monitor TO {_role(connection)}")
        self._ends.record(Lsn.parse(end))
        if replayed is None:
            return 0.0
        position = Lsn.parse(replayed)
        return self._ends.age_s(lambda end: end > position)


def lock_waits(connection: Connection) -> float:
    """Return how many sessions wait for a lock."""
    row = connection.execute(_LOCK_WAITS.encode()).fetchone()
    assert row is not None  # noqa: S101  an aggregate has one row
    return float(row[0])


class CpuUsed:
    """Measures which part of the processors' time was used since the last reading. Linux only: proc(5) has the times
    since the server's machine was started."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def __call__(self, connection: Connection) -> float:
        try:
            row = connection.execute(_CPU.encode()).fetchone()
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedFile):
            role = _role(connection)
            raise Unknown(
                "the server does not tell how busy its processors are; on Linux run GRANT pg_read_server_files TO "
                f"{role}; GRANT EXECUTE ON FUNCTION pg_catalog.pg_read_file(text) TO {role}; or remove "
                "source.backfill.limits.cpu_used"
            ) from None
        now = cpu_times(str(row[0]) if row else "")
        before, self._before = self._before, now
        if before is None or now[1] <= before[1]:
            raise Unknown("the processors are measured")
        return (now[0] - before[0]) / (now[1] - before[1])


def _role(connection: Connection) -> str:
    """Return the name of this user's role, as a statement needs it."""
    row = connection.execute(b"SELECT pg_catalog.quote_ident(current_user)").fetchone()
    assert row is not None  # noqa: S101  one row
    return str(row[0])


def cpu_times(stat: str) -> tuple[int, int]:
    """Return the used and the total time of all processors, from the first line of /proc/stat."""
    times = [int(word) for word in stat.split("\n", 1)[0].split()[1:9]]  # user … steal; guests are in user
    idle = sum(times[3:5])
    return sum(times) - idle, sum(times)
