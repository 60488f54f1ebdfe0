"""The findings of `doctor` about the standby that rows are read from (`source.backfill.url`)."""

from __future__ import annotations

from collections.abc import Iterator

from cdcflow.capture.ports.findings import Finding
from cdcflow.errors import CdcflowError
from cdcflow.sources.engine.findings import of_error, ok, problem, warning
from cdcflow.sources.engine.replica_wait import REPLAY_WAIT_S, SETTING, remedy
from cdcflow.sources.postgres.backfill_standby import problem_of_standby
from cdcflow.sources.postgres.connection import Connection, Connector, mapping_errors, query_row
from cdcflow.sources.postgres.identity import IdentifiedSystem

_REPLAY = """
SELECT current_setting('hot_standby_feedback'), current_setting('max_standby_streaming_delay'),
       (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'recovery_min_apply_delay'),
       (SELECT count(*) FROM pg_catalog.pg_stat_wal_receiver)
"""
_PAUSED = "SELECT pg_catalog.pg_is_wal_replay_paused()"


def findings(connector: Connector, source: IdentifiedSystem) -> Iterator[Finding]:
    """Return whether rows can be read at the server that `connector` leads to. Closes `connector`."""
    try:
        yield from _check(connector, source)
    except CdcflowError as error:
        yield of_error(SETTING, error)
    finally:
        connector.close()


def _check(connector: Connector, source: IdentifiedSystem) -> Iterator[Finding]:
    connection = connector.replicate()
    try:
        with mapping_errors(f"checking {connector.address}"):
            found = list(_of_server(connection, str(connector.address), source))
    finally:
        connector.discard(connection)
    yield from found


def _of_server(connection: Connection, address: str, source: IdentifiedSystem) -> Iterator[Finding]:
    if (why := problem_of_standby(connection, source)) is not None:
        yield problem(SETTING, f"no rows can be read from {address}: {why}", remedy())
        return
    yield ok(SETTING, f"rows are read from {address}, a standby of this server")
    feedback, delay_max, delay_ms, receivers = query_row(connection, _REPLAY)
    if query_row(connection, _PAUSED)[0]:
        yield problem(SETTING, "replay is paused at it, so chunks wait", "at it, run SELECT pg_wal_replay_resume()")
    if delay_ms > REPLAY_WAIT_S * 1000:
        yield problem(
            SETTING,
            f"recovery_min_apply_delay is {delay_ms // 1000} s at it, and a chunk waits for {REPLAY_WAIT_S:.0f} s",
            "set it lower there, or name another standby",
        )
    elif delay_ms:
        yield warning(
            SETTING,
            f"recovery_min_apply_delay is {delay_ms} ms at it: each chunk takes that much longer, and changes of its "
            "table wait for it",
            "set it to 0 there, or name another standby",
        )
    if feedback != "on":
        yield warning(
            SETTING,
            f"hot_standby_feedback is off at it: what is removed at the primary may end the reading of a chunk that "
            f"takes longer than max_standby_streaming_delay ({delay_max}); it is read again then",
            "at it, run ALTER SYSTEM SET hot_standby_feedback = on, and SELECT pg_reload_conf()",
        )
    if not receivers:
        yield warning(
            SETTING,
            "it receives no log from a server: chunks wait until it has replayed more",
            "set primary_conninfo at it, and check that the primary lets it in",
        )
