"""Finds a first position in the binary log, or checks that an earlier run's position is valid and no log after it is
lost.

Everything before the position that a stream begins at must be visible before a chunk is read: the stream never delivers
it, so no fence would detect that a chunk did not see it. Therefore cdcflow waits here.

A file and byte are compared only on the server that they belong to. On another server, such as a promoted replica, the
set of GTIDs counts: it must contain everything that the change log has, and the server's binary log must still contain
everything that the change log lacks.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import pymysql

from cdcflow.errors import ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.sources.mysql import binlog_status, topology
from cdcflow.sources.mysql.connection import Connection, query, query_row
from cdcflow.sources.mysql.errors import history_lost, log_purged
from cdcflow.sources.mysql.gtids import Flavor, MariadbGtids, MysqlGtids
from cdcflow.sources.mysql.marks import Marking
from cdcflow.sources.mysql.position import FIRST_EVENT, BinlogPosition, Coordinate, coordinate

WAIT_S = 60.0
_NAP_S = 0.05


@dataclass(frozen=True, slots=True)
class BeginPosition:
    """Where a stream begins. `by_gtid`: file and byte are another server's, and only the GTIDs count here."""

    position: BinlogPosition
    by_gtid: bool = False


@dataclass(frozen=True, slots=True)
class Before:
    """The state that an earlier run stored: its position, the server that it was read from, whether its GTIDs are
    complete, and whether its file and byte are those of a server before that one."""

    position: BinlogPosition
    server: str
    has_all_gtids: bool
    by_gtid: bool


class Preparation:
    """Finds positions at one server, through one connection."""

    def __init__(
        self, connection: Connection, flavor: Flavor, marking: Marking, *, address: str, wait_s: float = WAIT_S
    ) -> None:
        self._connection = connection
        self._flavor: Flavor = flavor
        self._marking = marking
        self._address = address
        self._wait_s = wait_s
        self.has_gtids = binlog_status.has_gtids(connection, flavor)
        self.server = binlog_status.server_of(connection, flavor)

    # ── the first position ─────────────────────────────────────────────────────────────────────────────────────

    def first(self) -> BeginPosition:
        """Return the current end of the log, once everything before it is visible.

        Raises:
            SourceUnavailable: something keeps transactions from becoming visible (a replica that does not answer).
            ConfigurationError: XA transactions are prepared; their rows are before any position to begin at.
        """
        self._check_prepared()
        if self._flavor == "mariadb":
            with binlog_status.snapshot(self._connection):
                found = binlog_status.snapshot_end(self._connection)
            gtids = binlog_status.gtids_at(self._connection, found.file, found.pos)
            if gtids is None:
                found, gtids = self._quiet_end()
            return BeginPosition(BinlogPosition(found.file, found.pos, MariadbGtids.parse(gtids).text()))
        end = binlog_status.end(self._connection)
        if not self.has_gtids:
            self._marking.beat(self._connection)
            return BeginPosition(BinlogPosition(end.file, end.pos))
        # A transaction that is in the log before this end, but not yet visible, is owned by a session now.
        committing = _owned_gtids(binlog_status.owned_gtids(self._connection))
        self._until(
            "transactions that are in the binary log already become visible",
            lambda: not committing & _owned_gtids(binlog_status.owned_gtids(self._connection)),
        )
        before = MysqlGtids.parse(binlog_status.executed_before(self._connection, end))
        return BeginPosition(BinlogPosition(end.file, end.pos, before.text()))

    def visible_end(self) -> Coordinate | None:
        """Return a place near the current end of the log, such that every later snapshot sees all transactions before
        it.

        None if transactions are being committed. Prepared XA transactions do not count: their rows arrive with XA
        COMMIT.
        """
        if self._flavor == "mariadb":
            with binlog_status.snapshot(self._connection):
                return binlog_status.snapshot_end(self._connection).coordinate
        end = binlog_status.end(self._connection)
        if not self.has_gtids:
            self._marking.beat(self._connection)
        elif _owned_gtids(binlog_status.owned_gtids(self._connection)):
            return None
        return end.coordinate

    def _check_prepared(self) -> None:
        with contextlib.suppress(pymysql.Error):  # MySQL shows them only to accounts with the right
            found = query(self._connection, "XA RECOVER")
            if found:
                raise ConfigurationError(
                    f"{len(found)} XA transactions are prepared at {self._address} and neither committed nor "
                    f"rolled back: their rows are before any position where a capture could begin",
                    remedy="run XA COMMIT or XA ROLLBACK for each of those that XA RECOVER lists, then start again",
                    runbook="xa-prepared",
                )

    # ── the position of an earlier run ─────────────────────────────────────────────────────────────────────────

    def again(self, before: Before) -> BeginPosition:
        """Return the position at which an earlier run ended, after checking that the stream can continue there.

        Raises:
            HistoryLost: the log after it is gone, or the server lacks transactions that the change log has.
            ConfigurationError: this is another server than that of the earlier run.
            SourceUnavailable: transactions that the change log has are not visible yet.
        """
        if self._flavor == "mariadb":
            return self._again_mariadb(before)
        if before.position.gtids and self.has_gtids:
            return self._again_mysql(before)
        if before.server != self.server:
            raise self._another(f"server_uuid {before.server}", f"{self.server}, and there are no GTIDs")
        self._check_files(before.position)
        self._check_next(before.position)
        if not self.has_gtids:
            self._marking.beat(self._connection)
        return BeginPosition(before.position)

    def _again_mysql(self, before: Before) -> BeginPosition:
        ours = MysqlGtids.parse(before.position.gtids)
        is_same = before.server == self.server and not before.by_gtid
        executed = MysqlGtids.parse(binlog_status.executed_gtids(self._connection))
        if not executed.covers(ours):
            self._refuse_lacking(ours, before)
            self._until("what the change log has becomes visible", lambda: self._executed_gtids().covers(ours))
        if is_same and not (before.has_all_gtids and self._is_purged(before.position.start)):
            self._check_files(before.position.start)
            self._check_next(before.position.start)
            return BeginPosition(before.position)
        if not before.has_all_gtids:
            raise self._another(
                f"server_uuid {before.server}", f"{self.server}, and the change log does not have all of its GTIDs"
            )
        purged = MysqlGtids.parse(str(query_row(self._connection, "SELECT @@GLOBAL.gtid_purged")[0]))
        if not MysqlGtids.parse(before.position.start.gtids).covers(purged):
            if is_same:
                self._check_files(before.position.start)
            raise log_purged(
                f"the server at {self._address} has purged binary log that cdcflow still needs: it purged "
                f"{purged.text()[:300]}, and the change log has {ours.text()[:300]}"
            )
        return BeginPosition(before.position, by_gtid=True)

    def _executed_gtids(self) -> MysqlGtids:
        return MysqlGtids.parse(binlog_status.executed_gtids(self._connection))

    def _refuse_lacking(self, ours: MysqlGtids, before: Before) -> None:
        """Raise an error unless everything in `ours` is executed, or is being committed now."""
        committing = _owned_gtids(binlog_status.owned_gtids(self._connection))
        executed = self._executed_gtids()
        for gtid in committing:
            source, _, number = gtid.partition("#")[0].rpartition(":")
            executed.add(source, int(number))
        if executed.covers(ours):
            return
        known = {source.partition(":")[0] for source, _ in executed.intervals()}
        if before.server != self.server and not known & {source.partition(":")[0] for source, _ in ours.intervals()}:
            raise self._another(f"server_uuid {before.server}", f"{self.server}, with none of its transactions")
        why = (
            "it was reset or restored from an older state"
            if before.server == self.server
            else "it was promoted too early"
        )
        raise history_lost(
            f"the server at {self._address} lacks transactions that the change log has ({why}): it has executed "
            f"{executed.text()[:300] or 'nothing'}, and the change log has {ours.text()[:300]}",
            runbook="restored-source",
        )

    def _again_mariadb(self, before: Before) -> BeginPosition:
        position, ours = before.position, MariadbGtids.parse(before.position.gtids)
        there = None
        if not before.by_gtid and position.file in dict(binlog_status.files(self._connection)):
            there = binlog_status.gtids_at(self._connection, position.file, position.pos)
        is_same = before.server == self.server  # a replica may have its files and bytes by coincidence
        if is_same and there is not None and MariadbGtids.parse(there).domains() == ours.domains():
            self._check_files(position.start)
            self._until(
                "what the change log has becomes visible", lambda: self._snapshot_coordinate() >= position.coordinate
            )
            return BeginPosition(position)
        known = _state(binlog_status.state(self._connection))
        lacking = [
            f"{domain}-{server}-{number}"
            for domain, (server, number) in ours.domains().items()
            if known.get((domain, server), -1) < number
        ]
        is_ours = before.server == self.server and not before.by_gtid
        if not lacking and is_ours and not self._lost_nothing_of_mariadb(position.start):
            self._check_files(position.start)
            if there is not None:
                raise self._log_was_reset(position)
            self._check_goes_on(position.start)
            self._until(
                "what the change log has becomes visible", lambda: self._snapshot_coordinate() >= position.coordinate
            )
            return BeginPosition(position)
        if lacking or not ours.domains():
            self._check_logs_foreign_changes()
            if before.server != self.server and not known.keys() & {(d, s) for d, (s, _) in ours.domains().items()}:
                raise self._another(f"server_id {before.server}", f"{self.server}, with none of its transactions")
            raise history_lost(
                f"the server at {self._address} lacks transactions that the change log has: it has "
                f"{binlog_status.state(self._connection)[:300] or 'nothing'}, and the change log has "
                f"{ours.text()[:300]}; it "
                "was reset, restored from an older state, or promoted too early",
                runbook="restored-source",
            )
        if before.server != self.server and topology.has_own_gtids(topology.variables(self._connection)):
            raise history_lost(
                f"the server at {self._address} is another member of a Galera cluster without wsrep_gtid_mode, whose "
                "GTIDs mean other transactions than those of the member that the change log was read from",
                runbook="restored-source",
            )
        self._until("what the change log has becomes visible", lambda: self._seen_gtids().covers(ours))
        return BeginPosition(position, by_gtid=True)

    def _check_logs_foreign_changes(self) -> None:
        """Check, for MariaDB, that the server logs changes of other servers: otherwise the server may have transactions
        of the change log that are missing in its binary log."""
        found = topology.variables(self._connection)
        if not topology.logs_foreign_changes(found) and found.get("gtid_slave_pos"):
            raise history_lost(
                f"the server at {self._address} was a replica, and its log_slave_updates is OFF: its binary log lacks "
                "what it replicated. Set it to ON on every server that may be promoted",
                runbook="restored-source",
            )

    def _quiet_end(self) -> tuple[binlog_status.BinlogEnd, str]:
        """Return the end of MariaDB's log at a time when nothing was added to it, once everything before it is
        visible."""
        ends: list[tuple[binlog_status.BinlogEnd, str]] = []

        def is_quiet() -> bool:
            found = binlog_status.quiet_end(self._connection)
            if found is not None:
                ends.append(found)
            return found is not None

        self._until("its binary log does not grow for a moment", is_quiet, 0)
        self._until(
            "what is in the binary log becomes visible", lambda: self._snapshot_coordinate() >= ends[0][0].coordinate
        )
        return ends[0]

    def _check_goes_on(self, position: BinlogPosition) -> None:
        """Check that the change log lacks the transaction after this position: for a MariaDB server that cannot
        determine what is before the position."""
        ours = MariadbGtids.parse(position.gtids).domains()
        try:
            found = binlog_status.next_of_mariadb(self._connection, position)
        except ValueError:
            raise self._log_was_reset(position) from None
        if found is None:
            return
        domain, number = found
        if domain in ours and number <= ours[domain][1]:
            raise self._log_was_reset(position)

    def _snapshot_coordinate(self) -> Coordinate:
        with binlog_status.snapshot(self._connection):
            return binlog_status.snapshot_end(self._connection).coordinate

    def _seen_gtids(self) -> MariadbGtids:
        with binlog_status.snapshot(self._connection):
            seen = binlog_status.snapshot_end(self._connection)
        return MariadbGtids.parse(binlog_status.gtids_at(self._connection, seen.file, seen.pos) or "")

    def _is_purged(self, position: BinlogPosition) -> bool:
        """Whether the server no longer has the file of this position.

        Nothing is lost if the change log has all of that file's transactions.
        """
        return position.file not in dict(binlog_status.files(self._connection))

    def _lost_nothing_of_mariadb(self, position: BinlogPosition) -> bool:
        """Whether the file of this position was purged, but the change log has every transaction before the oldest
        file."""
        files = binlog_status.files(self._connection)
        if not files or position.file in dict(files):
            return False
        before = binlog_status.gtids_at(self._connection, files[0][0], FIRST_EVENT)
        ours = MariadbGtids.parse(position.gtids)
        return before is not None and bool(ours.domains()) and ours.covers(MariadbGtids.parse(before))

    def _check_files(self, position: BinlogPosition) -> None:
        """Check that the log after this position still exists, and that its file reaches the position."""
        files = binlog_status.files(self._connection)
        sizes = dict(files)
        if position.file not in sizes:
            oldest = files[0][0] if files else "nothing"
            # A file with a higher number than the oldest is missing because the numbers began again after a RESET, not
            # because it was purged.
            is_older = bool(files) and position.coordinate < coordinate(files[0][0], 0)
            raise (log_purged if is_older else history_lost)(
                f"the server at {self._address} has purged binary log that cdcflow still needs: the change log ends in "
                f"{position.file} at byte {position.pos}, and the oldest file is {oldest}"
            )
        if sizes[position.file] < position.pos:
            raise history_lost(
                f"the binary log at {self._address} was started over: {position.file} has {sizes[position.file]} "
                f"bytes, and the change log ends at byte {position.pos}",
                runbook="binlog-purged",
            )

    def _check_next(self, position: BinlogPosition) -> None:
        """Check that the change log lacks the transaction after this position: after a reset the file's name and length
        are meaningless."""
        try:
            found = binlog_status.next_gtid(self._connection, position)
        except ValueError:
            raise self._log_was_reset(position) from None
        if found is not None and MysqlGtids.parse(position.gtids).contains(*found):
            raise self._log_was_reset(position)

    def _log_was_reset(self, position: BinlogPosition) -> HistoryLost:
        return history_lost(
            f"the binary log at {self._address} was started over: {position.file} at byte {position.pos} is not "
            f"the position where the change log ends (RESET, or a restore from an older state)",
            runbook="binlog-purged",
        )

    def _another(self, before: str, now: str) -> ConfigurationError:
        return ConfigurationError(
            f"this log belongs to the server with {before}, but {self._address} is {now}",
            remedy="set source.url back, or set another log.path for this source",
            runbook="other-log",
        )

    def _until(self, what: str, done: Callable[[], bool], nap_s: float = _NAP_S) -> None:
        deadline = time.monotonic() + self._wait_s
        while not done():
            if time.monotonic() > deadline:
                raise SourceUnavailable(
                    f"waited {self._wait_s:g} s at {self._address} until {what}; commits may be waiting for a "
                    "semi-synchronous replica",
                    runbook="old-transaction",
                )
            time.sleep(nap_s)


def _owned_gtids(text: str) -> frozenset[str]:
    """Return the GTIDs in `gtid_owned`: `uuid:7#12:8#13,uuid2:tag:1#5`, one text each."""
    found: set[str] = set()
    for part in "".join(text.split()).split(","):
        server, _, rest = part.partition(":")
        for piece in rest.split(":"):
            if re.fullmatch(r"\d+#\d+", piece):
                found.add(f"{server}:{piece}")
    return frozenset(found)


def _state(text: str) -> dict[tuple[int, int], int]:
    """Parse `gtid_binlog_state`: the last number of each domain and server."""
    found: dict[tuple[int, int], int] = {}
    for part in "".join(text.split()).split(","):
        if part:
            domain, server, number = (int(word) for word in part.split("-"))
            found[domain, server] = number
    return found
