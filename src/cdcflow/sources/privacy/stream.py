"""The stream and the spools of a source, under the policies of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from cdcflow.capture.interleave.messages import Advanced, Committed, MarkSeen, RowsIncomplete, Transactions
from cdcflow.capture.ports.log import Spool
from cdcflow.capture.ports.stream import Stream, StreamEvent
from cdcflow.errors import InvariantViolated
from cdcflow.model.change import ChangeBatch, KeySet, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Position
from cdcflow.model.table import TableId
from cdcflow.sources.privacy.rules import PolicyRules


class PrivateStream:
    """Implements `cdcflow.capture.ports.stream.Stream`."""

    def __init__(self, stream: Stream, rules: PolicyRules, position: Position, spools: PartialSpools) -> None:
        """`position`: where it begins; `spools`: what `PrivateSpool`s of this stream found."""
        self._stream = stream
        self._rules = rules
        self._position = position
        self._spools = spools

    def fileno(self) -> int:
        return self._stream.fileno()

    def poll(self) -> Sequence[StreamEvent]:
        events = self._stream.poll()
        # Transactions first: they have the shapes of the tables whose keys come before them.
        found = [_commit_leaving(e, self._rules) if isinstance(e, Committed) else e for e in events]
        found = [replace(e, keys=self._keys(e)) if isinstance(e, RowsIncomplete) else e for e in found]
        return found if self._rules.person_keys is None else self._with_rereads(events, found)

    @property
    def ready(self) -> bool:
        return self._stream.ready

    def acknowledge(self, position: Position) -> None:
        self._stream.acknowledge(position)

    def close(self) -> None:
        self._stream.close()

    def _with_rereads(self, events: Sequence[StreamEvent], leaving: Sequence[StreamEvent]) -> list[StreamEvent]:
        """The events, each transaction after the rows of it that must be read again to know whose their values are."""
        found: list[StreamEvent] = []
        for event, left in zip(events, leaving, strict=True):
            match event, left:
                case Committed(run), Committed(run_left):
                    rereads = self._rereads(run, run_left)
                    found += [RowsIncomplete(table, keys, self._position) for table, keys in rereads.items()]
                    self._position = run.last_position
                case ((MarkSeen(position=position) | Advanced(position)), _):
                    self._position = position
            found.append(left)
        return found

    def _rereads(self, run: Transactions, leaving: Transactions) -> dict[TableId, KeySet]:
        if isinstance(run, SpooledTransaction) and isinstance(leaving, SpooledTransaction):
            tables = self._spools.pop(run.spool, set())
            return {table: keys for table, keys in leaving.partial.items() if table in tables}
        found: dict[TableId, KeySet] = {}
        if isinstance(run, Run) and isinstance(leaving, Run):
            for batch, left in zip(run.batches, leaving.batches, strict=True):
                table = self._rules.shape(batch.table)
                rows = None if table is None else table.rows_to_reread(batch)
                if rows is not None:
                    keys = KeySet(pa.table(left.rows.select(list(left.table.key)).filter(rows)))
                    found[batch.table.id] = found[batch.table.id].union(keys) if batch.table.id in found else keys
        return found

    def _keys(self, event: RowsIncomplete) -> KeySet:
        return keys_leaving(event.keys, event.table, self._rules)


PartialSpools = dict[str, set[TableId]]
"""By the names of spools the tables with rows in them that must be read again (`PrivateTable.rows_to_reread`)."""


class PrivateSpool:
    """Implements `cdcflow.capture.ports.log.Spool`."""

    def __init__(self, spool: Spool, rules: PolicyRules, partial: PartialSpools) -> None:
        self._spool = spool
        self._rules = rules
        self._partial = partial
        self.name = spool.name

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        if self._rules.person_keys is not None:
            for batch in batches:
                table = self._rules.shape(batch.table)
                if table is not None and table.rows_to_reread(batch) is not None:
                    self._partial.setdefault(self.name, set()).add(batch.table.id)
        self._spool.write([batch_leaving(batch, self._rules) for batch in batches], subxids)

    def finish(self) -> None:
        self._spool.finish()

    def discard(self) -> None:
        self._partial.pop(self.name, None)
        self._spool.discard()


def batch_leaving(batch: ChangeBatch, rules: PolicyRules) -> ChangeBatch:
    """Changes as they leave the source."""
    table = rules.shape(batch.table)
    return batch if table is None else table.changes(batch)


def keys_leaving(keys: KeySet, table: TableId, rules: PolicyRules) -> KeySet:
    """Keys as they leave the source."""
    found = rules.latest(table)
    return keys if found is None else found.keys(keys)


def _commit_leaving(event: Committed, rules: PolicyRules) -> Committed:
    return Committed(run_leaving(event.run, rules))


def run_leaving(run: Transactions, rules: PolicyRules) -> Transactions:
    """Transactions as they leave the source; the rows of a large one have left it already, into a spool."""
    match run:
        case Run():
            return replace(run, batches=tuple(batch_leaving(batch, rules) for batch in run.batches))
        case SpooledTransaction():
            return replace(
                run,
                shapes=frozenset(rules.table_leaving(table) for table in run.shapes),
                partial={table: keys_leaving(keys, table, rules) for table, keys in run.partial.items()},
            )
    raise InvariantViolated(f"the source has transactions of an unknown kind ({type(run).__name__})")
