"""How chunks and the stream agree on an order: at a primary by written marks, at a standby by places in its log.

    primary   marks are messages in the log; a snapshot lists the transactions that it does not see
    standby   marks are ends of the replayed log; a snapshot is between two of them (`replay_fences`)

A run has one kind, found when it begins. A standby that is promoted ends the run; the next one finds a primary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar, cast

from cdcflow.capture.interleave.messages import Visibility
from cdcflow.errors import SourceUnavailable
from cdcflow.model.position import Token
from cdcflow.sources.engine.chunks import PartRead
from cdcflow.sources.postgres.connection import Connection, literal, query_row
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.replay_fences import DeliveredCommits, ReplayVisibility, unseen_from
from cdcflow.sources.postgres.replay_marks import ExpectedMarks
from cdcflow.sources.postgres.xid_snapshot import XidSnapshot

HEARTBEAT = "heartbeat"
R = TypeVar("R", bound=PartRead)

Seen = Sequence[str | None]
"""The values of the SQL `ServerFences.snapshot_columns` in a result."""
SeenAt = Callable[[Seen], tuple[tuple[Visibility, ...], Lsn]]
"""Returns what a snapshot sees, and the position in the log that it belongs to."""


class ServerFences(Protocol):
    """Requests marks and visibilities from a server. Thread-safe."""

    @property
    def snapshot_columns(self) -> str:
        """The SQL for an array of texts that describe the snapshot, for the statement that takes it."""
        ...

    def look(self, connection: Connection) -> AbstractContextManager[SeenAt]:
        """Surround the beginning of a transaction and the statement that takes its snapshot."""
        ...

    def elsewhere(self) -> AbstractContextManager[Callable[[R], R]]:
        """Prepare for the reading of parts by other processes. See `engine.chunks.ChunkDialect.elsewhere`."""
        ...

    def visibility(self, connection: Connection) -> Visibility:
        """Return which transactions are certainly visible now."""
        ...

    def of_plan(self, connection: Connection) -> tuple[Visibility, ...]:
        """Return the visibilities of a plan whose file length is read after this call: see `Planned.visibilities`."""
        ...

    def write_mark(self, connection: Connection, token: Token) -> None: ...

    def beat(self, connection: Connection) -> None:
        """Make an idle stream show that it advances."""
        ...

    def close(self) -> None: ...


class PrimaryFences:
    """Implements `ServerFences` with messages in the log, with this prefix, and with the ids of transactions."""

    snapshot_columns = "ARRAY[pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_wal_insert_lsn()::text]"

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def look(self, connection: Connection) -> AbstractContextManager[SeenAt]:
        return contextlib.nullcontext(_seen_at_primary)

    def elsewhere(self) -> AbstractContextManager[Callable[[R], R]]:
        return contextlib.nullcontext(lambda part: part)

    def visibility(self, connection: Connection) -> XidSnapshot:
        return XidSnapshot.parse(query_row(connection, "SELECT pg_catalog.pg_current_snapshot()::text")[0])

    def of_plan(self, connection: Connection) -> tuple[Visibility, ...]:
        return ()  # a file has the rows of every transaction that is in the log, visible or not

    def write_mark(self, connection: Connection, token: Token) -> None:
        self._emit(connection, token.text, "local")

    def beat(self, connection: Connection) -> None:
        """Write a mark that no reader waits for."""
        self._emit(connection, HEARTBEAT, "off")

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def _emit(self, connection: Connection, content: str, synchronous_commit: str) -> None:
        # A mark must not wait for a synchronous standby: it would wait as long as the transactions around which it is
        # placed (E1).
        connection.execute(
            f"SET synchronous_commit = {synchronous_commit}; "
            f"SELECT pg_catalog.pg_logical_emit_message(true, {literal(self._prefix)}, {literal(content)})".encode()
        )


def _seen_at_primary(seen: Seen) -> tuple[tuple[Visibility, ...], Lsn]:
    snapshot, end = seen
    return (XidSnapshot.parse(snapshot or ""),), Lsn.parse(end or "")


@dataclass(frozen=True, slots=True)
class StandbyRun:
    """The state that the stream and the chunks of one run from a standby share, and the standby's timeline."""

    timeline: int
    commits: DeliveredCommits
    marks: ExpectedMarks

    @classmethod
    def beginning_at(cls, position: Lsn, timeline: int) -> StandbyRun:
        """Return the state of a run whose stream begins at this position."""
        return cls(timeline, DeliveredCommits(position), ExpectedMarks())


# Whether the server is a standby is queried last: if it still is, it was one when the other values were read. A standby
# that is being promoted does not report an older replayed end either.
_REPLAYED = "SELECT pg_catalog.pg_last_wal_replay_lsn()::text, pg_catalog.pg_is_in_recovery()"
_BEAT = """
SELECT (extract(epoch FROM pg_catalog.pg_last_xact_replay_timestamp()) * 1000000)::bigint,
       pg_catalog.pg_last_wal_replay_lsn()::text, pg_catalog.pg_is_in_recovery()
"""


class StandbyFences:
    """Implements `ServerFences` with places in the replayed log. `run`: None in a process that has no stream."""

    snapshot_columns = (
        "ARRAY[pg_catalog.pg_last_wal_replay_lsn()::text, pg_catalog.pg_last_wal_receive_lsn()::text, "
        "(SELECT count(*) FROM pg_catalog.pg_stat_wal_receiver)::text, pg_catalog.pg_is_in_recovery()::text]"
    )

    def __init__(self, run: StandbyRun | None) -> None:
        self._run = run

    @contextlib.contextmanager
    def look(self, connection: Connection) -> Iterator[SeenAt]:
        with self._looking():
            yield partial(self._seen_at, self._replayed_end(connection))

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[Callable[[R], R]]:
        with self._looking():
            yield self._adopt

    def visibility(self, connection: Connection) -> ReplayVisibility:
        with self._looking():
            return self._fence(self._replayed_end(connection))

    def of_plan(self, connection: Connection) -> tuple[Visibility, ...]:
        return (self.visibility(connection),)  # another standby's file may be shorter

    def write_mark(self, connection: Connection, token: Token) -> None:
        """Have the stream report this mark at the current end of the replayed log."""
        replayed = self._replayed_end(connection)
        if self._run is not None:
            self._run.marks.expect(token, replayed)

    def beat(self, connection: Connection) -> None:
        """Have the stream report the commit time of the last transaction that was replayed."""
        # The time is read before the end: a time read after it might be that of a transaction after the end.
        commit_ts, replayed, is_standby = query_row(connection, _BEAT)
        self._check(is_standby=is_standby)
        if self._run is not None and commit_ts is not None:
            self._run.marks.expect_time(commit_ts, Lsn.parse(replayed))

    def close(self) -> None:
        """Do nothing: no connection is open."""

    def _looking(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self._run is None else self._run.commits.look()

    def _replayed_end(self, connection: Connection) -> Lsn:
        replayed, is_standby = query_row(connection, _REPLAYED)
        self._check(is_standby=is_standby)
        return Lsn.parse(replayed)

    def _seen_at(self, before: Lsn, seen: Seen) -> tuple[tuple[Visibility, ...], Lsn]:
        replayed, received, receivers, is_standby = seen
        self._check(is_standby=is_standby == "true")
        end = Lsn.parse(replayed or "")
        unseen = unseen_from(end, Lsn.parse(received) if received else None, is_receiving=receivers == "1")
        return self._fences_at({before, unseen}), end

    def _adopt(self, part: R) -> R:
        """Convert a result that another process reported of a part, so that this process can use it."""
        bounds = {cast(ReplayVisibility, v).bound for v in part.snapshot.visibilities}
        return replace(part, snapshot=replace(part.snapshot, visibilities=self._fences_at(bounds)))

    def _fences_at(self, bounds: set[Lsn]) -> tuple[Visibility, ...]:
        """Return a fence at each of the two bounds of a snapshot; one fence if they are equal."""
        if self._run is not None:
            self._run.marks.look_beyond(max(bounds))
        return tuple(self._fence(bound) for bound in sorted(bounds))

    def _fence(self, bound: Lsn) -> ReplayVisibility:
        return ReplayVisibility(bound) if self._run is None else self._run.commits.fence(bound)

    def _check(self, *, is_standby: bool) -> None:
        """Raise SourceUnavailable if the server is no longer a standby, and have the stream end with that error."""
        if is_standby:
            return
        error = SourceUnavailable("the standby was promoted: it takes writes now; cdcflow connects again")
        if self._run is not None:
            self._run.marks.fail(error)
        raise error
