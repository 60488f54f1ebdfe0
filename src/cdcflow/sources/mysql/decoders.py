"""Which value decoder runs: the compiled one, where it was built, else the plain one.

The plain modules are the reference and always there. The compiled one takes what is usual and leaves the rest to
them. It is handed around as a value: None means plain.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from cdcflow.model.change import Int64s
from cdcflow.sources.mysql import results, rows, wire
from cdcflow.sources.mysql.images import Extents
from cdcflow.sources.mysql.results import Framed
from cdcflow.sources.mysql.rows import DecodedRows, RowKind, check
from cdcflow.sources.mysql.tables import DescribedTable
from cdcflow.sources.mysql.wire import Split, SplitFunction

Layout = Any  # a compiled class; only its own module looks inside
_KINDS = {RowKind.INSERT: 0, RowKind.UPDATE: 1, RowKind.DELETE: 2}


class Compiled(Protocol):
    """The compiled module of values; `compiled/rows.pyx` says what each of these does."""

    def layout(self, described: DescribedTable) -> Layout: ...

    def changes(
        self, shape: Layout, data: bytes, start: Int64s, end: Int64s, kind: int, before: bytes, after: bytes
    ) -> tuple[pa.RecordBatch, Int64s] | None: ...

    def results(self, shape: Layout, data: bytes, start: Int64s, end: Int64s) -> pa.RecordBatch | None: ...


def _found() -> Compiled | None:
    try:
        from cdcflow.sources.mysql.compiled import rows as compiled
    except ImportError:
        return None
    return compiled  # type: ignore[no-any-return,unused-ignore]  # a module that was or was not built


COMPILED: Compiled | None = _found()
"""The compiled decoders; None where they were not built."""


def _split() -> SplitFunction:
    try:
        from cdcflow.sources.mysql.compiled import frames
    except ImportError:
        return wire.split
    return lambda data, begin, size, checksum: Split(*frames.split(data, begin, size, checksum))


split: SplitFunction = _split()
"""What `wire.split` does, by the faster decoder."""


def _row_packets() -> Callable[[bytes], Framed]:
    try:
        from cdcflow.sources.mysql.compiled import frames
    except ImportError:
        return results.row_packets
    return lambda data: Framed(*frames.row_packets(data))


row_packets: Callable[[bytes], Framed] = _row_packets()
"""What `results.row_packets` does, by the faster decoder."""


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
    """What `rows.changes` gives, by the faster decoder."""
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
    """What `results.decode` gives, by the faster decoder."""
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
