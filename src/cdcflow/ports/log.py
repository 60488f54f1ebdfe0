"""A change log as its only writer has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from cdcflow.model.change import HeldRun, Int64s, KeySet, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Checkpoint, Offset, Position
from cdcflow.model.table import Table, TableId
from cdcflow.ports.stream import Spool


@dataclass(frozen=True, slots=True)
class Numbered:
    """Transactions with their numbers: the rows of `run` have the offsets from `first_offset` on, its transactions
    the numbers from `first_transaction` on, and `commit_clock` (microseconds) one entry each."""

    run: Run | SpooledTransaction | HeldRun
    first_offset: Offset
    first_transaction: int
    commit_clock: Int64s


class Log(Protocol):
    """A change log opened for writing by its only writer. `append`, `cut` and `sync` are called by one thread each:
    `append` and `cut` by the pipeline's, `sync` possibly by another one at the same time."""

    @property
    def checkpoint(self) -> Checkpoint:
        """The last durable cut's checkpoint."""
        ...

    def append(self, numbered: Numbered) -> None:
        """Put transactions at the end. May only queue them: that there is no room is then heard from `sync`."""
        ...

    def cut(self, checkpoint: Checkpoint) -> None:
        """Everything appended so far may become visible with this checkpoint, once it is synced."""
        ...

    def sync(self) -> Checkpoint:
        """Make the last cut written before this call durable, and return its checkpoint.

        Raises:
            SinkUnavailable: no room; nothing after the last durable cut counts.
            InvariantViolated: fsync failed; the process must stop.
        """
        ...

    def open_spool(self) -> Spool: ...

    def delivered(self, xids: Uint64s) -> Uint64s:
        """Those of these transaction ids (compared by their low 32 bits) that are in the log already."""
        ...

    def transactions_back(self, is_enough: Callable[[Position], bool]) -> pa.Table:
        """Number, position, id and time of commit (`number`, `position`, `xid`, `commit_ts`) of the source's latest
        transactions, oldest first: back to one whose position is enough, to the log's beginning, or to where it has
        expired. There may be more than were asked for."""
        ...

    def partial_keys(self, table: TableId, since: Offset) -> KeySet | None:
        """Keys of this table's rows from offset `since` on that came with unchanged columns; None: there are none.

        Raises:
            KeysUnknown: rows from `since` on have expired, the table's key is another one now, or the keys are more
                than `PARTIAL_KEYS_MAX`: the table must be read again from the start.
        """
        ...

    def seal_due(self, now_s: float) -> bool:
        """The hot end is large or old enough to be sealed (`now_s`: a monotonic clock), or what an earlier run left was
        not. Cheap; asked often."""
        ...

    def roll(self) -> bool:
        """Close the hot end at the last cut and begin a new one; False when there was nothing to close. Waits for no
        disk: the next `sync` makes the closed one durable before anything behind it."""
        ...

    def seal_pending(self) -> object:
        """Turn what was rolled into immutable segments. Slow; may run in another thread beside everything else."""
        ...

    def close(self) -> None:
        """Drop what no cut covers, seal the rest so that a merge sees all of it, give up the lock. Also after an error;
        then nothing is sealed."""
        ...


@runtime_checkable
class ShapeKeeping(Protocol):
    """A log that knows how its rows of a table look, also of one that no longer exists."""

    def newest_shape(self, table: TableId) -> Table | None:
        """The shape of this table's latest rows; None: the log never had any."""
        ...
