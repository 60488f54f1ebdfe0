"""Chooses the value decoder: the compiled one if it was built, otherwise the plain one.

The plain modules are the reference and always available. The compiled decoder handles the usual cases and leaves the
rest to the plain modules. Functions get the compiled decoder as an argument; None means the plain one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import pyarrow as pa

from cdcflow.model.change import Int64s
from cdcflow.sources.engine.compiled_module import compiled_module
from cdcflow.sources.mysql import results, rows, wire
from cdcflow.sources.mysql.images import Extents
from cdcflow.sources.mysql.results import Framed
from cdcflow.sources.mysql.rows import DecodedRows, RowKind, check
from cdcflow.sources.mysql.tables import DescribedTable
from cdcflow.sources.mysql.wire import PacketEvents, SplitFunction

Layout = Any  # a compiled class, opaque outside its own module
_KINDS = {RowKind.INSERT: 0, RowKind.UPDATE: 1, RowKind.DELETE: 2}


class Compiled(Protocol):
    """The compiled module for values; `compiled/rows.pyx` documents these functions."""

    def layout(self, described: DescribedTable) -> Layout: ...

    def changes(
        self, shape: Layout, data: bytes, start: Int64s, end: Int64s, kind: int, before: bytes, after: bytes
    ) -> tuple[pa.RecordBatch, Int64s] | None: ...

    def results(self, shape: Layout, data: bytes, start: Int64s, end: Int64s) -> pa.RecordBatch | None: ...


_ROWS = compiled_module("cdcflow.sources.mysql.compiled.rows")
_FRAMES = compiled_module("cdcflow.sources.mysql.compiled.frames")

COMPILED = cast("Compiled | None", _ROWS)
"""The compiled decoders; None if they were not built."""


def _split() -> SplitFunction:
    if (frames := _FRAMES) is None:
        return wire.split
    return lambda data, begin, size, checksum: PacketEvents(*frames.split(data, begin, size, checksum))


split: SplitFunction = _split()
"""The same as `wire.split`, with the fastest available decoder."""


def _row_packets() -> Callable[[bytes], Framed]:
    if (frames := _FRAMES) is None:
        return results.row_packets
    return lambda data: Framed(*frames.row_packets(data))


row_packets: Callable[[bytes], Framed] = _row_packets()
"""The same as `results.row_packets`, with the fastest available decoder."""


def changes(
    described: DescribedTable,
    data: bytes,
    extents: Extents,
    kind: RowKind,
    present_before: bytes,
    present_after: bytes,
    partial_json: bool = False,
    *,
    compiled: Compiled | None = COMPILED,
) -> DecodedRows:
    """Decode row images with the fastest available decoder. Returns what `rows.changes` returns."""
    if compiled is not None and not partial_json:
        check(described, kind, present_before, present_after)
        shape, code = _layout(compiled, described), _KINDS[kind]
        found = compiled.changes(shape, data, extents.start, extents.end, code, present_before, present_after)
        if found is not None:
            return DecodedRows(*found)
    return rows.changes(described, data, extents, kind, present_before, present_after, partial_json)


def decode(
    described: DescribedTable, data: bytes, extents: Extents, *, compiled: Compiled | None = COMPILED
) -> pa.RecordBatch:
    """Decode result rows with the fastest available decoder. Returns what `results.decode` returns."""
    if compiled is not None:
        found = compiled.results(_layout(compiled, described), data, extents.start, extents.end)
        if found is not None:
            return found
    return results.decode(described, data, extents)


def _layout(compiled: Compiled, described: DescribedTable) -> Layout:
    found = described.layouts.get(id(compiled))
    if found is None:
        found = described.layouts[id(compiled)] = compiled.layout(described)
    return found
