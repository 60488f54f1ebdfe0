"""The stream and the spools of a source, with the settings' `tables` applied to their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from cdcflow.capture.interleave.messages import (
    Advanced,
    ChangesRefused,
    Committed,
    MarkSeen,
    RowsFilled,
    RowsIncomplete,
    Transactions,
)
from cdcflow.capture.ports.log import Spool
from cdcflow.capture.ports.stream import Stream, StreamEvent
from cdcflow.errors import InvariantViolated, TableMisfit
from cdcflow.model.change import ChangeBatch, Int64s, KeySet, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Position
from cdcflow.model.table import Table, TableId, word
from cdcflow.sources.engine.spool_parts import SpoolParts
from cdcflow.sources.privacy.rules import PolicyRules

Bools = npt.NDArray[np.bool_]
Refused = dict[TableId, TableMisfit]
"""Tables with changes that cannot leave the source, and why."""


@dataclass(slots=True)
class SpoolNotes:
    """Facts about the rows of spools that were noticed while these were written, by the spools' names.

    `parts`: the parts of the rows that left. `incomplete`: the tables with rows that must be read again. `refused`: the
    tables with rows that cannot leave, and those rows' sub-transactions.
    """

    parts: dict[str, SpoolParts] = field(default_factory=dict)
    incomplete: dict[str, set[TableId]] = field(default_factory=dict)
    refused: dict[str, list[tuple[TableId, TableMisfit, frozenset[int] | None]]] = field(default_factory=dict)

    def parts_of(self, spool: str) -> SpoolParts:
        return self.parts.setdefault(spool, SpoolParts())

    def forget(self, spool: str) -> None:
        self.parts.pop(spool, None)
        self.incomplete.pop(spool, None)
        self.refused.pop(spool, None)

    def refused_in(self, run: SpooledTransaction) -> Refused:
        """Return the tables with rows that cannot leave and were not rolled back."""
        found: Refused = {}
        for table, why, subxids in self.refused.get(run.spool, ()):
            if subxids is None or subxids - run.aborted:
                found.setdefault(table, why)
        return found


@dataclass(frozen=True, slots=True)
class LeavingRun:
    """Transactions as they leave the source.

    `incomplete`: the keys of the rows in memory that must be read again, because a rule needs a column that was not
    sent. `refused`: the tables with a row that cannot leave; `tables`: all tables with rows.
    """

    run: Transactions
    incomplete: Mapping[TableId, KeySet]
    refused: Refused
    tables: frozenset[TableId]


class PrivateStream:
    """Implements `cdcflow.capture.ports.stream.Stream`."""

    def __init__(self, stream: Stream, rules: PolicyRules, position: Position, notes: SpoolNotes) -> None:
        """`position`: where the stream begins; `notes`: facts that this stream's `PrivateSpool`s noticed."""
        self._stream = stream
        self._rules = rules
        self._position = position
        self._notes = notes
        self._failing: frozenset[TableId] = frozenset()
        """The tables whose latest changes could not leave."""

    def fileno(self) -> int:
        return self._stream.fileno()

    def poll(self) -> Sequence[StreamEvent]:
        events = self._stream.poll()
        # Statements are handled before rows, because rows after a statement may have its names for other columns.
        mistaken = self._mistaken_names(events)
        # Transactions are handled before keys: they contain the shapes that keys, although sent earlier, are converted
        # by.
        left = [self._rows_leaving(e.run) if isinstance(e, Committed) else None for e in events]
        found: list[StreamEvent] = [self._refusal(table, why) for table, why in mistaken.items()]
        for event, run in zip(events, left, strict=True):
            match event:
                case Committed(sent) if run is not None:
                    found += [self._refusal(table, why) for table, why in run.refused.items()]
                    found += [RowsIncomplete(table, keys, self._position) for table, keys in run.incomplete.items()]
                    found.append(Committed(run.run))
                    self._position = sent.last_position
                case RowsIncomplete():
                    found += self._keys_leaving(event)
                case MarkSeen(position=position) | Advanced(position):
                    found.append(event)
                    self._position = position
                case _:
                    found.append(event)
        return found

    @property
    def ready(self) -> bool:
        return self._stream.ready

    def acknowledge(self, position: Position) -> None:
        self._stream.acknowledge(position)

    def close(self) -> None:
        self._stream.close()

    def _rows_leaving(self, run: Transactions) -> LeavingRun:
        found = run_leaving(run, self._rules)
        if isinstance(run, SpooledTransaction) and isinstance(found.run, SpooledTransaction):
            left = self._notes.parts_of(run.spool).divide(found.run)
            tables = self._notes.incomplete.get(run.spool, set())
            incomplete = {table: keys for table, keys in left.partial.items() if table in tables}
            found = LeavingRun(left, incomplete, self._notes.refused_in(run) | found.refused, found.tables)
            self._notes.forget(run.spool)
        self._failing = self._failing - found.tables | found.refused.keys()
        return found

    def _keys_leaving(self, event: RowsIncomplete) -> list[StreamEvent]:
        if event.table in self._failing:  # its shape may be unknown, and the whole table must be read again
            return []
        try:
            return [replace(event, keys=keys_leaving(event.keys, event.table, self._rules))]
        except TableMisfit as why:
            return [self._refusal(event.table, why)]

    def _mistaken_names(self, events: Sequence[StreamEvent]) -> Refused:
        found: Refused = {}
        for event in events:
            if isinstance(event, RowsFilled) and event.renamed:
                why = self._rules.mistaken_name(event.table, event.renamed)
                found |= {} if why is None else {event.table: why}
        return found

    def _refusal(self, table: TableId, why: TableMisfit) -> ChangesRefused:
        return ChangesRefused(table, refusal_text(table, why), self._position)


def refusal_text(table: TableId, why: TableMisfit) -> str:
    """Return why changes of a table are refused, and what to do, for operators."""
    text = str(why).removesuffix(", then start again")
    return f"{text}; then start again or run `cdcflow apply`, and run `cdcflow backfill {word(table)}`"


class PrivateSpool:
    """Implements `cdcflow.capture.ports.log.Spool`."""

    def __init__(self, spool: Spool, rules: PolicyRules, notes: SpoolNotes) -> None:
        self._spool = spool
        self._rules = rules
        self._notes = notes
        self.name = spool.name

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        found, refused = batches_leaving(batches, self._rules)
        for batch, keys in found:
            if keys is not None:
                self._notes.incomplete.setdefault(self.name, set()).add(batch.table.id)
        if refused:
            self._note_refused(batches, refused, subxids)
        left = [batch for batch, _ in found]
        if not _has_all(batches, left):
            leave = _which_leave(left, sum(len(batch.index) for batch in batches))
            left, subxids = _renumber(left, leave), None if subxids is None else subxids[leave]
        if left:
            self._spool.write(left, self._notes.parts_of(self.name).count(left, subxids))

    def _note_refused(self, batches: Sequence[ChangeBatch], refused: Refused, subxids: Uint64s | None) -> None:
        notes = self._notes.refused.setdefault(self.name, [])
        for table, why in refused.items():
            mine = np.concatenate([batch.index for batch in batches if batch.table.id == table])
            parts = None if subxids is None else frozenset(np.unique(subxids[mine]).tolist())
            notes.append((table, why, parts))

    def finish(self) -> None:
        self._spool.finish()

    def discard(self) -> None:
        self._notes.forget(self.name)
        self._spool.discard()


def batches_leaving(
    batches: Sequence[ChangeBatch], rules: PolicyRules
) -> tuple[list[tuple[ChangeBatch, KeySet | None]], Refused]:
    """Return changes as they leave the source, each batch with the keys of rows to read again; and the tables with a
    row that cannot leave.

    `index` may lack rows. If a row of a table cannot leave, no row of that table is returned.
    """
    found: list[tuple[ChangeBatch, KeySet | None]] = []
    refused: Refused = {}
    for batch in batches:
        try:
            table = rules.shape(batch.table)
            found.append((batch, None) if table is None else table.leave(batch))
        except TableMisfit as why:
            refused.setdefault(batch.table.id, why)
            found.append((batch, None))
    if not refused:
        return found, refused
    return [(_empty(b), None) if b.table.id in refused else (b, keys) for b, keys in found], refused


def keys_leaving(keys: KeySet, table: TableId, rules: PolicyRules) -> KeySet:
    """Return keys as they leave the source."""
    found = rules.latest(table)
    return keys if found is None else found.keys(keys)


def run_leaving(run: Transactions, rules: PolicyRules) -> LeavingRun:
    """Return transactions as they leave the source; the rows of a large one have left it already, into a spool."""
    match run:
        case Run():
            found, refused = batches_leaving(run.batches, rules)
            incomplete: dict[TableId, KeySet] = {}
            for batch, keys in found:
                _add(incomplete, batch.table.id, keys)
            left = run.with_batches([batch for batch, _ in found])
            return LeavingRun(left, incomplete, refused, frozenset(batch.table.id for batch in run.batches))
        case SpooledTransaction():
            return _spooled_leaving(run, rules)
    raise InvariantViolated(f"the source has transactions of an unknown kind ({type(run).__name__})")


def _spooled_leaving(run: SpooledTransaction, rules: PolicyRules) -> LeavingRun:
    shapes: set[Table] = set()
    partial: dict[TableId, KeySet] = {}
    refused: Refused = {}
    for shape in run.shapes:
        try:
            shapes.add(rules.table_leaving(shape))
        except TableMisfit as why:
            refused.setdefault(shape.id, why)
    for table, keys in run.partial.items():
        try:
            partial |= {} if table in refused else {table: keys_leaving(keys, table, rules)}
        except TableMisfit as why:
            refused.setdefault(table, why)
    left = replace(run, shapes=frozenset(shapes), partial=partial)
    return LeavingRun(left, {}, refused, frozenset(shape.id for shape in run.shapes))


def _empty(batch: ChangeBatch) -> ChangeBatch:
    return replace(batch, index=batch.index[:0], rows=batch.rows.slice(0, 0))


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
    """Return how many leaving rows precede each row, and, as one more entry, the number of all leaving rows."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(leave, dtype=np.int64)])


def _renumber(left: Sequence[ChangeBatch], leave: Bools) -> list[ChangeBatch]:
    before = _before(leave)
    return [replace(batch, index=before[batch.index]) for batch in left if len(batch.index)]
