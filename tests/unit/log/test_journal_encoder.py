"""What an encoder has written, and how much of it was taken; what a decoder returns for single frames."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cdcflow.errors import InvariantViolated
from cdcflow.log.format import journal
from cdcflow.log.format.framing import FileKind, Frame, FrameKind, Header, frames, read_header
from cdcflow.log.format.journal import (
    AttachedSpool,
    CutMark,
    Decoder,
    Encoder,
    JournalHeader,
    Progressed,
    Skipped,
    SpoolPiece,
    cut_number,
    durable_bytes,
    progress_after,
    progress_change,
    records,
)
from cdcflow.log.format.rows import SMALL_ROWS, RowsDecoder, ShapeEntry, ShapeRows
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position
from cdcflow.testing.sinks import ORDERS, PRODUCTS, changes, orders

BASE = Checkpoint(
    Position("p"), Offset(11), 5, 3, 77, Epoch(2), {"tables": {"a": {"rows": 1}}, "version": 1}, {"slot": "s"}
)
HEAD = JournalHeader("log-a", Epoch(2), BASE, 7, 4096)


def opened(encoder: Encoder, head: JournalHeader = HEAD) -> tuple[io.BytesIO, Header]:
    file = io.BytesIO(head.encode()[0] + b"".join(encoder.take()))
    return file, read_header(file, FileKind.JOURNAL, "x")


def encoder(head: JournalHeader = HEAD) -> Encoder:
    return Encoder(head.encode()[1], head.base)


def test_journal_s_head_is_read_back_unchanged() -> None:
    """The head records where the journal begins, and how much of the previous one counts."""
    _, header = opened(encoder())
    assert JournalHeader.from_header(header) == HEAD
    assert HEAD.first_offset == 11
    assert header.value == {
        "log_id": "log-a",
        "epoch": 2,
        "first_offset": 11,
        "checkpoint": json.loads(BASE.to_json()),
        "previous": 7,
        "previous_bytes": 4096,
    }
    first = JournalHeader("log-a", Epoch(1), Checkpoint())
    assert (first.previous, first.previous_bytes) == (None, 0)


def test_bytes_are_counted_when_they_are_added_and_waiting_ones_until_they_are_taken() -> None:
    """They decide when a journal is closed, and when the loop waits for the disk."""
    made = encoder()
    assert (made.bytes, made.waiting) == (0, 0)
    made.shape(ORDERS, 1)
    made.rows(orders(1).batches[0], 11)
    put = made.bytes
    assert made.waiting == put > 0
    content = b"".join(made.take())
    assert (len(content), made.bytes, made.waiting) == (put, put, 0)
    assert made.take() == []
    made.cut(replace(BASE, cut=4), 100)
    assert made.waiting == made.bytes - put > 0
    payloads = made.payloads()
    assert [kind for kind, _ in payloads] == [FrameKind.CUT]
    assert (made.waiting, made.payloads()) == (0, [])


def test_a_shape_is_introduced_once_and_rows_name_it_by_its_place() -> None:
    """In the order of the file; its number in the schema history is recorded with it."""
    made = encoder()
    assert not made.knows(ORDERS)
    for table, version in ((ORDERS, 4), (PRODUCTS, 9), (ORDERS, 4)):
        made.shape(table, version)
    assert made.knows(ORDERS)
    assert made.knows(PRODUCTS)
    made.rows(changes(PRODUCTS, [{"id": 1}]), 11)
    made.rows(changes(ORDERS, [{"id": 2}]), 12)
    file, header = opened(made)
    found = list(records(file, header, "x"))
    assert found[:2] == [ShapeEntry(ORDERS, 4), ShapeEntry(PRODUCTS, 9)]
    assert [r.shape for r in found[2:] if isinstance(r, ShapeRows)] == [ShapeEntry(PRODUCTS, 9), ShapeEntry(ORDERS, 4)]


def test_rows_encoded_separately_need_no_earlier_frame_and_name_the_same_shapes() -> None:
    """Another thread inserts them between these frames, at a place that is unknown here."""
    made = encoder()
    made.shape(PRODUCTS, 1)
    made.shape(ORDERS, 1)
    apart = made.apart([ORDERS])
    assert list(apart) == [ORDERS]
    payloads = [b"".join(apart[ORDERS].parts(changes(ORDERS, [{"id": n}]), n)) for n in (5, 6)]
    for payload, number in zip(reversed(payloads), (6, 5), strict=True):
        rows = RowsDecoder().rows(payload, [ShapeEntry(PRODUCTS, 1), ShapeEntry(ORDERS, 1)])
        assert (rows.shape.table, rows.offsets.tolist()) == (ORDERS, [number])


def test_everything_but_rows_is_read_back_unchanged() -> None:
    """A cut with and without a position, an attached spool, pieces of one."""
    made = encoder()
    attach = AttachedSpool("3-1", 11, 5, 900, 0xFFFFFFFF, frozenset({9, 4}))
    run = TransactionHeaders.of(orders(1, 2), 11, 5, np.array([80]))
    nowhere = replace(BASE, position=None, cut=5)
    made.transactions(run)
    made.attach(attach)
    made.cut(replace(BASE, cut=4, next_offset=Offset(13), next_transaction=6, commit_clock=80), 12345)
    made.cut(nowhere, 0)
    made.piece(2, np.array([7, 1 << 40], np.uint64))
    made.piece(3, None)
    made.piece(0, None)
    file, header = opened(made)
    transactions, attached, cut, second, *pieces = records(file, header, "x")
    assert isinstance(transactions, TransactionHeaders)
    assert transactions.headers.equals(run.headers)
    assert attached == attach
    assert isinstance(cut, CutMark)
    assert cut.durable == 12345
    assert cut.checkpoint == Checkpoint(Position("p"), Offset(13), 6, 4, 80, Epoch(2), BASE.progress, BASE.source)
    assert second == CutMark(nowhere, 0)
    assert all(isinstance(p, SpoolPiece) for p in pieces)
    found: Any = pieces
    assert [(p.rows, None if p.subxids is None else p.subxids.tolist()) for p in found] == [
        (2, [7, 1 << 40]),
        (3, None),
        (0, None),
    ]


def test_cut_s_frame_shows_its_number_and_what_was_durable_without_the_rest() -> None:
    """Recovery judges damage by it."""
    made = encoder()
    made.cut(replace(BASE, cut=44), 12345)
    file, header = opened(made)
    (frame,) = frames(file, header)
    assert (cut_number(frame.payload), durable_bytes(frame)) == (44, 12345)


def test_skipped_frame_is_reported_with_its_kind_and_changes_nothing() -> None:
    """Later frames need shapes and progress, so their readers do not skip them."""
    made = encoder()
    made.shape(ORDERS, 1)
    made.rows(orders(1).batches[0], 11)
    made.cut(replace(BASE, cut=4), 0)
    file, header = opened(made)
    found = list(records(file, header, "x", skip=frozenset({FrameKind.ROWS, FrameKind.CUT})))
    assert found == [ShapeEntry(ORDERS, 1), Skipped(FrameKind.ROWS), Skipped(FrameKind.CUT)]
    file.seek(header.end)
    end = header.end + sum(frame.end - frame.at for frame in list(frames(file, header))[:1])
    file.seek(header.end)
    assert list(records(file, header, "x", end=end)) == [ShapeEntry(ORDERS, 1)]


# ── progress ────────────────────────────────────────────────────────────────────────────────────────────────


def test_progress_is_written_when_it_changes_and_only_the_entries_that_did() -> None:
    """A cut of an idle table costs the same whether there are ten tables or ten thousand."""
    made = encoder()
    said: list[list[FrameKind]] = []
    marks: list[Checkpoint] = []
    given = BASE
    for changed in (
        {},
        {"progress": dict(BASE.progress)},
        {"progress": {"version": 1, "tables": {"a": {"rows": 2}}}},
        {"source": {"slot": "t"}},
        {"source": {"slot": "u"}, "progress": {}},
        {},
    ):
        given = replace(given, cut=given.cut + 1, **changed)
        marks.append(given)
        made.cut(given, 0)
        said.append([kind for kind, _, _ in list(made._queue)][sum(map(len, said)) :])
    progress, cut = FrameKind.PROGRESS, FrameKind.CUT
    assert said == [[cut], [cut], [progress, cut], [progress, cut], [progress, cut], [cut]]
    file, header = opened(made)
    found = list(records(file, header, "x"))
    assert [r.checkpoint for r in found if isinstance(r, CutMark)] == marks
    assert sum(isinstance(r, Progressed) for r in found) == 3


def test_decoded_change_of_the_progress_gives_the_new_progress() -> None:
    """Entries are merged into the existing ones; the rest stays the same object."""
    before = {"version": 1, "tables": {"a": 1, "b": 2}, "more": {"x": 1}}
    change = progress_change(before, {**before, "tables": {"a": 1, "b": 3, "c": 4}})
    assert change == {"entries": {"tables": {"b": 3, "c": 4}}}
    after = progress_after(before, change)
    assert after == {"version": 1, "tables": {"a": 1, "b": 3, "c": 4}, "more": {"x": 1}}
    assert before["tables"] == {"a": 1, "b": 2}
    assert progress_after(before, {}) is before
    assert progress_after(before, {"source": {}}) is before
    assert progress_after(before, {"progress": {"y": 1}}) == {"y": 1}
    both = progress_change(before, {"version": 1, "tables": {"a": 9, "b": 2}, "more": {"x": 2}})
    assert both == {"entries": {"tables": {"a": 9}, "more": {"x": 2}}}
    for other in ({"version": 2}, {**before, "tables": {"a": 1}}, {**before, "tables": 7}, {**before, "version": {}}):
        assert progress_change(before, other) == {"progress": other}


# ── frames that are whole and make no sense ─────────────────────────────────────────────────────────────────


def decoder() -> Decoder:
    return Decoder("the journal", Header(HEAD.value(), 0, 0))


def read(kind: FrameKind, payload: bytes) -> Any:
    return decoder().record(Frame(kind, payload, 640, 700))


def cut_payload(*numbers: int, placed: int = 0, rest: bytes = b"") -> bytes:
    made = encoder()
    made.cut(BASE, 0)
    ((_, parts),) = made.payloads()
    whole = b"".join(parts)
    fixed = whole[: len(whole) - 1]
    out = bytearray(fixed)
    for at, number in enumerate(numbers):
        out[8 * at : 8 * at + 8] = number.to_bytes(8, "little", signed=number < 0)
    out[-1] = placed
    return bytes(out) + rest


@pytest.mark.parametrize(
    "payload",
    [b"{}", b'{"other": 1}', b'{"progress": {}, "other": 1}', b"[]", b"7", b'{"entries": {"tables": 7}}'],
)
def test_malformed_change_of_the_progress_is_refused(payload: bytes) -> None:
    """By its position, without its content."""
    with pytest.raises(InvariantViolated, match="reading the journal: the progress frame at byte 640 is complete, but"):
        read(FrameKind.PROGRESS, payload)


@pytest.mark.parametrize("field", range(6))
def test_numbers_that_no_checkpoint_has_are_refused(field: int) -> None:
    """Each of them: durable bytes, offset, transaction, cut, clock, epoch."""
    for good in (0, (1 << 62) - 1):
        numbers = [5] * 6
        numbers[field] = good
        assert read(FrameKind.CUT, cut_payload(*numbers)).checkpoint.position is None
    for wrong in (-1, 1 << 62):
        numbers = [5] * 6
        numbers[field] = wrong
        with pytest.raises(InvariantViolated, match="the cut frame"):
            read(FrameKind.CUT, cut_payload(*numbers))


def test_position_is_present_or_absent() -> None:
    """And bytes after a cut without an extent are ignored."""
    numbers = [5] * 6
    assert read(FrameKind.CUT, cut_payload(*numbers)).checkpoint.position is None
    assert read(FrameKind.CUT, cut_payload(*numbers, placed=1, rest=b"q")).checkpoint.position == Position("q")
    assert read(FrameKind.CUT, cut_payload(*numbers, placed=1)).checkpoint.position == Position("")
    for wrong in (
        cut_payload(*numbers, placed=2, rest=b"q"),
        cut_payload(*numbers, rest=b"q"),
        cut_payload(*numbers)[:-1],
    ):
        with pytest.raises(InvariantViolated, match="the cut frame"):
            read(FrameKind.CUT, wrong)


def test_piece_has_one_sub_transaction_per_row_or_has_no_list_of_them() -> None:
    """Each row belongs to one of them."""
    ids = np.array([1, 2], "<u8").tobytes()
    assert read(FrameKind.PIECE, (2).to_bytes(8, "little") + ids).subxids.tolist() == [1, 2]
    for rows in (1, 3):
        with pytest.raises(InvariantViolated, match="the piece frame"):
            read(FrameKind.PIECE, rows.to_bytes(8, "little") + ids)


def test_malformed_extent_is_refused_like_a_record() -> None:
    """Recovery needs no more than that."""
    for kind in (FrameKind.TRANSACTIONS, FrameKind.ROWS):
        with pytest.raises(InvariantViolated, match=f"the {kind.name.lower()} frame at byte 640"):
            decoder().extent(Frame(kind, b"x", 640, 700))


@pytest.mark.parametrize(("count", "pieces"), [(SMALL_ROWS, 1), (SMALL_ROWS + 1, 2)])
def test_a_few_large_rows_are_not_split(monkeypatch: pytest.MonkeyPatch, count: int, pieces: int) -> None:
    """Each half of a few rows would be nearly as large; with more rows, the split spares a reader some of them."""
    monkeypatch.setattr(journal, "BATCH_BYTES_MAX", 2000)
    made = encoder()
    made.shape(ORDERS, 1)
    made.rows(changes(ORDERS, [{"id": i, "note": "x" * 300} for i in range(count)]), 11)
    file, header = opened(made)
    found = [r.offsets.tolist() for r in records(file, header, "x") if isinstance(r, ShapeRows)]
    assert len(found) == pieces
    assert [offset for offsets in found for offset in offsets] == list(range(11, 11 + count))


def test_a_batch_as_large_as_the_largest_is_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is what its rows hold, not what memory they share with others."""
    made = encoder()
    made.shape(ORDERS, 1)
    many = changes(ORDERS, [{"id": i, "note": "x" * 300} for i in range(100)])
    part = many.between(10, 30)
    assert part is not None
    assert part.rows.get_total_buffer_size() > part.rows.nbytes
    for limit in (part.rows.nbytes, part.rows.nbytes - 1):
        monkeypatch.setattr(journal, "BATCH_BYTES_MAX", limit)
        made.rows(part, 11)
    file, header = opened(made)
    assert [len(r.offsets) for r in records(file, header, "x") if isinstance(r, ShapeRows)] == [20, 10, 10]
