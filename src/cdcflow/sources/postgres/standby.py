"""The limits of a standby as a source, and what has to be done at its primary instead.

A standby decodes its log since PostgreSQL 16. It takes no writes: marks are places in its log (`fences`), the
publication is created at the primary, and settings that need a table at the source are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cdcflow.config import Postgres
from cdcflow.errors import ConfigurationError
from cdcflow.sources.postgres import slot
from cdcflow.sources.postgres.connection import Connection, query_row
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.replay_fences import not_replayed
from cdcflow.sources.postgres.stored_state import PostgresState

DECODING_SINCE = 16


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A setting that a standby cannot fulfil."""

    setting: str
    why: str
    remedy: str


def unsupported_settings(settings: Postgres) -> Iterator[Unsupported]:
    """Return the settings that a standby cannot fulfil."""
    if settings.releases:
        yield Unsupported(
            "source.log_budget_then",
            "a release of the slot is noted in a table of the source",
            "set source.log_budget_then: stop, and max_slot_wal_keep_size at the standby",
        )
    if settings.control_table is not None:
        yield Unsupported(
            "source.control_table",
            "cdcflow answers in that table",
            "remove source.control_table, and use `cdcflow ctl`",
        )
    if settings.backfill.url is not None:
        yield Unsupported(
            "source.backfill.url",
            "rows that are read elsewhere are placed by marks in the primary's log",
            "remove source.backfill.url, and rows are read from this standby; or point source.url at the primary",
        )
    if settings.failover:
        yield Unsupported(
            "source.failover",
            "a slot that was created on a standby is not carried over to others",
            "set source.failover: false; if this standby is promoted, its slot stays on it",
        )


def check_standby(
    connection: Connection, settings: Postgres, name: str, before: PostgresState | None, *, is_loss_accepted: bool
) -> None:
    """Check that a capture through the slot `name` can run at this standby.

    Raises:
        ConfigurationError: the capture cannot run there.
    """
    if connection.info.server_version < DECODING_SINCE * 10_000:
        raise _refusal(
            f"the server is a standby, and only PostgreSQL {DECODING_SINCE} and later decode changes on one",
            "point source.url at the primary",
        )
    for setting in unsupported_settings(settings):
        raise _refusal(f"the server is a standby, which takes no writes: {setting.why}", setting.remedy)
    found = slot.read(connection, name)
    if found is not None and found.synced:
        raise _refusal(
            f"the server is a standby, and its slot {name} is a copy of the primary's, which nothing can be read from",
            "point source.url at the primary, or promote this server",
        )
    if before is not None and not before.is_standby and not is_loss_accepted:
        raise _refusal(
            "the server is a standby, and this log was captured from a primary",
            "point source.url at the primary; or run `cdcflow run --accept-history-loss`, which creates a slot on the "
            "standby and reads all tables again",
        )


def check_replayed(connection: Connection, position: Lsn | None) -> None:
    """Check that the standby shows everything that the change log has, which may take a while after the standby's
    restart.

    Raises:
        SourceUnavailable: the standby has not replayed that far yet.
    """
    replayed = Lsn.parse(query_row(connection, "SELECT pg_catalog.pg_last_wal_replay_lsn()::text")[0])
    if position is not None and replayed < position:
        raise not_replayed(replayed, position)


def _refusal(why: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(why, remedy=remedy, runbook="read-only-source")
