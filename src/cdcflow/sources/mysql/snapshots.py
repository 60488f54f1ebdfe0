"""Takes a snapshot of rows together with its visibility: `fences` explains why each flavor needs a different method."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import pymysql

from cdcflow.capture.interleave.messages import Visibility
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Position
from cdcflow.sources.engine.chunks import Snapshot
from cdcflow.sources.mysql import binlog_status
from cdcflow.sources.mysql.binlog_status import BinlogEnd
from cdcflow.sources.mysql.connection import Connection, query, query_row
from cdcflow.sources.mysql.fences import CoordinateVisibility, DeliveredGtids, GtidsSeen, NoStream
from cdcflow.sources.mysql.gtids import Flavor, MysqlGtids
from cdcflow.sources.mysql.marks import Marking, WrittenMarks

NO_RIGHTS = 1044
EXACT_TRIES = 20
"""At most this many tries of a snapshot while nothing is being committed; each takes the server well below a
millisecond."""


class SnapshotTaker:
    """Takes snapshots at one server.

    `has_gtids`: every transaction there has a GTID. `delivered`: the GTIDs that this process's stream has delivered.
    The snapshots of a process without a stream must pass through `elsewhere` in the process with the stream.
    """

    def __init__(
        self, flavor: Flavor, *, has_gtids: bool, delivered: DeliveredGtids | NoStream, marking: Marking
    ) -> None:
        self._flavor: Flavor = flavor
        self._has_gtids = has_gtids
        self._delivered = delivered
        self._marking = marking

    @contextlib.contextmanager
    def snapshot(self, connection: Connection) -> Iterator[Snapshot]:
        """Take a snapshot that lasts as long as the block."""
        if self._flavor == "mysql" and self._has_gtids:
            with self._between_commits(connection) as taken:
                yield taken
            return
        lower = None if self._flavor == "mariadb" else self._lower(connection)
        with binlog_status.snapshot(connection):
            if lower is None:
                end = binlog_status.snapshot_end(connection)
                yield position_at((CoordinateVisibility(end.coordinate),), end, connection)
            else:
                # The upper bound is the log's end, read after the snapshot: every transaction in the log after it
                # became visible after the snapshot too.
                end = binlog_status.end(connection)
                yield position_at((lower, CoordinateVisibility(end.coordinate)), end, connection)

    @contextlib.contextmanager
    def _between_commits(self, connection: Connection) -> Iterator[Snapshot]:
        """Take a MySQL snapshot while no transaction is being committed, if such a time occurs within `EXACT_TRIES`.

        Its position is exact then. Otherwise it has two bounds.
        """
        for tries_left in reversed(range(EXACT_TRIES)):
            with contextlib.ExitStack() as stack:
                with self._delivered.look():
                    executed, end, is_exact = stack.enter_context(binlog_status.bounded_snapshot(connection))
                    if not is_exact and tries_left:
                        continue
                    fences: list[Visibility] = [self._delivered.fence(MysqlGtids.parse(executed))]
                if not is_exact:
                    fences.append(CoordinateVisibility(end.coordinate))
                yield position_at(tuple(fences), end, connection)
                return

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[Callable[[Snapshot], Snapshot]]:
        """Surround reading by processes without a stream. The block gets a function that converts their snapshots into
        ones of this process."""
        with self._delivered.look():

            def here(visibility: Visibility) -> Visibility:
                if isinstance(visibility, GtidsSeen):
                    return self._delivered.fence(visibility.executed)
                return visibility

            yield lambda snapshot: replace(snapshot, visibilities=tuple(map(here, snapshot.visibilities)))

    def visibility(self, connection: Connection) -> Visibility:
        """Return which transactions are certainly visible now."""
        if self._flavor == "mysql":
            return self._lower(connection)
        with binlog_status.snapshot(connection):
            return CoordinateVisibility(binlog_status.snapshot_end(connection).coordinate)

    @contextlib.contextmanager
    def whole(self, connection: Connection, table: str, locking: Callable[[], Connection]) -> Iterator[Snapshot]:
        """Take a snapshot of one table (as SQL) with a single exact position in the log.

        MariaDB's snapshots have one. On MySQL the connection from `locking` locks the table against writing while the
        snapshot is taken: everything that was written to it before is then both logged and visible.
        """
        if self._flavor == "mariadb":
            with self.snapshot(connection) as taken:
                yield taken
            return
        locker = locking()
        with locked_table(locker, table):
            query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            end = binlog_status.end(locker)
        try:
            yield position_at((CoordinateVisibility(end.coordinate),), end, connection)
        finally:
            # On a broken connection the rollback fails too; its error must not hide the first one.
            with contextlib.suppress(pymysql.Error):
                query(connection, "ROLLBACK")

    def _lower(self, connection: Connection) -> Visibility:
        if self._has_gtids:
            with self._delivered.look():
                return self._delivered.fence(MysqlGtids.parse(binlog_status.executed_gtids(connection)))
        # Commits become visible in the order of the log (binlog_order_commits). So once one of cdcflow's marks is
        # committed, everything that was logged before it is visible.
        assert isinstance(self._marking, WrittenMarks)  # noqa: S101  `prepare` refuses the other without GTIDs
        end = binlog_status.end(connection)
        self._marking.beat(connection)
        return CoordinateVisibility(end.coordinate)


@contextlib.contextmanager
def locked_table(locker: Connection, table: str) -> Iterator[None]:
    """Lock this table (as SQL) during the block: no session writes to it, so what was written is logged and visible.

    Raises:
        ConfigurationError: cdcflow may not lock it.
    """
    try:
        query(locker, f"LOCK TABLES {table} READ")
    except pymysql.err.OperationalError as error:
        if error.args[0] != NO_RIGHTS:
            raise
        raise ConfigurationError(
            f"table {table} has no key, and the user of source.url may not lock it, which a snapshot needs",
            remedy=f"run GRANT LOCK TABLES ON {table.partition('`.`')[0]}`.* TO that user",
            runbook="right-missing",
        ) from None
    try:
        yield
    finally:
        query(locker, "UNLOCK TABLES")


def position_at(visibilities: tuple[Visibility, ...], end: BinlogEnd, connection: Connection) -> Snapshot:
    """Describe a snapshot that a connection has just taken. `end`: the end of the source's log."""
    clock_us = int(query_row(connection, "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)")[0])
    return Snapshot(visibilities, Position(f"{end.file}:{end.pos};"), clock_us)
