"""Frames with correct checksums and wrong numbers: every reader refuses the journal with an error that names it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.errors import InvariantViolated
from cdcflow.log.format.framing import FileKind, read_header
from cdcflow.log.format.journal import AttachedSpool, Encoder, JournalHeader, Record, records
from cdcflow.log.format.numbers import Numbers, in_order
from cdcflow.log.format.recovery import whole
from cdcflow.log.format.transactions import TransactionHeaders, extent
from cdcflow.log.read.check import Seen
from cdcflow.log.read.check import journal as checked
from cdcflow.model.change import ChangeBatch, Kind
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position
from cdcflow.testing.sinks import ORDERS, orders

LIES = [
    "rows begin before their run",
    "rows extend past their run",
    "rows of an offset come twice",
    "a row is missing",
    "a row too many",
    "a run begins too late",
    "a run has another transaction number",
    "a run announces more rows",
    "a spool begins elsewhere",
    "a cut is at another offset",
    "a cut is at another transaction",
    "a cut repeats a number",
]


def told(lie: str) -> bytes:
    """A journal of two runs of three rows; the second run is wrong."""
    head, seed = JournalHeader("x", Epoch(1), Checkpoint()).encode()
    encoder = Encoder(seed)
    encoder.shape(ORDERS, 1)
    run = orders(1, 2, 3)
    batch = run.batches[0]
    first = TransactionHeaders.of(run, 1, 1, np.array([1]))
    encoder.transactions(first)
    encoder.rows(batch, 1)
    encoder.cut(Checkpoint(Position("a"), Offset(4), 2, 1), 0)
    second = replace(first, first_offset=5 if "too late" in lie else 4, first_transaction=3 if "number" in lie else 2)
    if "announces" in lie:
        second = replace(second, ends=np.array([4]))
    encoder.transactions(second)
    if "spool" in lie:
        encoder.attach(AttachedSpool("1-1.spool", 3, 3, 5, 6))
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
        case "rows extend past their run":
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


def test_valid_journal_is_accepted() -> None:
    """Otherwise the refusals below would prove nothing."""
    assert recovered("nothing") == 6
    assert len(list(decoded(told("nothing")))) == 7


def recovered(lie: str) -> int:
    content = told(lie)
    file = io.BytesIO(content)
    header = read_header(file, FileKind.JOURNAL, "some.journal")
    return whole(file, header, len(content), "some.journal", lambda _: True, end=None).rows


@pytest.mark.parametrize("lie", LIES)
def test_recovery_refuses_a_frame_with_wrong_numbers(lie: str) -> None:
    """A daemon that continued from there would seal rows under the offsets of others."""
    with pytest.raises(InvariantViolated, match=r"some\.journal"):
        recovered(lie)


@pytest.mark.parametrize("lie", LIES)
def test_readers_refuse_a_frame_with_wrong_numbers(lie: str) -> None:
    """A reader does not run recovery first: it reads while the daemon writes."""
    with pytest.raises(InvariantViolated, match=r"some\.journal"):
        list(decoded(told(lie)))


@pytest.mark.parametrize("lie", LIES)
def test_check_names_a_frame_with_wrong_numbers(lie: str) -> None:
    """What the daemon refuses, `log check` must find."""
    file = io.BytesIO(told(lie))
    header = read_header(file, FileKind.JOURNAL, "some.journal")
    seen = Seen()
    checked("x", "x", JournalHeader.from_header(header), records(file, header, "some.journal"), seen, deep=False)
    assert seen.faults


@pytest.mark.parametrize("ends", [[3], [1, 3]])
def test_transactions_with_other_rows_than_in_their_head_are_refused(ends: list[int]) -> None:
    """Recovery relies on the head, and readers get the rest."""
    ids = np.arange(1, len(ends) + 1)
    positions = pa.array([f"p{i}" for i in ids])
    truth = TransactionHeaders(1, 1, Kind.SOURCE, np.array(ends), ids.astype(np.uint64), positions, ids, ids).encode()
    lie = truth.replace((3).to_bytes(8, "little"), (2).to_bytes(8, "little"), 1)
    assert lie != truth
    assert extent(truth)[1] == 3
    with pytest.raises(ValueError, match="rows"):
        extent(lie)


def heard(*, base: Checkpoint | None = None) -> tuple[Numbers, list[str]]:
    """Numbers, and the values that they must have."""
    wrong: list[str] = []
    return Numbers.after(base or Checkpoint(None, Offset(10), 5, 3), wrong.append), wrong


def test_numbers_continue_where_the_journal_before_ended() -> None:
    """A journal that begins late is as valid as the first one, and an offset before its beginning belongs to
    another."""
    numbers, wrong = heard()
    numbers.transactions(10, 2, 5, 1)
    numbers.rows(10, 10, 1, 10)
    numbers.rows(11, 11, 1, 11)
    numbers.transactions(12, 0, 6, 3)  # of empty transactions
    numbers.count_spooled(12, 0)
    numbers.transactions(12, 2, 9, 1)
    numbers.count_spooled(12, 2)
    numbers.at_cut(Checkpoint(None, Offset(14), 10, 4))
    numbers.at_cut(Checkpoint(None, Offset(14), 10, 6))
    assert (wrong, numbers.cut, numbers.next_offset, numbers.next_transaction) == ([], 6, 14, 10)


@pytest.mark.parametrize(
    ("first", "rows", "number", "count", "says"),
    [
        (9, 1, 5, 1, "offset 9"),
        (11, 1, 5, 1, "offset 11"),
        (10, 1, 4, 1, "transaction 4"),
        (10, 1, 6, 1, "transaction 6"),
        (10, -1, 5, 1, "-1 rows in 1 transactions"),
        (10, 1, 5, 0, "1 rows in 0 transactions"),
    ],
)
def test_run_that_cannot_follow_is_reported(first: int, rows: int, number: int, count: int, says: str) -> None:
    """Each number alone is enough: a reader that accepted a wrong one would assign rows to another transaction."""
    numbers, wrong = heard()
    numbers.transactions(first, rows, number, count)
    assert says in wrong[0]


@pytest.mark.parametrize(
    "rows",
    [
        (9, 11, 3, 30),  # begins one too early
        (10, 13, 3, 33),  # ends one too late
        (10, 12, 4, 33),  # one too many
    ],
)
def test_rows_outside_of_their_run_are_reported(rows: tuple[int, int, int, int]) -> None:
    """A row outside of the run belongs to another transaction."""
    numbers, wrong = heard()
    numbers.transactions(10, 3, 5, 1)
    assert wrong == []
    numbers.rows(*rows)
    assert len(wrong) == 1


def test_incomplete_run_is_reported_once() -> None:
    """`log check` continues after it: intact data there must not be reported as wrong."""
    for rows in [(10, 11, 2, 21), (10, 12, 3, 32)]:  # one is missing; one appears twice in place of another
        numbers, wrong = heard()
        numbers.transactions(10, 3, 5, 1)
        numbers.rows(*rows)
        assert wrong == []
        numbers.transactions(13, 1, 6, 1)
        assert [w for w in wrong if "incomplete" in w] == wrong != []
        numbers.rows(13, 13, 1, 13)
        numbers.at_cut(Checkpoint(None, Offset(14), 7, 4))
        assert len(wrong) == 1


@pytest.mark.parametrize("cut", [(13, 6, 4), (15, 7, 4), (14, 6, 4), (14, 8, 4), (14, 7, 3), (14, 7, 2)])
def test_cut_that_is_not_at_the_end_or_is_repeated_is_reported(cut: tuple[int, int, int]) -> None:
    """The source may forget everything up to its checkpoint, and the next run begins there."""
    numbers, wrong = heard()
    numbers.transactions(10, 4, 5, 2)
    numbers.count_spooled(10, 4)
    numbers.at_cut(Checkpoint(None, Offset(cut[0]), cut[1], cut[2]))
    assert len(wrong) == 1
    numbers.at_cut(Checkpoint(None, Offset(14), 7, 5))
    assert len(wrong) == 1
