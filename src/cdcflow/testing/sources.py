"""What every source must do, as a suite of tests: subclass `SourceContract` and give it a `source_kit` fixture.

The suite speaks to a source only through `cdcflow.ports`, and to its database through plain SQL that every dialect
knows. A source that passes it can be wired to the machine and to any sink.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cdcflow.interleave.messages import Advanced, Chunk, ChunkRead, Committed, MarkSeen
from cdcflow.model.change import Run
from cdcflow.model.position import Checkpoint, Epoch, Token
from cdcflow.model.table import BEFORE, OP, UNCHANGED, TableId
from cdcflow.ports import Source, Spool, Stream, StreamEvent

PATIENCE_S = 30.0

Row = tuple[str, int, str | None]
"""What the suite compares: op, id, name."""


class SourceKit(Protocol):
    """A database with one table `items (id integer primary key, name text)` in it, and how to open a source on it."""

    table: TableId

    def execute(self, *statements: str) -> None:
        """Run these statements in one transaction and commit it."""
        ...

    def open_source(self) -> Source:
        """A source that captures `table` (and what `tables` names besides)."""
        ...


def refuse_spool() -> Spool:
    raise AssertionError("the suite's transactions are small: none of them needs a spool")


def collect(stream: Stream, enough: Callable[[Sequence[StreamEvent]], bool]) -> list[StreamEvent]:
    """Poll until `enough` says so; fails when it never does."""
    events: list[StreamEvent] = []
    deadline = time.monotonic() + PATIENCE_S
    while not enough(events):
        assert time.monotonic() < deadline, f"the stream brought {len(events)} events, and not what was waited for"
        if not stream.ready:
            select.select([stream.fileno()], [], [], 0.2)
        events.extend(stream.poll())
    return events


def rows_of(events: Sequence[StreamEvent], table: TableId) -> list[Row]:
    """The changes of a table in the order of the stream."""
    found: list[Row] = []
    for event in events:
        if isinstance(event, Committed) and isinstance(event.run, Run):
            found.extend(rows_of_run(event.run, table))
    return found


def rows_of_run(run: Run, table: TableId) -> list[Row]:
    placed: list[tuple[int, Row]] = []
    for batch in run.batches:
        if batch.table.id == table:
            rows: list[dict[str, Any]] = batch.rows.to_pylist()
            placed += [(int(i), (r[OP], r["id"], r["name"])) for i, r in zip(batch.index.tolist(), rows, strict=True)]
    return [row for _, row in sorted(placed, key=lambda pair: pair[0])]


def seen_mark(token: Token) -> Callable[[Sequence[StreamEvent]], bool]:
    return lambda events: any(isinstance(e, MarkSeen) and e.token == token for e in events)


class SourceContract:
    """The suite. `prepared` opens a source at a new place in the database's log."""

    def prepared(self, kit: SourceKit) -> tuple[Source, Checkpoint]:
        source = kit.open_source()
        return source, source.prepare(Checkpoint(epoch=Epoch(1)), "c0ffee00-0000-4000-8000-000000000001")

    def streamed(self, source: Source, checkpoint: Checkpoint, token: str = "1/1/low") -> list[StreamEvent]:
        """Everything from the checkpoint up to a mark written now."""
        chunks = source.chunks()
        stream = source.stream(checkpoint, refuse_spool)
        try:
            chunks.write_mark(Token(token))
            return collect(stream, seen_mark(Token(token)))
        finally:
            stream.close()
            chunks.close()

    def test_committed_changes_arrive_once_in_commit_order(self, source_kit: SourceKit) -> None:
        """I1, I4: this is what a source is for."""
        source, checkpoint = self.prepared(source_kit)
        source_kit.execute("INSERT INTO items VALUES (1, 'a')", "INSERT INTO items VALUES (2, 'b')")
        source_kit.execute("UPDATE items SET name = 'B' WHERE id = 2")
        source_kit.execute("DELETE FROM items WHERE id = 1", "INSERT INTO items VALUES (1, NULL)")
        events = self.streamed(source, checkpoint)
        rows = [row if row[0] != "d" else ("d", row[1], None) for row in rows_of(events, source_kit.table)]
        assert rows == [("c", 1, "a"), ("c", 2, "b"), ("u", 2, "B"), ("d", 1, None), ("c", 1, None)]
        source.close()

    def test_what_was_rolled_back_never_arrives(self, source_kit: SourceKit) -> None:
        """I2: a change that nobody committed must not reach a warehouse."""
        source, checkpoint = self.prepared(source_kit)
        source_kit.execute(
            "INSERT INTO items VALUES (1, 'kept')",
            "SAVEPOINT s",
            "INSERT INTO items VALUES (2, 'dropped')",
            "ROLLBACK TO SAVEPOINT s",
        )
        source_kit.execute("INSERT INTO items VALUES (3, 'dropped')", "ROLLBACK")
        assert rows_of(self.streamed(source, checkpoint), source_kit.table) == [("c", 1, "kept")]
        source.close()

    def test_restart_goes_on_behind_the_position_it_is_given(self, source_kit: SourceKit) -> None:
        """P40, L15: what the log has already is never delivered again, whether or not it was acknowledged."""
        source, checkpoint = self.prepared(source_kit)
        source_kit.execute("INSERT INTO items VALUES (1, 'a')")
        events = self.streamed(source, checkpoint)
        last = [e.run.last_position for e in events if isinstance(e, Committed) and e.run.rows][-1]
        source.close()
        source_kit.execute("INSERT INTO items VALUES (2, 'b')")
        again = source_kit.open_source()
        later = again.prepare(
            Checkpoint(position=last, source=checkpoint.source, epoch=Epoch(2)),
            "c0ffee00-0000-4000-8000-000000000001",
        )
        rows = rows_of(self.streamed(again, later, "2/1/low"), source_kit.table)
        assert rows == [("c", 2, "b")]
        again.close()

    def test_mark_comes_back_between_what_was_committed_before_and_after_it(self, source_kit: SourceKit) -> None:
        """The window stands on this: a mark has a place in the log, after it is written and before what follows."""
        source, checkpoint = self.prepared(source_kit)
        chunks = source.chunks()
        stream = source.stream(checkpoint, refuse_spool)
        source_kit.execute("INSERT INTO items VALUES (1, 'before')")
        chunks.write_mark(Token("1/1/low"))
        source_kit.execute("INSERT INTO items VALUES (2, 'after')")
        chunks.write_mark(Token("1/1/high"))
        events = collect(stream, seen_mark(Token("1/1/high")))
        low = next(i for i, e in enumerate(events) if isinstance(e, MarkSeen) and e.token == "1/1/low")
        assert rows_of(events[:low], source_kit.table) == [("c", 1, "before")]
        assert rows_of(events[low:], source_kit.table) == [("c", 2, "after")]
        stream.close()
        chunks.close()
        source.close()

    def test_key_change_is_a_delete_and_an_insert(self, source_kit: SourceKit) -> None:
        """P09, M43, W10: downstream a row is its key, so a changed key is another row, and says whose it was."""
        source_kit.execute("INSERT INTO items VALUES (1, 'a')")
        source, checkpoint = self.prepared(source_kit)
        source_kit.execute("UPDATE items SET id = 2 WHERE id = 1")
        events = self.streamed(source, checkpoint)
        assert [(op, id_) for op, id_, _ in rows_of(events, source_kit.table)] == [("d", 1), ("c", 2)]
        batches = [b for e in events if isinstance(e, Committed) and isinstance(e.run, Run) for b in e.run.batches]
        moved = batches[-1].rows.to_pylist()[-1]
        assert moved[BEFORE]["id"] == 1
        assert "id" not in (moved[UNCHANGED] or [])
        source.close()

    def test_chunks_bring_every_row_once(self, source_kit: SourceKit) -> None:
        """A table at rest is read completely by its chunks, in whatever sizes, and ends."""
        source_kit.execute(*(f"INSERT INTO items VALUES ({i}, 'row {i}')" for i in range(1, 301)))
        source, _ = self.prepared(source_kit)
        reads = self.read_all(source, source_kit.table, size=1)
        ids = sorted(row[1] for read in reads if read.run for row in self.rows_read(read, source_kit.table))
        assert ids == list(range(1, 301))
        assert [read.exhausted for read in reads] == [False] * (len(reads) - 1) + [True]
        source.close()

    def test_chunk_and_stream_give_the_same_row(self, source_kit: SourceKit) -> None:
        """T38: a row may not depend on the way by which it came."""
        source, checkpoint = self.prepared(source_kit)
        source_kit.execute("INSERT INTO items VALUES (1, 'ärger '), (2, ''), (3, NULL), (-2147483648, '0')")
        streamed = rows_of(self.streamed(source, checkpoint), source_kit.table)
        reads = self.read_all(source, source_kit.table, size=1000)
        read = [row for r in reads for row in self.rows_read(r, source_kit.table)]
        assert sorted((i, n or "", n is None) for _, i, n in read) == sorted(
            (i, n or "", n is None) for _, i, n in streamed
        )
        source.close()

    def test_idle_source_still_moves_the_position(self, source_kit: SourceKit) -> None:
        """M31, O14: without captured changes the source must still be able to forget its log."""
        source, checkpoint = self.prepared(source_kit)
        chunks = source.chunks()
        stream = source.stream(checkpoint, refuse_spool)
        chunks.heartbeat()
        events = collect(stream, lambda seen: any(isinstance(e, Advanced) for e in seen))
        assert all(not isinstance(e, Committed) or e.run.rows == 0 for e in events)
        stream.close()
        chunks.close()
        source.close()

    def read_all(self, source: Source, table: TableId, size: int) -> list[ChunkRead]:
        chunks = source.chunks()
        try:
            plan = chunks.plan(table, 1)
            reads: list[ChunkRead] = []
            while not reads or not reads[-1].exhausted:
                after = reads[-1].reached if reads else None
                number = len(reads) + 1
                reads.append(chunks.read_chunk(Chunk(table, 1, number, plan.plan, after, size, Token("1/1/low"))))
                assert number < 1000, "the chunks do not end"
            return reads
        finally:
            chunks.close()

    def rows_read(self, read: ChunkRead, table: TableId) -> list[Row]:
        return rows_of_run(read.run, table) if isinstance(read.run, Run) else []
