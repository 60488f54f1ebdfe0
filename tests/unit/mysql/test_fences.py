"""Which delivered transactions a snapshot sees, from sets of GTIDs and from places in the log."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.capture.interleave.window import held_before
from cdcflow.model.change import ChangeBatch, Run
from cdcflow.model.position import Position
from cdcflow.model.table import OP, Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.engine.chunks import Snapshot
from cdcflow.sources.mysql.fences import CoordinateVisibility, DeliveredGtids, GtidVisibility, NoStream
from cdcflow.sources.mysql.gtids import Gtids, MariadbGtids, MysqlGtids
from cdcflow.sources.mysql.marks import Expectations, ReadOnlyMarks
from cdcflow.sources.mysql.position import Coordinate
from cdcflow.sources.mysql.snapshots import SnapshotTaker

ONE, TWO = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


def gtids(*pairs: tuple[str, int]) -> Gtids:
    sources = tuple(dict.fromkeys(source for source, _ in pairs if source))
    which = [sources.index(source) if source else -1 for source, _ in pairs]
    return Gtids(sources, np.array(which, np.int64), np.array([n for _, n in pairs], np.int64))


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(values, np.uint64)


def test_snapshot_sees_exactly_what_is_executed() -> None:
    """W03: commits of several servers interleave, and a set may have gaps."""
    delivered = DeliveredGtids()
    delivered.add(ids(10, 20, 30, 40), gtids((ONE, 1), (TWO, 5), (ONE, 2), (f"{ONE}:tag", 2)))
    delivered.add(ids(50, 60), gtids((ONE, 7), ("", -1)))
    fence = delivered.fence(MysqlGtids.parse(f"{ONE}:1:3-6:tag:1-9,{TWO}:5"))
    assert fence.hidden(ids(10, 20, 30, 40, 50, 60)).tolist() == [30, 50]
    assert fence.hidden(ids()).tolist() == []


def test_snapshot_of_mariadb_sees_each_domain_up_to_a_number() -> None:
    """A domain that the set does not have is not seen at all."""
    delivered = DeliveredGtids()
    delivered.add(ids(10, 20, 30, 40), gtids(("0-1", 7), ("2-1", 3), ("0-9", 8), ("5-1", 1)))
    delivered.add(ids(50), gtids(("", -1)))
    fence = delivered.fence(MariadbGtids.parse("0-1-7,2-1-4"))
    assert fence.hidden(ids(10, 20, 30, 40, 50)).tolist() == [30, 40]
    del fence
    with delivered.look():
        later = delivered.fence(MariadbGtids.parse("0-9-8,2-1-4"))
    assert len(delivered) == 1
    assert later.hidden(ids(10, 20, 30, 40, 50)).tolist() == [40]


def test_what_a_later_set_holds_is_not_forgotten_for_an_earlier_fence() -> None:
    """A chunk's snapshot that is taken but not answered yet is older than the check after it."""
    delivered = DeliveredGtids()
    delivered.add(ids(10, 20), gtids((ONE, 1), (ONE, 2)))
    with delivered.look():
        early = delivered.fence(MysqlGtids.parse(f"{ONE}:1"))
    with delivered.look():
        late = delivered.fence(MysqlGtids.parse(f"{ONE}:1-2"))
    assert early.hidden(ids(10, 20)).tolist() == [20]
    assert late.hidden(ids(10, 20)).tolist() == []


def test_fence_created_after_one_with_a_larger_set_misses_nothing() -> None:
    """W03, W26: two parts of a chunk check concurrently. The one that read its set first may create its fence last."""
    delivered = DeliveredGtids()
    delivered.add(ids(10, 20), gtids((ONE, 1), (ONE, 2)))
    with delivered.look():
        with delivered.look():
            late = delivered.fence(MysqlGtids.parse(f"{ONE}:1-2"))
        early = delivered.fence(MysqlGtids.parse(f"{ONE}:1"))
    assert early.hidden(ids(10, 20)).tolist() == [20]
    with delivered.look():
        latest = delivered.fence(MysqlGtids.parse(f"{ONE}:1-2"))
    assert early.hidden(ids(10, 20)).tolist() == [20]
    assert not len(late.hidden(ids(10, 20)))
    assert not len(latest.hidden(ids(10, 20)))


def test_snapshot_of_another_process_reports_where_the_stream_is() -> None:
    """W03: it is sent as a set; what it does not see is remembered until then, whatever later snapshots see."""
    delivered = DeliveredGtids()
    there, here = (
        SnapshotTaker("mysql", has_gtids=True, delivered=known, marking=ReadOnlyMarks("mysql", Expectations()))
        for known in (NoStream(), delivered)
    )
    with here.elsewhere() as made_here:
        sent = there._delivered.fence(MysqlGtids.parse(f"{ONE}:1"))
        delivered.add(ids(10, 20), gtids((ONE, 1), (ONE, 2)))
        with delivered.look():
            later = delivered.fence(MysqlGtids.parse(f"{ONE}:1-2"))
        with pytest.raises(TypeError):
            sent.hidden(ids(10))
        place = CoordinateVisibility(Coordinate(15))
        told = pickle.loads(pickle.dumps(Snapshot((sent, place), Position("f:15;"), 7)))  # noqa: S301  made here
        snapshot = made_here(told)
    assert [fence.hidden(ids(10, 20)).tolist() for fence in snapshot.visibilities] == [[20], [20]]
    assert later.hidden(ids(10, 20)).tolist() == []
    with delivered.look():
        pass
    assert [fence.hidden(ids(10, 20)).tolist() for fence in snapshot.visibilities] == [[20], [20]]


def test_what_every_fence_sees_is_forgotten() -> None:
    """Memory does not grow with the history."""
    delivered = DeliveredGtids()
    for n in range(100):
        delivered.add(ids(n), gtids((ONE, n + 1)))
        with delivered.look():
            fence = delivered.fence(MysqlGtids.parse(f"{ONE}:1-{n + 1}"))
        assert not len(fence.hidden(ids(n)))
        del fence
    assert len(delivered) <= 1
    assert len(delivered._fences) <= 1


@pytest.mark.parametrize(("upto", "hidden"), [(0, [1, 5, 9]), (5, [9]), (9, []), (4, [5, 9])])
def test_place_in_the_log_parts_seen_from_unseen(upto: int, hidden: list[int]) -> None:
    """A MariaDB snapshot represents a position: everything before that position is seen."""
    assert CoordinateVisibility(Coordinate(upto)).hidden(ids(1, 5, 9)).tolist() == hidden


def test_chunk_has_no_place_if_its_two_bounds_disagree() -> None:
    """MySQL: between what is certainly seen and what is certainly not, nothing is claimed."""
    table, runs = _runs()
    lower, upper, later = (CoordinateVisibility(Coordinate(upto)) for upto in (10, 20, 25))
    assert held_before(table, runs, lower) != held_before(table, runs, upper)
    assert held_before(table, runs, upper) == held_before(table, runs, later)


def _runs() -> tuple[TableId, list[Run]]:
    table = Table(TableId("shop", "t"), 1, (Column("id", 1, ColumnType("int", pa.int32())),), ("id",))
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([1, 2, 3], f.type)
            if f.name == "id"
            else pa.array(["c"] * 3)
            if f.name == OP
            else pa.nulls(3, f.type)
            for f in table.change_schema
        ],
        schema=table.change_schema,
    )
    batch = ChangeBatch(table, np.arange(3), rows)
    return table.id, [
        Run(ids(10, 20, 30), pa.array(["", "", ""]), np.zeros(3, np.int64), np.array([1, 2, 3]), (batch,))
    ]


SOURCES = (ONE, f"{ONE}:tag", TWO)


@pytest.mark.parametrize("seed", range(6))
def test_fences_hide_what_their_sets_lack_whatever_else_is_checked(seed: int) -> None:
    """W03: compared with plain Python sets. Sets grow, fences open and close, checks begin before others end."""
    chance = random.Random(seed)
    delivered, executed = DeliveredGtids(), MysqlGtids()
    all_of: list[tuple[int, tuple[str, int]]] = []
    fences: list[tuple[GtidVisibility, frozenset[tuple[str, int]]]] = []
    done: set[tuple[str, int]] = set()
    for step in range(12):
        begun = [
            (step * 10 + i, (chance.choice((*SOURCES, "")), chance.randint(1, 40))) for i in range(chance.randint(1, 5))
        ]
        delivered.add(ids(*(at for at, _ in begun)), gtids(*(gtid for _, gtid in begun)))
        all_of += begun
        with delivered.look():
            text, known = executed.text(), frozenset(done)
            for source, number in {gtid for _, gtid in all_of if gtid[0]}:
                if chance.random() < 0.1:
                    executed.add(source, number)
                    done.add((source, number))
            if chance.random() < 0.5:
                with delivered.look():
                    fences.append((delivered.fence(MysqlGtids.parse(executed.text())), frozenset(done)))
            if chance.random() < 0.5:
                fences.append((delivered.fence(MysqlGtids.parse(text)), known))
        fences = [f for f in fences if chance.random() < 0.8]
        asked = ids(*(at for at, _ in all_of), 99_999)
        for fence, seen in fences:
            hidden = [at for at, gtid in all_of if gtid[0] and gtid not in seen]
            assert fence.hidden(asked).tolist() == hidden


def test_check_that_ends_forgets_only_what_every_fence_sees() -> None:
    """Not while another check is in progress, whose set may be older; and without a fence nothing is known to be
    seen."""
    delivered = DeliveredGtids()
    delivered.add(ids(10, 20, 30), gtids((ONE, 1), (ONE, 2), ("", -1)))
    with delivered.look():
        pass
    assert len(delivered) == 3
    with delivered.look():
        with delivered.look():
            fence = delivered.fence(MysqlGtids.parse(f"{ONE}:1"))
        assert len(delivered) == 3
    assert len(delivered) == 1
    assert fence.hidden(ids(10, 20, 30)).tolist() == [20]
    with delivered.look():
        later = delivered.fence(MysqlGtids.parse(f"{ONE}:1-2"))
    assert len(delivered) == 1, "the first one may still ask"
    del fence
    with pytest.raises(KeyError), delivered.look():
        raise KeyError
    assert len(delivered) == 0
    assert later.hidden(ids(10, 20)).tolist() == []


def test_unknown_transaction_counts_as_seen() -> None:
    """It was waited for before this run, or every fence in use sees it."""
    delivered = DeliveredGtids()
    fence = delivered.fence(MysqlGtids.parse(""))
    assert fence.hidden(ids(5, 6)).tolist() == []
    delivered.add(ids(5), gtids((TWO, 1)))
    assert fence.hidden(ids(4, 5, 6)).tolist() == [5]
    assert fence.executed_gtids.text() == ""
