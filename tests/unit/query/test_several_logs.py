"""Several logs as one: one order, up to where every log has advanced, starting at any cursor; the log that holds the
others back is named."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.support.log.several_logs import START, Branch, Logged, go_on, in_order

import cdcflow
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.retention import ExpiryRule, LogRetention
from cdcflow.log.query import batches as batching
from cdcflow.log.query import lanes
from cdcflow.log.query.several_logs import Batch, Logs
from cdcflow.log.read.moments import time_text
from cdcflow.model.table import OFFSET, OP, TRANSACTION
from cdcflow.testing.sinks import ORDERS, PRODUCTS

ROUNDS = 12
NAME = str(ORDERS.id)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Any]:
    """made(name): create a log."""
    found: list[Branch] = []

    def make(name: str) -> Branch:
        found.append(Branch(tmp_path / f"{name}-{len(found)}", name))
        return found[-1]

    yield make
    for branch in found:
        branch.log.close()


def opened(*branches: Branch, **more: Any) -> Logs:
    return cdcflow.open_logs({branch.name: branch.root for branch in branches}, **more)


def rows_of(batches: list[Batch]) -> list[tuple[str, str, str, int, int]]:
    """Log, table, op, offset and commit clock of each row."""
    found = []
    for batch in batches:
        clocks = batch.rows.column("_commit_clock").cast(pa.int64()).to_pylist()
        listed = zip(batch.rows.column(OP).to_pylist(), batch.rows.column(OFFSET).to_pylist(), clocks, strict=True)
        found += [(batch.log, str(batch.table), *one) for one in listed]
    return found


def expected(transactions: list[Logged], tables: frozenset[str] | None = None, ops: str = "crudt") -> list[Any]:
    return [
        (t.log, table, op, offset, t.clock)
        for t in transactions
        for table, op, offset in t.rows
        if op in ops and (tables is None or table in tables)
    ]


@pytest.mark.spread(6)
@pytest.mark.parametrize("seed", [*range(ROUNDS), *(pytest.param(n, marks=pytest.mark.long) for n in range(50, 350))])
def test_changes_are_in_the_order_of_commit_clocks_and_resume_at_every_cursor(
    made: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G34: by position within a source, by the rule across sources, whatever their wall clocks showed. Another log's
    transaction never splits a transaction, and a reader that resumes at any cursor gets the rest, once."""
    rng = Random(seed)
    monkeypatch.setattr(batching, "WINDOW_ROWS", rng.choice([4, 25, 1 << 16]))
    monkeypatch.setattr(lanes, "HEADERS_AT_ONCE", rng.choice([1, 10_000]))
    branches = [made(name) for name in ("crm", "shop", "billing")[: rng.choice([2, 2, 3])]]
    for _ in range(rng.choice([1, 2])):
        for branch in branches:
            go_on(branch, rng, rng.choice([0, 6, 14]), rng.choice([40, 400]))
    tables = rng.choice([None, frozenset([NAME])])
    ops = rng.choice([None, "ud"])
    chosen: Any = {"tables": tables and sorted(tables), "ops": ops, "batch_rows": rng.choice([1, 3, 100])}
    if tables and not all(any(r[0] in tables for t in b.written for r in t.rows) for b in branches):
        chosen["tables"] = tables = None
    logs = opened(*branches)
    batches = list(logs.changes(**chosen))
    want = expected(in_order(branches), tables, ops or "crudt")
    assert rows_of(batches) == want, f"seed {seed}"
    for batch in rng.sample(batches, min(4, len(batches))):
        done = sum(b.rows.num_rows for b in batches[: batches.index(batch) + 1])
        assert rows_of(list(opened(*branches).changes(batch.cursor, **chosen))) == want[done:], f"seed {seed}"
    for before, after in pairwise(batches if chosen["tables"] is chosen["ops"] is None else ()):
        parts = {(b.log, b.rows.column(TRANSACTION)[at].as_py()) for b, at in ((before, -1), (after, 0))}
        assert before.ends_transaction == (len(parts) == 2), f"seed {seed}: a transaction was parted"


@pytest.mark.parametrize("seed", range(ROUNDS // 4))
def test_following_returns_the_same_as_reading_at_the_end(made: Any, seed: int) -> None:
    """The order is final once it was returned: no later change would have had to precede it."""
    rng = Random(seed)
    branches = [made(name) for name in ("crm", "shop")]
    logs = opened(*branches)

    def wait(_: float) -> bool:
        if all(len(branch.written) > 25 for branch in branches):
            return True
        go_on(rng.choice(branches), rng, 3, rng.choice([50, 5000]))
        return False

    seen = rows_of(list(logs.follow(wait=wait)))
    assert seen == expected(in_order(branches)), f"seed {seed}"


def test_idle_source_lets_the_others_continue_by_its_heartbeats(made: Any) -> None:
    """Without them a shop that sells nothing would hold back every log's changes indefinitely."""
    busy, idle = made("busy"), made("idle")
    idle.insert(10)
    busy.insert(5)
    busy.insert(20)
    logs = opened(busy, idle)
    assert [row[:2] + row[4:] for row in rows_of(list(logs.changes()))] == [
        ("busy", NAME, START + 5),
        ("idle", NAME, START + 10),
    ]
    assert logs.common().held_back_by.log == "idle"
    idle.beat(30)
    assert [row[4] for row in rows_of(list(logs.changes()))] == [START + 5, START + 10, START + 20]
    common = logs.common()
    assert (common.held_back_by.log, common.commit_clock, common.behind) == ("busy", START + 20, 10)


def test_transactions_of_one_clock_are_ordered_by_their_log_s_name(made: Any) -> None:
    """A reader that reads them again gets the same order."""
    later, sooner = made("b"), made("a")
    later.insert(7)
    sooner.insert(7)
    assert [row[0] for row in rows_of(list(opened(later, sooner).changes()))] == ["a", "b"]


def test_silent_log_is_named_with_its_last_time_and_lag(made: Any) -> None:
    """Nothing is skipped for it, so an operator has to know which daemon to check."""
    crm, shop = made("crm"), made("shop")
    crm.insert(1)
    shop.insert(90_000_000)
    told: list[str] = []
    logs = opened(crm, shop, silent_after_s=1e12)
    assert logs.common().silent == ()
    found = list(logs.follow(wait=lambda _: True, on_silent=lambda common: told.append(common.text)))
    assert [batch.log for batch in found] == ["crm"]
    assert told == []
    logs = opened(crm, shop)
    common = logs.common()
    common = type(common)(common.logs, START + 100_000_000, common.silent_after)
    assert [one.log for one in common.silent] == ["crm"]
    assert common.text == (
        f"log crm holds the others back: it has reached {time_text(START + 1)}, a lag of 90.0 s; silent: crm"
    )
    later = type(common)(common.logs, START + 200_000_000, common.silent_after)
    assert [one.log for one in later.silent] == ["crm", "shop"]


def test_follow_reports_a_log_that_falls_silent_once(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And again if it has reported progress in between."""
    crm, shop = made("crm"), made("shop")
    for branch in (crm, shop):
        branch.insert(1)
    now = START
    monkeypatch.setattr("cdcflow.log.query.several_logs.now_us", lambda: now)
    told: list[tuple[str, ...]] = []
    steps = iter([0, 0, 70_000_000, 0, 0, -70_000_000, 70_000_000])

    def wait(_: float) -> bool:
        nonlocal now
        step = next(steps, None)
        now += step or 0
        shop.beat(now - START)
        return step is None

    list(opened(crm, shop).follow(wait=wait, on_silent=lambda c: told.append(tuple(one.log for one in c.silent))))
    assert told == [("crm",), ("crm",)]


def test_a_log_without_a_cut_holds_all_back(made: Any) -> None:
    """Its future changes are unknown."""
    crm, new = made("crm"), made("new")
    crm.insert(1)
    logs = opened(crm, new)
    assert list(logs.changes()) == []
    assert "log new holds the others back: it has reached no time yet" in logs.common().text


def test_tables_as_of_one_time_and_the_changes_after_it(made: Any) -> None:
    """The rows of a customer and of her orders, as of the same time; then exactly what changed since."""
    crm, shop = made("crm"), made("shop")
    for ts in (10, 20, 30):
        crm.insert(ts)
        shop.insert(ts + 5)
    logs = opened(crm, shop)
    assert logs.common().commit_clock == START + 30
    for as_of, counts in ((None, (3, 2)), (START + 20, (2, 1)), (time_text(START + 24), (2, 1)), (START + 25, (2, 2))):
        tables = [logs.current(f"{log}:{NAME}", as_of) for log in ("crm", "shop")]
        assert tuple(t.num_rows for t in tables) == counts
        behind = rows_of(list(logs.changes(logs.cursor(as_of))))
        assert [row[4] - START for row in behind] == [
            clock for clock in (10, 15, 20, 25, 30) if clock > (30 if as_of is None else 20 if counts[1] == 1 else 25)
        ]
    with pytest.raises(
        ConfigurationError, match=r"log crm has reached .*, and more changes from before that time may arrive"
    ):
        logs.current(f"crm:{NAME}", START + 31)
    with pytest.raises(ConfigurationError, match="the log begins later"):
        logs.current(f"shop:{NAME}", START + 12)
    with pytest.raises(ConfigurationError, match="that is no time"):
        logs.cursor("yesterday")


def test_tables_of_one_name_are_distinguished_by_their_log(made: Any) -> None:
    """A name that two logs have means both for changes, and must be qualified for rows. The remedy works."""
    crm, shop = made("crm"), made("shop")
    crm.insert(1)
    shop.insert(2)
    shop.commit(3, (shop.products, {"id": 1}))
    shop.cut()
    crm.beat(9)
    shop.beat(9)
    logs = opened(crm, shop)
    assert sorted(logs.tables()) == [f"crm:{NAME}", str(PRODUCTS.id), f"shop:{NAME}"]
    with pytest.raises(ConfigurationError, match="2 logs have one of that name") as refused:
        logs.current(NAME)
    remedy = str(refused.value.remedy)
    assert logs.current(remedy.removeprefix("name one of them: ").split(", ")[1]).num_rows == 1
    assert [b.name for b in logs.changes(tables=[NAME])] == [f"crm:{NAME}", f"shop:{NAME}"]
    assert [b.name for b in logs.changes(tables=[f"shop:{NAME}"])] == [f"shop:{NAME}"]
    with pytest.raises(ConfigurationError, match=r"no log of crm, shop has a table public\.gone"):
        list(logs.changes(tables=["public.gone"]))


def test_a_cursor_belongs_to_its_logs(made: Any) -> None:
    """A cursor of other logs would skip changes, or return them twice."""
    crm, shop, other = made("crm"), made("shop"), made("crm")
    for branch in (crm, shop, other):
        branch.insert(1)
    cursor = opened(crm, shop).cursor()
    for logs, words in (
        (opened(crm), "the cursor belongs to logs crm, shop"),
        (opened(other, shop), "log crm is not the cursor's log of that name"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            list(logs.changes(cursor))
    with pytest.raises(ConfigurationError, match="the text is not a cursor, or only a part of one"):
        list(opened(crm, shop).changes(cursor[:-5]))
    with pytest.raises(ConfigurationError, match="give each log a name"):
        cdcflow.open_logs({"a:b": crm.root})
    with pytest.raises(ConfigurationError, match="none is named"):
        cdcflow.open_logs({})


def test_history_that_one_log_has_lost_is_named_and_the_remedy_works(made: Any) -> None:
    """Expired history is never skipped: a consumer would miss it and not know."""
    crm, shop = made("crm"), made("shop")
    logs = opened(crm, shop)
    cursor = logs.cursor()
    for ts in (1, 2, 3):
        crm.insert(ts)
        crm.seal()
        shop.insert(ts)
    assert LogRetention(Layout(crm.root)).expire(ExpiryRule(before_cut=3))
    with pytest.raises(HistoryLost, match="reading log crm after offset 0: that has expired") as lost:
        list(logs.changes(cursor))
    assert "(`current`), and continue after it (`cursor`)" in str(lost.value.remedy)
    assert logs.current(f"shop:{NAME}").num_rows == 3
    assert list(logs.changes(logs.cursor())) == []
    with pytest.raises(HistoryLost, match="log crm: "):
        logs.cursor(START + 1)


def test_bug_order_by_the_sources_commit_times_is_found(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle can fail: a clock that was set back places a transaction before earlier ones."""
    crm, shop = made("crm"), made("shop")
    for ts in (30, 10):
        crm.insert(ts)
    for ts in (20, 40):
        shop.insert(ts)
    crm.beat(50)
    right = expected(in_order([crm, shop]))
    assert rows_of(list(opened(crm, shop).changes())) == right
    by_time = staticmethod(lambda headers: headers.column("commit_ts").cast(pa.int64()).to_numpy())
    monkeypatch.setattr(lanes.Lane, "_clocks_of", by_time)
    assert rows_of(list(opened(crm, shop).changes())) != right


def test_bug_reading_past_the_slowest_log_is_found(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle can fail: what was returned should have followed what the slow log brings later."""
    crm, shop = made("crm"), made("shop")
    crm.insert(10)
    shop.insert(30)
    logs = opened(crm, shop)
    monkeypatch.setattr(
        "cdcflow.log.query.common_clock.Common.commit_clock",
        property(lambda one: max(r.commit_clock for r in one.logs.values())),
    )
    steps = iter([False, True])

    def wait(_: float) -> bool:
        crm.insert(20)
        return next(steps)

    assert rows_of(list(logs.follow(wait=wait))) != expected(in_order([crm, shop], upto=START + 30))
