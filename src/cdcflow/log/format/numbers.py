"""The rules for the numbers in a journal, the same for every process that recovers, reads or checks one.

    transactions   the next offset and the next transaction, and the number of rows that follow
    rows           offsets of that run only, each of them once
    cut            at the end of what precedes it, with a higher number

A frame with a valid checksum can still be contradictory. Only a bug in cdcflow writes such a frame, and rows under the
offsets of others would silently produce wrong tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from cdcflow.errors import InvariantViolated
from cdcflow.log.format.journal import AttachedFile, AttachedSpool, CutMark, JournalHeader, Record
from cdcflow.log.format.rows import ShapeRows
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.model.position import Checkpoint


@dataclass(slots=True)
class Numbers:
    """Checks the numbers of a journal's records, in order, and calls `wrong` for each contradiction.

    `rows_left` rows of the run that began at `run_offset` are still missing; `total_left` is the sum of their offsets.
    """

    wrong: Callable[[str], None]
    next_offset: int
    next_transaction: int
    cut: int
    run_offset: int
    rows_left: int = 0
    total_left: int = 0

    @classmethod
    def after(cls, base: Checkpoint, wrong: Callable[[str], None]) -> Numbers:
        return cls(wrong, base.next_offset, base.next_transaction, base.cut, base.next_offset)

    def transactions(self, first: int, rows: int, number: int, count: int) -> None:
        """Check the beginning of a run: `rows` rows with offsets starting at `first`, `count` transactions with numbers
        starting at `number`."""
        self.finish()
        if (first, number) != (self.next_offset, self.next_transaction):
            self.wrong(
                f"offset {first} and transaction {number} come where offset {self.next_offset} and transaction "
                f"{self.next_transaction} are expected"
            )
        if rows < 0 or count < 1:
            self.wrong(f"the run at offset {first} has {rows} rows in {count} transactions")
        self.run_offset, self.rows_left = first, rows
        self.total_left = rows * first + rows * (rows - 1) // 2
        self.next_offset, self.next_transaction = first + rows, number + count

    def rows(self, first: int, last: int, count: int, total: int) -> None:
        """Check rows of the run: `count` rows, with offsets from `first` to `last` that sum up to `total`."""
        if first < self.run_offset or last >= self.next_offset or count > self.rows_left:
            self.wrong(
                f"{count} rows with offsets {first} to {last} come in the run from offset {self.run_offset} to "
                f"{self.next_offset - 1}, where {self.rows_left} rows were still expected"
            )
        self.rows_left -= count
        self.total_left -= total

    def count_spooled(self, first: int, rows: int) -> None:
        """Check a run whose rows are all stored next to the journal."""
        if rows:
            self.rows(first, first + rows - 1, rows, rows * first + rows * (rows - 1) // 2)

    def at_cut(self, checkpoint: Checkpoint) -> None:
        self.finish()
        if (checkpoint.next_offset, checkpoint.next_transaction) != (self.next_offset, self.next_transaction):
            self.wrong(
                f"cut {checkpoint.cut} is at offset {checkpoint.next_offset} and transaction "
                f"{checkpoint.next_transaction}; the rows before it end at {self.next_offset} and "
                f"{self.next_transaction}"
            )
        if checkpoint.cut <= self.cut:
            self.wrong(f"cut {checkpoint.cut} comes after cut {self.cut}")
        self.cut = checkpoint.cut

    def finish(self) -> None:
        """Check that the run is complete."""
        if self.rows_left or self.total_left:
            self.wrong(
                f"the run from offset {self.run_offset} to {self.next_offset - 1} is incomplete: {self.rows_left} "
                f"of its rows are missing or replaced by others"
            )
        self.rows_left = self.total_left = 0

    def take(self, record: Record) -> None:
        """Check a decoded record."""
        match record:
            case TransactionHeaders():
                rows = record.next_offset - record.first_offset
                self.transactions(record.first_offset, rows, record.first_transaction, len(record.ends))
            case ShapeRows() if len(record.offsets):
                first, last = int(record.offsets[0]), int(record.offsets[-1])
                self.rows(first, last, len(record.offsets), int(record.offsets.sum()))
            case AttachedSpool() | AttachedFile():
                self.count_spooled(record.first_offset, record.rows)
            case CutMark():
                self.at_cut(record.checkpoint)
            case _:
                pass


def refusing(name: str) -> Callable[[str], None]:
    """Return a `wrong` callback for `Numbers` that raises InvariantViolated."""

    def wrong(text: str) -> None:
        raise InvariantViolated(
            f"reading {name}: {text}",
            remedy="restore the log from a copy, or begin a new log with a new backfill",
            runbook="log-damaged",
        )

    return wrong


def in_order(found: Iterable[Record], header: JournalHeader, name: str) -> Iterator[Record]:
    """Yield a journal's records, with none skipped, up to the first contradiction.

    Raises:
        InvariantViolated: they contradict each other.
    """
    numbers = Numbers.after(header.base, refusing(name))
    for record in found:
        numbers.take(record)
        yield record
