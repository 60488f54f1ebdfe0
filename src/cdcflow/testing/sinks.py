"""The suite that every sink must pass, and the rows for it.

A sink's own tests subclass `SinkContract` and define a fixture `place`: a `Place`, where a log can be stored and
opened, and left as a killed process leaves it.

    class TestMyLog(SinkContract):
        @pytest.fixture
        def place(self, tmp_path): return MyPlace(tmp_path)
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Protocol

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.capture.ports.log import Log, Numbered
from cdcflow.errors import InvariantViolated, KeysUnknown
from cdcflow.model.change import ChangeBatch, Run, SpooledTransaction, Uint64s, commit_clock, reads
from cdcflow.model.position import Checkpoint, Epoch, Position
from cdcflow.model.table import BEFORE, OFFSET, OP, UNCHANGED, Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType

Row = dict[str, object]
Pieces = Sequence[tuple[Sequence[ChangeBatch], Uint64s | None]]

COMMIT_TS = 1_700_000_000_000_000

BIGINT = ColumnType("bigint", pa.int64())
TEXT = ColumnType("text", pa.string())

ORDERS = Table(TableId("shop", "orders"), 1, (Column("id", 1, BIGINT), Column("note", 2, TEXT)), ("id",))
ORDERS_WIDER = replace(ORDERS, columns=(*ORDERS.columns, Column("due", 3, ColumnType("date", pa.date32()))))
PRODUCTS = Table(
    TableId("shop", 'pro/ducts"; ../x'),
    2,
    (
        Column("id", 1, BIGINT),
        Column("price", 2, ColumnType("numeric(10,2)", pa.decimal128(10, 2))),
        Column("weight", 3, ColumnType("numeric(50,3)", pa.decimal256(50, 3))),
        Column("tags", 4, ColumnType("text[]", pa.list_(pa.field("element", pa.string())))),
        Column("picture", 5, ColumnType("bytea", pa.binary())),
        Column("seen", 6, ColumnType("timestamptz", pa.timestamp("us", tz="UTC"))),
    ),
    ("id",),
    Identity.FULL,
)


class OpenedLog(Log, Protocol):
    """An opened log, with its epoch."""

    @property
    def epoch(self) -> Epoch: ...


class Place(Protocol):
    """A place where a log is stored."""

    def open(self) -> OpenedLog:
        """Open the log for writing, as a new process would."""
        ...

    def crash(self, log: OpenedLog) -> None:
        """Leave the log as a killed process leaves it. The caller does not use `log` again."""
        ...

    def rows(self) -> list[tuple[TableId, Row]]:
        """All rows that a reader sees, by offset."""
        ...

    def seal(self, log: OpenedLog) -> None:
        """Seal everything that is durable so far, so that retention can remove it without later rows."""
        ...

    def expire(self, log: OpenedLog) -> None:
        """Remove what was sealed, as retention does; the part sealed last may stay."""
        ...


def changes(table: Table, rows: Iterable[Mapping[str, object]], index: Sequence[int] | None = None) -> ChangeBatch:
    """Return a batch from rows as dicts: columns by their names, `_op` (default c), `_unchanged`, `_before`."""
    full = [{OP: "c", UNCHANGED: None, BEFORE: None, **row} for row in rows]
    columns = [pa.array([row.get(f.name) for row in full], f.type) for f in table.change_schema]
    place = np.arange(len(full)) if index is None else np.array(index)
    return ChangeBatch(table, place.astype(np.int64), pa.RecordBatch.from_arrays(columns, schema=table.change_schema))


def transactions(
    xids: Sequence[int], ends: Sequence[int], *batches: ChangeBatch, ts: int = 1_700_000_000_000_000
) -> Run:
    """Return a run of transactions with these ids. `ends`: for each, the index after its last row."""
    count = len(xids)
    return Run(
        np.array(xids, np.uint64),
        pa.array([f"0/{xid:X}" for xid in xids], pa.string()),
        np.full(count, COMMIT_TS, np.int64),
        np.array(ends, np.int64),
        batches,
    )


def orders(*ids: int, xid: int = 7, op: str = "c") -> Run:
    """Return one transaction that changes these orders."""
    return transactions([xid], [len(ids)], changes(ORDERS, [{"id": i, "note": f"n{i}", OP: op} for i in ids]))


@dataclass
class Writer:
    """Appends runs to a log, and numbers them as the pipeline does."""

    log: OpenedLog
    checkpoint: Checkpoint = field(default_factory=Checkpoint)

    @classmethod
    def of(cls, log: OpenedLog) -> Writer:
        return cls(log, log.checkpoint)

    def append(self, run: Run | SpooledTransaction) -> None:
        at = self.checkpoint
        stamps = run.commit_ts if isinstance(run, Run) else np.array([run.commit_ts], np.int64)
        clock = commit_clock(at.commit_clock, stamps)
        self.log.append(Numbered(run, at.next_offset, at.next_transaction, clock))
        self.checkpoint = replace(
            at,
            next_offset=type(at.next_offset)(at.next_offset + run.rows),
            next_transaction=at.next_transaction + run.transactions,
            commit_clock=int(clock[-1]),
            position=run.last_position,
        )

    def cut(self) -> Checkpoint:
        self.checkpoint = replace(self.checkpoint, cut=self.checkpoint.cut + 1, epoch=self.log.epoch)
        self.log.cut(self.checkpoint)
        return self.checkpoint

    def put(self, *runs: Run | SpooledTransaction) -> Checkpoint:
        """Append, cut, sync."""
        for run in runs:
            self.append(run)
        self.cut()
        return self.log.sync()

    def write_spool(
        self,
        xid: int,
        pieces: Sequence[tuple[Sequence[ChangeBatch], Uint64s | None]],
        aborted: Iterable[int],
        rows: int,
    ) -> SpooledTransaction:
        """Write a transaction into a spool of this log, and return it as committed."""
        spool = self.log.open_spool()
        for batches, subxids in pieces:
            spool.write(batches, subxids)
        spool.finish()
        return SpooledTransaction(xid, Position(f"0/{xid:X}"), COMMIT_TS, rows, spool.name, frozenset(aborted))


def ids_of(place: Place, table: Table = ORDERS) -> list[object]:
    return [row["id"] for found, row in place.rows() if found == table.id]


class SinkContract:
    """The tests that every sink must pass."""

    def test_rows_are_read_as_appended(self, place: Place) -> None:
        """Values of every type must be read unchanged and in order, because the warehouse sees only the log."""
        old = {"id": 4, "price": Decimal("1.00"), "tags": ["old", None], "picture": b"\0\xff"}
        product = {
            "id": 4,
            "price": Decimal("12345678.90"),
            "weight": Decimal("-12345678901234567890123456789012345678901234567.125"),
            "tags": ["a", None, ""],
            "picture": b"",
            "seen": datetime(1970, 1, 1, tzinfo=UTC),
            OP: "u",
            UNCHANGED: ["picture"],
            BEFORE: old,
        }
        run = transactions(
            [5, 6],
            [2, 4],
            changes(ORDERS, [{"id": 1, "note": None}, {"id": 2, OP: "d"}, {OP: "t"}], [0, 2, 3]),
            changes(PRODUCTS, [product], [1]),
        )
        writer = Writer.of(place.open())
        writer.put(run)
        found = place.rows()
        assert [row[OFFSET] for _, row in found] == [1, 2, 3, 4]
        assert [row["_txn"] for _, row in found] == [1, 1, 2, 2]
        assert [row[OP] for _, row in found] == ["c", "u", "d", "t"]
        whole_old = {**dict.fromkeys(PRODUCTS.row_schema.names), **old}
        moment = datetime.fromtimestamp(1_700_000_000, UTC)
        expected = {**product, BEFORE: whole_old, OFFSET: 2, "_txn": 1, "_commit_ts": moment}
        assert found[1] == (PRODUCTS.id, expected)

    def test_rows_outlive_the_writer(self, place: Place) -> None:
        """Sealed and unsealed rows are available to the next process."""
        log = place.open()
        Writer.of(log).put(orders(1, 2))
        log.close()
        log = place.open()
        writer = Writer.of(log)
        assert writer.checkpoint.next_offset == 3
        writer.put(orders(3))
        place.crash(log)
        assert place.open().checkpoint == writer.checkpoint
        assert ids_of(place) == [1, 2, 3]

    def test_what_no_cut_covers_is_never_there(self, place: Place) -> None:
        """Rows after the last cut must not appear, however the writer ends: they may be half of a window (hard case
        L02)."""
        log = place.open()
        writer = Writer.of(log)
        writer.put(orders(1))
        writer.append(orders(2))
        place.crash(log)
        log = place.open()
        assert log.checkpoint.next_offset == 2
        writer = Writer.of(log)
        writer.append(orders(3))
        log.close()
        assert place.open().checkpoint.next_offset == 2
        assert ids_of(place) == [1]

    def test_only_sync_makes_a_checkpoint_durable(self, place: Place) -> None:
        """The source discards its log up to an acknowledged checkpoint. If that checkpoint is not durable, data is
        lost."""
        log = place.open()
        writer = Writer.of(log)
        first = writer.put(orders(1))
        writer.append(orders(2))
        second = writer.cut()
        assert log.checkpoint == first
        writer.append(orders(3))
        assert log.sync() == second
        assert log.checkpoint == second

    def test_checkpoint_is_read_whole(self, place: Place) -> None:
        """Backfill progress is stored only here; losing a part of it means reading a table again, or not at all."""
        log = place.open()
        writer = Writer.of(log)
        writer.append(orders(1))
        progress = {"version": 1, "tables": {'we"ird.näme': {"state": "reading", "cursor": "(17,3)", "rows": 2**40}}}
        writer.checkpoint = replace(writer.checkpoint, progress=progress, source={"slot": "s"})
        writer.cut()
        log.sync()
        place.crash(log)
        assert place.open().checkpoint == writer.checkpoint

    def test_command_records_are_read_unchanged(self, place: Place) -> None:
        """An operator needs them after a restart and a seal: records of commands, without the oldest ones, and whether
        the capture is paused."""
        log = place.open()
        writer = Writer.of(log)
        told = {str(n): {"op": "pause", "outcomes": {"a.b": "paused"}} for n in (1, 2, 3)}
        both = {"version": 1, "tables": {}}
        for progress in (
            {**both, "commands": {"1": told["1"]}, "capture": {"paused": True}},
            {**both, "commands": {"2": told["2"], "3": told["3"]}},
        ):
            writer.append(orders(1))
            writer.checkpoint = replace(writer.checkpoint, progress=progress)
            writer.cut()
            log.sync()
        log.close()
        log = place.open()
        assert log.checkpoint.progress == writer.checkpoint.progress
        place.crash(log)
        assert place.open().checkpoint.progress == writer.checkpoint.progress

    def test_every_opening_is_a_new_epoch(self, place: Place) -> None:
        """Marks of an earlier run must be ignored, even if that run wrote nothing."""
        epochs = []
        for _ in range(3):
            log = place.open()
            epochs.append(log.epoch)
            place.crash(log)
        assert epochs == sorted(set(epochs))

    @pytest.mark.parametrize(
        "wrong", ["offset ahead", "offset behind", "transaction ahead", "clock short", "clock back", "index"]
    )
    def test_numbers_with_gaps_are_refused(self, place: Place, wrong: str) -> None:
        """A gap in the numbers would be a change that no reader ever sees, so the log must refuse it."""
        log = place.open()
        Writer.of(log).put(orders(1, 2))
        at = log.checkpoint
        run = orders(3, 4)
        numbered = Numbered(run, at.next_offset, at.next_transaction, np.array([10**18]))
        match wrong:
            case "offset ahead":
                numbered = replace(numbered, first_offset=type(at.next_offset)(4))
            case "offset behind":
                numbered = replace(numbered, first_offset=type(at.next_offset)(2))
            case "transaction ahead":
                numbered = replace(numbered, first_transaction=3)
            case "clock short":
                numbered = replace(numbered, commit_clock=np.array([], np.int64))
            case "clock back":
                numbered = replace(numbered, commit_clock=np.array([at.commit_clock]))
            case _:
                gone = replace(run, batches=(replace(run.batches[0], index=np.array([0, 0])),))
                numbered = replace(numbered, run=gone)
        with pytest.raises(InvariantViolated):
            log.append(numbered)

    def test_cut_that_only_moves_the_clock_is_kept(self, place: Place) -> None:
        """An idle source reports its time by heartbeats.

        Readers of several logs wait for that time, so it must not go back.
        """
        log = place.open()
        writer = Writer.of(log)
        at = writer.put(orders(1))
        moved = replace(at, cut=at.cut + 1, commit_clock=at.commit_clock + 1000)
        log.cut(moved)
        log.sync()
        with pytest.raises(InvariantViolated):
            log.cut(replace(moved, cut=moved.cut + 1, commit_clock=moved.commit_clock - 1))
        log.close()
        assert place.open().checkpoint.commit_clock == moved.commit_clock

    def test_cut_that_is_not_at_the_end_is_refused(self, place: Place) -> None:
        """A checkpoint before or after its rows repeats or skips changes after a restart."""
        log = place.open()
        writer = Writer.of(log)
        before = writer.put(orders(1))
        writer.append(orders(2))
        with pytest.raises(InvariantViolated):
            log.cut(replace(before, cut=before.cut + 1))
        with pytest.raises(InvariantViolated):
            log.cut(replace(writer.checkpoint, cut=before.cut))

    def test_spooled_transaction_closes_up_over_what_was_rolled_back(self, place: Place) -> None:
        """Rows of a rolled-back savepoint never happened, and must leave no hole in the numbering either."""
        log = place.open()
        writer = Writer.of(log)
        pieces = [
            (
                [
                    changes(ORDERS, [{"id": 1}, {"id": 3}], [0, 2]),
                    changes(PRODUCTS, [{"id": 2}, {"id": 4}], [1, 3]),
                ],
                np.array([10, 11, 11, 10], np.uint64),
            ),
            ([changes(ORDERS, [{"id": 5}])], np.array([11], np.uint64)),
            ([changes(ORDERS, [{"id": 6}])], None),
        ]
        writer.put(orders(9), writer.write_spool(50, pieces, [11], rows=3), orders(8))
        place.crash(log)
        place.open()
        found = [(table.name[:3], row[OFFSET], row["id"], row["_txn"]) for table, row in place.rows()]
        assert found == [("ord", 1, 9, 1), ("ord", 2, 1, 2), ("pro", 3, 4, 2), ("ord", 4, 6, 2), ("ord", 5, 8, 3)]

    def test_spool_that_does_not_hold_what_is_announced_is_refused(self, place: Place) -> None:
        """The machine has already assigned offsets by the announced number of rows, so the log must refuse a spool that
        has fewer."""
        log = place.open()
        writer = Writer.of(log)
        spooled = writer.write_spool(50, [([changes(ORDERS, [{"id": 1}, {"id": 2}])], None)], [], rows=3)
        with pytest.raises(InvariantViolated):
            writer.append(spooled)

    def test_unknown_and_discarded_spools_cannot_be_attached(self, place: Place) -> None:
        """A spool of an earlier epoch, or of a transaction that was rolled back, is not data."""
        log = place.open()
        writer = Writer.of(log)
        spool = log.open_spool()
        spool.write([changes(ORDERS, [{"id": 1}])], None)
        spool.discard()
        for name in (spool.name, "../../etc/passwd", "1-99"):
            with pytest.raises(InvariantViolated):
                writer.append(SpooledTransaction(1, Position("0/1"), 0, 1, name))

    def test_delivered_ids_are_found_by_their_low_bits(self, place: Place) -> None:
        """The stream delivers ids of 32 bits, but a snapshot has ids of 64 bits, and the log is queried for those (hard
        cases W01, W07)."""
        log = place.open()
        writer = Writer.of(log)
        spooled = writer.write_spool(30, [([changes(ORDERS, [{"id": 1}])], None)], [], rows=1)
        writer.put(orders(1, xid=10), spooled, reads(ORDERS, [_row_batch(5)], Position("0/9"), 5))
        asked = np.array([(1 << 32) + 10, 30, 11, 0], np.uint64)
        assert log.delivered(asked).tolist() == [(1 << 32) + 10, 30]
        log.close()
        writer = Writer.of(place.open())
        writer.put(orders(2, xid=11))
        assert writer.log.delivered(asked).tolist() == [(1 << 32) + 10, 30, 11]

    def test_transactions_are_found_back_to_a_position(self, place: Place) -> None:
        """A source compares the log's latest transactions with those in the server's log: after a restore, the server's
        differ."""
        log = place.open()
        assert log.transactions_back(lambda position: True).num_rows == 0
        writer = Writer.of(log)
        spooled = writer.write_spool(30, [([changes(ORDERS, [{"id": 1}])], None)], [], rows=1)
        writer.put(orders(1, xid=10), spooled, reads(ORDERS, [_row_batch(5)], Position("0/9"), 5))
        log.close()
        writer = Writer.of(place.open())
        writer.put(orders(2, xid=11))
        writer.put(orders(3, xid=12))
        found = writer.log.transactions_back(lambda position: False)
        assert found.column("xid").to_pylist() == [10, 30, 11, 12]
        newest = found.column("position")[-1].as_py()
        back = writer.log.transactions_back(lambda position: position.text == newest)
        assert back.column("xid").to_pylist()[-1] == 12
        assert back.column("position").to_pylist()[-1] == newest

    def test_partial_keys_are_those_of_partial_rows(self, place: Place) -> None:
        """After a restart the machine learns from these keys which rows to read again (hard cases W08, W11)."""
        log = place.open()
        writer = Writer.of(log)
        partial = {UNCHANGED: ["note"], OP: "u"}
        writer.put(transactions([1], [1], changes(ORDERS, [{"id": 1, **partial}])))
        since = writer.checkpoint.next_offset
        gone = {"id": 4, UNCHANGED: ["note"], OP: "d"}
        rows: list[Row] = [{"id": 2, **partial}, {"id": 3}, gone, {"id": 5, **partial}]
        run = transactions(
            [2], [5], changes(ORDERS, rows, [0, 1, 2, 4]), changes(PRODUCTS, [{"id": 6, **partial}], [3])
        )
        writer.put(run)
        more = changes(ORDERS_WIDER, [{"id": 7, **partial}, {"id": 5, **partial}])
        spooled = writer.write_spool(3, [([more], np.array([3, 4], np.uint64))], [4], rows=1)
        writer.put(spooled)
        for _ in range(2):
            keys = writer.log.partial_keys(ORDERS.id, since)
            assert keys is not None
            assert sorted(keys.keys.to_pylist(), key=str) == [{"id": 2}, {"id": 5}, {"id": 7}]
            assert writer.log.partial_keys(TableId("shop", "nothing"), since) is None
            assert writer.log.partial_keys(ORDERS.id, writer.checkpoint.next_offset) is None
            writer.log.close()
            writer = Writer.of(place.open())

    def test_partial_keys_of_expired_rows_are_refused(self, place: Place) -> None:
        """If retention removed the key of a partial row, that row would never get its missing columns, undetected (hard
        case W11)."""
        writer = Writer.of(place.open())
        since = writer.checkpoint.next_offset
        partial = {UNCHANGED: ["note"], OP: "u"}
        writer.put(transactions([1], [1], changes(ORDERS, [{"id": 1, **partial}])))
        place.seal(writer.log)
        writer.put(orders(8))
        place.seal(writer.log)
        place.expire(writer.log)
        later = writer.checkpoint.next_offset
        writer.put(transactions([3], [1], changes(ORDERS, [{"id": 2, **partial}])))
        for _ in range(2):
            with pytest.raises(KeysUnknown, match=r"shop\.orders.*expired"):
                writer.log.partial_keys(ORDERS.id, since)
            keys = writer.log.partial_keys(ORDERS.id, later)
            assert keys is not None
            assert keys.keys.to_pylist() == [{"id": 2}]
            writer.log.close()
            writer = Writer.of(place.open())

    def test_partial_keys_of_another_key_are_refused(self, place: Place) -> None:
        """If the table's key has changed, earlier partial rows have no values of the new key. The log must then raise
        an error: an empty result would mean that no such row exists."""
        writer = Writer.of(place.open())
        since = writer.checkpoint.next_offset
        partial = {UNCHANGED: ["note"], OP: "u"}
        writer.put(transactions([1], [1], changes(ORDERS, [{"id": 1, **partial}])))
        renumbered = replace(ORDERS, columns=(Column("code", 4, BIGINT), *ORDERS.columns[1:]), key=("code",))
        writer.put(transactions([2], [1], changes(renumbered, [{"code": 1, **partial}])))
        with pytest.raises(KeysUnknown, match=r"shop\.orders"):
            writer.log.partial_keys(ORDERS.id, since)

    def test_array_columns_are_no_obstacle_to_partial_keys(self, place: Place) -> None:
        """After a restart, partial rows must be found although Arrow cannot compare arrays, in a key or in a table
        without one (hard case W08)."""
        keyless = replace(PRODUCTS, id=TableId("shop", "notices"), key=())
        by_tags = replace(PRODUCTS, key=("tags",))
        writer = Writer.of(place.open())
        since = writer.checkpoint.next_offset
        partial = {UNCHANGED: ["price"], OP: "u"}
        tagged: list[Row] = [{"tags": ["a"], **partial}, {"tags": ["b"]}, {"tags": ["a", None], **partial}]
        for number, table, rows in ((1, keyless, [{"id": 1, "tags": ["a"]}]), (2, by_tags, tagged)):
            writer.put(transactions([number], [len(rows)], changes(table, rows)))
        for _ in range(2):
            assert writer.log.partial_keys(keyless.id, since) is None
            keys = writer.log.partial_keys(by_tags.id, since)
            assert keys is not None
            assert [row["tags"] for row in keys.keys.to_pylist()] == [["a"], ["a", None]]
            writer.log.close()
            writer = Writer.of(place.open())

    def test_table_keeps_its_rows_when_its_shape_changes(self, place: Place) -> None:
        """Rows of the old shape are read with the old columns, also when the shape returns later."""
        log = place.open()
        writer = Writer.of(log)
        due = datetime(2024, 2, 29, tzinfo=UTC).date()
        writer.put(orders(1), transactions([2], [1], changes(ORDERS_WIDER, [{"id": 2, "due": due}])), orders(3))
        for _ in range(2):
            assert [("due" in row, row["id"]) for _, row in place.rows()] == [(False, 1), (True, 2), (False, 3)]
            writer.log.close()
            writer = Writer.of(place.open())

    def test_closed_log_takes_nothing_more(self, place: Place) -> None:
        """A thread that still writes after the close must get an error, because the file may already have another
        owner."""
        log = place.open()
        writer = Writer.of(log)
        writer.put(orders(1))
        log.close()
        log.close()
        for late in (lambda: writer.append(orders(2)), log.sync, log.open_spool, lambda: log.cut(writer.checkpoint)):
            with pytest.raises(InvariantViolated):
                late()

    def test_sync_concurrent_with_appends_never_runs_ahead(self, place: Place) -> None:
        """Group commit: the loop appends while another thread syncs, and only what was cut before counts."""
        log = place.open()
        writer = Writer.of(log)
        cuts: dict[int, Checkpoint] = {0: log.checkpoint}
        seen: list[Checkpoint] = []
        done = threading.Event()

        def sync() -> None:
            while not done.is_set():
                seen.append(log.sync())

        thread = threading.Thread(target=sync)
        thread.start()
        try:
            for number in range(200):
                writer.append(orders(number))
                writer.checkpoint = replace(writer.checkpoint, cut=number + 1)
                cuts[number + 1] = writer.checkpoint
                log.cut(writer.checkpoint)
        finally:
            done.set()
            thread.join()
        assert all(checkpoint == cuts[checkpoint.cut] for checkpoint in seen)
        assert [c.cut for c in seen] == sorted(c.cut for c in seen)
        assert log.sync() == cuts[200]
        place.crash(log)
        assert place.open().checkpoint == cuts[200]
        assert ids_of(place) == list(range(200))


def _row_batch(*ids: int) -> pa.RecordBatch:
    columns = [pa.array(ids), pa.array([f"n{i}" for i in ids])]
    return pa.RecordBatch.from_arrays(columns, schema=ORDERS.row_schema)
