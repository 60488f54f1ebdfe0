"""Records: what goes into frames comes out again."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.errors import InvariantViolated
from cdcflow.log.format import journal
from cdcflow.log.format.framing import FileKind, FrameKind, Framer, read_header
from cdcflow.log.format.journal import (
    AttachedSpool,
    CutMark,
    Encoder,
    JournalHeader,
    Owners,
    Progressed,
    Record,
    SpoolPiece,
    progress_after,
    progress_change,
    records,
)
from cdcflow.log.format.rows import PLAIN_MESSAGES, RowsDecoder, RowsEncoder, ShapeEntry, ShapeRows
from cdcflow.log.format.segment import TRANSACTIONS_SCHEMA
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.model.change import ChangeBatch
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position
from cdcflow.model.table import BEFORE, OP, UNCHANGED
from cdcflow.testing.sinks import ORDERS, PRODUCTS, changes, transactions


def written(encoder_seed: bytes, encoder: Encoder) -> list[Record]:
    file = io.BytesIO(encoder_seed + b"".join(encoder.take()))
    return list(records(file, read_header(file, FileKind.JOURNAL, "x"), "x"))


def encoder() -> tuple[bytes, Encoder]:
    head, seed = JournalHeader("x", Epoch(1), Checkpoint()).encode()
    return head, Encoder(seed)


@pytest.mark.parametrize("widest", [0, 1, 300, 70_000, 1 << 33])
def test_offsets_are_read_back_exactly(widest: int) -> None:
    """Offsets are the only order; gaps of every width are written in as few bytes as they need."""
    chance = random.Random(widest)
    gaps = [0, widest, *(chance.randint(0, widest) for _ in range(50))]
    index = np.cumsum(np.array(gaps) + 1) - 1
    batch = changes(ORDERS, [{"id": i} for i in range(len(index))])
    head, encoding = encoder()
    encoding.shape(ORDERS, 3)
    encoding.rows(ChangeBatch(ORDERS, index, batch.rows), 1000)
    shape, rows = written(head, encoding)
    assert shape == ShapeEntry(ORDERS, 3)
    assert isinstance(rows, ShapeRows)
    assert rows.offsets.tolist() == (index + 1000).tolist()
    assert rows.rows.equals(batch.rows)


@pytest.mark.parametrize("count", [1, 8, 9, 1000])
def test_small_and_large_batches_are_read_back(count: int) -> None:
    """Small ones are not compressed, large ones are; a reader must not have to know."""
    values = [{"id": i, "tags": ["a"] * (i % 3), "picture": bytes(i % 7)} for i in range(count)]
    batch = changes(PRODUCTS, values)
    head, encoding = encoder()
    encoding.shape(PRODUCTS, 1)
    for _ in range(3):
        encoding.rows(batch, 1)
    found = written(head, encoding)
    assert [r.rows.equals(batch.rows) for r in found if isinstance(r, ShapeRows)] == [True] * 3


def test_rows_that_lz4_cannot_compress_are_written_plain_until_it_can_again() -> None:
    """Compressing digests costs as much as decoding them did and saves no byte; the next rows may be different."""
    chance = random.Random(5)
    digests = changes(ORDERS, [{"id": i, "note": chance.randbytes(1000).hex()} for i in range(100)])
    blanks = changes(ORDERS, [{"id": i, "note": " " * 2000} for i in range(100)])
    head, encoding = encoder()
    encoding.shape(ORDERS, 1)
    sizes: list[int] = []
    for batch in [digests, digests, *[blanks] * (2 * PLAIN_MESSAGES)]:
        before = encoding.bytes
        encoding.rows(batch, 1)
        sizes.append(encoding.bytes - before)
    assert sizes[1] > 0.99 * digests.rows.nbytes, "the second one is not compressed"
    assert sizes[2] > 0.99 * blanks.rows.nbytes, "so are the next ones, whatever they are"
    assert max(sizes[PLAIN_MESSAGES + 2 :]) < blanks.rows.nbytes / 10
    found = [r.rows for r in written(head, encoding) if isinstance(r, ShapeRows)]
    assert found[0].equals(digests.rows)
    assert found[1].equals(digests.rows)
    assert all(rows.equals(blanks.rows) for rows in found[2:])


def test_slice_of_a_batch_writes_its_own_rows_only() -> None:
    """The machine splits runs into slices; a slice must not drag its whole batch into the log, nor other rows."""
    batch = changes(ORDERS, [{"id": i, "note": "x" * 100} for i in range(2000)])
    part = batch.between(700, 705)
    assert part is not None
    head, encoding = encoder()
    encoding.shape(ORDERS, 1)
    encoding.rows(part, 1)
    assert encoding.bytes < 5000
    found = [r for r in written(head, encoding) if isinstance(r, ShapeRows)]
    assert found[0].rows.column("id").to_pylist() == list(range(700, 705))


def test_batch_that_is_too_large_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record larger than a frame may be is no reason to stop (hard case L23)."""
    monkeypatch.setattr(journal, "BATCH_BYTES_MAX", 20_000)
    batch = changes(ORDERS, [{"id": i, "note": "x" * 100} for i in range(1000)], list(range(0, 2000, 2)))
    head, encoding = encoder()
    encoding.shape(ORDERS, 1)
    encoding.rows(batch, 1)
    found = [r for r in written(head, encoding) if isinstance(r, ShapeRows)]
    assert len(found) > 4
    assert np.concatenate([r.offsets for r in found]).tolist() == list(range(1, 2001, 2))


def test_everything_else_is_read_back() -> None:
    """Headers, attached spools, cuts and pieces."""
    run = replace(
        transactions([7, 8, 9], [2, 2, 3], changes(ORDERS, [{"id": i} for i in range(3)])),
        origin=pa.array([None, "elsewhere", None], pa.string()),
    )
    head_batch = TransactionHeaders.of(run, 5, 2, np.array([1, 2, 3]))
    attach = AttachedSpool("1-2.spool", 8, 3, 999, 123, frozenset({4, 5}))
    cut = Checkpoint(Position("0/9"), Offset(8), 5, 2, 3, Epoch(1), {"a": [1]}, {"slot": "ü"})
    head, encoding = encoder()
    encoding.transactions(head_batch)
    encoding.attach(attach)
    encoding.cut(cut, 77)
    encoding.piece(3, None)
    encoding.piece(2, np.array([1, 1 << 40], np.uint64))
    found = written(head, encoding)
    assert isinstance(found[0], TransactionHeaders)
    assert found[0].headers.schema.equals(TRANSACTIONS_SCHEMA)
    assert found[0].headers.column("first_offset").to_pylist() == [5, 7, 7]
    assert found[0].headers.column("last_offset").to_pylist() == [6, 6, 7]
    assert found[0].headers.column("number").to_pylist() == [2, 3, 4]
    assert found[0].headers.column("origin").to_pylist() == [None, "elsewhere", None]
    assert found[1:4] == [attach, Progressed(), CutMark(cut, 77)]
    assert found[4] == SpoolPiece(3, None)
    assert isinstance(found[5], SpoolPiece)
    assert found[5].subxids is not None
    assert found[5].subxids.tolist() == [1, 1 << 40]


def test_rows_find_their_transactions_past_empty_ones() -> None:
    """A transaction without rows has a number and no offsets; a row must not be assigned to it."""
    run = transactions([1, 2, 3, 4], [0, 2, 2, 3], changes(ORDERS, [{"id": i} for i in range(3)]))
    owners = Owners.of(TransactionHeaders.of(run, 10, 1, np.array([1, 2, 3, 4])).headers)
    rows = owners.log_rows(ORDERS, np.array([10, 11, 12]), run.batches[0].rows)
    assert rows.column("_txn").to_pylist() == [2, 2, 4]
    assert rows.schema.equals(ORDERS.log_schema)


@pytest.mark.parametrize(("first", "last"), [(9, 10), (9, 17), (16, 17), (17, 18), (5, 6)])
def test_rows_outside_of_these_transactions_are_refused(first: int, last: int) -> None:
    """They are before the first transaction or after the last: they would be attributed to some other transaction."""
    run = transactions([1, 2], [3, 7], changes(ORDERS, [{"id": i} for i in range(2)]))
    owners = Owners.of(TransactionHeaders.of(run, 10, 1, np.array([1, 2])).headers)
    with pytest.raises(InvariantViolated, match=f"offsets from {first} to {last}: their transactions have 10 to 16"):
        owners.log_rows(ORDERS, np.array([first, last]), run.batches[0].rows)
    assert owners.counts(ORDERS, np.array([10, 16])).tolist() == [1, 1]


def test_small_batches_of_one_shape_are_deflated_and_still_read_back() -> None:
    """A batch of one row per transaction is mostly Arrow's description of its columns; the parts that differ must be
    kept whole."""
    batches = [
        changes(PRODUCTS, [{"id": 1, "tags": ["a"]}]),
        changes(PRODUCTS, [{"id": 2, "picture": b"x" * 300}]),
        changes(PRODUCTS, [{"id": 3, OP: "u", UNCHANGED: ["tags"], BEFORE: {"id": 3}}]),
        changes(PRODUCTS, [{"id": 4, OP: "d", BEFORE: {"id": 9}}, {"id": 5, OP: "u", BEFORE: {"id": 5}}]),
        changes(PRODUCTS, [{"id": 6, OP: "c"}, {"id": 7, OP: "d"}]),
        changes(PRODUCTS, [{"id": 8, "picture": random.Random(1).randbytes(20_000)}]),
        changes(PRODUCTS, [{"id": 9, OP: "u", UNCHANGED: ["tags"], BEFORE: {"id": 3}}]),
        changes(PRODUCTS, [{OP: "t"}]),
        changes(ORDERS, [{"id": 10}]),
        changes(PRODUCTS, [{"id": 11}, {"id": 12}]),
    ]
    head, encoding = encoder()
    encoding.shape(ORDERS, 1)
    encoding.shape(PRODUCTS, 1)
    sizes = []
    for batch in batches:
        before = encoding.bytes
        encoding.rows(batch, 1)
        sizes.append(encoding.bytes - before)
    assert sizes[-1] < sizes[0] / 3
    found = [r for r in written(head, encoding) if isinstance(r, ShapeRows)]
    assert [r.rows.to_pylist() for r in found] == [b.rows.to_pylist() for b in batches]
    assert all(r.rows.schema.equals(b.table.change_schema) for r, b in zip(found, batches, strict=True))


def test_deflated_rows_that_claim_another_size_are_refused() -> None:
    """A few crafted bytes must not become gigabytes of memory (hard case L28)."""
    rows = RowsDecoder()
    shape = ShapeEntry(ORDERS, 1)
    encoding = RowsEncoder(ORDERS, 0)
    first, second = (b"".join(encoding.parts(changes(ORDERS, [{"id": i}]), i)) for i in (1, 2))
    rows.rows(first, [shape])
    assert rows.rows(second, [shape]).rows.column("id").to_pylist() == [2]
    size = int.from_bytes(second[20:24], "little")
    for claimed in (0, size - 1, size + 1, 1 << 31):
        with pytest.raises((ValueError, pa.ArrowException)):
            rows.rows(second[:20] + claimed.to_bytes(4, "little") + second[24:], [shape])


@pytest.mark.parametrize("count", [1, 2, 300])
@pytest.mark.parametrize("origins", [False, True])
def test_headers_are_read_back_whatever_their_number(count: int, origins: bool) -> None:
    """Runs of one take a fast path through the code, long ones are compressed; all must give the same result."""
    chance = random.Random(count)
    ends = np.cumsum([chance.randrange(3) for _ in range(count)]) + 1
    run = replace(
        transactions([chance.randrange(1 << 32) for _ in range(count)], ends.tolist()),
        commit_ts=np.array([chance.randrange(-(1 << 50), 1 << 50) for _ in range(count)]),
        position=pa.array(["", *(f"ü{chance.randrange(10**9)}" for _ in range(count))], pa.string()).slice(1),
        origin=pa.array([None if i % 2 else f"from {i}" for i in range(count)], pa.string()) if origins else None,
    )
    clock = run.commit_ts + np.arange(count)
    found = TransactionHeaders.decode(TransactionHeaders.of(run, 7, 3, clock).encode())
    headers = found.headers
    assert headers.column("number").to_pylist() == list(range(3, 3 + count))
    assert headers.column("last_offset").to_pylist() == (ends + 6).tolist()
    assert headers.column("first_offset").to_pylist() == [7, *(ends[:-1] + 7).tolist()]
    assert headers.column("xid").to_pylist() == run.xid.tolist()
    assert headers.column("position").to_pylist() == run.position.to_pylist()
    assert headers.column("commit_ts").cast(pa.int64()).to_pylist() == run.commit_ts.tolist()
    assert headers.column("commit_clock").cast(pa.int64()).to_pylist() == clock.tolist()
    assert headers.column("origin").to_pylist() == (run.origin.to_pylist() if run.origin else [None] * count)
    assert (found.next_offset, found.next_transaction) == (int(ends[-1]) + 7, 3 + count)


TABLES = {"a": {"state": "waiting", "cursor": None}, "b": {"state": "done", "cursor": None}}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ({"version": 1, "tables": TABLES}, {}),
        ({"version": 1, "tables": {**TABLES, "b": 7}}, {"entries": {"tables": {"b": 7}}}),
        ({"version": 1, "tables": {**TABLES, "c": None}}, {"entries": {"tables": {"c": None}}}),
        ({"version": 2, "tables": TABLES}, None),
        ({"version": 1, "tables": {"a": TABLES["a"]}}, None),
        ({"version": 1}, None),
        ({}, None),
    ],
)
def test_change_of_the_progress_is_written_as_a_difference_or_whole(after: dict[str, Any], said: object) -> None:
    """With a thousand tables the whole progress at each chunk would be most of the log; a wrong one, a lost chunk."""
    before = {"version": 1, "tables": TABLES}
    change = progress_change(before, after)
    assert change == ({"progress": after} if said is None else said)
    assert progress_after(before, change) == after


def test_cuts_have_the_progress_of_their_time() -> None:
    """A change of the progress counts starting at its cut; the cuts before it keep the earlier progress."""
    first = Checkpoint(cut=1, progress={"tables": {"a": {"rows": 1}}}, source={"slot": "s"})
    second = replace(first, cut=2)
    third = replace(first, cut=3, progress={"tables": {"a": {"rows": 2}, "b": {}}})
    fourth = replace(third, cut=4, source={})
    fifth = replace(fourth, cut=5, progress={})
    head, encoding = encoder()
    for checkpoint in (first, second, third, fourth, fifth):
        encoding.cut(checkpoint, 0)
    marks = [r for r in written(head, encoding) if isinstance(r, CutMark)]
    assert [m.checkpoint for m in marks] == [first, second, third, fourth, fifth]


@pytest.mark.parametrize("kind", list(FrameKind))
def test_whole_frame_with_nonsense_is_refused(kind: FrameKind) -> None:
    """A crafted file has perfect checksums: its content is checked too, and no value of it is shown (L28, S03)."""
    head, seed = JournalHeader("x", Epoch(1), Checkpoint()).encode()
    for payload in (b"{}", b"secret" * 9, b"\xff" * 64, bytes(24) + b"\xff\xff\xff\xff\x00\x00\x00\x10" + bytes(64)):
        file = io.BytesIO(head + b"".join(Framer(seed).frame(kind, payload)))
        with pytest.raises(InvariantViolated) as refused:
            list(records(file, read_header(file, FileKind.JOURNAL, "x"), "x"))
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("op", [0, 128, 255])
def test_an_op_that_is_no_letter_is_refused(op: int) -> None:
    """The op of all rows is stored once, as the number of a letter; a reader must not fail only when it fills the
    column."""
    payload = bytearray(b"".join(RowsEncoder(ORDERS, 0).parts(changes(ORDERS, [{"id": 1}]), 1)))
    assert payload[5] == ord("c")
    payload[5] = op
    with pytest.raises(ValueError, match="does not have the rows"):
        RowsDecoder().rows(bytes(payload), [ShapeEntry(ORDERS, 1)])


@pytest.mark.parametrize(("first", "last"), [(0, 40), (0, 3), (7, 9), (30, 40)])
def test_the_op_of_rows_that_have_one_is_written_once(first: int, last: int) -> None:
    """Of whole batches and of pieces: a letter for each row would be the larger part of narrow rows."""
    batch = changes(ORDERS, [{"id": i} for i in range(40)]).between(first, last)
    assert batch is not None
    payload = b"".join(RowsEncoder(ORDERS, 0).parts(batch, 1))
    assert payload[5] == ord("c")
    mixed = changes(ORDERS, [{"id": 0, OP: "d"}, *({"id": i} for i in range(1, 40))]).between(first, last)
    assert mixed is not None
    assert b"".join(RowsEncoder(ORDERS, 0).parts(mixed, 1))[5] == (0 if first == 0 else ord("c"))
