"""Checks whether a new server's binary log has the change log's transactions, and no others among them.

A replica that was written to has transactions that its primary never had (errant transactions):

    change log           A1  A2  A3                     the primary is gone
    promoted replica     A1  A2  B1  A3  A4  B2         B1: written at the replica; A4: the change log does not have it

MySQL sends B1 after A3, because the change log does not have it; MariaDB never sends it, because it is before A3.
Either way the tables could silently differ. So if B1 may have changed captured tables, the capture stops. A4 and B2 are
after everything that the change log has, and arrive in their order.

MySQL: each file begins with the set of GTIDs before it, so only files are read that have a transaction of the change
log after one that it does not have. Transactions of one server may be in another order on a replica with several
applier threads; these do not depend on each other.

MariaDB: the change log has the last GTID of each domain. Its numbers grow along a domain until an errant transaction
takes one; then the primary's transaction with that number follows. Each GTID must be found exactly: a later number of
the same server does not prove that an earlier one exists.

Two servers can also give the same GTID to different transactions: MariaDB's `server_id` is 1 unless it is set. So the
last transactions of the change log are compared with those that have their GTIDs, by their times of commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from cdcflow.capture.ports.source import TransactionsBack
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import HistoryLost
from cdcflow.model.position import Position
from cdcflow.model.table import TableId
from cdcflow.sources.engine.buffers import Bools
from cdcflow.sources.mysql import binlog_status
from cdcflow.sources.mysql.compressed import expand
from cdcflow.sources.mysql.connection import Connection, Connector, mapping_errors
from cdcflow.sources.mysql.dump import Dump, scan
from cdcflow.sources.mysql.errors import history_lost, log_purged
from cdcflow.sources.mysql.events import IS_OPENER, EventType
from cdcflow.sources.mysql.fences import are_outside
from cdcflow.sources.mysql.gtids import Flavor, Gtids, MariadbGtids, MysqlGtids
from cdcflow.sources.mysql.position import (
    FIRST_EVENT,
    NOWHERE,
    BinlogFile,
    BinlogPosition,
    Coordinate,
    coordinate,
)
from cdcflow.sources.mysql.readings import tables_in
from cdcflow.sources.mysql.statements import SchemaDropped, Statement, Unsure
from cdcflow.sources.mysql.tables import table_name
from cdcflow.sources.mysql.transactions import Openers, openers_of, queries
from cdcflow.sources.mysql.wire import Events

COMPARED_MAX = 16
LOOK_BACK_BYTES = 256 << 20
"""MariaDB: at least this much of the log before the position is read, if the server has it."""
_NAMED_MAX = 5

Gtid = tuple[str, int]
"""A GTID as its source and its number (see `gtids`)."""


@dataclass(frozen=True, slots=True)
class KnownTransactions:
    """The transactions of the change log: its GTIDs, the captured tables, and the times of commit of its last
    transactions in microseconds since 1970."""

    gtids: str
    captured: frozenset[TableId]
    times: Mapping[Gtid, int]


def check(connector: Connector, dump: Dump, captured: Iterable[TableId], back: TransactionsBack | None) -> None:
    """Check the binary log of the server where a stream by GTIDs is about to begin.

    Raises:
        HistoryLost: the binary log has a transaction that the change log lacks, among transactions that the change log
            has, and it may have changed captured tables; or a transaction of the change log is not in the binary log.
    """
    times = {} if back is None else commit_times(dump.flavor, back)
    ours = KnownTransactions(dump.position.gtids, frozenset(captured), times)
    connection = connector.connect("errant transactions")
    try:
        with mapping_errors(f"comparing the transactions of the change log with those of {connector.address}"):
            found = (_read_mysql if dump.flavor == "mysql" else _read_mariadb)(connector, connection, dump, ours)
    finally:
        connector.discard(connection)
    if found.differing is not None:
        raise _differs(connector, dump.flavor, found.differing)
    if found.errant:
        raise _errant(connector, dump.flavor, found.errant)


def commit_times(flavor: Flavor, back: TransactionsBack) -> dict[Gtid, int]:
    """Return the times of commit of the change log's last transactions, as far as their GTIDs can be determined: the
    log has the set of GTIDs up to each."""
    seen: list[Position] = []

    def is_enough(found: Position) -> bool:
        seen.append(found)
        return len(seen) > COMPARED_MAX

    table = back(is_enough)
    table = table.slice(max(0, len(table) - COMPARED_MAX - 1))
    sets = [BinlogPosition.parse(text).gtids for text in table.column("position").to_pylist()]
    stamps = table.column("commit_ts").cast(pa.int64()).to_pylist()
    found: dict[Gtid, int] = {}
    for before, now, stamp in zip(sets, sets[1:], stamps[1:], strict=False):
        if (own := _last_in(flavor, before, now)) is not None:
            found[own] = stamp
    return found


def _last_in(flavor: Flavor, before: str, now: str) -> Gtid | None:
    """Return the GTID of a transaction; None if several are possible. `now`: the set of GTIDs through this transaction;
    `before`: the set through an earlier one."""
    changed = _last_of_each(flavor, now).items() - _last_of_each(flavor, before).items()
    if len(changed) != 1:
        return None
    (own,) = changed
    if flavor == "mysql":
        # A replica with several applier threads may have added others, in any order.
        gtids = MysqlGtids.parse(before)
        gtids.add(*own)
        return own if gtids.text() == MysqlGtids.parse(now).text() else None
    return own


def _last_of_each(flavor: Flavor, gtids: str) -> dict[str, int]:
    if flavor == "mysql":
        return {source: intervals[-1][1] for source, intervals in MysqlGtids.parse(gtids).intervals()}
    return {f"{domain}-{server}": number for domain, (server, number) in MariadbGtids.parse(gtids).domains().items()}


# ── which files are read ─────────────────────────────────────────────────────────────────────────────────────


def _read_mysql(connector: Connector, connection: Connection, dump: Dump, ours: KnownTransactions) -> Scan:
    gtids = MysqlGtids.parse(ours.gtids)
    end, first = binlog_status.end(connection).coordinate, None
    for file, _ in reversed(binlog_status.files(connection)):
        first, before = file, MysqlGtids.parse(binlog_status.gtids_before_file(connection, file))
        if before.covers(gtids):
            end = coordinate(file, FIRST_EVENT)
        elif gtids.covers(before):
            break
    found = MysqlScan(ours)
    if first is not None and coordinate(first, FIRST_EVENT) < end:
        _scan(connection, dump, first, found, lambda: found.reached >= end, connector.account)
    return found


def _read_mariadb(connector: Connector, connection: Connection, dump: Dump, ours: KnownTransactions) -> Scan:
    found = MariadbScan(ours)
    end, passed = binlog_status.end(connection).coordinate, 0
    before, first = dict[str, int](), None
    for file, size in reversed(binlog_status.files(connection)):
        first, before = file, _numbers(binlog_status.gtids_before_file(connection, file))
        if found.begins_after(before):
            continue
        passed += size
        if passed > LOOK_BACK_BYTES:
            break
    if found.begins_after(before):
        raise log_purged(
            f"the server at {connector.address} has purged binary log that cdcflow still needs: its oldest file begins "
            f"after {ours.gtids[:300]}, where the change log ends"
        )
    found.begin_after(before)
    if first is not None:
        is_done = lambda: not found.missing or found.reached >= end  # noqa: E731  used once
        _scan(connection, dump, first, found, is_done, connector.account)
    if found.missing:
        raise _missing(connector, found.missing)
    return found


def _numbers(text: str) -> dict[str, int]:
    """Return the last number of each source in a list of MariaDB's GTIDs."""
    parts = (part.rpartition("-") for part in text.split(",") if part)
    return {source: int(number) for source, _, number in parts}


def _scan(
    connection: Connection, dump: Dump, first: BinlogFile, found: Scan, is_done: Callable[[], bool], account: str
) -> None:
    asked = replace(dump, position=BinlogPosition(first, FIRST_EVENT), by_gtid=False)
    scan(connection, asked, found, is_done, account)


# ── what is in them ──────────────────────────────────────────────────────────────────────────────────────────


class Scan(ABC):
    """Takes events as a decoder does, and finds errant transactions among them.

    `reached` is the place up to which events were taken. `errant`: GTIDs, each with a captured table that it may have
    changed. `differing`: a GTID that the change log has for another transaction.
    """

    flavor: Flavor

    def __init__(self, ours: KnownTransactions) -> None:
        self.ours = ours
        self.reached: Coordinate = NOWHERE
        self.errant: list[tuple[Gtid, TableId]] = []
        self.differing: Gtid | None = None
        self._file = BinlogFile("")
        self._now: Gtid | None = None
        self._changed: dict[tuple[str, TableId], int] = {}

    def rotate(self, file: BinlogFile, pos: int) -> list[StreamEvent]:
        self._file, self.reached = file, coordinate(file, pos)
        return []

    def file_began(self, seconds: int) -> None:  # noqa: B027  part of the port; a scan has no use for it
        """Ignore the time at which the file was created."""

    def decode(self, events: Events) -> list[StreamEvent]:
        for part in expand(events):
            self._take(part)
        if real := int(events.reach[-1]):
            self.reached = coordinate(self._file, real)
        return []

    def _take(self, events: Events) -> None:
        at = np.flatnonzero(IS_OPENER[events.type])
        openers = openers_of(events, at)
        self._compare(openers)
        candidates = self._candidates(openers.gtids)
        if not (candidates.any() or self._changed or self._now):
            self._pass(openers.gtids)
            return
        bounds = [*at.tolist(), len(events)]
        self._note_tables(events.part(0, bounds[0]))
        for nth, (begin, end) in enumerate(pairwise(bounds)):
            self._now = None
            if (gtid := openers.gtids.gtid_at(nth)) is not None:
                self._now = gtid if candidates[nth] and self._is_before_the_end(gtid) else None
                self._judge(gtid, is_candidate=bool(candidates[nth]))
                self._note_tables(events.part(begin, end))

    def _compare(self, openers: Openers) -> None:
        """Compare times of commit with those of the change log."""
        gtids = openers.gtids
        for (source, number), stamp in self.ours.times.items():
            if source in gtids.sources:
                mine = (gtids.which == gtids.sources.index(source)) & (gtids.number == number)
                if (openers.commit_ts[mine] != stamp).any():
                    self.differing = source, number

    def _note_tables(self, events: Events) -> None:
        """Note the captured tables that the current transaction changes, if it is a candidate."""
        if self._now is not None and len(events):
            source, number = self._now
            for table in changed_tables(events, self.flavor, self.ours.captured):
                self._changed[source, table] = number

    def _found_errant(self, is_errant: Callable[[str, int], bool]) -> None:
        """Record as errant the candidates so far for which `is_errant` returns true."""
        for (source, table), number in [*self._changed.items()]:
            if is_errant(source, number):
                self.errant.append(((source, number), table))
                del self._changed[source, table]

    @abstractmethod
    def _candidates(self, gtids: Gtids) -> Bools:
        """Return which of these transactions the change log may lack."""

    def _is_before_the_end(self, gtid: Gtid) -> bool:
        """Whether a transaction of the change log may follow this one."""
        return True

    @abstractmethod
    def _judge(self, gtid: Gtid, *, is_candidate: bool) -> None:
        """Decide, now that this transaction follows, which candidates so far are errant."""

    def _pass(self, gtids: Gtids) -> None:  # noqa: B027  MySQL's scan remembers nothing of them
        """Note transactions that are no candidates and follow no candidate."""


class MysqlScan(Scan):
    """Finds errant transactions of MySQL. A transaction that the change log lacks is errant if the change log has a
    transaction of another server that follows it."""

    flavor: Flavor = "mysql"

    def __init__(self, ours: KnownTransactions) -> None:
        super().__init__(ours)
        self._gtids = MysqlGtids.parse(ours.gtids)

    def _candidates(self, gtids: Gtids) -> Bools:
        return are_outside(self._gtids, gtids)

    def _judge(self, gtid: Gtid, *, is_candidate: bool) -> None:
        if not is_candidate and self._changed:
            server = gtid[0].partition(":")[0]
            self._found_errant(lambda source, _: source.partition(":")[0] != server)


class MariadbScan(Scan):
    """Finds errant transactions of MariaDB. A transaction is errant if it is followed by a transaction of the same
    domain and another server whose number is not greater. It also is if the change log has nothing of its domain, and
    has a transaction that follows it.

    `missing`: the change log's last GTIDs that were not found yet.
    """

    flavor: Flavor = "mariadb"

    def __init__(self, ours: KnownTransactions) -> None:
        super().__init__(ours)
        self.missing: dict[str, int] = _last_of_each("mariadb", ours.gtids)
        self._last = dict(self.missing)
        self._domains = {_domain(source) for source in self._last}

    def begins_after(self, before: Mapping[str, int]) -> bool:
        """Whether a file begins after the last GTID that the change log has of some source. `before`: the last number
        of each source before the file."""
        return any(before.get(source, -1) > number for source, number in self._last.items())

    def begin_after(self, before: Mapping[str, int]) -> None:
        self.missing = {source: n for source, n in self._last.items() if before.get(source) != n}

    def _candidates(self, gtids: Gtids) -> Bools:
        foreign = np.array([source not in self._last for source in gtids.sources], np.bool_)
        return foreign[gtids.which] & (gtids.which >= 0) if len(foreign) else np.zeros(len(gtids), np.bool_)

    def _is_before_the_end(self, gtid: Gtid) -> bool:
        domain = _domain(gtid[0])
        return domain not in self._domains or any(_domain(source) == domain for source in self.missing)

    def _judge(self, gtid: Gtid, *, is_candidate: bool) -> None:
        source, number = gtid
        domain, is_ours = _domain(source), source in self.missing

        def is_errant(other: str, found: int) -> bool:
            if _domain(other) == domain:
                return other != source and found >= number
            return is_ours and _domain(other) not in self._domains

        if self._changed:
            self._found_errant(is_errant)
        if self.missing.get(source) == number:
            del self.missing[source]

    def _pass(self, gtids: Gtids) -> None:
        for which, source in enumerate(gtids.sources):
            if source in self.missing and (gtids.number[gtids.which == which] == self.missing[source]).any():
                del self.missing[source]


def _domain(source: str) -> str:
    return source.partition("-")[0]


def changed_tables(events: Events, flavor: Flavor, captured: frozenset[TableId]) -> set[TableId]:
    """Return the captured tables that these events of one transaction may change."""
    maps = np.flatnonzero(events.type == EventType.TABLE_MAP).tolist()
    found = {table_name(events.event_at(at)) for at in maps}
    for _, statement in queries(events, flavor)[2]:
        found |= _tables_of(statement, captured)
    return found & captured


def _tables_of(statement: Statement, captured: frozenset[TableId]) -> set[TableId]:
    match statement:
        case SchemaDropped(schema):
            return {table for table in captured if table.schema == schema}
        case Unsure(first, others):
            return {table for one in (first, *others) for table in _tables_of(one, captured)}
    return set(tables_in(statement))


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────


def gtid_text(flavor: Flavor, gtid: Gtid) -> str:
    source, number = gtid
    return f"{source}{':' if flavor == 'mysql' else '-'}{number}"


def _errant(connector: Connector, flavor: Flavor, errant: list[tuple[Gtid, TableId]]) -> HistoryLost:
    tables = [str(table) for table in sorted({table for _, table in errant})]
    named = ", ".join(tables[:_NAMED_MAX]) + (", …" if len(tables) > _NAMED_MAX else "")
    return history_lost(
        f"the server at {connector.address} has transactions that the change log lacks before ones that it has, such "
        f"as {gtid_text(flavor, errant[0][0])}: they were written to a replica, and may have changed {named}",
        runbook="errant-transactions",
    )


def _missing(connector: Connector, missing: Mapping[str, int]) -> HistoryLost:
    listed = ",".join(gtid_text("mariadb", gtid) for gtid in sorted(missing.items()))
    return history_lost(
        f"the binary log at {connector.address} lacks {listed[:300]}, which the change log has, although it has later "
        "transactions of that server: the server that was promoted in between did not have it",
        runbook="restored-source",
    )


def _differs(connector: Connector, flavor: Flavor, gtid: Gtid) -> HistoryLost:
    return history_lost(
        f"transaction {gtid_text(flavor, gtid)} at {connector.address} differs from the one in the change log: it "
        "was committed at another time. The server was restored from a copy, or has another server's server_id",
        runbook="restored-source",
    )
