"""The source's rows as digests that its server works out, added up by bucket, chunk by chunk; then the rows of those
buckets in which source and copy differ.

    pass 1    server   chunk │ chunk │ chunk     each: bucket, rows, sum of digests  ──▶ added up ─┐
              copy     one GROUP BY, meanwhile                                       ──────────────┴──▶ which differ
    pass 2    server   chunk │ chunk │ chunk     only rows in these buckets          ──▶ as if all had been read

A bucket that agrees holds the same rows on both sides, each as often: what a sum of digests says of them is as good as
the digests one by one, for two sums of different rows are the same once in 2^60. A row stays in its bucket, so that one
that differs and is changed between the passes is looked at again. What changes while it is read makes its bucket
differ, and nothing is concluded from it but that its rows are to be read.

Few buckets are much to read in the second pass, many are much to tell in the first. Where most of them differ, the
second pass would be reading the table, and more; then all of it is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.merge.digest import BUCKETS_MAX, SUM, Buckets, is_portable
from cdcflow.ports import Comparison, DigestSource
from cdcflow.verify.port import Columns
from cdcflow.verify.reading import Piece, SourceRows
from cdcflow.verify.settled import Fences

BUCKET_ROWS = 1000
BUCKETS_MIN = 16
MOST = 0.25
"""If more of the buckets differ, all rows are read."""
MOST_DIFFER = "so many of its rows differ, or are changed, that reading all of them costs less"

T = TypeVar("T")


def no_buckets(comparison: Comparison, columns: Columns) -> str:
    """Why a table's rows cannot be digested by the server; empty where it may be asked."""
    if comparison.digests is None:
        return "this source works out no digests"
    if not columns.has_key:
        return "it has no key"
    other = [name for name, type_ in columns.columns if not is_portable(type_)]
    if other:
        return f"column {other[0]}: {columns.type_of(other[0])} has no text that is the same everywhere"
    return ""


def plan(comparison: Comparison, columns: Columns) -> Buckets:
    """How the table's rows are dealt out: about `BUCKET_ROWS` to a bucket."""
    planned = comparison.chunks.plan(columns.table, 0)
    rows = planned.units * max(1, planned.rows_per_unit_max // 4)
    count = BUCKETS_MIN
    while count < min(rows // BUCKET_ROWS, BUCKETS_MAX):
        count *= 2
    return Buckets(columns.columns, columns.key, count, _digests(comparison).hash())


class Pass:
    """One pass over a table's chunks."""

    def __init__(self, source: SourceRows, comparison: Comparison, buckets: Buckets) -> None:
        self._source = source
        self._digests = _digests(comparison)
        self._buckets = buckets

    def beside(self, copied: Callable[[], T], fences: Fences) -> tuple[T, pa.Table]:
        """What the copy's side gives, and the source's sums by bucket (`ports.ChunkSums`), worked out at the same time.

        Raises:
            NoText: the server has none for some columns.
        """
        chunks = self._summed(fences)
        first = list(itertools.islice(chunks, 1))  # or there are no texts, and nothing is asked of the copy
        with ThreadPoolExecutor(1, thread_name_prefix="cdcflow-copy-sums") as other:
            copy = other.submit(copied)
            source = added(pa.concat_tables([*first, *chunks]))
            return copy.result(), source

    def _summed(self, fences: Fences) -> Iterator[pa.Table]:
        for chunk in self._source.walk(fences, lambda c: self._digests.sum_chunk(c, self._buckets)):
            yield chunk.sums
            self._source.wait(int(pc.sum(chunk.sums.column("n")).as_py() or 0), chunk.seconds)

    def rows(self, fences: Fences) -> Iterator[Piece]:
        """The rows of the buckets that are asked for."""
        return self._source.of(self._source.walk(fences, lambda c: self._digests.read_among(c, self._buckets)))


def added(sums: pa.Table) -> pa.Table:
    """Sums with each bucket once."""
    found = sums.group_by("b").aggregate([("n", "sum"), ("t", "sum")])
    return pa.table({name: found.column(of) for name, of in (("b", "b"), ("n", "n_sum"), ("t", "t_sum"))})


def differing_buckets(source: pa.Table, copy: pa.Table) -> tuple[int, ...]:
    """The buckets in which the two sides' rows are not the same, in order."""
    minus = pa.table(
        {"b": copy.column("b"), "n": pc.negate(copy.column("n")), "t": pc.negate(copy.column("t").cast(SUM))}
    )
    both = pa.table({"b": source.column("b"), "n": source.column("n"), "t": source.column("t").cast(SUM)})
    left = added(pa.concat_tables([both, minus.cast(both.schema)]))
    differ = left.filter(pc.or_(pc.not_equal(left.column("n"), 0), pc.not_equal(left.column("t"), 0)))
    return tuple(sorted(differ.column("b").to_pylist()))


def _digests(comparison: Comparison) -> DigestSource:
    assert comparison.digests is not None  # noqa: S101  `no_buckets` says so first
    return comparison.digests


__all__ = ["MOST", "MOST_DIFFER", "Pass", "differing_buckets", "no_buckets", "plan"]
