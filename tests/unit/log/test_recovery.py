"""How much of a journal counts, whatever happened to its end."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace

import numpy as np
import pytest

from cdcflow.errors import InvariantViolated
from cdcflow.log.format.framing import FileKind, FrameKind, Framer, read_header
from cdcflow.log.format.journal import AttachedSpool, Encoder, JournalHeader
from cdcflow.log.format.recovery import Whole, whole
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position
from cdcflow.testing.sinks import ORDERS, ORDERS_WIDER, PRODUCTS, orders


@dataclass
class Written:
    """A journal in memory: its bytes, and where its cuts end."""

    content: bytes
    ends: list[int]


def journal(cuts: int, *, synced: int = 0, spool_in: int | None = None) -> Written:
    """`cuts` cuts of one row each; each records that the first `synced` of the cuts before it were durable."""
    head, seed = JournalHeader("x", Epoch(1), Checkpoint()).encode()
    encoder = Encoder(seed)
    content, ends = head, [len(head)]
    for number in range(1, cuts + 1):
        run = orders(number)
        encoder.transactions(TransactionHeaders.of(run, number, number, np.array([number])))
        encoder.shape(ORDERS, 1)
        if spool_in == number:
            encoder.attach(AttachedSpool("1-1.spool", number, 1, 5, 6))
        else:
            encoder.rows(run.batches[0], number)
        checkpoint = Checkpoint(Position(f"p{number}"), Offset(number + 1), number + 1, number)
        encoder.cut(checkpoint, ends[min(synced, number - 1)])
        content += b"".join(encoder.take())
        ends.append(len(content))
    return Written(content, ends)


def kept(content: bytes, *, spool: bool = True, end: int | None = None) -> Whole:
    file = io.BytesIO(content)
    header = read_header(file, FileKind.JOURNAL, "x")
    return whole(file, header, len(content), "some.journal", lambda _: spool, end=end)


def test_whole_journal_counts_whole() -> None:
    """Recovery of a journal that was closed properly cuts nothing off."""
    written = journal(3)
    found = kept(written.content)
    assert (found.bytes, found.checkpoint.cut, found.rows, found.reason) == (len(written.content), 3, 3, "")
    assert (found.cuts, found.first_cut, [s.table for s in found.shapes]) == (3, 1, [ORDERS])


def test_journal_cut_short_anywhere_counts_up_to_the_last_whole_cut() -> None:
    """A crash may end the file anywhere; half a transaction is never recovered (hard cases L01, L02)."""
    written = journal(3)
    for size in range(written.ends[0], len(written.content) + 1):
        found = kept(written.content[:size])
        cut = max(i for i, end in enumerate(written.ends) if end <= size)
        assert (found.bytes, found.checkpoint.cut, found.rows) == (written.ends[cut], cut, cut)
        assert found.dropped_bytes == size - written.ends[cut]
        assert bool(found.reason) == (size != written.ends[cut])


def test_recovery_reports_what_it_cut_off_and_why() -> None:
    """An operator who reads it must be able to tell a torn write from a disk that loses synced data."""
    written = journal(3)
    torn = kept(written.content[:-30])
    assert (torn.reason, torn.dropped_rows) == ("torn", 1)
    rotten = kept(written.content[:-30] + bytes(30))
    assert (rotten.reason, rotten.dropped_rows) == ("checksum", 1)
    uncut = journal(3).content[: written.ends[2]] + written.content[written.ends[2] : written.ends[3]]
    assert kept(uncut).reason == ""


def test_unsynced_cut_may_be_missing_in_front_of_another() -> None:
    """Two cuts in one sync can reach the disk in the wrong order; nothing was acknowledged, so nothing is lost."""
    written = journal(3, synced=0)
    content = bytearray(written.content)
    content[written.ends[1] + 20] ^= 0xFF
    found = kept(bytes(content))
    assert (found.checkpoint.cut, found.reason) == (1, "checksum")


def test_damage_to_what_was_durable_stops_recovery() -> None:
    """Resuming before it would let the source forget changes that the log does not have (hard case L01)."""
    written = journal(4, synced=4)
    for place in range(written.ends[0], written.ends[3], 7):
        content = bytearray(written.content)
        content[place] ^= 0xFF
        if written.content[place] == 0 and kept_or_none(bytes(content)) is not None:
            continue  # padding carries nothing
        with pytest.raises(InvariantViolated, match=r"some\.journal.*were durable"):
            kept(bytes(content))


def kept_or_none(content: bytes) -> Whole | None:
    try:
        found = kept(content)
    except InvariantViolated:
        return None
    return found if not found.reason else None


def test_missing_attached_spool_takes_its_cut_with_it() -> None:
    """The journal's frames can reach the disk before the spool they name does (hard case L05)."""
    written = journal(3, spool_in=2)
    assert kept(written.content).checkpoint.cut == 3
    found = kept(written.content, spool=False)
    assert (found.checkpoint.cut, found.reason) == (1, "spool")
    with pytest.raises(InvariantViolated, match="spool"):
        kept(journal(4, synced=4, spool_in=2).content, spool=False)


def test_closed_journal_counts_up_to_where_its_successor_begins() -> None:
    """What a stale writer adds to a journal after the takeover is not part of the log (hard case L11)."""
    written = journal(3)
    found = kept(written.content, end=written.ends[2])
    assert (found.bytes, found.checkpoint.cut, found.dropped_bytes) == (written.ends[2], 2, 0)
    with pytest.raises(InvariantViolated):
        kept(written.content[: written.ends[1]], end=written.ends[2])


@pytest.mark.parametrize("wrong", ["offset", "cut", "rows"])
def test_whole_frames_that_contradict_each_other_stop_recovery(wrong: str) -> None:
    """Only a fault in cdcflow writes them; dropping them silently would hide it."""
    head, seed = JournalHeader("x", Epoch(1), Checkpoint()).encode()
    encoder = Encoder(seed)
    encoder.shape(ORDERS, 1)
    run = orders(1, 2)
    encoder.transactions(TransactionHeaders.of(run, 2 if wrong == "offset" else 1, 1, np.array([1])))
    encoder.rows(orders(1).batches[0] if wrong == "rows" else run.batches[0], 1)
    encoder.cut(Checkpoint(None, Offset(3), 2, 0 if wrong == "cut" else 1), 0)
    with pytest.raises(InvariantViolated):
        kept(head + b"".join(encoder.take()))


LATER = Checkpoint(Position("p6"), Offset(60), 30, 6)


def later_journal() -> tuple[bytes, list[int]]:
    """A journal that continues cut 6: one with progress and a spool, one with two shapes, and rows without a cut."""
    head, seed = JournalHeader("x", Epoch(1), LATER, 40, 999).encode()
    encoder = Encoder(seed, LATER)
    ends = [len(head)]
    encoder.shape(ORDERS, 1)
    encoder.transactions(TransactionHeaders.of(orders(1, 2, 3), 60, 30, np.array([1])))
    encoder.attach(AttachedSpool("1-1.spool", 60, 3, 5, 6))
    encoder.cut(Checkpoint(Position("p7"), Offset(63), 31, 7, progress={"tables": {"a": 1}}), 0)
    ends.append(len(head) + encoder.bytes)
    encoder.shape(ORDERS_WIDER, 2)
    encoder.shape(PRODUCTS, 1)
    run = orders(4)
    encoder.transactions(TransactionHeaders.of(run, 63, 31, np.array([1])))
    encoder.rows(run.batches[0], 63)
    encoder.cut(Checkpoint(Position("p8"), Offset(64), 32, 9, progress={"tables": {"a": 1}}), 0)
    ends.append(len(head) + encoder.bytes)
    run = orders(5, 6)
    encoder.transactions(TransactionHeaders.of(run, 64, 32, np.array([1])))
    encoder.rows(run.batches[0], 64)
    encoder.transactions(TransactionHeaders.of(orders(7, 8, 9), 66, 33, np.array([1])))
    encoder.attach(AttachedSpool("1-2.spool", 66, 3, 5, 6))
    return head + b"".join(encoder.take()), ends


def test_valid_part_of_a_later_journal_is_reported_cut_by_cut() -> None:
    """The log continues with exactly this: shapes, spools and rows after the last cut do not belong to it."""
    content, ends = later_journal()
    none = kept(content[: ends[0]])
    assert (none.bytes, none.checkpoint, none.cuts, none.first_cut, none.rows) == (ends[0], LATER, 0, 0, 0)
    first = kept(content[: ends[1]])
    assert (first.cuts, first.first_cut, first.rows, len(first.shapes), len(first.attached)) == (1, 7, 3, 1, 1)
    assert first.checkpoint.progress == {"tables": {"a": 1}}
    both = kept(content[: ends[2]])
    assert (both.cuts, both.first_cut, both.checkpoint.cut, both.rows) == (2, 7, 9, 4)
    assert [s.table for s in both.shapes] == [ORDERS, ORDERS_WIDER, PRODUCTS]
    assert [record.name for record in both.attached] == ["1-1.spool"]
    rest = kept(content)
    assert replace(rest, dropped_bytes=0, dropped_rows=0, reason="") == both
    assert (rest.dropped_bytes, rest.dropped_rows, rest.reason) == (len(content) - ends[2], 5, "no cut")


def test_damage_directly_after_the_durable_part_is_the_unfinished_tail() -> None:
    """One byte decides between a crash, which is no loss, and a lost log."""
    written = journal(3, synced=1)  # cuts 2 and 3 record that the file was durable up to the end of cut 1
    content = bytearray(written.content)
    content[written.ends[1]] ^= 0xFF
    assert kept(bytes(content)).checkpoint.cut == 1


def test_damage_in_a_closed_journal_stops_although_no_cut_calls_it_durable() -> None:
    """The next journal proves that it was durable."""
    written = journal(3, synced=0)
    content = bytearray(written.content)
    content[written.ends[2] + 20] ^= 0xFF
    assert kept(bytes(content)).checkpoint.cut == 2
    with pytest.raises(InvariantViolated, match="data that cdcflow acknowledged"):
        kept(bytes(content), end=written.ends[3])
    assert kept(bytes(content), end=written.ends[2]).checkpoint.cut == 2
    with pytest.raises(InvariantViolated):
        kept(written.content, end=written.ends[2] - 8)


def test_frame_of_a_spool_does_not_belong_in_a_journal() -> None:
    """Skipping it would skip rows."""
    head, seed = JournalHeader("x", Epoch(1), Checkpoint()).encode()
    piece = b"".join(Framer(seed).frame(FrameKind.PIECE, (0).to_bytes(8, "little")))
    with pytest.raises(InvariantViolated, match="a PIECE does not belong in a journal"):
        kept(head + piece)


def test_rows_outside_of_their_run_stop_recovery_although_their_number_and_sum_are_right() -> None:
    """One row before it and one after it: nothing else would show this."""
    head, seed = JournalHeader("x", Epoch(1), Checkpoint(next_offset=Offset(10))).encode()
    for index, right in (([0, 1], True), ([-1, 2], False)):
        encoder = Encoder(seed)
        run = orders(1, 2)
        encoder.transactions(TransactionHeaders.of(run, 10, 1, np.array([1])))
        encoder.shape(ORDERS, 1)
        encoder.rows(replace(run.batches[0], index=np.array(index)), 10)
        encoder.cut(Checkpoint(Position("p"), Offset(12), 2, 1), 0)
        content = head + b"".join(encoder.take())
        if right:
            assert kept(content).rows == 2
        else:
            with pytest.raises(InvariantViolated, match="2 rows with offsets 9 to 12 come in the run from offset 10"):
                kept(content)
