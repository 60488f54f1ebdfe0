"""A source that a process has opened to read parts of chunks for another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cdcflow.capture.interleave.messages import Chunk
from cdcflow.capture.ports.part_readers import PartRows
from cdcflow.sources.engine.chunks import Chunks


class OwnPartReader:
    """Implements `cdcflow.capture.ports.part_readers.PartReader` on chunks, and closes what they were opened with."""

    def __init__(self, chunks: Chunks[Any, Any, Any], close: Callable[[], None]) -> None:
        self._chunks = chunks
        self._close = close

    def read_part(self, chunk: Chunk, part: Any) -> PartRows:
        return self._chunks.read_part(chunk, part)

    def close(self) -> None:
        self._chunks.close()
        self._close()
