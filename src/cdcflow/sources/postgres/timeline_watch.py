"""Checks whether a server is still on the timeline that a run began on.

A standby that is promoted, or follows a different primary, silently continues its log and its streams on a new
timeline. A position delivered after that is beyond the place where the new timeline left the old one, and the next
start would refuse it, like a position that a restored server never reached. So a run from a standby delivers nothing of
a new timeline: it checks the timeline after each receive, and ends if that has changed. The next run finds a timeline
that begins at its position, or after it.
"""

from __future__ import annotations

from cdcflow.errors import SourceUnavailable
from cdcflow.sources.postgres.connection import Connection, Connector, mapping_errors, query_row


class TimelineWatch:
    """Queries the timeline through a separate replication connection; it takes one WAL sender. Used by one thread at a
    time."""

    def __init__(self, connector: Connector, timeline: int) -> None:
        self._connector = connector
        self._timeline = timeline
        self._connection: Connection | None = None

    def check(self) -> None:
        """Check that everything received so far is of the timeline.

        Raises:
            SourceUnavailable: something received may be of a new timeline; or the server cannot be queried.
        """
        if self._connection is None:
            self._connection = self._connector.replicate()
        with mapping_errors(f"querying the timeline of {self._connector.address}"):
            timeline = int(query_row(self._connection, "IDENTIFY_SYSTEM")[1])
        if timeline != self._timeline:
            raise SourceUnavailable(
                f"the standby was promoted, or follows a different primary: timeline {self._timeline} became "
                f"{timeline}; cdcflow connects again"
            )

    def close(self) -> None:
        if self._connection is not None:
            self._connector.discard(self._connection)
