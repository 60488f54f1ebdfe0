"""The findings of `doctor` about a standby as the source, with the statements to run there and at its primary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from cdcflow.capture.ports.findings import Finding
from cdcflow.config import Postgres
from cdcflow.sources.engine.findings import ok, problem, run, warning
from cdcflow.sources.postgres import publication
from cdcflow.sources.postgres.catalog_entries import CatalogTable
from cdcflow.sources.postgres.connection import Connection, query_row, quote_name
from cdcflow.sources.postgres.platforms import Platform
from cdcflow.sources.postgres.standby import DECODING_SINCE, unsupported_settings

_STANDBY = """
SELECT current_setting('hot_standby_feedback'), current_setting('primary_slot_name'),
       current_setting('recovery_min_apply_delay'), pg_catalog.pg_is_wal_replay_paused(),
       (SELECT count(*) FROM pg_catalog.pg_stat_wal_receiver)
"""
_MADE = "SELECT pubname FROM pg_catalog.pg_publication WHERE pubname ~ '^cdcflow_[0-9a-f]{8}$'"
_HERE = ("ALTER SYSTEM", "SELECT pg_reload_conf", "SELECT pg_wal_replay_resume", "SELECT pg_drop_replication_slot")
"""The beginnings of the statements that are run at the standby itself."""


def for_primary(found: Finding) -> Finding:
    """Return a finding about a standby, without statements to run there that only its primary accepts."""
    if not found.sql or all(sql.startswith(_HERE) for sql in found.sql):
        return found
    return replace(found, remedy=f"on the primary: {found.remedy}", sql=())


def findings(connection: Connection, settings: Postgres, platform: Platform) -> Iterator[Finding]:
    if connection.info.server_version < DECODING_SINCE * 10_000:
        yield problem(
            "standby",
            f"this is a standby, and only PostgreSQL {DECODING_SINCE} and later decode changes on one",
            "set source.url to the primary",
        )
        return
    yield ok("standby", "this is one: nothing is written to it, and its primary has the publication")
    for setting in unsupported_settings(settings):
        yield problem(setting.setting, f"a standby cannot do that: {setting.why}", setting.remedy)
    feedback, slot_name, delay, is_paused, receivers = query_row(connection, _STANDBY)
    yield from _slot_conflicts(feedback, slot_name, platform)
    if is_paused:
        yield problem(
            "replay", "is paused: no change arrives, and no chunk is used", run("SELECT pg_wal_replay_resume()")
        )
    if delay != "0":
        yield warning(
            "recovery_min_apply_delay",
            f"is {delay}: changes arrive that much later, and each chunk waits for the next one that is replayed",
            platform.setting_remedy("recovery_min_apply_delay", "0"),
        )
    if not receivers:
        yield warning(
            "wal receiver",
            "the standby receives no log from a server: a chunk waits until more log is replayed",
            "set primary_conninfo at the standby, and check that the primary lets it in",
        )


def _slot_conflicts(feedback: str, slot_name: str, platform: Platform) -> Iterator[Finding]:
    """Check that nothing lets the primary remove rows of its catalog that the slot needs."""
    if feedback != "on":
        yield warning(
            "hot_standby_feedback",
            "is off: the primary may remove rows of its catalog that the slot needs, and the slot is lost then",
            platform.setting_remedy("hot_standby_feedback", "on"),
        )
    elif not slot_name:
        made = "SELECT pg_create_physical_replication_slot('standby', true)"
        yield warning(
            "primary_slot_name",
            "is not set: whenever the standby is disconnected, the primary may remove rows that the slot needs",
            None if platform.is_managed else f"run on the primary {made}; then set primary_slot_name = 'standby' here",
        )
    else:
        yield ok("hot_standby_feedback", f"is on, and the primary keeps what is needed in its slot {slot_name}")


def publication_findings(
    connection: Connection, settings: Postgres, tables: Sequence[CatalogTable]
) -> Iterator[Finding]:
    """Return whether the primary's publication has everything; the standby cannot change it."""
    made = [row[0] for row in connection.execute(_MADE)]
    name = settings.publication or (made[0] if len(made) == 1 else "cdcflow")
    found = publication.read(connection, name)
    if found is None:
        statement = publication.creation(connection.info.server_version, name, tables)
        then = "" if settings.publication else f"set source.publication: {name}"
        yield problem(f"publication {name}", "does not exist", run(statement, then=then))
        return
    missing = publication.unpublished_tables(connection, name, tables)
    for wrong in found.wrong:
        yield problem(
            f"publication {name}",
            "does not publish everything that a full copy needs",
            run(f"ALTER PUBLICATION {quote_name(name)} SET ({wrong})"),
        )
    for table, statement in missing.items():
        yield problem(str(table), f"is not in publication {name}", run(statement))
    if not found.wrong and not missing:
        yield ok(f"publication {name}", "has every table")
