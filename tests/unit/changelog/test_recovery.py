"""How much of a journal counts, whatever became of its end."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import pytest

from cdcflow.changelog.framing import FileKind, read_header
from cdcflow.changelog.journal import Attach, Encoder, JournalHeader
from cdcflow.changelog.recovery import Whole, whole
from cdcflow.changelog.transactions import Transactions
from cdcflow.errors import InvariantViolated
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position
from cdcflow.testing.sinks import ORDERS, orders


@dataclass
class Written:
    """A journal in memory: its bytes, and where its cuts end."""

    content: bytes
    ends: list[int]


def journal(cuts: int, *, synced: int = 0, spool_in: int | None = None) -> Written:
    """`cuts` cuts of one row each; each says that the first `synced` of the cuts before it were durable."""
    head, seed = JournalHeader("x", Epoch(1), Checkpoint()).encode()
    encoder = Encoder(seed)
    content, ends = head, [len(head)]
    for number in range(1, cuts + 1):
        run = orders(number)
        encoder.transactions(Transactions.of(run, number, number, np.array([number])))
        encoder.shape(ORDERS, 1)
        if spool_in == number:
            encoder.attach(Attach("1-1.spool", number, 1, 5, 6))
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
    """Recovery of a journal that was closed well cuts nothing off."""
    written = journal(3)
    found = kept(written.content)
    assert (found.bytes, found.checkpoint.cut, found.rows, found.reason) == (len(written.content), 3, 3, "")
    assert (found.cuts, found.first_cut, [s.table for s in found.shapes]) == (3, 1, [ORDERS])


def test_journal_cut_short_anywhere_counts_up_to_the_last_whole_cut() -> None:
    """A crash may end the file anywhere; never is a transaction half there (hard cases L01, L02)."""
    written = journal(3)
    for size in range(written.ends[0], len(written.content) + 1):
        found = kept(written.content[:size])
        cut = max(i for i, end in enumerate(written.ends) if end <= size)
        assert (found.bytes, found.checkpoint.cut, found.rows) == (written.ends[cut], cut, cut)
        assert found.dropped_bytes == size - written.ends[cut]
        assert bool(found.reason) == (size != written.ends[cut])


def test_recovery_says_what_it_cut_off_and_why() -> None:
    """An operator who reads it must be able to tell a torn write from a disk that lies."""
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
    """Going on from before it would tell the source to forget changes that we do not have (hard case L01)."""
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


def test_attached_spool_that_is_not_there_takes_its_cut_with_it() -> None:
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
    """Only a fault of ours writes them; dropping them in silence would hide it."""
    head, seed = JournalHeader("x", Epoch(1), Checkpoint()).encode()
    encoder = Encoder(seed)
    encoder.shape(ORDERS, 1)
    run = orders(1, 2)
    encoder.transactions(Transactions.of(run, 2 if wrong == "offset" else 1, 1, np.array([1])))
    encoder.rows(orders(1).batches[0] if wrong == "rows" else run.batches[0], 1)
    encoder.cut(Checkpoint(None, Offset(3), 2, 0 if wrong == "cut" else 1), 0)
    with pytest.raises(InvariantViolated):
        kept(head + b"".join(encoder.take()))
