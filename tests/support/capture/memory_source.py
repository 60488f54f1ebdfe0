"""A source in memory with one table, for tests that observe the pipeline while the source is read."""

from __future__ import annotations

from collections.abc import Callable

from cdcflow.capture.interleave.messages import Chunk, ChunkRead
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.sources.memory import MemoryDatabase, MemorySource
from cdcflow.testing.sinks import ORDERS


class OrdersSource(MemorySource):
    """The table `shop.orders` with these rows. `chunks_read` are the requested chunks; `on_read` is called before each
    is read."""

    def __init__(self, *ids: int) -> None:
        self.database = MemoryDatabase()
        super().__init__(self.database)
        self.table = self.database.create(ORDERS.id, {c.name: c.type for c in ORDERS.columns}, ORDERS.key)
        self.chunks_read: list[Chunk] = []
        self.on_read: Callable[[], None] = lambda: None
        self.insert(*ids)

    def insert(self, *ids: int) -> None:
        """Commit these rows in one transaction."""
        transaction = self.database.begin()
        transaction.insert(self.table.id, *({"id": id_, "note": f"n{id_}"} for id_ in ids))
        transaction.commit()

    def chunks(self) -> ChunkSource:
        made = super().chunks()
        read = made.read_chunk

        def noted(chunk: Chunk) -> ChunkRead:
            self.chunks_read.append(chunk)
            self.on_read()
            return read(chunk)

        made.read_chunk = noted  # type: ignore[method-assign]  # every reader of chunks calls this
        return made
