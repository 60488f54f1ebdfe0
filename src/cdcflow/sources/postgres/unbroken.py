"""Checks that a server still has everything after the change log's end, through the slot and publication of that log.

This module only reads. The code that prepares a start creates or repairs things afterwards, and `doctor` never does.
"""

from __future__ import annotations

from functools import partial

from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.sources.postgres import publication
from cdcflow.sources.postgres.connection import Connection, Connector, history_lost
from cdcflow.sources.postgres.identity import IdentifiedSystem, check_history
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.publication import Publication
from cdcflow.sources.postgres.slot import Slot
from cdcflow.sources.postgres.slot_names import Names
from cdcflow.sources.postgres.stored_state import PostgresState
from cdcflow.sources.postgres.table_names import exists


def check_unbroken(
    connector: Connector,
    connection: Connection,
    position: Lsn,
    before: PostgresState,
    names: Names,
    system: IdentifiedSystem,
    ours: Slot | None,
    known: str,
) -> Publication | None:
    """Check that this server still has everything after the change log's end at `position`, through this slot and
    publication. Return the publication.

    `known`: the publication's fingerprint in the log. `before`: the state in the log's checkpoint.

    Raises:
        HistoryLost, ConfigurationError: the server lacks something, or is not the log's.
    """
    check_names(before, names)
    check_history(connector, connection, before, system, position)
    found = publication.read(connection, names.publication)
    check_publication(connection, found, names.publication, known)
    if ours is None:
        raise no_slot(names.slot)
    ours.check_kind(system.database)
    ours.check_whole(position)
    # `synced` is not checked, because it has no meaning on a primary; the code that prepares a start compares what the
    # slot sends with the change log. A slot on a standby stays valid there, on whatever timeline its primary, or the
    # standby itself after a promotion, continues.
    if system.timeline != before.timeline and not (ours.failover or before.is_standby):
        raise history_lost(
            f"the server went from timeline {before.timeline} to {system.timeline}, and slot {names.slot} "
            "was not carried over from the old one",
            runbook="restored-source",
        )
    return found


def check_names(before: PostgresState, names: Names) -> None:
    """Check that the settings still name the slot and publication of this log."""
    for what, then, now in (
        ("slot", before.slot, names.slot),
        ("publication", before.publication, names.publication),
    ):
        if then != now:
            raise ConfigurationError(
                f"this log began with source.{what} = {then}; {now} never delivered its changes",
                remedy=f"set source.{what}: {then}, or begin a new log",
                runbook="other-log",
            )


def check_publication(connection: Connection, found: Publication | None, name: str, known: str) -> None:
    """Check that the publication `found` has never been different since its fingerprint was `known`.

    Raises:
        HistoryLost: the publication was dropped or altered, or a table was dropped from it.
    """
    publication.check_unbroken(found, name, known, partial(exists, connection))


def no_slot(name: str) -> HistoryLost:
    return history_lost(f"slot {name} is gone: it was dropped, or the server was restored or upgraded")
