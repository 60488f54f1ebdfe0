"""The standby that chunks are read from, while changes are captured from its primary (`source.backfill.url`).

    primary   ──[low]──────────────────────[high]──▶ log     plans, marks, slot, stream
                   └── replay ──┐
    standby   ───────────────[low]──┬──────────────▶         the snapshot of a chunk
                                  place

A standby replays the primary's log record by record, so its snapshot shows the primary's state at a place in the log. A
chunk is read only once the standby has replayed everything that the primary had flushed after low was committed, so
this place is after low; and it is before high, which is written when the rows have arrived. Only the visibility differs
from a primary's: the snapshot's list of running transactions means nothing, and its place is known as two bounds
(`replay_fences`). Shapes are read in the same snapshot, so they are those of that place.

Tables are planned at the primary. The pages that it pins are a bound for every later place; and if the standby has
another file for the table, it is planned again.

The server that answered is checked after each snapshot, by the replication protocol: the system's identifier, the
database, and the timeline. The check uses a separate connection. That leads to the same server process as the
snapshot's connection if both report the same time at which the server was started. Within one process replay never goes
back, so a server that is on the primary's timeline after the snapshot was replaying the primary's log before, too. A
promoted standby has a new timeline. A primary that was set back (its disk was restored, without recovery) keeps its
timeline, but then the standby is ahead of it, which is refused as well.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from cdcflow.capture.interleave.messages import Visibility
from cdcflow.model.position import Token
from cdcflow.sources.engine.connections import Pool, Session
from cdcflow.sources.engine.replica_wait import SETTING, ReplicaWait
from cdcflow.sources.postgres.connection import Connection, Connector, query_row
from cdcflow.sources.postgres.fences import PrimaryFences, R, Seen, SeenAt
from cdcflow.sources.postgres.identity import IdentifiedSystem
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.replay_fences import DeliveredCommits, ReplayVisibility, unseen_from

_FLUSHED = "SELECT pg_catalog.pg_current_wal_flush_lsn()::text"
_REPLAYED = (
    "SELECT pg_catalog.pg_last_wal_replay_lsn()::text, pg_catalog.pg_is_in_recovery(), "
    "pg_catalog.pg_postmaster_start_time()::text"
)
_STARTED = "SELECT pg_catalog.pg_postmaster_start_time()::text"


@dataclass(frozen=True, slots=True)
class Identified:
    """The system that a server is or is a copy of, and when the server was started."""

    system_id: str
    timeline: int
    database: str
    started: str


def identify(connection: Connection) -> Identified:
    """Identify the server at a replication connection."""
    system_id, timeline, _, database = query_row(connection, "IDENTIFY_SYSTEM")
    return Identified(system_id, int(timeline), database, query_row(connection, _STARTED)[0])


def flushed_end(primary: Connection) -> Lsn:
    """Return the end of the log that a primary has flushed: no standby has more."""
    return Lsn.parse(query_row(primary, _FLUSHED)[0])


def difference(found: Identified, source: IdentifiedSystem) -> str | None:
    """Return how a server differs from a copy of the source, which is a primary; None if it is a copy."""
    if found.system_id != source.system_id:
        return f"it is a copy of server {found.system_id}, and source.url is server {source.system_id}"
    if found.database != source.database:
        return f"its database is {found.database}, and that of source.url is {source.database}"
    if found.timeline != source.timeline:
        return f"it is on timeline {found.timeline}, and source.url is on timeline {source.timeline}"
    return None


class BackfillStandby:
    """A standby of the primary `source`, whose session is `primary`. Thread-safe. It connects when the first chunk is
    read."""

    def __init__(self, connector: Connector, source: IdentifiedSystem, primary: Session[Connection]) -> None:
        self._connector = connector
        self._source = source
        self._primary = primary
        self._identified = ""
        self._watch: Session[Connection] = Session(connector, connector.replicate)
        self.waits: ReplicaWait[Lsn] = ReplicaWait(connector, operator.ge)

    @property
    def pool(self) -> Pool[Connection]:
        """The connections that chunks are read through. Closing it also ends waits for the standby."""
        return Pool(self._connector, "chunks")

    def wait(self, connection: Connection) -> None:
        """Wait until the server at a connection has replayed the required place.

        Raises the errors of `ReplicaWait.until_replayed`, and SourceUnavailable for a server that is not a standby of
        the source.
        """
        replayed, is_standby, started = query_row(connection, _REPLAYED)
        self.check_standby(is_standby=is_standby)
        if started != self._identified or not self.waits.is_reached(Lsn.parse(replayed)):
            self._check_identity(started)  # another server may never get there, and has other tables
        self.waits.until_replayed(lambda: self.replayed_end(connection))

    def replayed_end(self, connection: Connection) -> Lsn:
        """Return the end of the log that the server at a connection has replayed.

        Raises:
            SourceUnavailable: the server is not a standby.
        """
        replayed, is_standby, _ = query_row(connection, _REPLAYED)
        self.check_standby(is_standby=is_standby)
        return Lsn.parse(replayed)

    def check_standby(self, *, is_standby: bool) -> None:
        if not is_standby:
            raise self.waits.refusal("it takes writes: it was promoted, or never was a standby")

    def check(self, started: str, replayed: Lsn) -> None:
        """Check that a snapshot that was just taken is of a standby of the source.

        `started`: when the snapshot's server was started; `replayed`: the end of the log that it had replayed then.

        Raises:
            SourceUnavailable: the server is not a standby of the source, or that cannot be determined.
        """
        self._check_identity(started)
        flushed = self._primary.ask("querying the end of the write-ahead log", flushed_end)
        if replayed > flushed:
            raise self.waits.refusal(
                f"it has replayed its log up to {replayed}, and the log of source.url ends at {flushed}: it is ahead"
            )

    def _check_identity(self, started: str) -> None:
        found = self._watch.ask(f"identifying {self._connector.address} ({SETTING})", identify)
        if found.started != started:
            raise self.waits.refusal("it leads to several servers, or was restarted while a chunk was read")
        if (reason := difference(found, self._source)) is not None:
            raise self.waits.refusal(reason)
        self._identified = started

    def close(self) -> None:
        self._connector.close()
        self._watch.close()


class BackfillFences:
    """Implements `ServerFences` with marks in the primary's log and snapshots of its standby.

    `commits`: None in a process that has no stream. `look` gets connections to the standby, all other methods get
    connections to the primary.
    """

    snapshot_columns = (
        "ARRAY[pg_catalog.pg_last_wal_replay_lsn()::text, pg_catalog.pg_last_wal_receive_lsn()::text, "
        "(SELECT count(*) FROM pg_catalog.pg_stat_wal_receiver)::text, pg_catalog.pg_is_in_recovery()::text, "
        "pg_catalog.pg_postmaster_start_time()::text]"
    )

    def __init__(self, primary: PrimaryFences, standby: BackfillStandby, commits: DeliveredCommits | None) -> None:
        self._primary = primary
        self._identified = ""
        self._standby = standby
        self._commits = commits

    @contextlib.contextmanager
    def look(self, connection: Connection) -> Iterator[SeenAt]:
        with contextlib.nullcontext() if self._commits is None else self._commits.look():
            self._standby.wait(connection)  # nothing delivered is forgotten before the fence exists
            yield partial(self._seen_at, self._standby.replayed_end(connection))

    def elsewhere(self) -> AbstractContextManager[Callable[[R], R]]:
        return self._primary.elsewhere()  # other processes read none of these chunks: the source refuses it

    def visibility(self, connection: Connection) -> ReplayVisibility:
        """Return what all later chunks see: each of them waits until the standby has replayed it."""
        if self._commits is None:
            return ReplayVisibility(self._require_flushed(connection))
        with self._commits.look():
            bound = self._commits.end
            self._standby.waits.require(bound)
            return self._commits.fence(bound)

    def of_plan(self, connection: Connection) -> tuple[Visibility, ...]:
        self._require_flushed(connection)
        return self._primary.of_plan(connection)

    def write_mark(self, connection: Connection, token: Token) -> None:
        self._standby.waits.end_waits()
        self._primary.write_mark(connection, token)
        self._require_flushed(connection)

    def beat(self, connection: Connection) -> None:
        self._primary.beat(connection)

    def close(self) -> None:
        self._standby.close()

    def _require_flushed(self, connection: Connection) -> Lsn:
        # Require only what is flushed: a standby has nothing beyond that, and the rest may not be flushed for a long
        # time.
        flushed = flushed_end(connection)
        self._standby.waits.require(flushed)
        return flushed

    def _seen_at(self, before: Lsn, seen: Seen) -> tuple[tuple[Visibility, ...], Lsn]:
        replayed, received, receivers, is_standby, started = seen
        self._standby.check_standby(is_standby=is_standby == "true")
        end = Lsn.parse(replayed or "")
        self._standby.check(started or "", end)
        unseen = unseen_from(end, Lsn.parse(received) if received else None, is_receiving=receivers == "1")
        return tuple(self._fence(bound) for bound in sorted({before, unseen})), end

    def _fence(self, bound: Lsn) -> ReplayVisibility:
        return ReplayVisibility(bound) if self._commits is None else self._commits.fence(bound)


def find_problem(connector: Connector, source: IdentifiedSystem) -> str | None:
    """Return why no rows can be read at the server that a connector leads to; None if it is a standby of the source."""
    connection = connector.replicate()
    try:
        with connector.mapping_errors(f"checking {connector.address} ({SETTING})"):
            return problem_of_standby(connection, source)
    finally:
        connector.discard(connection)


def problem_of_standby(connection: Connection, source: IdentifiedSystem) -> str | None:
    """Return why no rows can be read at the server at a replication connection; None if it is a standby of the
    source."""
    if not query_row(connection, _REPLAYED)[1]:
        return "it takes writes, so it is not a standby"
    return difference(identify(connection), source)
