"""Commits to Iceberg tables whose outcome is known.

    commit_table ── ok ─────────────────────────▶ done
                 ├─ refused, or no answer ──▶ load the table ── it has the change ──▶ done
                 │                                           └─ it has not ──▶ a conflict: merge the table again
                 └─ the catalog does not answer within ASK_WITHIN_S ──▶ the merge ends; the next one finds out

A refusal alone proves nothing: a client or a proxy that repeats a request after a lost answer gets a refusal for the
second one. PyIceberg removes the manifests of a refused commit, so it gets a refusal only after the table was loaded.
After a lost answer it gets `CommitStateUnknownException`, for which it removes nothing: the catalog may still be
executing the commit. If it does so after the table was loaded, the commit and a repetition of it exclude each other,
because each requires the snapshot from which it was computed to be the table's latest.
"""

from __future__ import annotations

import time

import structlog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    TableRequirement,
    TableUpdate,
)

from cdcflow.errors import SinkUnavailable
from cdcflow.tables.local.catalog_errors import kind_of, may_be_executed
from cdcflow.tables.local.iceberg_metadata import with_updates
from cdcflow.tables.local.synced import SyncedIO, sync

ASK_WITHIN_S = 30.0
"""For how long the table is requested after a commit from a catalog that does not answer."""

RETRIES = "commit.retry.num-retries"
"""The table property for PyIceberg's repetitions of a commit. It is 0 here: a failed commit was computed from an
outdated state, and repeating it unchanged would be wrong."""

_MAIN = "main"
_FIRST_WAIT_S, _WAIT_MAX_S = 0.2, 5.0

_log = structlog.get_logger()


class LoadedTable(Table):
    """A table as its catalog has it, whose commits succeed or fail, but never have an unknown outcome. Its files are
    durable before a commit names them."""

    @classmethod
    def of(cls, table: Table) -> LoadedTable:
        """Return the table as a `LoadedTable`."""
        if isinstance(table.io, SyncedIO):
            table.io.defers = True
        return cls(
            table.name(), table.metadata, table.metadata_location, table.io, table.catalog, dict(table.config or {})
        )

    def _do_commit(self, updates: tuple[TableUpdate, ...], requirements: tuple[TableRequirement, ...]) -> None:
        sync(self.io)
        try:
            super()._do_commit(updates, (*requirements, *_requirements(self.metadata)))
        except Exception as error:
            if not may_be_executed(error):
                raise
            found = self._load_again(error)
            if found is None or not has_updates(found.metadata, self.metadata, updates):
                if isinstance(error, CommitFailedException):
                    raise
                raise CommitStateUnknownException("the table does not have the commit, or not yet") from error
            _log.info("a commit without an answer was executed", table=".".join(self.name()))
            self.metadata, self.metadata_location = found.metadata, found.metadata_location

    def _load_again(self, error: Exception) -> Table | None:
        """Return the table after a commit that ended with an error; `None` if it no longer exists.

        Raises:
            SinkUnavailable: the catalog does not answer.
        """
        until, wait = time.monotonic() + ASK_WITHIN_S, _FIRST_WAIT_S
        while True:
            try:
                return self.catalog.load_table(self.name())
            except NoSuchTableError:
                return None
            except Exception as again:
                if kind_of(again) != "away":
                    raise
                if time.monotonic() + wait > until:
                    raise SinkUnavailable(
                        f"merging into {'.'.join(self.name())}: the catalog does not answer, and whether it executed a"
                        " commit is unknown",
                        remedy="nothing is lost; merge again when it answers: the merge reads from the table what was"
                        " committed",
                        runbook="catalog-unreachable",
                    ) from error
                time.sleep(wait)
                wait = min(2 * wait, _WAIT_MAX_S)


def _requirements(base: TableMetadata) -> tuple[TableRequirement, ...]:
    """Return the conditions of a commit: the table's rows, also if it had none, and its columns are those that were
    read."""
    return (
        AssertRefSnapshotId(ref=_MAIN, snapshot_id=base.current_snapshot_id),
        AssertCurrentSchemaId(current_schema_id=base.current_schema_id),
    )


def has_updates(found: TableMetadata, base: TableMetadata, updates: tuple[TableUpdate, ...]) -> bool:
    """Return whether a table has the updates of a commit that was computed from `base`. If another commit has followed,
    a new snapshot can still be recognized; a change of properties alone cannot."""
    added = [update.snapshot.snapshot_id for update in updates if isinstance(update, AddSnapshotUpdate)]
    if added:
        known = {snapshot.snapshot_id for snapshot in found.snapshots}
        return all(id_ in known for id_ in added)
    return _state(found) == _state(with_updates(base, updates))


def _state(metadata: TableMetadata) -> tuple[object, ...]:
    properties = {name: value for name, value in metadata.properties.items() if name != RETRIES}
    snapshots = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    return properties, metadata.refs, metadata.schema().as_struct(), metadata.current_snapshot_id, snapshots
