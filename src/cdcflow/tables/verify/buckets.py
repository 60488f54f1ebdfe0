"""Read the source's rows as digests that its server computes, added up by bucket, chunk by chunk; then the rows of the
buckets in which source and copy differ.

    pass 1    server   chunk │ chunk │ chunk     each: bucket, rows, sum of digests  ──▶ added up ─┐
              copy     one GROUP BY, parallel                                       ──────────────┴──▶ which differ
    pass 2    server   chunk │ chunk │ chunk     only rows in these buckets          ──▶ as if all had been read

A bucket that agrees has the same rows on both sides, each equally often: comparing sums of digests is as reliable as
comparing single digests, since two sums of different rows are equal once in 2^60. A row always stays in its bucket, so
a row that differs and changes between the passes is read again. A row that changes while it is read makes its bucket
differ, and the only consequence is that the bucket's rows are read.

With few buckets the second pass reads many rows, with many the first pass transfers many sums. If most buckets differ,
the second pass would read most of the table in addition; then all of the table is read instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.capture.ports.comparison import Comparison, DigestSource
from cdcflow.model.digest import BUCKETS_MAX, SUM, Buckets, is_portable
from cdcflow.tables.verify.port import Columns
from cdcflow.tables.verify.settled import Fences
from cdcflow.tables.verify.source_rows import ChunkPiece, SourceRows

BUCKET_ROWS = 1000
BUCKETS_MIN = 16
MOST = 0.25
"""If a larger share of the buckets than this differs, all rows of the table are read."""
MOST_DIFFER = "too many of its rows differ, or are changed: reading all of them costs less"

T = TypeVar("T")


def no_buckets(comparison: Comparison, columns: Columns) -> str:
    """Return why the server cannot digest a table's rows; "" if it can."""
    if comparison.digests is None:
        return "this source computes no digests"
    if not columns.has_key:
        return "it has no key"
    other = [name for name, type_ in columns.columns if not is_portable(type_)]
    if other:
        return f"column {other[0]}: {columns.type_of(other[0])} has no text that is the same everywhere"
    return ""


def plan(comparison: Comparison, columns: Columns) -> Buckets:
    """Return the distribution of the table's rows into buckets: about `BUCKET_ROWS` rows to a bucket."""
    planned = comparison.chunks.plan(columns.table, 0)
    rows = planned.units * max(1, planned.rows_per_unit_max // 4)
    count = BUCKETS_MIN
    while count < min(rows // BUCKET_ROWS, BUCKETS_MAX):
        count *= 2
    return Buckets(columns.columns, columns.key, count, _digests(comparison).hash())


class Pass:
    """One pass over the chunks of a table."""

    def __init__(self, source: SourceRows, comparison: Comparison, buckets: Buckets) -> None:
        self._source = source
        self._digests = _digests(comparison)
        self._buckets = buckets

    def sum_concurrently(self, copied: Callable[[], T], fences: Fences) -> tuple[T, pa.Table]:
        """Return the copy's result and the source's sums by bucket (`ports.ChunkSums`), computed concurrently.

        Raises:
            NoText: the server has no text for some columns.
        """
        chunks = self._sum_chunks(fences)
        first = list(itertools.islice(chunks, 1))  # first, as a NoText makes querying the copy useless
        with ThreadPoolExecutor(1, thread_name_prefix="cdcflow-copy-sums") as other:
            copy = other.submit(copied)
            source = add_up(pa.concat_tables([*first, *chunks]))
            return copy.result(), source

    def _sum_chunks(self, fences: Fences) -> Iterator[pa.Table]:
        for chunk in self._source.walk(fences, lambda c: self._digests.sum_chunk(c, self._buckets)):
            yield chunk.sums
            self._source.wait(int(pc.sum(chunk.sums.column("n")).as_py() or 0), chunk.seconds)

    def rows(self, fences: Fences) -> Iterator[ChunkPiece]:
        """Yield the rows of the chosen buckets."""
        return self._source.of(self._source.walk(fences, lambda c: self._digests.read_among(c, self._buckets)))


def add_up(sums: pa.Table) -> pa.Table:
    """Add up sums, so that each bucket occurs once."""
    found = sums.group_by("b").aggregate([("n", "sum"), ("t", "sum")])
    return pa.table({name: found.column(of) for name, of in (("b", "b"), ("n", "n_sum"), ("t", "t_sum"))})


def differing_buckets(source: pa.Table, copy: pa.Table) -> tuple[int, ...]:
    """Return the buckets in which the two sides' rows differ, sorted."""
    minus = pa.table(
        {"b": copy.column("b"), "n": pc.negate(copy.column("n")), "t": pc.negate(copy.column("t").cast(SUM))}
    )
    both = pa.table({"b": source.column("b"), "n": source.column("n"), "t": source.column("t").cast(SUM)})
    left = add_up(pa.concat_tables([both, minus.cast(both.schema)]))
    differ = left.filter(pc.or_(pc.not_equal(left.column("n"), 0), pc.not_equal(left.column("t"), 0)))
    return tuple(sorted(differ.column("b").to_pylist()))


def _digests(comparison: Comparison) -> DigestSource:
    assert comparison.digests is not None  # noqa: S101  checked by `no_buckets`
    return comparison.digests
