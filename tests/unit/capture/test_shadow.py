"""The shadow check: a decoder that errs is found, and nothing else is ever blamed."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.capture.memory_source import OrdersSource
from tests.support.capture.wrong_decoder import Decode, make_wrong, wrong_in

from cdcflow.capture import attempt as attempts
from cdcflow.capture import shadow as shadows
from cdcflow.capture.attempt import LoopIntervals, Orders
from cdcflow.capture.capture import Capture
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import (
    Chunk,
    ChunkRead,
    Committed,
    Input,
    MarkSeen,
    RowsCompared,
    RowsFilled,
    RowVersion,
)
from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.capture.ports.source import EventComparison
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.capture.shadow import Shadow, same_values
from cdcflow.model.change import ChangeBatch, Run, SpooledTransaction
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position, Token
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ERASABLE, ColumnType
from cdcflow.sinks.memory import Memory, MemoryLog, MemorySpool
from cdcflow.sources.memory import MemoryDatabase, MemorySource
from cdcflow.sources.memory.stream import MemoryStream
from cdcflow.sources.memory_database import INTEGER, TEXT

ITEMS, OTHERS = TableId("public", "items"), TableId("public", "others")
COLUMNS = {"id": INTEGER, "name": TEXT, "price": ColumnType("double precision", pa.float64())}


class Tasks:
    """Runs its tasks when the test lets it."""

    def __init__(self) -> None:
        self.given: list[Callable[[], Input | None]] = []
        self.answers: list[Input] = []

    def call(self, work: Callable[[], Input | None]) -> None:
        self.given.append(work)

    def run(self) -> None:
        works, self.given = self.given, []
        self.answers += [answer for work in works if (answer := work()) is not None]


class Stage:
    """A database in memory, its stream and its shadow checks, step by step. `decode` replaces the decoder."""

    def __init__(self, *, rewrites_known_by: Any = "log", every_s: float | None = 10.0) -> None:
        self.database = MemoryDatabase(rewrites_known_by=rewrites_known_by)
        self.done: dict[TableId, TableProgress] = {}
        for number, table in enumerate((ITEMS, OTHERS), start=1):
            shape = self.database.create(table, COLUMNS, ("id",)).shape
            version = "0" if rewrites_known_by == "catalog" else None
            self.done[table] = TableProgress(
                "done", number, Offset(1), incarnation=shape.incarnation, row_version=version
            )
        self.source = MemorySource(self.database, spool_rows=50)
        checkpoint = self.source.prepare(Checkpoint(), "0123456789abcdef").checkpoint
        self.stream = self.source.stream(checkpoint, lambda: MemorySpool("s", {}))
        self.chunks = self.source.chunks()
        self.tasks: Any = Tasks()
        self.decode: Decode = lambda event: event
        self.told: list[tuple[str, Mapping[str, object]]] = []
        self.now = 0.0
        self.shadow = Shadow(every_s, lambda event, fields: self.told.append((event, fields)))
        self.begin(1)
        self.look()

    def begin(self, epoch: int) -> None:
        self.shadow.begin(tuple(self.source.tables()), Epoch(epoch))

    @property
    def progress(self) -> Progress:
        return Progress(self.done)

    def change(self, *rows: tuple[int, str, float], table: TableId = ITEMS, hold: bool = False) -> Callable[[], None]:
        """Insert rows, or change existing ones. The value makes them visible if they are held."""
        transaction = self.database.begin()
        there = {row["id"] for row in self.database.tables[table].rows.values()}
        for id_, name, price in rows:
            values = {"id": id_, "name": name, "price": price}
            if id_ in there:
                transaction.update(table, values, lambda row, id_=id_: row["id"] == id_)  # type: ignore[misc]
            else:
                transaction.insert(table, values)
        return transaction.commit(hold=hold)

    def delete(self, id_: int, table: TableId = ITEMS) -> None:
        transaction = self.database.begin()
        transaction.delete(table, lambda row: row["id"] == id_)
        transaction.commit()

    def comes(self) -> None:
        """What the log has reaches the check."""
        for event in self.stream.poll():
            self.shadow.came(self.decode(event))

    def look(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.shadow.look(self.now, self.tasks, self.source, self.chunks, self.progress)

    def taken(self) -> None:
        """A check is due, and a row of what the log has is to be read."""
        self.look(10.0)
        self.comes()
        self.look()

    def check(self) -> None:
        """From a change in the log to the result of its check."""
        self.taken()
        self.tasks.run()
        self.comes()

    @property
    def counts(self) -> tuple[int, int, int]:
        """Checked, differing, moved on."""
        found = self.shadow.counts
        return found["shadow_checks"], found["shadow_differences"], found["shadow_moved_on"]

    def close(self) -> None:
        self.stream.close()
        self.chunks.close()
        self.source.close()


@pytest.fixture
def on() -> Iterator[Stage]:
    with staged() as made:
        yield made


@contextmanager
def staged(**settings: Any) -> Iterator[Stage]:
    made = Stage(**settings)
    try:
        yield made
    finally:
        made.close()


def last_bit(values: pa.Array) -> pa.Array:
    return pa.array((values.to_numpy(zero_copy_only=False).view(np.uint64) ^ 1).view(np.float64))


# ── what it finds ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("price", last_bit),
        ("price", lambda values: pa.nulls(len(values), values.type)),
        ("name", lambda values: pa.array([v[:-1] for v in values.to_pylist()], pa.string())),
    ],
)
def test_a_decoder_that_errs_in_one_column_is_found(
    on: Stage, column: str, change: Callable[[pa.Array], pa.Array]
) -> None:
    """By a bit, by a NULL, by a letter: no other part of cdcflow would ever report it."""
    on.decode = wrong_in(column, change)
    on.change((1, "first", 0.1))
    on.check()
    assert on.counts == (1, 1, 0)
    ((event, fields),) = on.told
    assert event == "shadow check found a difference"
    assert (fields["table"], fields["columns"]) == ("public.items", column)
    assert fields["remedy"] == "run `cdcflow verify public.items`"
    said = str(fields) + str(on.shadow.states(on.progress))
    assert "first" not in said, "no row values leave the check"
    assert "0.1" not in said


def test_wrongly_decoded_key_is_a_missing_row(on: Stage) -> None:
    """The source has no such row."""
    on.decode = wrong_in("id", lambda values: pa.array([v + 7 for v in values.to_pylist()], pa.int32()))
    on.change((1, "a", 1.0))
    on.check()
    assert on.counts == (1, 1, 0)
    assert on.told[0][1]["row"] == "is not there"


def test_difference_stays_in_the_status_until_the_table_is_read_again(on: Stage) -> None:
    """It outlives attempts; a backfill makes up for what was decoded wrong."""
    on.decode = wrong_in("price", last_bit)
    on.change((1, "a", 1.0))
    on.check()
    on.begin(2)
    told = on.shadow.states(on.progress)["public.items"]["shadow_difference"]
    assert str(told).endswith("differs in price at the source; run `cdcflow verify public.items`")
    on.done[ITEMS] = replace(on.done[ITEMS], generation=2)
    assert on.shadow.states(on.progress) == {}


def test_what_is_right_is_checked_and_not_blamed(on: Stage) -> None:
    """Many rows in many transactions, which are sampled one at a time."""
    for round_ in range(20):
        on.change(*((id_, f"n{round_}", id_ / 3) for id_ in range(1, 9)))
        on.check()
    assert on.counts == (20, 0, 0)
    assert on.told == []


# ── what it never blames ────────────────────────────────────────────────────────────────────────────────────


def change_of(what: str, database: MemoryDatabase) -> None:
    """A transaction after which row 1 is deleted or changed."""
    transaction = database.begin()
    match what:
        case "update":
            transaction.update(ITEMS, {"name": "z"}, lambda row: row["id"] == 1)
        case "delete":
            transaction.delete(ITEMS, lambda row: row["id"] == 1)
        case "key":
            transaction.update(ITEMS, {"id": 99}, lambda row: row["id"] == 1)
        case "truncate":
            transaction.truncate(ITEMS)
        case _:
            transaction.update(ITEMS, {"name": "y"}, lambda row: row["id"] == 1)
            transaction.insert(ITEMS, *({"id": n, "name": "s", "price": 0.0} for n in range(100, 160)))
    transaction.commit()


@pytest.mark.parametrize("moment", ["in the same batch", "before the read", "before the mark"])
@pytest.mark.parametrize("what", ["update", "delete", "key", "truncate", "spooled"])
def test_a_row_that_changes_after_it_was_taken_is_never_blamed(on: Stage, what: str, moment: str) -> None:
    """It is unknown whether the snapshot was taken before or after the change; only that the log has the change before
    the mark."""
    on.change((1, "a", 1.0))
    if moment == "in the same batch":
        change_of(what, on.database)
        on.check()
        assert on.counts[1:] == (0, 0)
        return
    on.taken()
    assert len(on.tasks.given) == 1
    if moment == "before the read":
        change_of(what, on.database)
    else:
        write = on.chunks.write_mark

        def behind(token: Token) -> None:
            change_of(what, on.database)
            write(token)

        on.chunks.write_mark = behind  # type: ignore[method-assign]
    on.tasks.run()
    on.comes()
    assert on.counts == (0, 0, 1)


def test_no_mark_is_sent_for_a_sample_that_moved_on_while_it_was_read(on: Stage) -> None:
    """The returning mark would serve nothing."""
    on.change((1, "a", 1.0))
    on.taken()
    on.change((1, "b", 1.0))
    on.comes()
    end = on.database.end
    on.tasks.run()
    assert on.database.end == end
    assert on.counts == (0, 0, 1)


def test_other_rows_of_the_table_change_and_the_sample_stays(on: Stage) -> None:
    """Otherwise no row of a busy table would ever be checked."""
    on.change((1, "a", 1.0))
    on.taken()
    on.change((2, "b", 1.0))
    on.change((1, "o", 1.0), table=OTHERS)
    on.tasks.run()
    on.comes()
    assert on.counts == (1, 0, 0)


def test_a_transaction_that_is_logged_and_cannot_be_seen_yet_is_never_blamed(on: Stage) -> None:
    """W03: a commit that waits for a replica. The row's previous value proves nothing."""
    on.change((1, "before", 1.0))
    on.check()
    release = on.change((1, "after", 2.0), hold=True)
    on.check()
    assert on.counts == (1, 0, 0), "no mark was sent for what could not be seen"
    on.look(0.5)
    assert on.tasks.given == [], "not at once"
    on.look(0.5)
    on.tasks.run()
    on.comes()
    release()
    on.look(1.0)
    on.tasks.run()
    on.comes()
    assert on.counts == (2, 0, 0)


def test_transaction_that_is_never_seen_does_not_block_checks_of_others(
    on: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that is permanently gone must not end all checks."""
    monkeypatch.setattr(shadows, "READS_MAX", 3)
    on.change((1, "held", 1.0), hold=True)
    on.check()
    for _ in range(2):
        on.look(1.0)
        on.tasks.run()
    assert on.counts == (0, 0, 1)
    on.change((2, "b", 1.0))
    on.check()
    assert on.counts == (1, 0, 1)


@pytest.mark.parametrize("known_by", ["log", "catalog"])
def test_a_statement_that_gives_rows_other_values_is_never_blamed(known_by: Any) -> None:
    """PostgreSQL's log does not record it, and the shape may stay the same."""
    with staged(rewrites_known_by=known_by) as on:
        on.change((1, "a", 1.0))
        on.taken()
        with on.database.changed:
            table = on.database.tables[ITEMS]
            table.rows = {n: {**row, "price": 7.5} for n, row in table.rows.items()}
            on.database._fill(table)
        on.tasks.run()
        on.comes()
        assert on.counts == (0, 0, 1)
        told = [v for a in on.tasks.answers if isinstance(a, RowsCompared) for v in a.found]
        assert told == ([RowVersion(ITEMS, "0", "1", changed=True)] if known_by == "catalog" else [])


def test_a_table_with_other_columns_is_not_compared(on: Stage) -> None:
    """The stream's next row would have shown it, but no row followed."""
    on.change((1, "a", 1.0))
    on.taken()
    on.database.add_column(ITEMS, "more", TEXT)
    on.tasks.run()
    on.comes()
    assert on.counts == (0, 0, 1)


def test_a_table_that_is_dropped_or_cannot_be_read_is_not_compared(on: Stage) -> None:
    """The stream and the table checks report it."""
    on.change((1, "a", 1.0))
    on.taken()
    on.database.unreadable.add(ITEMS)
    on.tasks.run()
    assert on.counts == (0, 0, 1)
    on.database.unreadable.clear()
    on.change((2, "a", 1.0))
    on.taken()
    on.database.drop(ITEMS)
    on.tasks.run()
    on.comes()
    assert on.counts == (0, 0, 2)


def test_samples_of_an_earlier_attempt_are_not_compared(on: Stage) -> None:
    """The next attempt's stream begins earlier, and a mark of the previous attempt proves nothing in it."""
    on.change((1, "a", 1.0))
    on.taken()
    on.tasks.run()
    on.begin(2)
    on.comes()
    assert on.counts == (0, 0, 1)


def test_row_is_sampled_only_while_its_table_is_known_to_be_done(on: Stage) -> None:
    """What the previous attempt knew does not hold for this one: its first request may be to read the table again."""
    on.begin(2)
    on.change((1, "a", 1.0))
    on.comes()
    assert on.shadow._sample is None


def test_table_that_is_read_again_during_the_check_is_not_compared(on: Stage) -> None:
    """Why it is may be that its rows changed unlogged."""
    on.change((1, "a", 1.0))
    on.taken()
    on.done[ITEMS] = replace(on.done[ITEMS], generation=2)
    on.look()
    on.tasks.run()
    assert on.counts == (0, 0, 1)


def test_table_that_was_rewritten_between_plan_and_read_is_read_again(on: Stage) -> None:
    """VACUUM FULL between plan and read: the same rows elsewhere."""
    read, given = on.chunks.read_chunk, []

    def rewritten(chunk: Chunk) -> ChunkRead:
        given.append(chunk)
        return ChunkRead(chunk, None, None, (), rewritten=True) if len(given) == 1 else read(chunk)

    on.chunks.read_chunk = rewritten  # type: ignore[method-assign]
    on.change((1, "a", 1.0))
    on.check()
    on.look(1.0)
    on.tasks.run()
    on.comes()
    assert on.counts == (1, 0, 0)


def test_a_row_that_the_source_shows_twice_is_a_difference(on: Stage) -> None:
    """Its key does not identify one row."""
    read = on.chunks.read_chunk

    def doubled(chunk: Chunk) -> ChunkRead:
        found = read(chunk)
        assert isinstance(found.run, Run)
        return replace(found, run=replace(found.run, batches=found.run.batches * 2))

    on.chunks.read_chunk = doubled  # type: ignore[method-assign]
    on.change((1, "a", 1.0))
    on.check()
    assert on.counts == (1, 1, 0)
    assert on.told[0][1]["row"] == "is doubled"


def test_a_run_in_which_a_table_has_two_shapes_gives_no_sample_of_it(on: Stage) -> None:
    """One batch does not show which of its rows is a key's last."""
    on.decode = lambda event: (
        Committed(replace(event.run, batches=event.run.batches * 2))
        if isinstance(event, Committed) and isinstance(event.run, Run)
        else event
    )
    on.change((1, "a", 1.0))
    on.comes()
    assert on.shadow._sample is None


def test_rows_with_unchanged_columns_and_deleted_ones_are_no_samples(on: Stage) -> None:
    """What was not sent cannot be compared. The last change of a key counts."""
    on.decode = wrong_in("_unchanged", lambda v: pa.array([["name"]] * len(v), v.type))
    on.change((1, "a", 1.0))
    on.check()
    on.decode = lambda event: event
    on.change((2, "b", 2.0))
    on.delete(2)
    on.delete(1)
    on.check()
    transaction = on.database.begin()
    transaction.insert(ITEMS, {"id": 3, "name": "a", "price": 1.0})
    transaction.update(ITEMS, {"name": "b"}, lambda row: row["id"] == 3)
    transaction.delete(ITEMS, lambda row: row["id"] == 3)
    transaction.commit()
    on.check()
    assert on.counts == (0, 0, 0)
    transaction = on.database.begin()
    transaction.insert(ITEMS, {"id": 4, "name": "a", "price": 1.0})
    transaction.update(ITEMS, {"name": "b"}, lambda row: row["id"] == 4)
    transaction.commit()
    on.check()
    assert on.counts == (1, 0, 0)


def test_a_table_whose_rows_are_not_all_read_is_no_sample(on: Stage) -> None:
    """Its backfill reads every row again."""
    on.done[ITEMS] = replace(on.done[ITEMS], state="reading")
    on.look()
    on.change((1, "a", 1.0))
    on.check()
    assert on.counts == (0, 0, 0)


@pytest.mark.spread(20)
@pytest.mark.parametrize("known_by", ["log", "catalog"])
@pytest.mark.parametrize("seed", range(60))
def test_in_whatever_order_things_happen_nothing_is_blamed(seed: int, known_by: Any) -> None:
    """Changes, held commits, statements, truncates, spooled transactions, reads and marks, as they fall together."""
    random = Random(seed)
    with staged(rewrites_known_by=known_by, every_s=1.0) as on:
        held: list[Callable[[], None]] = []

        def fill() -> None:
            with on.database.changed:
                table = on.database.tables[ITEMS]
                table.rows = {n: {**row, "price": random.random()} for n, row in table.rows.items()}
                on.database._fill(table)

        def read_anew() -> None:
            """A backfill as the check sees it: it takes the rows' version, and ends with a mark that returned."""
            known, version = on.done[ITEMS], on.database.tables[ITEMS].version
            if known.state == "done":
                row_version = str(version) if known_by == "catalog" else None
                generation = known.generation + 1
                on.done[ITEMS] = replace(known, state="reading", row_version=row_version, generation=generation)
                on.chunks.write_mark(Token("backfill"))

        def ended(event: StreamEvent) -> StreamEvent:
            if isinstance(event, MarkSeen) and event.token == Token("backfill"):
                on.done[ITEMS] = replace(on.done[ITEMS], state="done")
            return event

        on.decode = ended

        def change() -> None:
            if not held:  # a held row is shown as of its commit, and must not undo later rows
                on.change((random.randint(1, 3), f"n{random.random()}", random.random()))

        def hold() -> None:
            if not held:
                held.append(on.change((random.randint(1, 3), "held", random.random()), hold=True))

        def release() -> None:
            while held:
                held.pop()()

        def other() -> None:
            if not held:
                change_of(random.choice(["update", "delete", "key", "truncate", "spooled"]), on.database)
                change_of("delete", on.database)

        acts = (*(change,) * 8, hold, release, release, other, fill, read_anew, *(on.comes,) * 8, *(on.tasks.run,) * 6)
        for _ in range(400):
            random.choice(acts)()
            on.look(random.choice((0.0, 0.5, 1.0)))
        assert on.told == []
        release()
        on.comes()
        read_anew()
        on.check()
        for id_ in range(1, 9):
            on.change((id_, "last", 1.0))
            on.check()
        assert on.counts[0] > 8
        assert on.told == []


# ── the order of the checks ─────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_read_unless_the_check_is_switched_on() -> None:
    """Off by default; switched on and off while it runs."""
    with staged(every_s=None) as on:
        on.change((1, "a", 1.0))
        on.check()
        assert on.counts == (0, 0, 0)
        on.shadow.every_s = 10.0
        on.change((2, "a", 1.0))
        on.check()
        assert on.counts == (1, 0, 0)
        on.change((2, "a", 2.0), table=OTHERS)
        on.comes()
        on.shadow.every_s = None
        on.look(10.0)
        assert on.tasks.given == []


def test_a_shorter_interval_applies_at_once() -> None:
    """An operator who shortens an hour to ten seconds does not wait for the end of the hour."""
    with staged(every_s=3600.0) as on:
        on.change((1, "a", 1.0))
        on.check()
        on.shadow.every_s = 10.0
        on.change((1, "b", 1.0))
        on.check()
        assert on.counts == (2, 0, 0)


def test_no_more_is_read_than_the_setting_allows(on: Stage) -> None:
    """One read by key each time, however many changes come, and of however many tables."""
    for number in range(20):
        on.change((1, "a", 1.0), table=(ITEMS, OTHERS)[number % 2])
        on.comes()
        on.look(1.0)
        on.tasks.run()
        on.comes()
    assert sum(on.counts) == 2


def test_a_table_that_seldom_changes_has_its_turn(on: Stage) -> None:
    """Its row is kept when it arrives; when a check is due, only the busy table changes."""
    on.change((1, "busy", 1.0))
    on.check()
    on.change((1, "seldom", 1.0), table=OTHERS)
    on.comes()
    on.change((1, "busy", 2.0))
    on.comes()
    asked: list[TableId] = []
    read = on.chunks.read_chunk

    def noted(chunk: Chunk) -> ChunkRead:
        asked.append(chunk.table)
        return read(chunk)

    on.chunks.read_chunk = noted  # type: ignore[method-assign]
    on.look(10.0)
    on.tasks.run()
    on.comes()
    assert asked == [OTHERS]
    assert on.counts == (2, 0, 0)


def test_rows_anywhere_in_a_transaction_are_samples(on: Stage) -> None:
    """Always the first one would leave what is done to many rows at once unchecked."""
    seen: set[Any] = set()
    read = on.chunks.read_chunk

    def noted(chunk: Chunk) -> ChunkRead:
        assert chunk.keys is not None
        seen.update(chunk.keys.keys.column("id").to_pylist())
        return read(chunk)

    on.chunks.read_chunk = noted  # type: ignore[method-assign]
    for round_ in range(24):
        on.change(*((id_, f"n{round_}", 1.0) for id_ in range(1, 9)))
        on.check()
    assert seen == set(range(1, 9))


# ── what is equal ───────────────────────────────────────────────────────────────────────────────────────────

STRUCT = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])
EXAMPLES: Sequence[tuple[pa.DataType, Sequence[Any]]] = (
    (pa.bool_(), (True, False)),
    (pa.int16(), (0, 1, -1)),
    (pa.int64(), (0, 1, 2**63 - 1)),
    (pa.uint64(), (0, 2**64 - 1)),
    (pa.float32(), (0.0, -0.0, 1.5, math.inf, math.nan)),
    (pa.float64(), (0.0, -0.0, 0.1, 0.1 + 2**-55, math.inf, -math.inf, math.nan)),
    (pa.decimal128(10, 2), (Decimal("7.25"), Decimal("7.26"))),
    (pa.decimal256(60, 5), (Decimal("7.25000"), Decimal("7.25001"))),
    (pa.string(), ("", "a", "A", "a ")),
    (pa.binary(), (b"", b"\0", b"\0\0")),
    (pa.date32(), (date(1970, 1, 1), date(9999, 12, 31))),
    (pa.time64("us"), (time(0), time(23, 59, 59, 999999))),
    (pa.timestamp("us"), (datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 0, 1))),
    (pa.timestamp("us", "UTC"), (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, tzinfo=UTC))),
    (pa.list_(pa.float64()), ((), (0.0,), (-0.0,), (None,), (math.nan,), (0.1, 0.2), (0.2, 0.1))),
    (
        pa.list_(pa.list_(pa.string())),
        ((), ((),), (("a",),), (("a",), ()), (("a", "b"),), (("a", "b"), ()), (("a",), ("b",)), (None,)),
    ),
    (STRUCT, ({"months": 1, "days": 30, "microseconds": 0}, {"months": 0, "days": 30, "microseconds": 0})),
)


@pytest.mark.parametrize(("arrow", "values"), EXAMPLES, ids=lambda v: str(v) if isinstance(v, pa.DataType) else "")
def test_only_the_same_value_is_equal(arrow: pa.DataType, values: Sequence[Any]) -> None:
    """For every type, including NULL, and from the middle of a column as well as from a separate one."""
    every = [None, *values]
    column = pa.array(every, arrow)
    for i, one in enumerate(every):
        for j in range(len(every)):
            assert same_values(column.slice(j, 1), pa.array([one], arrow)) == (i == j), (one, every[j])


def test_value_of_a_person_who_was_erased_since_is_never_blamed() -> None:
    """The source shows NULL then; a different text is a difference, and so is NULL in any other column."""

    def changed(source: str, shown: str | None) -> list[str]:
        table = Table(ITEMS, 1, (Column("email", 1, ColumnType(source, pa.string())),), ("email",))
        one, other = (pa.RecordBatch.from_pydict({"email": [v]}, table.row_schema) for v in ("k1:a.b", shown))
        return shadows._changed_columns(one, other, table)

    assert changed(ERASABLE, None) == changed(ERASABLE, "k1:a.b") == []
    assert changed(ERASABLE, "k1:a.c") == changed("encrypt", None) == ["email"]


def test_another_nan_is_the_same_nan() -> None:
    """Which of its many bit patterns a server sends means nothing."""
    quiet, other = (struct.unpack("<d", bits.to_bytes(8, "little"))[0] for bits in (0x7FF8 << 48, 0x7FF8 << 48 | 5))
    assert same_values(pa.array([quiet]), pa.array([other]))


@given(st.lists(st.tuples(st.floats(), st.text(), st.none() | st.integers(0, 9)), min_size=1, max_size=8))
def test_rows_of_any_values_are_never_blamed(rows: list[tuple[float, str, int | None]]) -> None:
    """The way through log, stream and read, whatever the row."""
    with staged() as on:
        on.change(*((id_, text, price) for id_, (price, text, _) in enumerate(rows, start=1)))
        on.check()
        on.change(*((id_, text[1:], math.nan) for id_, (_, text, _) in enumerate(rows, start=1)))
        on.check()
        assert on.counts == (2, 0, 0)


# ── tables and keys ─────────────────────────────────────────────────────────────────────────────────────────


def run_of(table: Table, *rows: Mapping[str, Any]) -> Run:
    """One transaction of inserts."""
    batch = pa.RecordBatch.from_pylist([{**row, "_op": "c"} for row in rows], schema=table.change_schema)
    index = np.arange(len(rows), dtype=np.int64)
    return Run(
        np.array([7], np.uint64),
        pa.array(["0007"]),
        np.array([1], np.int64),
        np.array([len(rows)], np.int64),
        (ChangeBatch(table, index, batch),),
    )


@pytest.mark.parametrize(
    ("arrow", "value", "is_sampled"),
    [
        (pa.int64(), 1, True),
        (pa.string(), "k", True),
        (pa.binary(), b"k", True),
        (pa.decimal128(10, 2), Decimal("1.00"), True),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 1, tzinfo=UTC), True),
        (pa.time64("us"), time(1), True),
        (pa.date32(), date(2026, 1, 1), True),
        (pa.bool_(), True, True),
        (pa.float64(), 1.0, False),
        (pa.list_(pa.int64()), [1], False),
    ],
)
def test_tables_are_sampled_whose_keys_arrow_compares_as_the_server_does(
    arrow: pa.DataType, value: Any, is_sampled: bool
) -> None:
    """NaN equals no key in Arrow, and two arrays cannot be compared: a change would go unnoticed."""
    table = Table(ITEMS, 1, (Column("k", 1, ColumnType("t", arrow)),), ("k",))
    shadow = Shadow(1.0, lambda *_: None)
    shadow.begin((table,), Epoch(1))
    tasks: Any = Tasks()
    done = Progress({ITEMS: TableProgress("done", 1, Offset(1))})
    unused: Any = None
    shadow.look(0.0, tasks, unused, unused, done)
    shadow.came(Committed(run_of(table, {"k": value})))
    shadow.look(0.0, tasks, unused, unused, done)
    assert len(tasks.given) == is_sampled
    shadow.came(Committed(run_of(table, {"k": value})))
    assert shadow.counts["shadow_moved_on"] == is_sampled


def test_a_table_without_a_key_is_no_sample() -> None:
    """There is nothing to read its row by."""
    table = Table(ITEMS, 1, (Column("k", 1, INTEGER),), ())
    shadow = Shadow(1.0, lambda *_: None)
    shadow.look(0.0, Tasks(), None, None, Progress({ITEMS: TableProgress("done", 1, Offset(1))}))  # type: ignore[arg-type]
    shadow.came(Committed(run_of(table, {"k": 1})))
    assert shadow._sample is None


def test_a_sample_keeps_nothing_of_its_run() -> None:
    """A slice would hold the memory of all of it until the check is done."""
    table = Table(ITEMS, 1, (Column("id", 1, INTEGER), Column("v", 2, TEXT)), ("id",))
    shadow = Shadow(1.0, lambda *_: None)
    shadow.look(0.0, Tasks(), None, None, Progress({ITEMS: TableProgress("done", 1, Offset(1))}))  # type: ignore[arg-type]
    shadow.came(Committed(run_of(table, *({"id": n, "v": "x" * 1000} for n in range(1000)))))
    assert shadow._sample is not None
    assert shadow._sample.row.get_total_buffer_size() < 10_000


@pytest.mark.parametrize(
    "event",
    [
        RowsFilled(ITEMS, Position("0008")),
        Committed(SpooledTransaction(8, Position("0008"), 1, 5, "s", truncated=frozenset((ITEMS,)))),
        Committed(run_of(Table(ITEMS, 1, (Column("id", 1, INTEGER), Column("w", 2, TEXT)), ("id",)), {"id": 5})),
    ],
)
def test_what_concerns_the_whole_table_forgets_the_sample(event: StreamEvent) -> None:
    """A statement, a truncate out of a spool, another shape."""
    table = Table(ITEMS, 1, (Column("id", 1, INTEGER), Column("v", 2, TEXT)), ("id",))
    shadow = Shadow(1.0, lambda *_: None)
    shadow.look(0.0, Tasks(), None, None, Progress({ITEMS: TableProgress("done", 1, Offset(1))}))  # type: ignore[arg-type]
    shadow.came(Committed(run_of(table, {"id": 1, "v": "x"})))
    sample: Any = shadow._sample
    assert sample is not None
    shadow.came(event)
    assert shadow._sample is not sample


# ── in a capture ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_capture_checks_what_its_stream_decodes(is_wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the loop through a task and the mark to the status; a backfill of the table takes precedence."""
    monkeypatch.setattr(attempts, "IDLE_WAIT_S", 0.001)
    if is_wrong:
        make_wrong(monkeypatch, MemoryStream, wrong_in("note", lambda v: pa.array(["wrong"] * len(v), v.type)))
    source = OrdersSource(1, 2, 3)
    told: list[str] = []
    shadow = Shadow(0.001, lambda event, fields: told.append(event))
    memory = Memory()
    open_log: Any = lambda _identity, _accepted: MemoryLog(memory)  # noqa: E731
    ids = iter(range(4, 1000))
    polls = MemoryStream.poll

    def polled(stream: MemoryStream) -> Sequence[StreamEvent]:
        done = capture.counts()["shadow_checks"]
        if isinstance(done, int) and done >= 3:
            capture.stop()
        source.insert(next(ids))
        return polls(stream)

    monkeypatch.setattr(MemoryStream, "poll", polled)
    capture = Capture(
        open_source=lambda: source,
        open_log=open_log,
        limits=Limits(),
        orders=Orders(None),
        pace=LoopIntervals(heartbeat_s=1e9, tables_look_s=1e9),
        on_event=lambda *_: None,
        shadow=shadow,
    )
    capture.run()
    counts = capture.counts()
    assert counts["shadow_differences"] == (counts["shadow_checks"] if is_wrong else 0)
    assert set(capture.shadow()) == ({str(source.table.id)} if is_wrong else set())
    assert set(told) == ({"shadow check found a difference"} if is_wrong else set())


# ── a second opinion ───────────────────────────────────────────────────────────────────────────────────────────


class Doubted(MemorySource):
    """A source whose row events another library decodes, too; `found` is the result for the next ones."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database, spool_rows=50)
        self.wanted: list[bool] = []
        self.found: list[EventComparison | None] = []

    def sample_events(self, *, wanted: bool) -> None:
        self.wanted.append(wanted)

    def compare_event(self) -> EventComparison | None:
        return self.found.pop(0)


@pytest.fixture
def doubted(on: Stage) -> Doubted:
    source = Doubted(on.database)
    on.source = source
    return source


EQUAL = EventComparison(ITEMS, "log:7", (), "", "another")


def test_a_difference_of_the_second_opinion_is_reported_like_any_other(on: Stage, doubted: Doubted) -> None:
    """In the event, the counts and the status, until the table is read again; it names the library that reports it."""
    doubted.found = [EQUAL, replace(EQUAL, columns=("price", "name")), replace(EQUAL, failure="has other rows by it")]
    for differing in range(3):
        on.look(10.0)
        on.tasks.run()
        assert on.shadow.counts["shadow_events"] == differing + 1
        assert on.shadow.counts["shadow_differences"] == differing == len(on.told)
    event, fields = on.told[0]
    assert event == shadows.DIFFERENCE
    assert (fields["columns"], fields["by"], fields["position"]) == ("price, name", "another", "log:7")
    text = str(on.shadow.states(on.progress)["public.items"]["shadow_difference"])
    assert "another" in text
    assert "has other rows" in text
    on.done[ITEMS] = replace(on.done[ITEMS], generation=on.done[ITEMS].generation + 1)
    assert on.shadow.states(on.progress) == {}


def test_row_events_are_compared_one_each_interval_while_it_is_on(on: Stage, doubted: Doubted) -> None:
    """Not one per loop; and a source that keeps no events is queried again later."""
    doubted.found = [None, EQUAL]
    for _ in range(3):
        on.look(4.0)
    on.tasks.run()
    assert (doubted.wanted, on.shadow.counts["shadow_events"]) == ([True], 0)
    on.shadow.every_s = None
    on.look(100.0)
    on.tasks.run()
    on.shadow.every_s = 10.0
    on.look(0.0)
    on.tasks.run()
    assert (doubted.wanted, on.shadow.counts["shadow_events"]) == ([True, False, True], 1)


def test_a_shorter_interval_of_row_events_applies_at_once(on: Stage, doubted: Doubted) -> None:
    """As for rows that are read again."""
    doubted.found = [EQUAL, EQUAL]
    on.shadow.every_s = 3600.0
    for every_s in (3600.0, 10.0):
        on.shadow.every_s = every_s
        on.look(10.0)
        on.tasks.run()
    assert on.shadow.counts["shadow_events"] == 2


def test_each_source_learns_whether_events_are_needed(on: Stage, doubted: Doubted) -> None:
    """A capture that continues with other settings has another source."""
    doubted.found = [EQUAL]
    on.look(10.0)
    other = on.source = Doubted(on.database)
    on.look(1.0)
    assert (doubted.wanted, other.wanted) == ([True], [True])
