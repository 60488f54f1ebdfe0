from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from cdcflow.model.change import Int64s, Uint64s
from cdcflow.sources.engine.buffers import Bytes
from cdcflow.sources.postgres.types import DescribedTable

class Layout:
    described: DescribedTable

def layout(
    described: DescribedTable, kernels: Sequence[tuple[str, str, str]], in_identity: Sequence[bool]
) -> Layout: ...
def scan(data: bytes, lengths: Int64s) -> tuple[Int64s, Int64s, Bytes, int] | None: ...
def transactions(
    data: bytes, start: Int64s, end: Int64s, kind: Bytes
) -> tuple[Int64s, Int64s, Uint64s, Int64s, Int64s, bool] | None: ...
def with_rows(commits: Int64s, rows_before: Int64s, numbers: Sequence[Any]) -> tuple[Int64s, Sequence[Any], Int64s]: ...
def positions(lsns: Int64s) -> pa.Array: ...
def changes(
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
) -> tuple[list[tuple[int, int, Any, Int64s, pa.RecordBatch]], Int64s] | None: ...
def copied(data: bytes, start: Int64s, end: Int64s, layout: Any) -> pa.RecordBatch | None: ...
