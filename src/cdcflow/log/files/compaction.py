"""Many small segments into one: the same rows, offsets, transactions and cuts in fewer and larger files.

    segments   [1-90][91-150][151-200][201-260] …        before
               [1──────────────────200][201-260] …        after; the `previous` of 201-260 is still the hash of 151-200

Which segments. Neighbours, oldest first, as many as fit into the requested size. The latest segment is never compacted:
the journal refers to it as the one it continues. A segment is rewritten only together with others that have at least as
many rows in sum; so a row is rewritten about log2(rows of the result / rows of a segment) times over its life, however
often this runs. Rows are counted, not bytes: they add up exactly, while two small Parquet files joined may be smaller
than either, because most of their bytes are not rows. A daemon compacts all the time, so its rule requires more of the
latest segments, which grow the most often (`CompactionRule.growth`, `count_min`).

What stays the same. Everything a reader can request: every row with every column, by the same offset, in the same order
in its file; all transactions; the checkpoint of the last. The hash chain: the new manifest's `previous` is that of the
oldest segment it replaces, and `stands_for` is the hash of the latest, which is what the next segment's `previous`
holds. So no other manifest changes, and the chain proves as much as before: what was sealed is what existed at
compaction, and since then the manifest's own hashes guard it. The cuts at which the replaced segments ended are kept as
`seams`, because a merge may have stopped at any of them. The backfill facts of each of their checkpoints are kept too:
a query may refer to any offset, and the last checkpoint covers only the last backfill.

Why the manifest is last. A reader uses the widest segment that has a manifest (`layout.widest_segments`). The new
segment's files are written first, then its manifest: in a directory by renaming the whole, in a bucket by a conditional
write.
Before that step only the old segments are visible, after it they are covered, and there is never a state with neither.
If the manifest were first, it would name files that no reader can read yet, and a crash would make that permanent.
The old segments are deleted later, when no reader can still be reading them, latest first: a reader that walks back by
`previous_offset` and finds a segment missing searches for its replacement, which has the same last offset only for the
latest of the replaced segments.

A crash anywhere leaves the old segments, or both; then the next compaction writes the new segment again, or deletes the
covered ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cdcflow.errors import InvariantViolated
from cdcflow.log.files.parquet import OpenTarget, Parquet
from cdcflow.log.files.tally import ShapeTally
from cdcflow.log.format.rows import ShapeEntry
from cdcflow.log.format.segment import TRANSACTIONS_SCHEMA, Segment, SegmentFile, facts_of, manifest_hash
from cdcflow.model.table import table_from_json

Manifest = tuple[Segment, bytes]
"""A segment, and the bytes of its segment.json."""
Locate = Callable[[Segment, SegmentFile], Path]
BATCH_ROWS = 64 << 10
GATHERED_BYTES_MAX = 64 << 20  # twice the limit of sealing, which has the same amount in flight in addition


@dataclass(frozen=True, slots=True)
class CompactionRule:
    """Which neighbouring segments are compacted into one, of at most `bytes_max` bytes and `ends_max` sealed segments
    (`None`: any number; each adds some 30 bytes to the manifest).

    A run of neighbours that has reached one of these limits is joined if at least 2 segments have together twice the
    rows of the largest one of them. The latest run still grows: it is joined if at least `count_min` segments have
    together `growth` times the rows of the largest one.
    """

    bytes_max: int
    ends_max: int | None = None
    count_min: int = 2
    growth: int = 2


@dataclass(frozen=True, slots=True)
class SealedSize:
    """A sealed segment's offsets, its bytes, and how many sealed segments it consists of (1 if it was not
    compacted)."""

    first_offset: int
    last_offset: int
    bytes: int
    ends: int

    @classmethod
    def of(cls, segment: Segment) -> SealedSize:
        return cls(segment.first_offset, segment.last_offset, segment.size, len(segment.seams) + 1)

    @property
    def rows(self) -> int:
        return self.last_offset - self.first_offset + 1


def groups(segments: Sequence[SealedSize], rule: CompactionRule) -> list[list[SealedSize]]:
    """Return the groups of neighbouring segments to compact by a rule, oldest first. The latest of all segments is
    never in one."""
    found: list[list[SealedSize]] = []
    run: list[SealedSize] = []
    held = ends = 0
    for segment in segments:
        if run and (
            held + segment.bytes > rule.bytes_max or (rule.ends_max is not None and ends + segment.ends > rule.ends_max)
        ):
            found += _worthwhile(run, 2, 2)
            run, held, ends = [], 0, 0
        run.append(segment)
        held += segment.bytes
        ends += segment.ends
    return found + _worthwhile(run, rule.count_min, rule.growth)


def _worthwhile(run: list[SealedSize], count_min: int, growth: int) -> list[list[SealedSize]]:
    """Return the parts of a run that are worth rewriting. The run is split at segments with too many rows compared with
    the ones that they would be rewritten with."""
    if len(run) < count_min:
        return []
    rows = [segment.rows for segment in run]
    largest = rows.index(max(rows))
    if growth * rows[largest] <= sum(rows):
        return [run]
    return _worthwhile(run[:largest], count_min, growth) + _worthwhile(run[largest + 1 :], count_min, growth)


def compact(manifests: Sequence[Manifest], locate: Locate, open_target: OpenTarget) -> Segment:
    """Write the files of the segment that replaces these neighbours, and return its manifest.

    `locate` returns where one of their files can be opened. On return every file is closed, nothing is synced.

    Raises:
        InvariantViolated: they are not neighbours, or their files do not match their manifests.
    """
    old = [segment for segment, _ in manifests]
    for (before, text), (after, _) in pairwise(manifests):
        if after.first_offset != before.last_offset + 1 or not before.is_continued_by(after.previous, text):
            raise InvariantViolated(
                f"compacting: segment {after.first_offset}-{after.last_offset} does not continue"
                f" {before.first_offset}-{before.last_offset}"
            )
    files = [_transactions(old, locate, open_target)]
    shapes: dict[str, list[tuple[Segment, SegmentFile]]] = {}
    for segment in old:
        # A segment may have several files of one shape; each ends before the next begins.
        for file in sorted(segment.files, key=lambda f: f.first_offset):
            if file.table is not None:
                shapes.setdefault(json.dumps([file.table, file.version], sort_keys=True), []).append((segment, file))
    for same in sorted(shapes.values(), key=lambda same: same[0][1].path):
        if same[0][1].path == files[-1].path:
            table = table_from_json(same[0][1].table or {}).id
            raise InvariantViolated(f"compacting {table}: two shapes of it have the file name {files[-1].path}")
        files.append(_rows(same, locate, open_target))
    newest, text = manifests[-1]
    return replace(
        newest,
        first_offset=old[0].first_offset,
        first_transaction=old[0].first_transaction,
        first_cut=old[0].first_cut,
        files=tuple(files),
        previous=old[0].previous,
        previous_offset=old[0].previous_offset,
        xid_min=min((s.xid_min for s in old if s.xid_min is not None), default=None),
        xid_max=max((s.xid_max for s in old if s.xid_max is not None), default=None),
        stands_for=newest.stands_for or manifest_hash(text),
        seams=tuple(_seams(old)),
        backfills=tuple(reversed(list(_backfills(old)))),
    )


def _seams(old: Sequence[Segment]) -> Iterator[tuple[int, int]]:
    for segment in old:
        yield from segment.seams
        if segment is not old[-1]:
            yield segment.last_cut, segment.last_offset


def _backfills(old: Sequence[Segment]) -> Iterator[tuple[int, dict[str, dict[str, object] | None]]]:
    """Yield the ends of replaced segments, the last one first, each with the backfill facts at it that differ from
    those at the next end."""
    after = facts_of(old[-1].checkpoint)
    for segment in reversed(old):
        ends = [offset for offset, _ in segment.backfills]
        if segment is not old[-1]:
            ends.append(segment.last_offset)
        for end in reversed(ends):
            now = segment.facts_at(end)
            differ = [name for name in {*now, *after} if now.get(name) != after.get(name)]
            if differ:
                yield end, {n: dict(now[n]) if n in now else None for n in sorted(differ)}
            after = now


def _transactions(old: Sequence[Segment], locate: Locate, open_target: OpenTarget) -> SegmentFile:
    name = "transactions.parquet"
    sources = [(segment, segment.transactions_file) for segment in old]
    parquet = _copy_segments(Parquet(name, TRANSACTIONS_SCHEMA, open_target(name), ()), sources, locate, None)
    size, sha256 = parquet.close()
    return SegmentFile(name, parquet.rows, size, sha256)


def _rows(sources: Sequence[tuple[Segment, SegmentFile]], locate: Locate, open_target: OpenTarget) -> SegmentFile:
    """Write one shape's rows of all segments into one file, and return its entry in the manifest."""
    file = sources[0][1]
    table = table_from_json(file.table or {})
    tally = ShapeTally(ShapeEntry(table, file.version))
    target = Parquet(file.path, table.log_schema, open_target(file.path), table.key)
    return tally.file(_copy_segments(target, sources, locate, tally))


def _copy_segments(
    target: Parquet, sources: Sequence[tuple[Segment, SegmentFile]], locate: Locate, tally: ShapeTally | None
) -> Parquet:
    try:
        for segment, file in sources:
            before = target.rows
            for batch in _batches(locate(segment, file), target.schema):
                target.add(batch)
                if tally is not None:
                    tally.add(batch, 0)
                if target.gathered_bytes > GATHERED_BYTES_MAX:
                    target.put()
            if target.rows - before != file.rows:
                raise InvariantViolated(
                    f"compacting segment {segment.first_offset}-{segment.last_offset}: {file.path} has"
                    f" {target.rows - before} rows, its manifest has {file.rows}",
                    remedy="run `cdcflow log check`",
                    runbook="log-damaged",
                )
    except pa.ArrowInvalid:
        target.give_up()
        raise InvariantViolated(
            f"compacting segment {segment.first_offset}-{segment.last_offset}: {file.path} is damaged",
            remedy="run `cdcflow log check`",
            runbook="log-damaged",
        ) from None
    except BaseException:
        target.give_up()
        raise
    return target


def _batches(path: Path, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as parquet:
        # In this thread alone: during a capture it has a low priority, and Arrow's other threads do not.
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, use_threads=False):
            yield batch if batch.schema.equals(schema) else batch.cast(schema)
