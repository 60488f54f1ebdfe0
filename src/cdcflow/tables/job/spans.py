"""The offsets between which each shape of a table was in force.

A shape may return after another shape. It then has several spans, because the meaning of a row depends on its span:

    offsets   1   2   3   4   5   6        shape A: id        shape B: id, d DEFAULT 7
    shapes    A   A   B   B   A   A
    spans     [A 1-2][B 3-4][A 3-6]        rows of the first span got 7 when d was added

A manifest records only the first and the last offset of each file. So a shape's span ends where another shape begins
inside it, and a further span of the same shape follows. All rows of a shape are in its spans; a span may also cover
offsets where another shape was in force.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cdcflow.model.table import OFFSET, Table
from cdcflow.tables.segments import InputFile


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets between which a shape was in force, both inclusive. `is_cut`: the shape has other spans."""

    shape: Table
    first: int
    last: int
    is_cut: bool = False

    def has(self, shape: Table, offset: int) -> bool:
        return self.shape == shape and self.first <= offset <= self.last

    def of(self, files: Sequence[InputFile]) -> list[InputFile]:
        """Return the files that may have rows of this span."""
        return [
            f
            for f in files
            if f.shape == self.shape and f.file.last_offset >= self.first and f.file.first_offset <= self.last
        ]

    def and_in_sql(self) -> str:
        """Return the further condition in SQL that a row of these files must meet to be in this span."""
        return f" AND {OFFSET} BETWEEN {self.first} AND {self.last}" if self.is_cut else ""


def spans_of(files: Sequence[InputFile]) -> list[Span]:
    """Return the spans in these files, sorted by first offset; the last span of each incarnation has its latest row.
    The spans of an incarnation do not depend on which files of other incarnations are given."""
    whole: dict[int, dict[Table, tuple[int, int]]] = {}
    for file in files:
        first, last = max(file.file.first_offset, file.after + 1), file.file.last_offset
        shapes = whole.setdefault(file.shape.incarnation, {})
        known = shapes.get(file.shape, (first, last))
        shapes[file.shape] = min(first, known[0]), max(last, known[1])
    return sorted((span for shapes in whole.values() for span in _of_incarnation(shapes)), key=lambda span: span.first)


def _of_incarnation(whole: Mapping[Table, tuple[int, int]]) -> list[Span]:
    """Return the spans of an incarnation's shapes, given their first and last offsets."""
    cuts = {first for first, _ in whole.values()}
    spans = _in_order(whole, cuts)
    latest = max(whole, key=lambda shape: whole[shape][1])
    if spans[-1].shape != latest:
        # Another shape returned inside the latest one, whose rows after the other's are a separate span.
        cuts.add(max(last for shape, (_, last) in whole.items() if shape != latest) + 1)
        spans = _in_order(whole, cuts)
    return spans


def _in_order(whole: Mapping[Table, tuple[int, int]], cuts: Collection[int]) -> list[Span]:
    """Return the spans of these shapes, cut at these offsets."""
    spans = [span for shape, (first, last) in whole.items() for span in _cut(shape, first, last, cuts)]
    # The offset at which a shape is cut is the first row of another shape.
    return sorted(spans, key=lambda span: (span.first, span.first != whole[span.shape][0], span.last))


def shapes_over_time(files: Sequence[InputFile]) -> list[Table]:
    """Return the shapes in these files, oldest first; a shape that returned after another is listed again."""
    return [span.shape for span in spans_of(files)]


def _cut(shape: Table, first: int, last: int, cuts: Collection[int]) -> Iterator[Span]:
    inside = sorted({cut for cut in cuts if first < cut <= last})
    for begin, end in pairwise([first, *inside, last + 1]):
        yield Span(shape, begin, end - 1, is_cut=bool(inside))
