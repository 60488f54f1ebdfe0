"""Selects the decoder: the compiled one if it was built, or the plain one.

The plain modules are the reference and always exist. The compiled decoder handles the usual cases and refuses the rest:
when it returns None, its caller continues with the plain functions. It is passed around as a value; if that is None,
the plain one runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import pyarrow as pa

from cdcflow.model.change import Int64s, Uint64s
from cdcflow.sources.engine.buffers import Bytes
from cdcflow.sources.engine.compiled_module import compiled_module
from cdcflow.sources.postgres.types import Codec, DescribedTable

Layout = Any  # a compiled class; opaque outside its own module
Kernels = tuple[str, str, str]
"""The names of a column's kernels: for its text, its binary format, a binary array's elements ("" if none)."""


class Compiled(Protocol):
    """The compiled module; `compiled/decode.pyx` documents each of these functions."""

    def layout(self, described: DescribedTable, kernels: Sequence[Kernels], in_identity: Sequence[bool]) -> Layout: ...

    def scan(self, data: bytes, lengths: Int64s) -> tuple[Int64s, Int64s, Bytes, int] | None: ...

    def transactions(
        self, data: bytes, start: Int64s, end: Int64s, kind: Bytes
    ) -> tuple[Int64s, Int64s, Uint64s, Int64s, Int64s, bool] | None: ...

    def with_rows(
        self, commits: Int64s, rows_before: Int64s, numbers: Sequence[Any]
    ) -> tuple[Int64s, Sequence[Any], Int64s]: ...

    def positions(self, lsns: Int64s) -> pa.Array: ...

    def changes(
        self,
        data: bytes,
        start: Int64s,
        end: Int64s,
        kind: Bytes,
        first: int,
        header: int,
        shapes: dict[int, Any],
        replaced: dict[int, Any],
        relations: list[tuple[int, int, Any]],
        truncated: list[tuple[int, int]],
        cells_max: int,
    ) -> tuple[list[tuple[int, int, Layout, Int64s, pa.RecordBatch]], Int64s] | None: ...

    def copied(self, data: bytes, start: Int64s, end: Int64s, layout: Layout) -> pa.RecordBatch | None: ...


COMPILED = cast("Compiled | None", compiled_module("cdcflow.sources.postgres.compiled.decode"))
"""The compiled decoders; None where they were not built."""


def layout_of(compiled: Compiled, described: DescribedTable, in_identity: Sequence[bool] = ()) -> Layout:
    """Return the facts about a table shape that the compiled decoders need. `in_identity`: which columns an old key
    carries."""
    return compiled.layout(described, [_kernels(codec) for codec in described.codecs], in_identity)


def _kernels(codec: Codec) -> Kernels:
    binary = codec.binary
    if binary is None:
        return codec.text.kernel, "", ""
    return codec.text.kernel, binary.kernel, binary.element.kernel if binary.element is not None else ""
