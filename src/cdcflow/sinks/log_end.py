"""The checks of every sink before it accepts anything: numbers without gaps, cuts and clocks in order, complete
rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cdcflow.capture.ports.log import Numbered
from cdcflow.errors import InvariantViolated
from cdcflow.model.change import ChangeBatch, HeldRun, Run, SpooledTransaction
from cdcflow.model.position import Checkpoint


def own_rows(run: Run | SpooledTransaction | HeldRun) -> Run | SpooledTransaction:
    """Return a run for a log without files. Raise InvariantViolated if its rows can only become files."""
    if isinstance(run, HeldRun):
        raise InvariantViolated(f"appending rows of {run.table.id} that other processes keep: this log has no files")
    return run


class LogEnd:
    """The end of a log: its next numbers, and its last cut."""

    def __init__(self, base: Checkpoint) -> None:
        self.next_offset: int = base.next_offset
        self.next_transaction = base.next_transaction
        self._cut = base.cut
        self._clock = base.commit_clock
        self.at_cut = True

    def check(self, numbered: Numbered) -> None:
        """Raise InvariantViolated unless the transactions have the next numbers, and are whole."""
        run = numbered.run
        expected = (self.next_offset, self.next_transaction)
        if (numbered.first_offset, numbered.first_transaction) != expected:
            raise InvariantViolated(
                f"appending offset {numbered.first_offset} and transaction {numbered.first_transaction} to the log: "
                f"next are {self.next_offset} and {self.next_transaction}"
            )
        if len(numbered.commit_clock) != run.transactions or run.rows <= 0:
            raise InvariantViolated(
                f"appending {run.transactions} transactions with {run.rows} rows and {len(numbered.commit_clock)} "
                "commit clocks to the log"
            )
        clock = numbered.commit_clock
        if clock[0] <= self._clock or not (clock[1:] > clock[:-1]).all():
            raise InvariantViolated(
                f"appending transaction {numbered.first_transaction} to the log: its commit clock {clock[0]}, or one "
                f"after it, is not later than the one before; the log has reached {self._clock}"
            )
        if isinstance(run, Run):
            self.check_index(run.batches, run.rows)

    def advance(self, numbered: Numbered) -> None:
        self.next_offset += numbered.run.rows
        self.next_transaction += numbered.run.transactions
        self._clock = int(numbered.commit_clock[-1])
        self.at_cut = False

    def cut(self, checkpoint: Checkpoint) -> None:
        """Record a cut. Raise InvariantViolated unless a cut with this checkpoint is allowed now."""
        found = (checkpoint.next_offset, checkpoint.next_transaction)
        if found != (self.next_offset, self.next_transaction) or checkpoint.cut <= self._cut:
            raise InvariantViolated(
                f"writing cut {checkpoint.cut} at offset {checkpoint.next_offset} and transaction "
                f"{checkpoint.next_transaction}: the log is at {self.next_offset} and {self.next_transaction}, "
                f"after cut {self._cut}"
            )
        if checkpoint.commit_clock < self._clock:
            raise InvariantViolated(
                f"writing cut {checkpoint.cut}: its commit clock {checkpoint.commit_clock} goes back; the log has "
                f"reached {self._clock}"
            )
        self._cut, self._clock = checkpoint.cut, checkpoint.commit_clock
        self.at_cut = True

    @staticmethod
    def check_index(batches: Sequence[ChangeBatch], rows: int) -> None:
        """Raise InvariantViolated unless the batches' rows are exactly 0 … rows - 1, ascending within each shape."""
        last: dict[object, int] = {}
        there = np.zeros(rows, np.bool_) if len(batches) > 1 else None
        count = 0
        for batch in batches:
            index = batch.index
            if len(index) != batch.rows.num_rows:
                raise InvariantViolated(
                    f"appending {batch.rows.num_rows} rows of {batch.table.id}: {len(index)} indices"
                )
            if not len(index):
                continue
            first, end = int(index[0]), int(index[-1])
            ascending = end - first == len(index) - 1 or bool((index[1:] > index[:-1]).all())
            if not ascending or first <= last.get(batch.table, -1) or end >= rows:
                raise InvariantViolated(
                    f"appending rows of {batch.table.id}: their indices do not ascend within {rows}"
                )
            if not batch.rows.schema.equals(batch.table.change_schema):
                raise InvariantViolated(f"appending rows of {batch.table.id}: the columns are not those of its shape")
            last[batch.table] = end
            count += len(index)
            if there is not None:
                there[index] = True
        if count != rows or (there is not None and not there.all()):
            raise InvariantViolated(
                f"appending {rows} rows to the log: there are {count}, or some indices are used twice"
            )
