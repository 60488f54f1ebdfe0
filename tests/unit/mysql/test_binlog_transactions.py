"""Where transactions of the binary log begin and end, and the marks between them."""

from __future__ import annotations

import pytest
from tests.support.mysql.binlog_bytes import (
    MARKS_TABLE,
    Log,
    image,
)
from tests.support.mysql.binlog_decoder import (
    FLAVORS,
    T,
    TestTables,
    U,
    decoded,
    ids_of,
    one,
    reader,
    refused,
    rows_of,
    told,
)
from tests.support.postgres.wire import marks, transactions

from cdcflow.capture.interleave.messages import ChangesRefused
from cdcflow.errors import HistoryLost, InvariantViolated
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.position import BinlogPosition, Coordinate, binlog_position_of, coordinate


def test_transactions_without_gtid_are_placed_between_those_with() -> None:
    """M24: during a switch-over the server sends both kinds; file and byte carry the position, the set stays."""
    log = Log("mysql", gtids=False)
    one(log, 1)
    log.gtids = True
    one(log, 2)
    log.gtids = False
    one(log, 3)
    found = decoded(log)
    assert ids_of(found) == [1, 2, 3]
    positions = [BinlogPosition.parse(p) for _, p, _ in transactions(found.events)]
    assert [p.gtids.partition(":")[2] for p in positions] == ["", "1", "1"]
    again = decoded(log, positions[1].text)
    assert ids_of(again) == [3]


def test_tagged_gtid_is_part_of_the_position() -> None:
    """M22: MySQL 8.3 and later; a reader that does not know it takes its transactions twice or not at all."""
    log = Log("mysql")
    one(log, 1)
    log.tagged_gtid("blue", 41)
    log.query("BEGIN", "")
    log.insert(T, (2, "b"))
    log.commit()
    found = decoded(log)
    assert ids_of(found) == [1, 2]
    last = BinlogPosition.parse(transactions(found.events)[-1][1])
    assert last.gtids == "3e11fa47-71ca-11e1-9e33-c80aa9429562:1:blue:41"
    assert found.gtids[-1][1] == ("3e11fa47-71ca-11e1-9e33-c80aa9429562:blue", 41)


def test_repeated_transaction_is_dropped_by_its_gtid() -> None:
    """M12: a server that begins before the requested position must not double rows."""
    log = Log("mysql")
    for i in range(1, 6):
        one(log, i)
    found = reader(log, "other-bin.000077:4000;3e11fa47-71ca-11e1-9e33-c80aa9429562:1-2:4", by_gtid=True)
    found.feed(log.dump())
    assert ids_of(found) == [3, 5]
    assert binlog_position_of(found.decoder.progress.last).gtids.endswith(":1-5")


@pytest.mark.parametrize("flavor", FLAVORS)
def test_one_statement_on_several_tables_keeps_the_order_of_its_events(flavor: Flavor) -> None:
    """M66: all table maps come first, and only the last row event ends the statement."""
    log = Log(flavor)
    log.begin()
    log.table_map(T)
    log.table_map(U)
    for i in range(3):
        log.rows("i", T, image(T, (i, "t")), end=False, mapped=False)
        log.rows("i", U, image(U, (i, "u")), end=i == 2, mapped=False)
    log.commit()
    found = decoded(log)
    assert [(r[0], r[2]["id"]) for r in rows_of(found)] == [(n, i) for i in range(3) for n in "tu"]
    assert len(transactions(found.events)) == 1


@pytest.mark.parametrize("flavor", FLAVORS)
def test_rolled_back_transaction_gives_nothing(flavor: Flavor) -> None:
    """M67: it is in the log because it includes a table without transactions; the captured tables' changes were rolled
    back."""
    log = Log(flavor)
    log.begin()
    log.insert(T, (1, "a"))
    log.query("ROLLBACK")
    one(log, 2)
    assert ids_of(decoded(log)) == [2]
    assert ids_of(decoded(log, spool_bytes_max=0)) == [2]


@pytest.mark.parametrize("spool_bytes_max", [0, 1 << 20])
@pytest.mark.parametrize("said", ["ROLLBACK", "ROLLBACK TO `s`"])
def test_table_that_keeps_rolled_back_rows_fails_alone(said: str, spool_bytes_max: int) -> None:
    """M67: the log does not contain which of them stayed."""
    log = Log()
    log.begin()
    log.query("SAVEPOINT `s`")
    log.insert(T, (1, "a"))
    log.query(said)
    if "TO" in said:
        log.commit()
    found = reader(log, tables=TestTables(myisam=frozenset("t")), spool_bytes_max=spool_bytes_max)
    (refused,) = (e for e in found.feed(log.dump()) if isinstance(e, ChangesRefused))
    assert refused.table == TableId("shop", "t")
    assert refused.reason.startswith(
        "shop.t uses the storage engine MyISAM, which has no transactions; run ALTER TABLE"
    )


@pytest.mark.parametrize("flavor", FLAVORS)
def test_rows_of_tables_without_transactions_end_with_commit(flavor: Flavor) -> None:
    """M48: they form a separate group, which no XID ends."""
    log = Log(flavor)
    log.begin()
    log.insert(T, (1, "a"))
    log.query("COMMIT")
    assert ids_of(decoded(log)) == [1]


@pytest.mark.parametrize("flavor", FLAVORS)
def test_commit_of_an_xa_transaction_from_before_our_beginning_stops(flavor: Flavor) -> None:
    """M45: its rows were prepared before the position where reading began; skipping it would lose them."""
    log = Log(flavor)
    log.standalone("XA COMMIT X'6162',X'',1")
    refused(log, HistoryLost, "prepared before the position")
    other = Log(flavor)
    other.standalone("XA ROLLBACK X'6162',X'',1")
    one(other, 1)
    assert ids_of(decoded(other)) == [1]


def test_xa_commit_in_one_phase_is_an_ordinary_transaction() -> None:
    """M45: MySQL ends it with an XA_PREPARE event that marks the single phase."""
    log = Log()
    log.gtid()
    log.query("XA START X'61',X'',1", "")
    log.insert(T, (1, "a"))
    log.query("XA END X'61',X'',1", "")
    log.xa_prepare(b"a", one_phase=True)
    assert ids_of(decoded(log)) == [1]


@pytest.mark.parametrize("flavor", FLAVORS)
def test_marks_are_placed_exactly_between_transactions(flavor: Flavor) -> None:
    """A mark is where its transaction is, whatever else is in the same batch; marks of another capture do not count."""
    log = Log(flavor)
    one(log, 1)
    log.mark("e1/1/low")
    log.mark("e1/1/low", slot="another")
    one(log, 2)
    log.mark("heartbeat 3")
    log.begin()
    log.update(MARKS_TABLE, ("me", "old", "now"), ("me", "e1/1/high", "now"))
    log.commit()
    one(log, 3)
    found = decoded(log)
    assert told(found) == [1, "e1/1/low", 1, "e1/1/high", 1]


def test_expected_marks_are_answered_at_their_place() -> None:
    """A source that cdcflow may not write to has positions as marks: after everything through that position, before
    everything else."""
    log = Log()
    one(log, 1)
    place = coordinate(*log.place)
    one(log, 2)
    found = reader(log)
    found.expect("low", place)
    found.expect("later", Coordinate(coordinate(*log.place).value + 1))
    found.feed(log.dump())
    assert told(found) == [1, "low", 1]
    found.expect("passed", place)
    assert found.decoder.progress.due
    assert marks(found.decoder.progress.passed_marks()) == ["passed"]
    assert not found.decoder.progress.due


def test_expected_marks_of_one_place_are_delivered_in_the_order_of_their_requests() -> None:
    """On a quiet server a window's low and high mark are at the same position, and the stream reaches both at once."""
    log = Log()
    one(log, 1)
    place = coordinate(*log.place)
    one(log, 2)
    found = reader(log)
    found.expect("1/1/low", place)
    found.expect("1/1/high", place)
    found.feed(log.dump())
    assert told(found) == [1, "1/1/low", "1/1/high", 1]


def test_heartbeat_reaches_an_expected_mark() -> None:
    """After the last transaction a quiet server sends nothing but heartbeats."""
    log = Log()
    one(log, 1)
    found = decoded(log)
    found.expect("low", coordinate(*log.place))
    assert marks(found.decoder.progress.passed_marks()) == ["low"]
    log.event(3, b"")
    found.expect("high", coordinate(*log.place))
    assert not found.decoder.progress.due


def test_events_outside_of_transactions_stop() -> None:
    """Rows that no GTID event opens would have no place in the order."""
    log = Log()
    one(log, 1)
    log.insert(T, (2, "b"))
    refused(log, InvariantViolated, "outside of any transaction")
    other = Log()
    other.begin()
    other.insert(T, (1, "a"))
    one(other, 2)
    refused(other, InvariantViolated, "begins before the one before it has ended")
