"""Frames whose checksums are right and whose numbers are not: whoever meets one refuses the journal by name."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.changelog.checking import Seen
from cdcflow.changelog.checking import journal as checked
from cdcflow.changelog.framing import FileKind, read_header
from cdcflow.changelog.journal import Attach, Encoder, JournalHeader, Record, records
from cdcflow.changelog.numbers import in_order
from cdcflow.changelog.recovery import whole
from cdcflow.changelog.transactions import Transactions, extent
from cdcflow.errors import InvariantViolated
from cdcflow.model.change import ChangeBatch, Kind
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position
from cdcflow.testing.sinks import ORDERS, orders

LIES = [
    "rows begin before their run",
    "rows reach behind their run",
    "rows of an offset come twice",
    "a row is missing",
    "a row too many",
    "a run begins too late",
    "a run has another transaction number",
    "a run announces more rows",
    "a spool begins elsewhere",
    "a cut stands at another offset",
    "a cut stands at another transaction",
    "a cut has a number that was there",
]


def told(lie: str) -> bytes:
    """A journal of two runs of three rows, the second of which lies."""
    head, seed = JournalHeader("x", Epoch(1), Checkpoint()).encode()
    encoder = Encoder(seed)
    encoder.shape(ORDERS, 1)
    run = orders(1, 2, 3)
    batch = run.batches[0]
    first = Transactions.of(run, 1, 1, np.array([1]))
    encoder.transactions(first)
    encoder.rows(batch, 1)
    encoder.cut(Checkpoint(Position("a"), Offset(4), 2, 1), 0)
    second = replace(first, first_offset=5 if "too late" in lie else 4, first_transaction=3 if "number" in lie else 2)
    if "announces" in lie:
        second = replace(second, ends=np.array([4]))
    encoder.transactions(second)
    if "spool" in lie:
        encoder.attach(Attach("1-1.spool", 3, 3, 5, 6))
    else:
        for rows, begin in given(lie, batch):
            encoder.rows(rows, begin)
    end = Checkpoint(Position("b"), Offset(8 if "another offset" in lie else 7), 4 if "another trans" in lie else 3, 2)
    encoder.cut(replace(end, cut=1) if "that was there" in lie else end, 0)
    return head + b"".join(encoder.take())


def given(lie: str, batch: ChangeBatch) -> Iterator[tuple[ChangeBatch, int]]:
    one = ChangeBatch(batch.table, np.array([0]), batch.rows.slice(0, 1))
    match lie:
        case "rows begin before their run":
            yield batch, 3
        case "rows reach behind their run":
            yield batch, 5
        case "rows of an offset come twice":
            yield ChangeBatch(batch.table, np.array([0, 2]), batch.rows.slice(0, 2)), 4
            yield one, 4
        case "a row is missing":
            yield ChangeBatch(batch.table, np.array([0, 2]), batch.rows.slice(0, 2)), 4
        case "a row too many":
            yield batch, 4
            yield one, 4
        case _:
            yield batch, 4


def decoded(content: bytes) -> Iterator[Record]:
    file = io.BytesIO(content)
    header = read_header(file, FileKind.JOURNAL, "some.journal")
    return in_order(records(file, header, "some.journal"), JournalHeader.from_header(header), "some.journal")


def test_journal_without_a_lie_is_taken() -> None:
    """Else the refusals below would prove nothing."""
    assert recovered("nothing") == 6
    assert len(list(decoded(told("nothing")))) == 7


def recovered(lie: str) -> int:
    content = told(lie)
    file = io.BytesIO(content)
    header = read_header(file, FileKind.JOURNAL, "some.journal")
    return whole(file, header, len(content), "some.journal", lambda _: True, end=None).rows


@pytest.mark.parametrize("lie", LIES)
def test_recovery_refuses_a_frame_that_lies_about_its_numbers(lie: str) -> None:
    """A daemon that went on from there would seal rows under the offsets of others."""
    with pytest.raises(InvariantViolated, match=r"some\.journal"):
        recovered(lie)


@pytest.mark.parametrize("lie", LIES)
def test_readers_refuse_a_frame_that_lies_about_its_numbers(lie: str) -> None:
    """A reader has no recovery before it: it reads beside the daemon."""
    with pytest.raises(InvariantViolated, match=r"some\.journal"):
        list(decoded(told(lie)))


@pytest.mark.parametrize("lie", LIES)
def test_check_names_a_frame_that_lies_about_its_numbers(lie: str) -> None:
    """What the daemon refuses, `log check` must find."""
    file = io.BytesIO(told(lie))
    header = read_header(file, FileKind.JOURNAL, "some.journal")
    seen = Seen()
    checked("x", "x", JournalHeader.from_header(header), records(file, header, "some.journal"), seen, deep=False)
    assert seen.faults


@pytest.mark.parametrize("ends", [[3], [1, 3]])
def test_transactions_that_have_other_rows_than_their_head_says_are_refused(ends: list[int]) -> None:
    """The head is what recovery goes by, and the rest is what readers get."""
    ids = np.arange(1, len(ends) + 1)
    positions = pa.array([f"p{i}" for i in ids])
    truth = Transactions(1, 1, Kind.SOURCE, np.array(ends), ids.astype(np.uint64), positions, ids, ids).encode()
    lie = truth.replace((3).to_bytes(8, "little"), (2).to_bytes(8, "little"), 1)
    assert lie != truth
    assert extent(truth)[1] == 3
    with pytest.raises(ValueError, match="rows"):
        extent(lie)
