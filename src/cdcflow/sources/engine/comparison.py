"""The part of a comparison that all dialects share (`cdcflow.ports.Comparison`): rows and digests by chunks, and the
transactions that a snapshot sees, by their ids. A dialect determines where its log ends, and what a position covers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import numpy as np
import pyarrow as pa

from cdcflow.capture.interleave.messages import Visibility
from cdcflow.model.change import Uint64s
from cdcflow.model.table import Table
from cdcflow.sources.engine.chunks import Chunks

C = TypeVar("C")


class ByChunks(Generic[C]):
    """Compares a source's rows chunk by chunk. `close` closes the source."""

    def __init__(self, tables: Sequence[Table], chunks: Chunks[C, Any, Any], close: Callable[[], None]) -> None:
        self._tables = tuple(tables)
        self.chunks = chunks
        self.digests = chunks
        self._close = close

    def tables(self) -> Sequence[Table]:
        return self._tables

    def first_unseen(self, visibility: Visibility, transactions: pa.Table) -> int:
        xids = cast("Uint64s", transactions.column("xid").to_numpy())
        unseen = np.flatnonzero(np.isin(xids, visibility.hidden(xids)))
        return int(unseen[0]) if len(unseen) else len(xids)

    def close(self) -> None:
        self.chunks.close()
        self._close()
