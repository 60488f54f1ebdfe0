"""What is proven of a table's freshness, and what is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.support.capture.small_source import AT, DONE, ITEMS, ORDERS, Small

from cdcflow.capture.freshness import LATE_S, Freshness
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.capture.interleave.messages import MarkSeen
from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.capture.observations import Observed
from cdcflow.capture.ports.source import Covering, Sample
from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import SpooledTransaction
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position, Token
from cdcflow.model.table import TableId
from cdcflow.sources.memory import MemoryDatabase, MemorySource
from cdcflow.sources.memory_database import INTEGER

BOTH = Progress({**DONE.tables, ITEMS.id: TableProgress("done", 1, Offset(1), incarnation=2)})


class Covered(Small):
    """A source that reports which tables it does not cover, and keeps the marks that it was given."""

    def __init__(self) -> None:
        super().__init__(ORDERS, ITEMS)
        self.uncovered: dict[TableId, str] = {}
        self.tokens: list[Token] = []

    def coverage(self, captured: Mapping[TableId, int]) -> Mapping[TableId, str]:
        if self.broken:
            raise SourceUnavailable("no answer from db:5432")
        return {t: why for t, why in self.uncovered.items() if t in captured}

    def write_mark(self, token: Token) -> None:
        self.tokens.append(token)


class Stage:
    """A source and its canaries, on a clock that the test moves."""

    def __init__(self, source: Any = None) -> None:
        self.now = 1000.0
        self.source: Any = source or Covered()
        self.progress = BOTH
        self.freshness = Freshness(30.0, wall=lambda: self.now)
        self.freshness.begin((ORDERS, ITEMS), Epoch(1))

    def look(self) -> None:
        self.freshness.look(self.source, self.source, self.progress)

    def comes_back(self, *, held: bool = False, durable: bool = True, windows: int = 0) -> None:
        self.freshness.mark_arrived(self.source.tokens[-1], 0)
        self.freshness.settle(held=held, windows=windows, next_cut=5, durable_cut=5 if durable else 4)

    def of(self, table: str = "public.orders", progress: Progress = BOTH, **said: Any) -> tuple[Any, Any]:
        state = self.freshness.states(progress, **said)[table]
        return state["freshness"], state["freshness_reason"]

    def as_of(self, table: str = "public.orders") -> Any:
        return self.freshness.states(BOTH)[table]["fresh_as_of"]


def test_table_is_fresh_as_of_the_time_before_its_mark_was_sent() -> None:
    """Not as of the time when the mark arrived: changes committed in between may still be on their way."""
    on = Stage()
    on.look()
    on.now += 7
    assert on.of() == ("not proven", "the first mark is on its way")
    on.freshness.tables_changed([ORDERS.id])
    on.comes_back()
    assert on.as_of() == 1000.0
    assert on.of("public.orders") == ("fresh", None)
    assert on.of("public.items") == ("quiet", None)


def test_a_mark_proves_nothing_before_its_rows_are_durable() -> None:
    """A crash would undo them."""
    on = Stage()
    on.look()
    on.comes_back(durable=False)
    assert on.of()[0] == "not proven"
    on.freshness.settle(held=False, windows=0, next_cut=9, durable_cut=5)
    assert on.of()[0] == "quiet"


def test_a_mark_proves_nothing_while_a_window_holds_rows_from_before_it() -> None:
    """They are not in the log, however durable it is."""
    on = Stage()
    on.look()
    on.comes_back(held=True)
    assert on.of()[0] == "not proven"
    on.freshness.settle(held=True, windows=1, next_cut=5, durable_cut=5)
    assert on.of()[0] == "quiet", "another window holds other rows"


def test_a_table_that_left_the_stream_is_not_proven_at_once() -> None:
    """The connection is still up, and every other table is fresh."""
    on = Stage()
    on.look()
    on.comes_back()
    on.source.uncovered[ORDERS.id] = "it is not in publication shop"
    on.now += 30
    on.look()
    assert on.of() == ("not proven", "it is not in publication shop")
    assert on.of("public.items") == ("quiet", None)
    on.comes_back()
    assert on.as_of() == 1000.0, "the last proof is still the last proof"
    assert on.as_of("public.items") == 1030.0


def test_a_table_that_left_while_the_mark_was_on_its_way_is_not_proven_by_it() -> None:
    """It may have left before."""
    on = Stage()
    on.look()
    on.source.uncovered[ORDERS.id] = "it is not in publication shop"
    on.look()
    on.source.uncovered.clear()
    on.look()
    assert len(on.source.tokens) == 1, "one mark at a time"
    on.comes_back()
    assert on.as_of() is None
    assert on.as_of("public.items") == 1000.0


def test_mark_that_does_not_return_is_reported() -> None:
    """A filter between the source and the stream, or a server that sends nothing: no other check would report it."""
    on = Stage()
    on.look()
    on.comes_back()
    on.now += 30
    on.look()
    on.now += LATE_S - 30
    assert on.of()[0] == "quiet"
    on.now += 1
    assert on.of() == ("not proven", "a mark sent 61 s ago has not returned through the log")


def test_marks_of_an_earlier_attempt_prove_nothing() -> None:
    """Between the two attempts the table may have been missing; the next attempt sends its own marks."""
    on = Stage()
    on.look()
    on.freshness.begin((ORDERS, ITEMS), Epoch(2))
    on.comes_back()
    assert on.as_of() is None
    on.look()
    on.comes_back()
    assert on.as_of() == 1000.0


def test_an_outage_keeps_what_was_proven_and_calls_nothing_fresh() -> None:
    """`fresh as of` is what an operator needs during an outage."""
    on = Stage()
    on.look()
    on.comes_back()
    assert on.of(interrupted="nothing is currently captured: no answer") == (
        "not proven",
        "nothing is currently captured: no answer",
    )
    assert on.as_of() == 1000.0
    on.freshness.begin((ORDERS, ITEMS), Epoch(2))
    assert on.as_of() == 1000.0


def test_source_that_does_not_answer_the_check_ends_no_attempt() -> None:
    """The stream meets the same trouble, and has the better words for it."""
    on = Stage()
    on.source.broken = True
    on.look()
    assert on.of() == ("not proven", "the source could not be queried: no answer from db:5432")
    assert on.source.tokens == []


def test_a_table_whose_rows_are_not_all_read_is_not_fresh() -> None:
    """Its changes are fresh; its earlier rows are missing."""
    on = Stage()
    on.look()
    on.comes_back()
    for state, whole_since, expected in (("reading", None, "not proven"), ("reading", Offset(1), "quiet")):
        known = TableProgress(state, 2, Offset(1), incarnation=1, whole_since=whole_since)  # type: ignore[arg-type]
        assert on.of(progress=Progress({ORDERS.id: known}))[0] == expected
    why = "statements on other tables may have changed its rows; "
    for state, then in (
        ("reading", "it is read again (reading)"),
        ("cancelled", f"run `cdcflow backfill {ORDERS.id}`"),
    ):
        known = TableProgress(state, 2, Offset(1), incarnation=1, whole_since=Offset(1), stale="reading")  # type: ignore[arg-type]
        assert on.of(progress=Progress({ORDERS.id: known})) == ("not proven", why + then)
    failed = Progress({ORDERS.id: TableProgress("failed", 1, Offset(1), incarnation=1)})
    assert on.of(progress=failed) == ("not proven", "its existing rows are not all in the log (failed)")


def test_source_without_coverage_proves_nothing() -> None:
    """A user's own source without `coverage`: unknown is not fresh."""
    on = Stage(Small(ORDERS, ITEMS))
    on.look()
    assert on.of() == ("not proven", "this source cannot tell whether the table's changes reach cdcflow")


class Rows(Covered):
    """A source whose one table has some rows to sample."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = "rows", "id int"
        self.while_looking: Callable[[], None] = lambda: None

    def sample(self, table: TableId, key: Sequence[str]) -> Sample | None:
        assert key == ("id",)
        self.while_looking()
        return Sample(self.columns, self.rows)


ONLY = Progress({ORDERS.id: TableProgress("done", 1, Offset(1), incarnation=1)})
REASON = "its rows changed at the source, but no change arrived; run `cdcflow backfill public.orders`"


class Sampling(Stage):
    """Canaries over one table whose rows are sampled."""

    def __init__(self) -> None:
        super().__init__(Rows())
        self.progress = ONLY

    def fly(self) -> Any:
        self.look()
        self.comes_back()
        return self.of(progress=self.progress)[1]


def test_rows_that_change_without_a_change_in_the_stream_are_found() -> None:
    """A MySQL session with `sql_log_bin = 0`: no setting, no error and no silence shows it."""
    on = Sampling()
    assert [on.fly(), on.fly()] == [None, None]
    on.source.rows = "others"
    assert [on.fly(), on.fly()] == [REASON, REASON]
    assert on.of(progress=ONLY)[0] == "not proven"
    on.progress = Progress({ORDERS.id: replace(ONLY.tables[ORDERS.id], generation=2)})
    assert [on.fly(), on.fly()] == [None, None], "it was read again"


def test_rows_that_change_as_in_the_stream_are_not_reported() -> None:
    """Before the sample, while it is taken, or between the sample and its mark."""
    on = Sampling()
    on.fly()
    on.source.rows = "second"
    on.freshness.tables_changed([ORDERS.id])
    assert on.fly() is None
    on.fly()
    on.source.rows = "third"
    on.source.while_looking = lambda: on.freshness.tables_changed([ORDERS.id])
    assert on.fly() is None
    on.source.while_looking = lambda: None
    on.fly()
    on.fly()
    on.source.rows = "fourth"
    on.look()
    on.freshness.tables_changed([ORDERS.id])
    on.comes_back()
    assert on.of(progress=ONLY)[1] is None


def test_a_change_that_was_streamed_before_it_could_be_seen_is_no_find() -> None:
    """A commit that waits for a replica is in the log, and in cdcflow's stream, before any session sees its rows."""
    on = Sampling()
    on.fly()
    on.freshness.tables_changed([ORDERS.id])
    on.fly()
    on.source.rows = "seen now"
    assert on.fly() is None


def test_rows_of_another_shape_are_not_compared() -> None:
    """A column with a default changes every row, and no row's change is logged."""
    on = Sampling()
    on.fly()
    on.source.rows, on.source.columns = "others", "id int, more text"
    assert on.fly() is None


def test_a_database_in_memory_covers_the_tables_that_it_has() -> None:
    """Users model their own sources on it."""
    database = MemoryDatabase()
    source: Covering = MemorySource(database)
    table = TableId("public", "items")
    first = database.create(table, {"id": INTEGER}, ("id",)).shape.incarnation
    assert source.coverage({table: first}) == {}
    database.drop(table)
    assert set(source.coverage({table: first})) == {table}
    second = database.create(table, {"id": INTEGER}, ("id",)).shape.incarnation
    assert set(source.coverage({table: first})) == {table}
    assert source.coverage({table: second}) == {}


def test_rows_of_a_spooled_transaction_wait_for_their_cut() -> None:
    """They have no bytes in memory that would make a cut due, and are not durable without one."""
    on = Stage()
    observed = Observed(on.freshness, None, (ORDERS, ITEMS), Epoch(2))
    machine = Interleave(
        epoch=Epoch(2),
        checkpoint=Checkpoint(AT),
        tables={ORDERS.id: ORDERS},
        limits=Limits(),
        delivered=np.empty(0, np.uint64),
        partial={},
    )
    on.look()
    observed.record_append(SpooledTransaction(7, Position("0007"), 1, rows=10**6, spool="spool-1"))
    observed.came(MarkSeen(on.source.tokens[-1], Position("0008"), 1))
    observed.prove(machine, cut=4, durable_cut=4)
    assert on.of()[0] == "not proven"
    observed.cut(5)
    observed.prove(machine, cut=5, durable_cut=5)
    assert on.of()[0] == "quiet"


@pytest.mark.parametrize("window", [False, True])
def test_an_attempt_proves_its_tables(window: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the sample through the loop to what is durable, with a running backfill or without one."""
    from cdcflow.capture import attempt as attempts
    from cdcflow.capture.attempt import LoopIntervals, Orders
    from cdcflow.capture.capture import Capture
    from cdcflow.sinks.memory import Memory, MemoryLog

    monkeypatch.setattr(attempts, "IDLE_WAIT_S", 0.001)

    class Real(Small):
        def coverage(self, captured: Mapping[TableId, int]) -> Mapping[TableId, str]:
            return {ITEMS.id: "it is filtered"}

    source: Any = Real(ORDERS, ITEMS)
    memory = Memory()
    given: Any = lambda _identity, _accepted: MemoryLog(memory)  # noqa: E731
    capture = Capture(
        open_source=lambda: source,
        open_log=given,
        limits=Limits(backfill_new=window),
        orders=Orders(None),
        pace=LoopIntervals(heartbeat_s=1e9, tables_look_s=1e9),
        on_event=lambda *_: None,
        freshness=Freshness(0.0),
    )

    def stop_when_proven() -> None:
        orders = capture.freshness().get("public.orders", {})
        if orders.get("fresh_as_of") is not None and (not window or orders["freshness"] != "not proven"):
            capture.stop()

    source.on_poll = stop_when_proven
    capture.run()
    states = capture.freshness()
    assert states["public.orders"]["fresh_as_of"] is not None
    assert states["public.items"]["fresh_as_of"] is None
