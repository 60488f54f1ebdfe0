"""The stored part of the machine's state."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.capture import reread
from cdcflow.capture.interleave.allowed_commands import outcome_of
from cdcflow.capture.interleave.backlog import Backlog
from cdcflow.capture.interleave.chunk_choice import ChunkChoice
from cdcflow.capture.interleave.delivered import Delivered
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import Attach, Planned, PlanTable, Proven
from cdcflow.capture.interleave.progress import Gap, Progress, TableProgress
from cdcflow.model.change import KeySet
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position, Token
from cdcflow.model.table import Column, Table, TableId, table_from_text
from cdcflow.model.types import ColumnType

ORDERS = TableId("public", "orders")
ORDERS_TABLE = Table(ORDERS, 7, (Column("id", 1, ColumnType("bigint", pa.int64())),), ("id",))
READING = TableProgress(
    "reading",
    3,
    Offset(77),
    incarnation=16400,
    units=10,
    units_done=4,
    rows=123,
    plan='{"bound": 9}',
    cursor="4",
    size=2,
)


def test_progress_survives_its_json() -> None:
    """A restart continues exactly at the checkpoint (W24)."""
    progress = Progress({ORDERS: READING, TableId("odd.schema", "na.me"): TableProgress("done", 1, Offset(1))})
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress


def test_a_log_without_progress_has_no_tables() -> None:
    """The first checkpoint of a log is written before any table is known."""
    assert Progress.from_json({}).tables == {}


def test_progress_of_a_newer_cdcflow_is_refused() -> None:
    """Continuing with half-understood progress would skip rows (O06)."""
    with pytest.raises(ValueError, match="newer"):
        Progress.from_json({"version": 2, "tables": {}})


def test_unknown_fields_of_a_table_are_kept() -> None:
    """A later patch release may write more; what it means here is unchanged (O06)."""
    value = json.loads(json.dumps(Progress({ORDERS: READING}).to_json()))
    value["tables"]["public.orders"]["colour"] = "blue"
    assert Progress.from_json(value).tables[ORDERS] == READING


def test_json_names_what_merge_and_status_read() -> None:
    """Other parts read these names; renaming one would blind them silently."""
    (table,) = Progress({ORDERS: READING}).to_json()["tables"].values()  # type: ignore[attr-defined]
    read = {"state", "generation", "since", "units", "units_done", "rows", "reason", "incarnation"}
    assert read <= table.keys()
    assert "keys" not in table


def test_progress_of_an_older_cdcflow_has_no_row_version() -> None:
    """A log from before row versions is accepted: its tables count as read at today's version."""
    value = json.loads(json.dumps(Progress({ORDERS: READING}).to_json()))
    del value["tables"]["public.orders"]["row_version"]
    assert Progress.from_json(value).tables[ORDERS] == READING
    assert READING.row_version is None


def taken_up(stored: TableProgress, incarnation: int = 7, captured: bool = True) -> Backlog:
    """A backlog that begins at offset 50 with this known of a table."""
    table = replace(ORDERS_TABLE, incarnation=incarnation)
    return Backlog(Progress({ORDERS: stored}), {ORDERS: table} if captured else {}, Limits(), Offset(50), {})


def whole_since(backlog: Backlog) -> Offset | None:
    return backlog.progress.tables[ORDERS].whole_since


def test_what_was_whole_once_stays_whole_while_it_is_read_again() -> None:
    """The merge keeps showing the table; only a hole in what was captured ends that."""
    backlog = taken_up(TableProgress("reading", 1, Offset(10), incarnation=7))
    assert whole_since(backlog) is None
    backlog.stop(ORDERS, "done")
    assert whole_since(backlog) == 10
    backlog.begin_generation(ORDERS, Offset(60))
    assert whole_since(backlog) == 10
    backlog.stop(ORDERS, "cancelled")
    assert whole_since(backlog) == 10
    known = backlog.progress.tables[ORDERS]
    assert whole_since(taken_up(known)) == 10
    assert whole_since(taken_up(known, captured=False)) == 10, "forgotten, and what it was is known"
    forgotten = taken_up(known, captured=False).progress.tables[ORDERS]
    assert whole_since(taken_up(forgotten)) is None, "it was not captured for a while"
    assert whole_since(taken_up(known, incarnation=8)) is None, "another table of the same name"


GAP = Gap(Offset(50), generation=1, epoch=Epoch(4), before="0/5", after="0/9")
IN_DOUBT = TableProgress("done", 1, Offset(10), incarnation=7, whole_since=Offset(10), gap=GAP)


def test_a_gap_survives_its_json_and_is_shown() -> None:
    """Only the log records that changes were lost."""
    progress = Progress({ORDERS: IN_DOUBT})
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress
    assert progress.to_status(0)[str(ORDERS)]["gap"]["before"] == "0/5"  # type: ignore[index]
    (entry,) = Progress({ORDERS: READING}).to_json()["tables"].values()  # type: ignore[attr-defined]
    assert "gap" not in entry, "an older cdcflow reads what has none"


def test_only_a_later_generation_ends_the_doubt() -> None:
    """Rows that are read by key leave the others unchanged, however often the table is done."""
    backlog = taken_up(IN_DOUBT)
    backlog.order_repair(ORDERS, KeySet(pa.table({"id": [1]})), None, Offset(50))
    assert backlog.progress.tables[ORDERS].state == "waiting"
    backlog.stop(ORDERS, "done")
    assert backlog.progress.tables[ORDERS].in_doubt
    backlog.begin_generation(ORDERS, Offset(50))
    assert backlog.progress.tables[ORDERS].in_doubt
    backlog.stop(ORDERS, "cancelled")
    assert backlog.progress.tables[ORDERS].in_doubt, "it was cancelled"
    backlog.begin_generation(ORDERS, Offset(60))
    backlog.stop(ORDERS, "done")
    assert backlog.progress.tables[ORDERS].gap is None


def test_table_that_was_not_captured_for_a_while_stays_unverified_until_it_is_read() -> None:
    """It is read from the start, but until then the log still has its earlier rows, without the lost changes."""
    assert taken_up(replace(IN_DOUBT, state="forgotten")).progress.tables[ORDERS].gap == GAP
    assert taken_up(IN_DOUBT, incarnation=8).progress.tables[ORDERS].gap == GAP


@pytest.mark.parametrize(
    ("known", "epoch", "outcome"),
    [
        (IN_DOUBT, 3, "refused"),
        (IN_DOUBT, 4, "proven"),
        (IN_DOUBT, 5, "proven"),
        (replace(IN_DOUBT, gap=None), 5, "nothing to do"),
        (replace(IN_DOUBT, gap=replace(GAP, proven="0/9", until=Offset(60))), 5, "nothing to do"),
    ],
)
def test_table_is_proven_only_by_a_comparison_that_began_after_the_gap(
    known: TableProgress, epoch: int, outcome: str
) -> None:
    """A comparison from before it found what was true then."""
    assert outcome_of(Proven(ORDERS, Position("0/9"), Epoch(epoch)), ORDERS, known).outcome == outcome


def test_what_was_proven_is_kept() -> None:
    """A later merge still has to know where changes were lost, and through which offset."""
    backlog = taken_up(IN_DOUBT)
    backlog.prove(ORDERS, Position("0/9"), Offset(60))
    found = backlog.progress.tables[ORDERS]
    assert (found.in_doubt, found.gap) == (False, replace(GAP, proven="0/9", until=Offset(60)))


def test_an_older_cdcflow_s_done_is_whole_since_then() -> None:
    """The older progress did not record it."""
    entry = TableProgress("done", 2, Offset(9)).to_json(ORDERS)
    del entry["whole_since"]
    found = Progress.from_json({"version": 1, "tables": {"a": entry}})
    assert found.tables[ORDERS].whole_since == 9
    entry["state"] = "reading"
    assert Progress.from_json({"version": 1, "tables": {"a": entry}}).tables[ORDERS].whole_since is None


@pytest.mark.parametrize(("incarnation", "since"), [(7, 10), (8, None)])
def test_plan_that_finds_another_table_under_the_name_revokes_its_completeness(
    incarnation: int, since: int | None
) -> None:
    """The log's rows belong to the earlier table: a merge that showed them would show rows that no longer exist."""
    done = TableProgress("done", 1, Offset(10), incarnation=7, whole_since=Offset(10))
    backlog = taken_up(done)
    backlog.begin_generation(ORDERS, Offset(60))
    asked = ChunkChoice(backlog).plan(ORDERS, Offset(60), Delivered(np.empty(0, np.uint64), 1))
    assert asked == PlanTable(ORDERS, 2)
    found = replace(ORDERS_TABLE, incarnation=incarnation)
    assert ChunkChoice(backlog).accept_plan(Planned(ORDERS, 2, "plan", 1, 1, found)) == "taken"
    known = backlog.progress.tables[ORDERS]
    assert (known.incarnation, known.whole_since) == (incarnation, since)


@pytest.mark.parametrize("backfill_new", [True, False])
def test_shapes_without_an_incarnation_are_all_of_the_same_table(backfill_new: bool) -> None:
    """A source without such numbers: no table of it is begun again because of them."""
    limits = Limits(backfill_new=backfill_new)
    new = Backlog(Progress(), {ORDERS: "a shape"}, limits, Offset(50), {}).progress.tables[ORDERS]
    assert (new.incarnation, new.state) == (0, "waiting" if backfill_new else "cancelled")
    again = Backlog(Progress({ORDERS: new}), {ORDERS: "a shape"}, limits, Offset(60), {})
    assert again.progress.tables[ORDERS] == new
    known = replace(READING, incarnation=7)
    assert Backlog(Progress({ORDERS: known}), {ORDERS: "a shape"}, limits, Offset(60), {}).get(ORDERS) == known


def test_shape_of_a_table_without_rows_is_in_the_log_until_a_row_of_it_is_read() -> None:
    """Nothing else in a log records it, and a merge would not create the table. For other tables it would only take
    space."""
    new = Backlog(Progress(), {ORDERS: ORDERS_TABLE}, Limits(), Offset(1), {})
    stored = json.loads(json.dumps(new.json()))
    text = stored["tables"]["public.orders"]["shape"]
    assert table_from_text(text) == ORDERS_TABLE
    assert len(text) < 500

    again = Progress.from_json(stored)
    wider = replace(ORDERS_TABLE, columns=(*ORDERS_TABLE.columns, Column("v", 2, ColumnType("text", pa.string()))))
    backlog = Backlog(again, {ORDERS: wider}, Limits(), Offset(1), {})
    backlog.stop(ORDERS, "done")
    backlog.begin_generation(ORDERS, Offset(5))
    shape = backlog.progress.tables[ORDERS].shape
    assert shape is not None
    assert table_from_text(shape) == wider
    assert "shape" not in backlog.progress.to_status(0)["public.orders"]  # type: ignore[operator]

    assert taken_up(replace(READING, incarnation=7, shape=text)).progress.tables[ORDERS].shape is None
    assert "shape" not in READING.to_json(ORDERS)
    forgotten = Backlog(again, {}, Limits(), Offset(1), {})
    assert forgotten.progress.tables[ORDERS].shape is None


BASE = Gap(Offset(50), generation=4, epoch=Epoch(1), before="", after="0/9", base="b1")
ATTACHED = TableProgress("done", 4, Offset(50), incarnation=7, exhausted=True, gap=BASE)


@pytest.mark.parametrize(
    ("known", "outcome"),
    [
        (READING, "attached"),
        (replace(READING, state="waiting", plan=None), "attached"),
        (replace(READING, state="paused"), "attached"),
        (replace(READING, state="cancelled"), "attached"),
        (replace(READING, state="failed"), "attached"),
        (ATTACHED, "attached"),
        (replace(READING, state="done", whole_since=Offset(77)), "refused"),
        (IN_DOUBT, "refused"),
        (replace(READING, state="forgotten"), "refused"),
    ],
)
def test_a_table_gets_a_base_where_the_log_does_not_have_all_of_its_rows(known: TableProgress, outcome: str) -> None:
    """A table with all its rows in the log needs no others."""
    assert outcome_of(Attach(ORDERS, "b2"), ORDERS, known).outcome == outcome


def test_table_with_a_base_is_not_read_and_stays_incomplete_in_the_log_after_repairs() -> None:
    """A plan that was requested before the base was attached arrives too late, and only keys are read."""
    backlog = taken_up(replace(READING, incarnation=7))
    backlog.attach(ORDERS, "b1", Epoch(1), Offset(90), Position("0/9"))
    found = backlog.progress.tables[ORDERS]
    assert (found.state, found.generation, found.in_doubt, found.has_base, found.active) == (
        "done",
        4,
        True,
        True,
        False,
    )
    assert list(ChunkChoice(backlog).turns(0)) == []
    backlog.order_repair(ORDERS, KeySet(pa.table({"id": [1]})), None, Offset(95))
    asked = ChunkChoice(backlog).plan(ORDERS, Offset(95), Delivered(np.array([], np.uint64), 10))
    assert asked is not None
    assert ChunkChoice(backlog).accept_plan(Planned(ORDERS, 3, "old", 1, 1, ORDERS_TABLE)) == "late"
    assert ChunkChoice(backlog).accept_plan(Planned(ORDERS, 4, "new", 1, 1, ORDERS_TABLE)) == "taken"
    chunk = ChunkChoice(backlog).chunk(ORDERS, Token("low"))
    assert chunk is not None
    assert (chunk.kind, chunk.repairs) == ("keys", True)
    backlog.stop(ORDERS, "done")
    assert backlog.progress.tables[ORDERS].whole_since is None
    assert backlog.progress.tables[ORDERS].has_base
    backlog.begin_generation(ORDERS, Offset(99))
    backlog.stop(ORDERS, "done")
    found = backlog.progress.tables[ORDERS]
    assert (found.gap, found.whole_since) == (None, 99)


def test_base_survives_its_json_and_is_removed_with_its_table() -> None:
    """Another table of the same name has other rows."""
    progress = Progress({ORDERS: ATTACHED})
    assert Progress.from_json(json.loads(json.dumps(progress.to_json()))) == progress
    assert taken_up(ATTACHED).progress.tables[ORDERS].gap == BASE
    assert taken_up(ATTACHED, incarnation=8).progress.tables[ORDERS].gap is None
    forgotten = taken_up(ATTACHED, captured=False).progress.tables[ORDERS]
    assert taken_up(forgotten).progress.tables[ORDERS].gap is None, "it was not captured for a while"


def test_only_a_comparison_with_the_current_base_proves_a_table() -> None:
    """A table that got a different base in the meantime remains unverified."""
    assert outcome_of(Proven(ORDERS, Position("0/9"), Epoch(1), "b1"), ORDERS, ATTACHED).outcome == "proven"
    assert outcome_of(Proven(ORDERS, Position("0/9"), Epoch(1), "b0"), ORDERS, ATTACHED).outcome == "refused"
    assert outcome_of(Proven(ORDERS, Position("0/9"), Epoch(1)), ORDERS, ATTACHED).outcome == "refused"


def test_gap_after_a_base_keeps_the_base() -> None:
    """`--keep-rows` also keeps rows that were loaded another way; without it all are read again."""
    proven = replace(ATTACHED, gap=replace(BASE, proven="0/8", until=Offset(60)))
    after = Checkpoint(
        position=Position("0/20"), next_offset=Offset(70), next_transaction=5, cut=3, epoch=Epoch(2),
        progress=Progress({ORDERS: proven}).to_json(),
    )  # fmt: skip
    found = Progress.from_json(reread.in_doubt(after, "0/10", [ORDERS_TABLE])).tables[ORDERS]
    assert (found.state, found.in_doubt, found.has_base) == ("done", True, True)
    assert reread.is_kept(found)
    anew = Progress.from_json(reread.unread(after.progress)).tables[ORDERS]
    assert (anew.state, anew.gap) == ("waiting", None)


def test_gaps_are_kept_by_number_and_only_the_latest() -> None:
    """A reader finds the gaps since its last visit; older ones are in the checkpoints of older segments."""
    progress = Progress()
    for number in range(60):
        progress = progress.with_gap(number, f"{number}/1", f"{number}/2", Offset(number))
    again = Progress.from_json(json.loads(json.dumps(progress.to_json())))
    assert again.gaps == progress.gaps
    assert [again.gaps[0].number, again.gaps[-1].number] == [11, 60]
    assert "gaps" not in Progress().to_json()
