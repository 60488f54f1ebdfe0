"""The replica that chunks are read from, while changes are captured from its primary (`source.backfill.url`).

    primary   ──[low]──────────────────────[high]──▶ binary log     plans, marks, stream
                   └── replication ──┐
    replica   ────────────────────[low]──┬─────────▶                the snapshot of a chunk

A chunk is read only once the replica has executed every transaction that the primary had executed when low was
committed. Its snapshot's visibility is known by GTIDs, which mean the same at both servers:

    MySQL     seen: `@@gtid_executed` before the snapshot; not seen: what is neither in that set after the snapshot, nor
              owned by a session (as at a primary, see `fences`)
    MariaDB   the table mysql.gtid_slave_pos, read in the snapshot: each transaction of replication changes it as well,
              so the snapshot sees exactly what this table has

A replica must have all that its primary has, and nothing else. After each snapshot, its set of transactions is compared
with the primary's, and before each, cdcflow checks that it has no filters. Changes that are written at the replica
without being logged cannot be found.

Shapes are read at the replica, in a separate catalog. They must be the primary's: a replica may have other columns.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pymysql

from cdcflow.errors import ConfigurationError, RightMissing, SourceUnavailable
from cdcflow.model.table import TableId
from cdcflow.sources.engine.chunks import Snapshot
from cdcflow.sources.engine.connections import Pool
from cdcflow.sources.engine.replica_wait import SETTING, ReplicaWait
from cdcflow.sources.mysql import binlog_status
from cdcflow.sources.mysql.binlog_status import BinlogEnd
from cdcflow.sources.mysql.catalog import Catalog, CatalogTable
from cdcflow.sources.mysql.connection import Connection, Connector, account_of, at_once, query, query_row
from cdcflow.sources.mysql.errors import DENIED, parts
from cdcflow.sources.mysql.fences import DeliveredGtids, GtidVisibility
from cdcflow.sources.mysql.gtids import Flavor, GtidSet, MariadbGtids, MysqlGtids, gtid_set
from cdcflow.sources.mysql.load import replica_status
from cdcflow.sources.mysql.snapshots import EXACT_TRIES, locked_table, position_at
from cdcflow.sources.mysql.tables import DescribedTable

_OWNER = re.compile(r"#\d+")
_MAY_NOT = DENIED | {1227}
_SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
_EXECUTED = "SELECT @@GLOBAL.gtid_executed"
_APPLIED = "SELECT domain_id, server_id, seq_no FROM mysql.gtid_slave_pos ORDER BY sub_id"
_READ_APPLIED = "SELECT ON mysql.gtid_slave_pos"
_OTHER_TABLES = (
    "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'mysql' AND "
    "TABLE_NAME LIKE 'gtid_slave_pos%' AND NOT (TABLE_NAME = 'gtid_slave_pos' AND ENGINE = 'InnoDB')"
)


@dataclass(frozen=True, slots=True)
class Executed:
    """The set of transactions that a server has executed, in the server's own text."""

    flavor: Flavor
    text: str

    @property
    def gtids(self) -> GtidSet:
        return gtid_set(self.flavor, self.text)

    def covers(self, other: Executed) -> bool:
        return self.gtids.covers(other.gtids)

    def __str__(self) -> str:
        return f"GTIDs {self.text}"


class BackfillReplica:
    """A replica of the source. Thread-safe. It connects when the first chunk is read.

    `primary` and `catalog`: the catalogs of the source and of the replica, which `connector` leads to.
    """

    def __init__(self, connector: Connector, primary: Catalog, catalog: Catalog, delivered: DeliveredGtids) -> None:
        self._connector = connector
        self._flavor: Flavor = connector.flavor
        self._primary = primary
        self._catalog = catalog
        self._delivered = delivered
        self._end: BinlogEnd | None = None
        self._promised = Executed(self._flavor, "")
        self.waits: ReplicaWait[Executed] = ReplicaWait(connector, Executed.covers)
        self.pool: Pool[Connection] = Pool(connector, "chunks")

    # ── at the primary ──────────────────────────────────────────────────────────────────────────────────────

    def require(self, primary: Connection) -> Executed:
        """Have later chunks see at least the transactions that are executed at the primary now. Return their set."""
        end = binlog_status.end(primary)
        executed = Executed(self._flavor, _executed_at_primary(primary, self._flavor))
        self._end = end
        self.waits.require(executed)
        return executed

    def visibility(self, primary: Connection) -> GtidVisibility:
        """Return what all later chunks see: each of them waits until the replica has executed it."""
        with self._delivered.look():
            self._promised = self.require(primary)
            return self._delivered.fence(self._promised.gtids)

    # ── at the replica ──────────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def snapshot(self, connection: Connection) -> Iterator[Snapshot]:
        """Take a snapshot that lasts as long as the block."""
        with contextlib.ExitStack() as stack:
            with self._delivered.look():  # nothing delivered is forgotten before the fence exists
                self._wait(connection)
                fences = stack.enter_context(self._take(connection))
            yield self._snapshot_of(connection, fences)

    @contextlib.contextmanager
    def whole(self, connection: Connection, table: str, locking: Callable[[], Connection]) -> Iterator[Snapshot]:
        """Take a snapshot of one table; see `SnapshotTaker.whole`. While the table is locked, no transaction that
        concerns it is being executed."""
        if self._flavor == "mariadb":
            with self.snapshot(connection) as taken:
                yield taken
            return
        locker = locking()
        if binlog_status.server_of(locker, "mysql") != binlog_status.server_of(connection, "mysql"):
            raise self.waits.refusal("it leads to several servers")
        with self._delivered.look():
            self._wait(connection)
            with locked_table(locker, table):
                query(connection, _SNAPSHOT)
                executed = binlog_status.executed_gtids(locker)
            self._check_promise(Executed("mysql", executed))
            fence = self._delivered.fence(MysqlGtids.parse(executed))
        try:
            self._check_errant(Executed("mysql", executed))
            yield self._snapshot_of(connection, (fence,))
        finally:
            _roll_back(connection)

    def current(self, table: TableId) -> tuple[CatalogTable, DescribedTable]:
        """Return the table's current definition at the replica.

        Raises:
            SourceUnavailable: the definition differs from the primary's current one.
        """
        entry = self._catalog.look_up(table)
        described = self._catalog.describe_entry(entry)
        if described.table != self._primary.describe_entry(self._primary.look_up(table)).table:
            raise SourceUnavailable(
                f"reading {table} from {self._connector.address} ({SETTING}): its columns are not those at the source",
                remedy="nothing if the table was just altered. Otherwise alter it at the replica, so that both have "
                f"the same columns; or remove {SETTING}, and run `cdcflow apply`",
                runbook="backfill-replica",
            )
        return entry, described

    def close(self) -> None:
        self._connector.close()
        self._catalog.close()

    def _wait(self, connection: Connection) -> None:
        if (why := problem_of_replica(connection, self._flavor, self._primary)) is not None:
            raise self.waits.refusal(why)
        self.waits.until_replayed(lambda: Executed(self._flavor, _executed_at_replica(connection, self._flavor)))

    @contextlib.contextmanager
    def _take(self, connection: Connection) -> Iterator[tuple[GtidVisibility, ...]]:
        try:
            if self._flavor == "mysql":
                yield self._take_bounded(connection)
            else:
                yield (self._take_exact(connection),)
        finally:
            _roll_back(connection)

    def _take_bounded(self, connection: Connection) -> tuple[GtidVisibility, ...]:
        """Take a MySQL snapshot while no transaction is being executed, if such a time occurs; its visibility is exact.
        Otherwise return two bounds of its visibility.

        Call it within a `look`.
        """
        for tries_left in reversed(range(EXACT_TRIES)):
            before, _, owned, after = at_once(connection, _EXECUTED, _SNAPSHOT, "SELECT @@GLOBAL.gtid_owned", _EXECUTED)
            seen = MysqlGtids.parse(str(before[0][0]))
            maybe = MysqlGtids.parse(f"{after[0][0]},{_OWNER.sub('', str(owned[0][0]))}")
            is_exact = seen.text() == maybe.text()
            if is_exact or not tries_left:
                break
            _roll_back(connection)
        self._check_promise(Executed("mysql", seen.text()))
        fences = tuple(self._delivered.fence(bound) for bound in ((seen,) if is_exact else (seen, maybe)))
        self._check_errant(Executed("mysql", str(after[0][0])))
        return fences

    def _take_exact(self, connection: Connection) -> GtidVisibility:
        """Take a MariaDB snapshot, and return what it sees. Call it within a `look`."""
        query(connection, _SNAPSHOT)
        applied = MariadbGtids()
        for domain, server, number in _rows_of(connection, _APPLIED, _READ_APPLIED):
            applied.add(f"{domain}-{server}", int(number))
        self._check_promise(Executed("mariadb", applied.text()))
        fence = self._delivered.fence(applied)
        self._check_errant(Executed("mariadb", applied.text()))
        return fence

    def _snapshot_of(self, connection: Connection, fences: tuple[GtidVisibility, ...]) -> Snapshot:
        assert self._end is not None  # noqa: S101  `require` runs before any chunk is read
        return position_at(fences, self._end, connection)

    def _check_promise(self, seen: Executed) -> None:
        """Check that a snapshot sees everything that `visibility` promised. The fences do not show this, because
        delivered transactions may have been forgotten since."""
        if not seen.covers(self._promised):
            raise self.waits.lagging(seen, self._promised)

    def _check_errant(self, executed: Executed) -> None:
        found = self._primary.ask(
            "comparing the transactions of a replica with those of the source", lambda c: errant(c, executed)
        )
        if found:
            raise self.waits.refusal(f"it has transactions that the source does not have: {found}")


def _executed_at_primary(connection: Connection, flavor: Flavor) -> str:
    if flavor == "mysql":
        return binlog_status.executed_gtids(connection)
    return str(query_row(connection, "SELECT @@GLOBAL.gtid_binlog_pos")[0])


def _executed_at_replica(connection: Connection, flavor: Flavor) -> str:
    if flavor == "mysql":
        return binlog_status.executed_gtids(connection)
    return str(query_row(connection, "SELECT @@GLOBAL.gtid_slave_pos")[0])


def errant(primary: Connection, executed: Executed) -> str:
    """Return the transactions of this set that the primary does not have; "" if it has all.

    MySQL: a transaction that is being committed at the primary counts as one that it has: it is owned by its session,
    and may wait for a replica.
    """
    if executed.flavor == "mariadb":
        here = Executed("mariadb", _executed_at_primary(primary, "mariadb"))
        return "" if here.covers(executed) else executed.text
    owned = _OWNER.sub("", binlog_status.owned_gtids(primary))
    subtracted = f"GTID_SUBTRACT('{executed.text}', @@GLOBAL.gtid_executed)"
    (left,) = query_row(primary, f"SELECT GTID_SUBTRACT({subtracted}, '{owned}')")
    return "".join(str(left).split())


def problem_of_replica(connection: Connection, flavor: Flavor, primary: Catalog) -> str | None:
    """Return why no rows can be read at a server; None if it replicates everything of the source by GTIDs.

    Raises:
        RightMissing: cdcflow may not see how it replicates.
    """
    right = "REPLICATION CLIENT" if flavor == "mysql" else "REPLICA MONITOR"
    with _naming(connection, f"{right} ON *.*"):
        channels = replica_status(connection)
    if not channels:
        return "it replicates from no server: it was promoted, or never was a replica"
    for name, value in (item for channel in channels for item in channel.items()):
        if name.startswith("Replicate_") and str(value or "") not in ("", "0"):
            return f"it does not replicate everything: {name} is set"
    skipped: dict[str, object] = dict(query(connection, "SHOW GLOBAL VARIABLES LIKE '%skip_errors'"))
    if any(str(value).upper() not in ("OFF", "") for value in skipped.values()):
        return f"it skips errors, and what failed is not in its rows: {', '.join(skipped)} is set"
    return _without_gtids(connection, flavor, channels, primary)


def _without_gtids(
    connection: Connection, flavor: Flavor, channels: list[dict[str, Any]], primary: Catalog
) -> str | None:
    if flavor == "mysql":
        mode = str(query_row(connection, "SELECT @@GLOBAL.gtid_mode")[0])
        return None if mode == "ON" else f"its gtid_mode is {mode}"
    server = primary.ask("querying the server's number", lambda c: binlog_status.server_of(c, "mariadb"))
    sources = [str(channel.get("Source_Server_Id")) for channel in channels]
    if server not in sources:
        return f"it replicates from the server with server_id {', '.join(sources)}, and that of source.url has {server}"
    if any(str(channel.get("Using_Gtid")) not in ("Slave_Pos", "Current_Pos") for channel in channels):
        return "it replicates without GTIDs (MASTER_USE_GTID)"
    if int(query_row(connection, _OTHER_TABLES)[0]):
        return "mysql.gtid_slave_pos is not the only table of its replicated transactions, or its engine is not InnoDB"
    strict, engines, current, applied = query_row(
        connection,
        "SELECT @@GLOBAL.gtid_strict_mode, @@GLOBAL.gtid_pos_auto_engines, @@GLOBAL.gtid_current_pos, "
        "@@GLOBAL.gtid_slave_pos",
    )
    if not strict:
        return "its gtid_strict_mode is OFF, so its GTIDs may not grow along the log"
    if engines:
        return "its gtid_pos_auto_engines is set, so mysql.gtid_slave_pos may lack what it has executed"
    if not MariadbGtids.parse(str(applied)).covers(MariadbGtids.parse(str(current))):
        return f"it has transactions that it did not replicate: {current}"
    return None


def _rows_of(connection: Connection, statement: str, right: str) -> list[Any]:
    with _naming(connection, right):
        return list(query(connection, statement))


@contextlib.contextmanager
def _naming(connection: Connection, right: str) -> Iterator[None]:
    """Turn the server's refusals inside the block into RightMissing, with the GRANT of `right`."""
    try:
        yield
    except pymysql.Error as error:
        if parts(error)[0] not in _MAY_NOT or not connection.open:
            raise
        account = account_of(connection)
        raise RightMissing(
            f"querying how the server of {SETTING} replicates: {account} lacks a right",
            remedy=f"run GRANT {right} TO {account}",
        ) from None


def _roll_back(connection: Connection) -> None:
    with contextlib.suppress(pymysql.Error):
        query(connection, "ROLLBACK")


def find_problem(connector: Connector, primary: Catalog) -> str | None:
    """Return why no rows can be read at the server that a connector leads to; None if they can."""
    connection = connector.connect("replica")
    try:
        with connector.mapping_errors(f"checking {connector.address} ({SETTING})"):
            if (why := problem_of_replica(connection, connector.flavor, primary)) is not None:
                return why
            if connector.flavor == "mariadb":
                _rows_of(connection, _APPLIED, _READ_APPLIED)
            executed = Executed(connector.flavor, _executed_at_replica(connection, connector.flavor))
            if found := primary.ask("comparing transactions", lambda c: errant(c, executed)):
                return f"it has transactions that the source does not have: {found}"
            return None
    finally:
        connector.discard(connection)


def no_gtids(address: object) -> ConfigurationError:
    """Return the error for a source whose transactions have no GTIDs."""
    return ConfigurationError(
        f"reading rows from the replica of {SETTING}: the transactions of {address} have no GTIDs, and what a "
        "replica's snapshot sees cannot be determined without them",
        remedy=f"set gtid_mode=ON at both servers; or remove {SETTING}",
        runbook="settings",
    )
