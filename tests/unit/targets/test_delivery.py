"""What a target gets from a log: net changes of whole rows, each once, and nothing of a table that is not whole."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.tables.histories import Histories
from tests.support.tables.row_targets import MemoryTarget, counted

from cdcflow import wiring
from cdcflow.errors import SinkUnavailable
from cdcflow.sources.engine.selection import Selection
from cdcflow.targets.delivery import TableDelivery, TargetDelivery

ITEMS = make_table("items", id="int64", name="string", doc="string")
OTHERS = make_table("others", id="int64")
ROUNDS = 5
PER_LOG = 4


class Delivered:
    """A log by hand with a target."""

    def __init__(self, folder: Path) -> None:
        self.log = HandLog(folder / "log")
        self.target = MemoryTarget()

    def deliver(self, *patterns: str) -> tuple[TableDelivery, ...]:
        return deliver(self.log, self.target, *patterns)

    def names(self) -> dict[int, str | None]:
        return {row["id"]: row["name"] for row in self.target.rows[ITEMS.id]}


def deliver(log: HandLog, target: MemoryTarget, *patterns: str) -> tuple[TableDelivery, ...]:
    selection = Selection.parse(patterns or ("*.*",))
    opened = wiring.open_for_queries(log.root)
    return TargetDelivery(opened, log.log_id, target, selection, lambda: None).deliver().tables


def row(number: int, name: str | None = "x", doc: str | None = "d", **more: object) -> dict[str, object]:
    return {"id": number, "name": name, "doc": doc, **more}


@pytest.fixture
def made(tmp_path: Path) -> Delivered:
    found = Delivered(tmp_path)
    found.log.state(ITEMS)
    found.log.segment([(ITEMS, "r", row(1)), (ITEMS, "r", row(2))])
    (first,) = found.deliver()
    assert (first.is_whole, first.rows) == (True, 2)
    return found


def test_changes_since_the_place_are_the_last_of_each_key(made: Delivered) -> None:
    """A row that changes ten times is applied once."""
    steps = [(ITEMS, "u", row(1, f"v{n}")) for n in range(10)]
    made.log.segment([*steps, (ITEMS, "d", {"id": 2}), (ITEMS, "c", row(3)), (ITEMS, "d", {"id": 3})])
    (found,) = made.deliver()
    assert (found.rows, found.deleted, found.is_whole) == (1, 2, False)
    assert made.names() == {1: "v9"}
    assert made.deliver() == ()


def test_column_that_was_not_sent_keeps_its_value(made: Delivered) -> None:
    """TOAST, or a row image without it: NULL would be silently wrong. Also when the key changes."""
    made.log.segment([(ITEMS, "u", {"id": 1, "name": "new", "_unchanged": ["doc"]})])
    made.log.segment(
        [(ITEMS, "d", {"id": 2}), (ITEMS, "c", {"id": 7, "name": "moved", "_unchanged": ["doc"], "_before": {"id": 2}})]
    )
    (found,) = made.deliver()
    assert (found.rows, found.deleted, found.is_whole) == (2, 1, False)
    assert sorted(r["doc"] for r in made.target.rows[ITEMS.id]) == ["d", "d"]
    assert made.names() == {1: "new", 7: "moved"}


def test_truncate_and_another_shape_apply_the_whole_table(made: Delivered) -> None:
    """A target needs one way to change columns: with all rows."""
    made.log.segment([(ITEMS, "t", {}), (ITEMS, "c", row(5))])
    (found,) = made.deliver()
    assert (found.is_whole, made.names()) == (True, {5: "x"})
    wider = make_table("items", id="int64", name="string", doc="string", price="float64")
    made.log.segment([(wider, "c", {**row(6), "price": 1.5})])
    (found,) = made.deliver()
    assert found.is_whole
    assert [r.get("price") for r in made.target.rows[ITEMS.id]] == [None, 1.5]


def test_rows_that_a_new_backfill_did_not_find_are_gone(made: Delivered) -> None:
    """Nothing in the log deletes them."""
    since = made.log.next_offset
    made.log.state(ITEMS, "reading", 2, since, whole_since=1)
    made.log.segment([(ITEMS, "r", row(2, "again"))])
    (found,) = made.deliver()
    assert (found.is_whole, made.names()) == (False, {1: "x", 2: "again"})
    made.log.state(ITEMS, "done", 2, since, whole_since=since)
    made.log.segment([(OTHERS, "c", {"id": 1})])
    found = next(one for one in made.deliver() if one.table == "public.items")
    assert (found.is_whole, made.names()) == (True, {2: "again"})


def test_table_is_delivered_when_all_of_its_rows_are_in_the_log(tmp_path: Path) -> None:
    """A reader of the target never sees a half table. One that is excluded or not whole does not stop the others."""
    made = Delivered(tmp_path)
    made.log.state(ITEMS, "reading")
    made.log.state(OTHERS)
    made.log.segment([(ITEMS, "r", row(1)), (OTHERS, "r", {"id": 1})])
    waiting, done = made.deliver()
    assert "not all rows of the table are in the log" in waiting.problem
    assert (done.table, done.problem) == ("public.others", "")
    made.log.state(ITEMS)
    made.log.segment([(ITEMS, "r", row(2))])
    assert [one.table for one in made.deliver("public.o*")] == []
    assert [(one.table, one.rows) for one in made.deliver()] == [("public.items", 2)]


def test_table_with_lost_changes_is_not_delivered(made: Delivered) -> None:
    """Until a comparison shows that it is right."""
    made.log.progress["public.items"]["gap"] = {"offset": 3}
    made.log.segment([(ITEMS, "u", row(1, "new"))])
    (found,) = made.deliver()
    assert found.problem.startswith("changes of it were lost")
    assert found.remedy == "run `cdcflow repair public.items`"
    assert made.names() == {1: "x", 2: "x"}


@pytest.mark.parametrize("when", ["before", "after"])
def test_attempt_that_fails_is_continued_at_the_target_s_place(made: Delivered, when: str) -> None:
    """Whether it succeeded is known by the target alone."""
    made.log.segment([(ITEMS, "d", {"id": 1}), (ITEMS, "c", row(3))])
    made.target.fails = [(when, SinkUnavailable("no answer"))]
    with pytest.raises(SinkUnavailable):
        made.deliver()
    assert len(made.deliver()) == (1 if when == "before" else 0)
    assert made.names() == {2: "x", 3: "x"}
    assert len(made.target.changes) == 2


def test_error_of_a_target_stops_one_table_and_has_no_value(made: Delivered) -> None:
    """A library's text may hold the row."""
    made.log.state(OTHERS)
    made.log.segment([(ITEMS, "c", row(3)), (OTHERS, "c", {"id": 1})])
    made.target.fails = [("before", ValueError("c4n4ry"))]
    items, others = made.deliver()
    assert (items.problem, others.problem) == ("the target raised ValueError", "")
    assert [one.table for one in made.deliver()] == ["public.items"]


def test_target_of_another_log_is_refused(made: Delivered, tmp_path: Path) -> None:
    """Offsets of two logs mean different things; so do those of an older copy."""
    other = HandLog(tmp_path / "other", "log-b")
    other.state(ITEMS)
    other.segment([(ITEMS, "r", row(9))])
    (found,) = deliver(other, made.target)
    assert found.problem == "the target has this table from another log (log-a)"
    older = HandLog(tmp_path / "older")
    older.state(ITEMS)
    older.segment([(ITEMS, "r", row(1))])
    (found,) = deliver(older, made.target)
    assert "so it is an older copy" in found.problem
    made.target.stored[ITEMS.id] = "mine"
    (found,) = made.deliver()
    assert found.problem == "the target has a place that cdcflow did not write"
    assert made.names() == {1: "x", 2: "x"}


def test_quiet_table_moves_on_before_its_place_expires(made: Delivered, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the whole table would be applied for nothing."""
    monkeypatch.setattr("cdcflow.targets.delivery.QUIET_NOTED", 3)
    made.log.segment([(OTHERS, "c", {"id": n}) for n in range(5)])
    (found,) = [one for one in made.deliver() if not one.problem]
    assert (found.rows, found.deleted, found.is_whole) == (0, 0, False)
    assert made.names() == {1: "x", 2: "x"}


def check_histories(folder: Path, seeds: range) -> Counter[str]:
    """Deliver random histories after each round, and compare the target with their databases."""
    log = HandLog(folder / "log")
    histories, target = Histories(seeds, log, with_repairs=True), MemoryTarget()
    for history in histories.listed:
        # Most of them have all rows in the log for most of the time.
        history.rare = [f"_{name}" for name in ("begin_backfill", "unheard", "make_again", "break", "truncate")]
        history.queue = [history._begin_backfill, history._read, history._end_backfill]
    kinds: Counter[str] = Counter()
    for _ in range(ROUNDS):
        histories.write_round()
        problems = {one.table: one for one in deliver(log, target)}
        for history in histories.listed:
            found = problems.get(str(history.id))
            if history.id not in target.rows or (found is not None and found.problem):
                kinds["not delivered"] += 1
                continue
            kinds["whole" if found is not None and found.is_whole else "changes" if found else "quiet"] += 1
            numbers = {c.number for c in target.shapes[history.id].columns} & {f.number for f in history.fields}
            assert target.counted(history.id, numbers) == counted(history.rows, numbers), f"seed {history.seed}"
    return kinds


def test_target_equals_the_database_after_random_histories(tmp_path: Path) -> None:
    """Partial rows, moved keys, statements, truncates, backfills that start again. `CDCFLOW_TARGET_SEED`: others."""
    first = int(os.environ.get("CDCFLOW_TARGET_SEED", "1"))
    kinds = check_histories(tmp_path, range(first, first + PER_LOG))
    assert min(kinds["whole"], kinds["changes"]) >= 2, kinds


@pytest.mark.long
def test_target_equals_the_database_after_many_random_histories(tmp_path: Path) -> None:
    """The same for 300 tables."""
    for first in range(1000, 1300, PER_LOG):
        check_histories(tmp_path / str(first), range(first, first + PER_LOG))
