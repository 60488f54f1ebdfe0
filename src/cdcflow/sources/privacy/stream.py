"""The stream and the spools of a source, with the settings' `tables` applied to their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from cdcflow.capture.interleave.messages import Advanced, Committed, MarkSeen, RowsIncomplete, Transactions
from cdcflow.capture.ports.log import Spool
from cdcflow.capture.ports.stream import Stream, StreamEvent
from cdcflow.errors import InvariantViolated
from cdcflow.model.change import ChangeBatch, Int64s, KeySet, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Position
from cdcflow.model.table import TableId
from cdcflow.sources.privacy.rules import PolicyRules

Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class SpoolNotes:
    """What the rows of spools showed while they were written, by the spools' names.

    `stayed`: how many rows did not leave, by sub-transaction (None: of the transaction itself). `incomplete`: the
    tables with rows that must be read again.
    """

    stayed: dict[str, dict[int | None, int]] = field(default_factory=dict)
    incomplete: dict[str, set[TableId]] = field(default_factory=dict)

    def count(self, spool: str, stay: Bools, subxids: Uint64s | None) -> None:
        counts = self.stayed.setdefault(spool, {})
        if subxids is None:
            counts[None] = counts.get(None, 0) + int(stay.sum())
            return
        for subxid, count in zip(*np.unique(subxids[stay], return_counts=True), strict=True):
            counts[int(subxid)] = counts.get(int(subxid), 0) + int(count)

    def forget(self, spool: str) -> None:
        self.stayed.pop(spool, None)
        self.incomplete.pop(spool, None)

    def rows_of(self, run: SpooledTransaction) -> int:
        """How many rows of a transaction are in its spool."""
        stayed = self.stayed.get(run.spool, {})
        return run.rows - sum(count for subxid, count in stayed.items() if subxid not in run.aborted)


class PrivateStream:
    """Implements `cdcflow.capture.ports.stream.Stream`."""

    def __init__(self, stream: Stream, rules: PolicyRules, position: Position, notes: SpoolNotes) -> None:
        """`position`: where it begins; `notes`: what `PrivateSpool`s of this stream found."""
        self._stream = stream
        self._rules = rules
        self._position = position
        self._notes = notes

    def fileno(self) -> int:
        return self._stream.fileno()

    def poll(self) -> Sequence[StreamEvent]:
        events = self._stream.poll()
        # Transactions first: they have the shapes of the tables whose keys come before them.
        left = [self._rows_leaving(e) if isinstance(e, Committed) else (e, {}) for e in events]
        found: list[StreamEvent] = []
        for event, incomplete in left:
            match event:
                case Committed(run):
                    found += [RowsIncomplete(table, keys, self._position) for table, keys in incomplete.items()]
                    self._position = run.last_position
                case RowsIncomplete(table, keys, _):
                    event = replace(event, keys=keys_leaving(keys, table, self._rules))
                case MarkSeen(position=position) | Advanced(position):
                    self._position = position
                case _:
                    pass
            found.append(event)
        return found

    @property
    def ready(self) -> bool:
        return self._stream.ready

    def acknowledge(self, position: Position) -> None:
        self._stream.acknowledge(position)

    def close(self) -> None:
        self._stream.close()

    def _rows_leaving(self, event: Committed) -> tuple[Committed, dict[TableId, KeySet]]:
        run, incomplete = event.run, dict[TableId, KeySet]()
        left = run_leaving(run, self._rules, incomplete)
        if isinstance(run, SpooledTransaction) and isinstance(left, SpooledTransaction):
            tables = self._notes.incomplete.get(run.spool, set())
            incomplete = {table: keys for table, keys in left.partial.items() if table in tables}
            left = replace(left, rows=self._notes.rows_of(run))
            self._notes.forget(run.spool)
        return Committed(left), incomplete


class PrivateSpool:
    """Implements `cdcflow.capture.ports.log.Spool`."""

    def __init__(self, spool: Spool, rules: PolicyRules, notes: SpoolNotes) -> None:
        self._spool = spool
        self._rules = rules
        self._notes = notes
        self.name = spool.name

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        found = [batch_leaving(batch, self._rules) for batch in batches]
        for batch, keys in found:
            if keys is not None:
                self._notes.incomplete.setdefault(self.name, set()).add(batch.table.id)
        left = [batch for batch, _ in found]
        if _has_all(batches, left):
            self._spool.write(left, subxids)
            return
        leave = _which_leave(left, sum(len(batch.index) for batch in batches))
        self._notes.count(self.name, ~leave, subxids)
        left = _renumber(left, leave)
        if left:
            self._spool.write(left, None if subxids is None else subxids[leave])

    def finish(self) -> None:
        self._spool.finish()

    def discard(self) -> None:
        self._notes.forget(self.name)
        self._spool.discard()


def batch_leaving(batch: ChangeBatch, rules: PolicyRules) -> tuple[ChangeBatch, KeySet | None]:
    """Changes as they leave the source, whose `index` may lack rows, and the keys of those that must be read again."""
    table = rules.shape(batch.table)
    return (batch, None) if table is None else table.leave(batch)


def keys_leaving(keys: KeySet, table: TableId, rules: PolicyRules) -> KeySet:
    """Keys as they leave the source."""
    found = rules.latest(table)
    return keys if found is None else found.keys(keys)


def run_leaving(run: Transactions, rules: PolicyRules, incomplete: dict[TableId, KeySet]) -> Transactions:
    """Transactions as they leave the source; the rows of a large one have left it already, into a spool.

    `incomplete` gets the keys of the rows in memory that must be read again, because a rule needs a column that was not
    sent.
    """
    match run:
        case Run():
            found = [(batch.table.id, *batch_leaving(batch, rules)) for batch in run.batches]
            for table, _, keys in found:
                _add(incomplete, table, keys)
            return without_rows(run, [batch for _, batch, _ in found])
        case SpooledTransaction():
            partial = {table: keys_leaving(keys, table, rules) for table, keys in run.partial.items()}
            shapes = frozenset(rules.table_leaving(table) for table in run.shapes)
            return replace(run, shapes=shapes, partial=partial)
    raise InvariantViolated(f"the source has transactions of an unknown kind ({type(run).__name__})")


def without_rows(run: Run, left: Sequence[ChangeBatch]) -> Run:
    """A run with other batches, whose `index` may lack rows: the rest gets new numbers."""
    if _has_all(run.batches, left):
        return replace(run, batches=tuple(left))
    leave = _which_leave(left, run.rows)
    return replace(run, ends=_before(leave)[run.ends], batches=tuple(_renumber(left, leave)))


def _add(incomplete: dict[TableId, KeySet], table: TableId, keys: KeySet | None) -> None:
    if keys is not None and len(keys):
        incomplete[table] = incomplete[table].union(keys) if table in incomplete else keys


def _has_all(batches: Sequence[ChangeBatch], left: Sequence[ChangeBatch]) -> bool:
    return all(len(a.index) == len(b.index) for a, b in zip(batches, left, strict=True))


def _which_leave(left: Sequence[ChangeBatch], rows: int) -> Bools:
    leave = np.zeros(rows, np.bool_)
    for batch in left:
        leave[batch.index] = True
    return leave


def _before(leave: Bools) -> Int64s:
    """How many rows that leave precede each row, and all of them (one more)."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(leave, dtype=np.int64)])


def _renumber(left: Sequence[ChangeBatch], leave: Bools) -> list[ChangeBatch]:
    before = _before(leave)
    return [replace(batch, index=before[batch.index]) for batch in left if len(batch.index)]
