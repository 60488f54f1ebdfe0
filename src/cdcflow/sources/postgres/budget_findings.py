"""The findings of `doctor` about the budget for the log that the server keeps for the slot."""

from __future__ import annotations

from collections.abc import Iterator

from cdcflow.capture.ports.findings import Finding
from cdcflow.config import Postgres
from cdcflow.errors import CdcflowError
from cdcflow.sources.engine.findings import of_error, ok, problem, run, warning
from cdcflow.sources.postgres import slot_release
from cdcflow.sources.postgres.connection import Connection, quote_name
from cdcflow.sources.postgres.platforms import Platform

_SUBJECT = "source.log_budget"
_LIMIT = "SELECT setting::bigint << 20 FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'"


def findings(connection: Connection, settings: Postgres, platform: Platform, *, may_create: bool) -> Iterator[Finding]:
    """Return the findings about the budget. `may_create`: the user may create a schema in the database."""
    if settings.releases:
        yield _notes(connection, may_create=may_create)
    if (budget := settings.log_budget) is None:
        return
    row = connection.execute(_LIMIT).fetchone()
    limit = -1 if row is None else int(row[0])
    if 0 <= limit < budget:
        yield warning(
            _SUBJECT,
            f"is {budget} bytes, and the server discards the slot's log at {limit} bytes (max_slot_wal_keep_size)",
            platform.setting_remedy("max_slot_wal_keep_size", f"{2 * budget >> 20}MB", note="or a smaller budget"),
        )
    elif settings.releases:
        yield ok(_SUBJECT, f"is {budget} bytes; at its end the slot is released, and the tables are repaired")
    else:
        yield ok(_SUBJECT, f"is {budget} bytes; cdcflow warns, and the server keeps more")


def _notes(connection: Connection, *, may_create: bool) -> Finding:
    """Return whether a release can be noted at the source."""
    if connection.execute("SELECT to_regclass(%s)", (slot_release.TABLE,)).fetchone() != (None,):
        try:
            slot_release.ensure_table(connection)
        except CdcflowError as error:
            return of_error(slot_release.TABLE, error)
        return ok(slot_release.TABLE, "exists: a release of the slot is noted there")
    if may_create:
        return ok(slot_release.TABLE, "is created at the first start: a release of the slot is noted there")
    user = quote_name(connection.info.user)
    return problem(
        slot_release.TABLE,
        f"does not exist, and {user} may not create it; a release of the slot is noted there",
        run(*slot_release.DDL, *slot_release.grants(user)),
    )
