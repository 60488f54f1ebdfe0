"""The pages that hold a chunk's rows: pages of the files that a plan pins, divided among connections. Pure.

A partitioned table is its leaves' pages one after another:

    leaf      orders_2023        orders_2024   orders_2025
    pages     0 ······· 999      0 ··· 299     0 ···· 499
    units     0 ······· 999   1000 ·· 1299   1300 ·· 1799      a chunk is any range of units

A page holds 291 rows at most, but large values are stored outside of it: the rows of one page may be gigabytes. So a
chunk can end inside a page, after a row, and the next one begins there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from cdcflow.capture.interleave.messages import Chunk
from cdcflow.model.table import TableId
from cdcflow.sources.postgres.catalog_entries import Relid

PART_PAGES_MIN = 128
"""The least number of pages of a part: with fewer, a second connection costs more than it saves."""
PIECE_PAGES_MIN = 256
PIECES_MAX = 4


@dataclass(frozen=True, slots=True)
class Leaf:
    """One file of the plan: a plain table, or one partition. `first` is its first page's unit."""

    rel: Relid
    filenode: int
    pages: int
    first: int


@dataclass(frozen=True, slots=True)
class PagePlan:
    """The pinned plan of a table's backfill. Stored as JSON in the log with the backfill's progress."""

    root: int
    leaves: tuple[Leaf, ...]

    @property
    def units(self) -> int:
        return sum(leaf.pages for leaf in self.leaves)

    def to_json(self) -> str:
        leaves = [[x.rel.oid, x.rel.id.schema, x.rel.id.name, x.filenode, x.pages] for x in self.leaves]
        return json.dumps({"version": 1, "root": self.root, "leaves": leaves}, separators=(",", ":"))

    def with_leaves_of(self, found: PagePlan) -> PagePlan:
        """Return this plan, followed by the leaves that only `found` has."""
        known = {leaf.rel.oid for leaf in self.leaves}
        return plan_of_leaves(self.root, [*self.leaves, *(leaf for leaf in found.leaves if leaf.rel.oid not in known)])

    @classmethod
    def from_json(cls, text: str) -> PagePlan:
        value = json.loads(text)
        leaves = [Leaf(Relid(row[0], TableId(row[1], row[2])), row[3], row[4], 0) for row in value["leaves"]]
        return plan_of_leaves(value["root"], leaves)

    def parts(self, begin: PageCursor, end: int) -> list[PageRange]:
        """Return the ranges of pages from `begin` up to unit `end`."""
        found = []
        for leaf in self.leaves:
            low, high = max(begin.unit, leaf.first), min(end, leaf.first + leaf.pages)
            if low < high:
                behind = begin.behind if low == begin.unit else 0
                found.append(PageRange(leaf, low - leaf.first, high - leaf.first, behind))
        return found


def plan_of_leaves(root: int, leaves: Sequence[Leaf]) -> PagePlan:
    """Return these leaves as a plan, each with its first unit."""
    firsts = accumulate((leaf.pages for leaf in leaves), initial=0)
    return PagePlan(root, tuple(replace(leaf, first=first) for leaf, first in zip(leaves, firsts, strict=False)))


@dataclass(frozen=True, slots=True)
class PageCursor:
    """How far a table was read: before page `unit` of its plan, or within it, up to row number `behind`.

    `later` is the plan if partitions were added after its end. Stored in the log: "123", "123.45", "123.45+{plan}".
    """

    unit: int
    behind: int = 0
    later: str = ""

    @classmethod
    def parse(cls, text: str | None) -> PageCursor:
        reached, _, later = (text or "0").partition("+")
        unit, _, behind = reached.partition(".")
        return cls(int(unit), int(behind or 0), later)

    def __str__(self) -> str:
        behind = f".{self.behind}" if self.behind else ""
        return f"{self.unit}{behind}{'+' if self.later else ''}{self.later}"


@dataclass(frozen=True, slots=True)
class PageRange:
    """Pages [a, b) of one leaf, without the rows of page `a` up to row number `behind`."""

    leaf: Leaf
    a: int
    b: int
    behind: int = 0

    @property
    def begin(self) -> PageCursor:
        return PageCursor(self.leaf.first + self.a, self.behind)

    @property
    def source(self) -> str:
        return f"ONLY {self.leaf.rel.sql}"

    @property
    def condition(self) -> str:
        """The SQL condition on a table `t` that makes the server read these pages and no others."""
        low = f"> '({self.a},{self.behind})'" if self.behind else f">= '({self.a},0)'"
        return f"t.ctid {low}::pg_catalog.tid AND t.ctid < '({self.b},0)'::pg_catalog.tid"

    def pieces(self) -> list[PageRange]:
        """Split the range into ranges for one COPY each."""
        count = max(1, min(PIECES_MAX, (self.b - self.a) // PIECE_PAGES_MIN))
        ends = [self.a + (self.b - self.a) * i // count for i in range(count + 1)]
        return [PageRange(self.leaf, a, b, self.behind if a == self.a else 0) for a, b in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a chunk that one connection reads: these ranges, up to unit `end`, or until `bytes_max` bytes were
    read."""

    parts: tuple[PageRange, ...]
    end: int
    bytes_max: int


def plan_of(chunk: Chunk) -> tuple[PagePlan, PageCursor]:
    """Return a range chunk's plan, with partitions that were added after its end, and where in it the chunk begins."""
    cursor = PageCursor.parse(chunk.after)
    return PagePlan.from_json(cursor.later or chunk.plan), cursor


def shares_of(chunk: Chunk, at_once: int, bytes_max: int, pages_max: int | None = None) -> list[Share]:
    """Divide a range chunk among at most `at_once` connections. `pages_max`: no more pages than this are likely to stay
    under `bytes_max`."""
    plan, begin = plan_of(chunk)
    size = chunk.size if pages_max is None else min(chunk.size, pages_max)
    end = min(begin.unit + max(size, 1), plan.units)
    shares = _shares(plan.parts(begin, end), at_once)
    return [
        Share(tuple(share), share[-1].leaf.first + share[-1].b if share else end, bytes_max // len(shares))
        for share in shares
    ]


def _shares(parts: Sequence[PageRange], at_once: int) -> list[list[PageRange]]:
    """Divide the parts among as many of `at_once` connections as are worth it; at least one share, which may be
    empty."""
    pages = sum(p.b - p.a for p in parts)
    count = max(1, min(at_once, pages // PART_PAGES_MIN))
    shares: list[list[PageRange]] = [[]]
    room = target = -(-pages // count)
    for part in parts:
        rest = part
        while rest.a < rest.b:
            if room == 0:
                shares.append([])
                room = target
            b = min(rest.b, rest.a + room)
            shares[-1].append(replace(rest, b=b))
            room -= b - rest.a
            rest = replace(rest, a=b, b=part.b, behind=0)
    return shares
