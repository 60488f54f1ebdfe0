"""Chunks and comparisons of a source, with the settings' `tables` applied to their rows.

Plans and cursors may contain keys (MySQL's do). If a policy is for a column of the key, they are encrypted on the way
to the checkpoint, with a key that is derived from the policy's.

Rows are read again by the keys that the log has. An encrypted key is decrypted for that. A hash cannot be: then all
rows of the table are read, and those whose hashed keys were requested are returned. Such a chunk has several snapshots,
like a range that is read through several connections, and its place in the log is determined by what all of them see.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from cdcflow.capture.interleave.messages import Chunk, ChunkRead, Planned, Transactions, Visibility
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.comparison import ChunkSums, Comparison, DigestSource, NoText
from cdcflow.capture.ports.part_readers import PartReader, PartRows
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import ChangeBatch, HeldRun, KeySet, Run, reads
from cdcflow.model.digest import Buckets, Hash
from cdcflow.model.position import Position, Token
from cdcflow.model.table import Table, TableId
from cdcflow.sources.engine.changes import absent, after_deletes
from cdcflow.sources.privacy.leaving import LeavingTable
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.sources.privacy.shapes import unseal
from cdcflow.sources.privacy.stream import keys_leaving

SCAN_GROWTH = 8
"""If a whole table is read to find hashed keys, its chunks grow from the size of a backfill's first chunk to this many
times that size."""


class PrivateChunks:
    """Implements `cdcflow.capture.ports.chunks.ChunkSource`. Thread-safe.

    `deletes`: whether rows read by key for which a filter does not hold become deletes, because the log may have them;
    a comparison excludes them instead.
    """

    def __init__(self, chunks: ChunkSource, rules: PolicyRules, *, deletes: bool = True) -> None:
        self._chunks = chunks
        self._rules = rules
        self._deletes = deletes

    def plan(self, table: TableId, generation: int) -> Planned:
        planned = self._chunks.plan(table, generation)
        assert isinstance(planned.shape, Table)  # noqa: S101  what the sources of tables plan
        found = self._rules.shape(planned.shape)
        if found is None:
            return planned
        return replace(planned, shape=found.table, plan=found.seal(planned.plan) or "")

    def write_mark(self, token: Token) -> None:
        self._chunks.write_mark(token)

    def read_chunk(self, chunk: Chunk) -> ChunkRead:
        table = self._rules.latest(chunk.table)
        try:
            asked = as_source(chunk, table)
            if asked.kind != "keys" or table is None:
                return self._read_leaving(chunk, self._chunks.read_chunk(asked))
            assert chunk.keys is not None  # noqa: S101  what kind "keys" means
            # The copy may have rows that no longer exist, or for which the filter does not hold: they are deleted
            # there.
            asked = replace(asked, repairs=asked.repairs or (self._deletes and table.filters))
            raw = table.raw_keys(chunk.keys)
        except ValueError:
            # The plan, the cursor or the keys were stored under other policies or secrets: the table is planned again.
            return ChunkRead(chunk, None, None, (), rewritten=True)
        if raw is None:
            return self._scan(chunk, table, chunk.keys)
        return self._read_leaving(chunk, self._chunks.read_chunk(replace(asked, keys=raw)))

    def keys_where(self, table: TableId, predicate: str, keys_max: int) -> KeySet:
        return keys_leaving(self._chunks.keys_where(table, predicate, keys_max), table, self._rules)

    def snapshot(self) -> Visibility:
        return self._chunks.snapshot()

    def heartbeat(self) -> None:
        self._chunks.heartbeat()

    def close(self) -> None:
        self._chunks.close()

    def _read_leaving(self, chunk: Chunk, read: ChunkRead) -> ChunkRead:
        """Return the result of reading a chunk, with its rows as they leave the source."""
        if not isinstance(read.shape, Table):
            return replace(read, chunk=chunk)
        table = self._rules.shape(read.shape)
        if table is None:
            return replace(read, chunk=chunk)
        run, deleted = read.run, 0
        if chunk.kind == "keys" and self._deletes and isinstance(run, Run):
            found = [table.found_by_key(batch) for batch in run.batches]
            run, deleted = run.with_batches([batch for batch, _ in found]), sum(count for _, count in found)
        elif run is not None:
            run = _chunk_run(run, table, self._rules)
        return replace(
            read,
            chunk=chunk,
            run=run,
            shape=table.table,
            reached=table.seal(read.reached),
            keys_left=None if read.keys_left is None else table.keys(read.keys_left),
            deleted=read.deleted + deleted,
        )

    def _scan(self, chunk: Chunk, table: LeavingTable, keys: KeySet) -> ChunkRead:
        """Read all rows of a table, and return those with these hashed keys."""
        planned = self._chunks.plan(chunk.table, 0)
        visibilities, found = list(planned.visibilities), list[pa.RecordBatch]()
        asked = replace(
            chunk, plan=planned.plan, after=None, size=planned.size, kind="range", keys=None, repairs=False, number=1
        )
        first: ChunkRead | None = None
        seconds = 0.0
        while True:
            read = self._chunks.read_chunk(asked)
            if read.rewritten:
                return ChunkRead(chunk, None, None, (), rewritten=True)
            if isinstance(read.run, HeldRun):
                raise ConfigurationError(
                    f"reading {chunk.table}: its key is hashed, and executors cannot look for rows by a hashed key",
                    remedy="run the same command without --on",
                    runbook="column-policies",
                )
            if read.shape != table.raw:
                raise SourceUnavailable(f"reading {chunk.table}: its columns changed while a chunk was read")
            first = first or read
            seconds += read.seconds
            visibilities += read.visibilities
            found += _rows_with(read.run, table, keys)
            if read.exhausted:
                break
            size = min(asked.size * 2, planned.size * SCAN_GROWTH)
            asked = replace(asked, after=read.reached, number=asked.number + 1, size=size)
        assert isinstance(first.run, Run)  # noqa: S101  as every other
        run = reads(table.table, found, first.run.last_position, first.run.last_commit_ts)
        read = ChunkRead(chunk, run, table.table, tuple(visibilities), chunk.after, exhausted=True, seconds=seconds)
        if not (chunk.repairs or (self._deletes and table.filters)):
            return read
        gone = absent(_as_in(table.table, keys.distinct()), found)
        return replace(read, run=after_deletes(run, table.table, gone), deleted=gone.num_rows)


class PrivateDigests:
    """Implements `cdcflow.capture.ports.comparison.DigestSource`. For a table with policies it reports that the server
    cannot digest the rows as they leave."""

    def __init__(self, digests: DigestSource, rules: PolicyRules) -> None:
        self._digests = digests
        self._rules = rules

    def hash(self) -> Hash:
        return self._digests.hash()

    def sum_chunk(self, chunk: Chunk, buckets: Buckets) -> ChunkSums:
        self._check(chunk.table)
        return self._digests.sum_chunk(chunk, buckets)

    def read_among(self, chunk: Chunk, buckets: Buckets) -> ChunkRead:
        self._check(chunk.table)
        return self._digests.read_among(chunk, buckets)

    def _check(self, table: TableId) -> None:
        if (found := self._rules.latest(table)) is not None:
            raise NoText(found.digest_obstacles)


class PrivateComparison:
    """Implements `cdcflow.capture.ports.comparison.Comparison`."""

    def __init__(self, comparison: Comparison, rules: PolicyRules) -> None:
        self._comparison = comparison
        self._tables = [rules.known_leaving(table) for table in comparison.tables()]
        self.chunks = PrivateChunks(comparison.chunks, rules, deletes=False)
        digests = comparison.digests
        self.digests = None if digests is None else PrivateDigests(digests, rules)

    def tables(self) -> list[Table]:
        return self._tables

    def end(self) -> Position:
        return self._comparison.end()

    def covers(self, position: Position, end: Position) -> bool:
        return self._comparison.covers(position, end)

    def first_unseen(self, visibility: Visibility, transactions: pa.Table) -> int:
        return self._comparison.first_unseen(visibility, transactions)

    def close(self) -> None:
        self._comparison.close()


class PrivatePartReader:
    """Implements `cdcflow.capture.ports.part_readers.PartReader`. Its results' `told` is only passed in memory, to the
    source's own process."""

    def __init__(self, reader: PartReader, rules: PolicyRules) -> None:
        self._reader = reader
        self._rules = rules

    def read_part(self, chunk: Chunk, part: Any) -> PartRows:
        found = self._reader.read_part(chunk, part)
        table = self._rules.shape(found.table)
        if table is None:
            return found
        return replace(found, table=table.table, batches=tuple(map(table.rows, found.batches)))

    def close(self) -> None:
        self._reader.close()


def as_source(chunk: Chunk, table: LeavingTable | None) -> Chunk:
    """Return a chunk with the plan and the cursor that the source wrote, decrypted.

    Raises:
        ValueError: the plan and the cursor were stored under other policies.
    """
    private = None if table is None else table.private
    return replace(chunk, plan=unseal(chunk.plan, private) or "", after=unseal(chunk.after, private))


def _chunk_run(run: Transactions, table: LeavingTable, rules: PolicyRules) -> Transactions:
    if isinstance(run, HeldRun):  # the processes that keep the rows have applied the policies
        rules.check_names_suffice(table.raw)
        return replace(run, table=table.table)
    assert isinstance(run, Run)  # noqa: S101  as every other chunk
    return run.with_batches([_changes_of(batch, rules) for batch in run.batches])


def _changes_of(batch: ChangeBatch, rules: PolicyRules) -> ChangeBatch:
    found = rules.shape(batch.table)
    return batch if found is None else found.changes(batch)


def _rows_with(run: Transactions | None, table: LeavingTable, keys: KeySet) -> list[pa.RecordBatch]:
    """Return the rows of a chunk that have one of these keys, as they leave the source."""
    if not isinstance(run, Run):
        return []
    found = []
    for batch in run.batches:
        rows = table.changes(batch).rows.select(table.table.row_schema.names)
        wanted = _as_in(table.table, keys)
        at = pa.array(np.arange(rows.num_rows))
        numbered = pa.table([*(rows.column(name) for name in table.table.key), at], [*table.table.key, "\0at"])
        mine = numbered.join(wanted, list(table.table.key), join_type="left semi").column("\0at").sort()
        if len(mine):
            found.append(rows.take(mine.combine_chunks()))
    return found


def _as_in(table: Table, keys: KeySet) -> pa.Table:
    return keys.keys.select(list(table.key)).cast(pa.schema([table.row_schema.field(name) for name in table.key]))
