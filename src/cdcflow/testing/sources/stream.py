"""Scenarios of the stream: what was committed, once, in order, whatever shape and size it has."""

from __future__ import annotations

from cdcflow.capture.interleave.messages import Advanced, Committed, MarkSeen
from cdcflow.capture.ports.log import Spool
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.model.change import Run, SpooledTransaction
from cdcflow.model.position import Token
from cdcflow.model.table import BEFORE, OP, UNCHANGED, TableId
from cdcflow.sinks.memory import Memory, MemoryLog, MemorySpool
from cdcflow.testing.sources.kit import SourceKit, needs
from cdcflow.testing.sources.reading import Scenarios, changes, collect, placed_rows, rows_of, seen_mark

LARGE = 2000
"""A kit's source spools a transaction with this many rows."""


def inserts(first: int, last: int, text: str = "row") -> str:
    """Return one statement that inserts rows of some width, so that a transaction becomes large."""
    values = ", ".join(f"({n}, '{text} {n} {'x' * 80}')" for n in range(first, last + 1))
    return f"INSERT INTO items VALUES {values}"


class Spools:
    """Creates spools, keeps the rows written into them, and finds the spooled transactions among events."""

    def __init__(self) -> None:
        self._log = MemoryLog(Memory())
        self.opened: dict[str, MemorySpool] = {}

    def open(self) -> Spool:
        made = self._log.open_spool()
        self.opened[made.name] = made
        return made

    def rows(self, events: list[StreamEvent], table: TableId) -> list[int]:
        """Return the ids of the rows of the spooled transaction among the events; exactly one must have been
        spooled."""
        (spooled,) = [e.run for e in events if isinstance(e, Committed) and isinstance(e.run, SpooledTransaction)]
        batches = list(self.opened[spooled.spool].batches(spooled.aborted))
        found = sorted(
            (int(i), int(n))
            for batch in batches
            if batch.table.id == table
            for i, n in zip(batch.index.tolist(), batch.rows.column("id").to_pylist(), strict=True)
        )
        assert spooled.rows == len(found), "the header announces other rows than the spool has"
        assert {t.id for t in spooled.shapes} == {table}
        return [n for _, n in found]


class StreamScenarios(Scenarios):
    """Scenarios of the stream."""

    @needs("log every change")
    def test_committed_changes_arrive_once_in_commit_order(self, source_kit: SourceKit) -> None:
        """A source must deliver every committed change exactly once, in the order of commits."""
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute("INSERT INTO items VALUES (1, 'a')", "INSERT INTO items VALUES (2, 'b')")
        source_kit.execute("UPDATE items SET name = 'B' WHERE id = 2")
        source_kit.execute("DELETE FROM items WHERE id = 1", "INSERT INTO items VALUES (1, NULL)")
        rows = changes(self.stream_to_mark(source, checkpoint), source_kit.table)
        assert rows == [("c", 1, "a"), ("c", 2, "b"), ("u", 2, "B"), ("d", 1, None), ("c", 1, None)]
        source.close()

    @needs("log every change")
    def test_changes_of_several_tables_keep_their_order(self, source_kit: SourceKit) -> None:
        """A transaction over two tables is one run, whose rows are numbered across both tables."""
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute(
            "INSERT INTO items VALUES (1, 'a')",
            "INSERT INTO others VALUES (2, 'b')",
            "INSERT INTO items VALUES (3, 'c')",
        )
        events = self.stream_to_mark(source, checkpoint)
        runs = [e.run for e in events if isinstance(e, Committed) and isinstance(e.run, Run)]
        placed = [
            (at, row["id"])
            for run in runs
            for table in (source_kit.table, source_kit.named("others"))
            for at, row in placed_rows(run, table)
        ]
        assert sorted(placed) == [(0, 1), (1, 2), (2, 3)]
        source.close()

    def test_what_was_rolled_back_never_arrives(self, source_kit: SourceKit) -> None:
        """A change that was not committed must not reach a warehouse."""
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute(
            "INSERT INTO items VALUES (1, 'kept')",
            "SAVEPOINT s",
            "INSERT INTO items VALUES (2, 'dropped')",
            "ROLLBACK TO SAVEPOINT s",
        )
        source_kit.execute("INSERT INTO items VALUES (3, 'dropped')", "ROLLBACK")
        assert rows_of(self.stream_to_mark(source, checkpoint), source_kit.table) == [("c", 1, "kept")]
        source.close()

    @needs("log every change")
    def test_savepoints_inside_savepoints_take_back_what_is_theirs(self, source_kit: SourceKit) -> None:
        """Changes between two rollbacks stay, and a key may be used again after its row was rolled back."""
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute(
            "INSERT INTO items VALUES (1, 'a')",
            "SAVEPOINT outside",
            "INSERT INTO items VALUES (2, 'b')",
            "SAVEPOINT inside",
            "INSERT INTO items VALUES (3, 'dropped')",
            "UPDATE items SET name = 'dropped' WHERE id = 1",
            "ROLLBACK TO SAVEPOINT inside",
            "INSERT INTO items VALUES (3, 'c')",
            "SAVEPOINT last",
            "DELETE FROM items WHERE id = 2",
            "ROLLBACK TO SAVEPOINT last",
            "UPDATE items SET name = 'A' WHERE id = 1",
        )
        rows = changes(self.stream_to_mark(source, checkpoint), source_kit.table)
        assert rows == [("c", 1, "a"), ("c", 2, "b"), ("c", 3, "c"), ("u", 1, "A")]
        source.close()

    @needs("log every change")
    def test_key_change_is_a_delete_and_an_insert(self, source_kit: SourceKit) -> None:
        """Downstream the key identifies a row, so a changed key is another row, which contains the previous key (hard
        cases P09, M43, W10)."""
        source_kit.execute("INSERT INTO items VALUES (1, 'a')")
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute("UPDATE items SET id = 2 WHERE id = 1")
        events = self.stream_to_mark(source, checkpoint)
        assert [(op, id_) for op, id_, _ in rows_of(events, source_kit.table)] == [("d", 1), ("c", 2)]
        batches = [b for e in events if isinstance(e, Committed) and isinstance(e.run, Run) for b in e.run.batches]
        moved = batches[-1].rows.to_pylist()[-1]
        assert (moved[BEFORE] or {}).get("id") == 1
        assert "id" not in (moved[UNCHANGED] or [])
        source.close()

    @needs("log every change")
    def test_keys_that_two_rows_exchange_come_one_after_another(self, source_kit: SourceKit) -> None:
        """The delete and the insert of a key change are adjacent, so that a row never takes a key that another row
        still has (hard case W10)."""
        source_kit.execute("INSERT INTO items VALUES (1, 'a')", "INSERT INTO items VALUES (2, 'b')")
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute(
            "UPDATE items SET id = 9 WHERE id = 1",
            "UPDATE items SET id = 1 WHERE id = 2",
            "UPDATE items SET id = 2 WHERE id = 9",
        )
        rows = changes(self.stream_to_mark(source, checkpoint), source_kit.table)
        assert [(op, id_) for op, id_, _ in rows] == [("d", 1), ("c", 9), ("d", 2), ("c", 1), ("d", 9), ("c", 2)]
        source.close()

    @needs("log every change")
    def test_key_that_moves_on_along_a_chain_names_each_step(self, source_kit: SourceKit) -> None:
        """Each step contains the key that it continues, and the last step has the row's values (hard case W10)."""
        source_kit.execute("INSERT INTO items VALUES (1, 'a')")
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute("UPDATE items SET id = 2 WHERE id = 1", "UPDATE items SET id = 3, name = 'c' WHERE id = 2")
        events = self.stream_to_mark(source, checkpoint)
        runs = [e.run for e in events if isinstance(e, Committed) and isinstance(e.run, Run)]
        steps = [row for run in runs for _, row in placed_rows(run, source_kit.table) if row[OP] == "c"]
        assert [((row[BEFORE] or {}).get("id"), row["id"]) for row in steps] == [(1, 2), (2, 3)]
        assert steps[-1]["name"] == "c"
        source.close()

    @needs("log every change")
    def test_truncate_is_between_the_changes_before_and_after_it(self, source_kit: SourceKit) -> None:
        """A truncate has its place among the changes: it must not remove rows that were inserted after it."""
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute("INSERT INTO items VALUES (1, 'before')")
        source_kit.truncate("items")
        source_kit.execute("INSERT INTO items VALUES (1, 'after')")
        events = self.stream_to_mark(source, checkpoint)
        assert [(op, id_) for op, id_, _ in rows_of(events, source_kit.table)] == [("c", 1), ("t", None), ("c", 1)]
        assert rows_of(events, source_kit.table)[-1] == ("c", 1, "after")
        source.close()

    @needs("spool")
    def test_large_transaction_comes_through_a_spool_with_every_row(self, source_kit: SourceKit) -> None:
        """A transaction may be too large for memory: its rows must arrive complete, once and in order all the same
        (hard case P33)."""
        source, checkpoint = self.prepare_source(source_kit)
        spools = Spools()
        source_kit.execute(*(inserts(n, n + 499) for n in range(1, LARGE + 1, 500)))
        events = self.stream_to_mark(source, checkpoint, open_spool=spools.open)
        assert spools.rows(events, source_kit.table) == list(range(1, LARGE + 1))
        source.close()

    @needs("spool")
    def test_parts_of_a_large_transaction_that_were_taken_back_are_dropped(self, source_kit: SourceKit) -> None:
        """Rows that were rolled back to a savepoint are in the spool already when the rollback arrives (hard case
        P39)."""
        source, checkpoint = self.prepare_source(source_kit)
        spools = Spools()
        source_kit.execute(
            inserts(1, LARGE),
            "SAVEPOINT s",
            inserts(LARGE + 1, 2 * LARGE, "dropped"),
            "ROLLBACK TO SAVEPOINT s",
            inserts(LARGE + 1, LARGE + 10, "kept"),
        )
        events = self.stream_to_mark(source, checkpoint, open_spool=spools.open)
        assert spools.rows(events, source_kit.table) == list(range(1, LARGE + 11))
        source.close()

    @needs("spool")
    def test_large_transaction_that_was_rolled_back_leaves_nothing(self, source_kit: SourceKit) -> None:
        """A server may send a transaction before its end: if it is rolled back, its rows must be dropped."""
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute(inserts(1, LARGE), "ROLLBACK")
        source_kit.execute("INSERT INTO items VALUES (1, 'kept')")
        spools = Spools()
        events = self.stream_to_mark(source, checkpoint, open_spool=spools.open)
        assert rows_of(events, source_kit.table) == [("c", 1, "kept")]
        assert not any(isinstance(e, Committed) and isinstance(e.run, SpooledTransaction) for e in events)
        source.close()

    def test_mark_returns_between_what_was_committed_before_and_after_it(self, source_kit: SourceKit) -> None:
        """Windows rely on the place of a mark: it arrives after everything that was committed before it, and before
        everything committed later."""
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (stream, chunks):
            source_kit.execute("INSERT INTO items VALUES (1, 'before')")
            chunks.write_mark(Token("1/1/low"))
            source_kit.execute("INSERT INTO items VALUES (2, 'after')")
            chunks.write_mark(Token("1/1/high"))
            events = collect(stream, seen_mark(Token("1/1/high")))
        low = next(i for i, e in enumerate(events) if isinstance(e, MarkSeen) and e.token == Token("1/1/low"))
        assert rows_of(events[:low], source_kit.table) == [("c", 1, "before")]
        assert rows_of(events[low:], source_kit.table) == [("c", 2, "after")]

    def test_marks_of_another_log_mean_nothing(self, source_kit: SourceKit) -> None:
        """Two logs may follow one database: if one took a mark of the other for its own, it would close a wrong
        window."""
        source, checkpoint = self.prepare_source(source_kit)
        other, elsewhere = self.prepare_source(source_kit, "deadbeef-0000-4000-8000-000000000002")
        with self.reading(other, elsewhere) as (theirs, chunks):
            chunks.write_mark(Token("1/1/low"))
            collect(theirs, seen_mark(Token("1/1/low")))
            events = self.stream_to_mark(source, checkpoint, "1/2/low")
        assert [e.token for e in events if isinstance(e, MarkSeen)] == [Token("1/2/low")]
        source.close()

    def test_idle_source_still_moves_the_position(self, source_kit: SourceKit) -> None:
        """Without captured changes the position must still move, so that the server can discard its log (hard cases
        M31, O14)."""
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (stream, chunks):
            chunks.heartbeat()
            # The end of the log may be reported, without a time, before the heartbeat arrives. The time must follow,
            # because readers of several logs wait for it.
            events = collect(stream, lambda seen: any(isinstance(e, Advanced) and e.commit_ts > 0 for e in seen))
        assert all(not isinstance(e, Committed) or e.run.rows == 0 for e in events)
        told = [e.position for e in events if isinstance(e, Advanced)]
        assert told[-1] != checkpoint.position
