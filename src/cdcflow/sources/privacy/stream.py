"""The stream and the spools of a source, under the policies of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdcflow.capture.interleave.messages import Committed, RowsIncomplete, Transactions
from cdcflow.capture.ports.log import Spool
from cdcflow.capture.ports.stream import Stream, StreamEvent
from cdcflow.errors import InvariantViolated
from cdcflow.model.change import ChangeBatch, KeySet, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Position
from cdcflow.model.table import TableId
from cdcflow.sources.privacy.rules import PolicyRules


class PrivateStream:
    """Implements `cdcflow.capture.ports.stream.Stream`."""

    def __init__(self, stream: Stream, rules: PolicyRules) -> None:
        self._stream = stream
        self._rules = rules

    def fileno(self) -> int:
        return self._stream.fileno()

    def poll(self) -> Sequence[StreamEvent]:
        events = self._stream.poll()
        # Transactions first: they have the shapes of the tables whose keys come before them.
        found = [_commit_leaving(e, self._rules) if isinstance(e, Committed) else e for e in events]
        return [replace(e, keys=self._keys(e)) if isinstance(e, RowsIncomplete) else e for e in found]

    @property
    def ready(self) -> bool:
        return self._stream.ready

    def acknowledge(self, position: Position) -> None:
        self._stream.acknowledge(position)

    def close(self) -> None:
        self._stream.close()

    def _keys(self, event: RowsIncomplete) -> KeySet:
        return keys_leaving(event.keys, event.table, self._rules)


class PrivateSpool:
    """Implements `cdcflow.capture.ports.log.Spool`."""

    def __init__(self, spool: Spool, rules: PolicyRules) -> None:
        self._spool = spool
        self._rules = rules
        self.name = spool.name

    def write(self, batches: Sequence[ChangeBatch], subxids: Uint64s | None) -> None:
        self._spool.write([batch_leaving(batch, self._rules) for batch in batches], subxids)

    def finish(self) -> None:
        self._spool.finish()

    def discard(self) -> None:
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
