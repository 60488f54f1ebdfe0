"""A change log as its single writer uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from cdcflow.model.change import ChangeBatch, HeldRun, Int64s, KeySet, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Checkpoint, Offset, Position
from cdcflow.model.table import Table, TableId


@dataclass(frozen=True, slots=True)
class Numbered:
    """Transactions with their numbers in the log: the rows of `run` have offsets starting at `first_offset`, its
    transactions have numbers starting at `first_transaction`, and `commit_clock` (microseconds) has one entry per
    transaction."""

    run: Run | SpooledTransaction | HeldRun
    first_offset: Offset
    first_transaction: int
    commit_clock: Int64s


class Spool(Protocol):
    """Receives a transaction that should not be held in memory while it arrives. One writer.

    Pieces arrive in the order of the source's log. The index of a piece's rows starts at 0 in each piece.
    """

    name: str

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        """Append one piece. `subxids` (one entry per row of the piece, in index order) is each row's sub-transaction,
        or None if they can no longer be rolled back."""
        ...

    def finish(self) -> None:
        """End the transaction: no more pieces follow. Everything written is in the file (durable only with the log's
        next `sync`)."""
        ...

    def discard(self) -> None:
        """Discard the transaction, because it was rolled back."""
        ...


OpenSpool = Callable[[], Spool]


class Log(Protocol):
    """A change log opened for writing by its single writer. The pipeline's thread calls `append` and `cut`; one thread,
    possibly a different one at the same time, calls `sync`."""

    @property
    def checkpoint(self) -> Checkpoint:
        """The last durable cut's checkpoint."""
        ...

    def append(self, numbered: Numbered) -> None:
        """Append transactions. They may only be queued; if the disk has no room, the next `sync` reports it."""
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
        """Return those of these transaction ids (compared by their low 32 bits) that the log already has."""
        ...

    def transactions_back(self, is_enough: Callable[[Position], bool]) -> pa.Table:
        """Return the source's latest transactions, oldest first: `number`, `position`, `xid` and `commit_ts` of each.

        They reach back to a transaction for whose position `is_enough` is true, to the log's beginning, or to where the
        log has expired. May return more than requested.
        """
        ...

    def partial_keys(self, table: TableId, since: Offset) -> KeySet | None:
        """Return the keys of this table's rows since offset `since` that arrived with unchanged columns, or None if
        there are no such rows.

        Raises:
            KeysUnknown: rows since `since` have expired, the table's key has changed, or there are more keys than
                `PARTIAL_KEYS_MAX`: the table must be read again from the start.
        """
        ...

    def seal_due(self, now_s: float) -> bool:
        """Whether the journal is large or old enough to seal (`now_s`: a monotonic clock), or an earlier run left
        something unsealed. Cheap; called often."""
        ...

    def roll(self) -> bool:
        """Close the journal at the last cut and begin a new one; return False if there was nothing to close.

        Does not wait for the disk: the next `sync` makes the closed journal durable before anything after it.
        """
        ...

    def seal_pending(self) -> object:
        """Turn the closed journals into immutable segments, and return true (or equivalent) if there are new ones.

        Slow; may run in another thread, concurrently with the other methods.
        """
        ...

    def close(self) -> None:
        """Drop the rows after the last cut, seal the rest so that a merge sees all of it, and release the lock.

        Also called after an error; then nothing is sealed.
        """
        ...


@runtime_checkable
class BoundedSealing(Protocol):
    """A log that can leave the sealing of what is durable already to its next writer."""

    def end_sealing_within(self, seconds: float) -> None:
        """Abandon, after this many seconds, what `seal_pending` or `close` has not sealed until then.

        Any thread may call it. Called once, before `close`.
        """
        ...


@runtime_checkable
class ShapeKeeping(Protocol):
    """A log that can return the shape of a table's rows, even if the table no longer exists."""

    def newest_shape(self, table: TableId) -> Table | None:
        """The shape of this table's latest rows, or None if the log never had any."""
        ...
