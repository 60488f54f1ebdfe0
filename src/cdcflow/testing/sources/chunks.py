"""Scenarios of chunks: existing rows, once, as of the fence's point in time, in their shape at that time."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdcflow.capture.interleave.messages import Chunk, Committed
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import KeySet, Run
from cdcflow.model.position import Token
from cdcflow.model.table import Table
from cdcflow.testing.sources.kit import SourceKit, needs
from cdcflow.testing.sources.reading import Scenarios, changes, collect, placed_rows, rows_of, seen_mark, xids


def numbers(first: int, last: int) -> list[str]:
    return [f"INSERT INTO items VALUES ({i}, 'row {i}')" for i in range(first, last + 1)]


class ChunkScenarios(Scenarios):
    """Scenarios of chunks."""

    def test_chunks_bring_every_row_once(self, source_kit: SourceKit) -> None:
        """Chunks of any size read every row of an unchanging table once, and the last chunk reports the end."""
        source_kit.execute(*numbers(1, 300))
        source, _ = self.prepare_source(source_kit)
        reads = self.read_all(source, source_kit.table, size=1)
        ids = sorted(row[1] for read in reads if read.run for row in self.rows_read(read, source_kit.table))
        assert ids == list(range(1, 301))
        assert [read.exhausted for read in reads] == [False] * (len(reads) - 1) + [True]
        source.close()

    def test_empty_table_is_read_at_once(self, source_kit: SourceKit) -> None:
        """A backfill of an empty table must end at once, and report its end."""
        source, _ = self.prepare_source(source_kit)
        reads = self.read_all(source, source_kit.table, size=1000)
        assert [(read.exhausted, self.rows_read(read, source_kit.table)) for read in reads] == [(True, [])]
        source.close()

    def test_chunk_and_stream_give_the_same_row(self, source_kit: SourceKit) -> None:
        """A row's values must not depend on whether a chunk or the stream brought it (hard case T38)."""
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute("INSERT INTO items VALUES (1, 'ärger '), (2, ''), (3, NULL), (-2147483648, '0')")
        streamed = rows_of(self.stream_to_mark(source, checkpoint), source_kit.table)
        reads = self.read_all(source, source_kit.table, size=1000)
        read = [row for r in reads for row in self.rows_read(r, source_kit.table)]
        assert sorted((i, n or "", n is None) for _, i, n in read) == sorted(
            (i, n or "", n is None) for _, i, n in streamed
        )
        source.close()

    def test_chunk_sees_what_was_committed_before_its_low_mark(self, source_kit: SourceKit) -> None:
        """A chunk's snapshot is taken after its low mark exists, so it shows everything committed before, and no older
        row."""
        source_kit.execute("INSERT INTO items VALUES (1, 'old')", "INSERT INTO items VALUES (2, 'old')")
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (stream, chunks):
            plan = chunks.plan(source_kit.table, 1)
            source_kit.execute("UPDATE items SET name = 'new' WHERE id = 1", "DELETE FROM items WHERE id = 2")
            chunks.write_mark(Token("1/1/low"))
            read = self.read(chunks, plan)
            events = collect(stream, seen_mark(Token("1/1/low")))
            assert self.rows_read(read, source_kit.table) == [("r", 1, "new")]
            assert not any(len(v.hidden(xids(events))) for v in read.visibilities)
            assert not len(chunks.snapshot().hidden(xids(events)))

    @needs("hold commits")
    def test_bound_of_a_plan_reports_a_row_that_was_delivered_and_is_not_visible(self, source_kit: SourceKit) -> None:
        """A row that is above the plan's bound because it is not visible yet must not be lost.

        No chunk reads such a row, and the end of the backfill would delete it. So the plan reports the hidden
        transaction, or its bound does not depend on what is visible and the chunks do read the row.
        """
        source_kit.execute("INSERT INTO items VALUES (1, 'old')")
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (stream, chunks):
            with source_kit.hold_commit("INSERT INTO items VALUES (2, 'new')") as release:
                events = collect(stream, lambda seen: bool(rows_of(seen, source_kit.table)))
                plan = chunks.plan(source_kit.table, 1)
                release()
            told = any(len(v.hidden(xids(events))) == 1 for v in plan.visibilities)
            read = self.read(chunks, plan)
            assert told or [row[1] for row in self.rows_read(read, source_kit.table)] == [1, 2]
            later = chunks.plan(source_kit.table, 2)
            assert not any(len(v.hidden(xids(events))) for v in later.visibilities)
            assert [row[1] for row in self.rows_read(self.read(chunks, later), source_kit.table)] == [1, 2]

    @needs("hold commits")
    def test_chunk_reports_a_change_that_was_delivered_and_is_not_visible(self, source_kit: SourceKit) -> None:
        """The chunk shows the old value after the stream delivered the new one, so it must be read again (hard cases
        W01, W03)."""
        source_kit.execute("INSERT INTO items VALUES (1, 'old')")
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (stream, chunks):
            plan = chunks.plan(source_kit.table, 1)
            with source_kit.hold_commit("UPDATE items SET name = 'new' WHERE id = 1") as release:
                events = collect(stream, lambda seen: bool(rows_of(seen, source_kit.table)))
                read = self.read(chunks, plan)
                assert self.rows_read(read, source_kit.table) == [("r", 1, "old")], "the change is visible already"
                assert any(len(v.hidden(xids(events))) == 1 for v in read.visibilities)
                assert len(chunks.snapshot().hidden(xids(events))) == 1
                release()
            read = self.read(chunks, plan)
            assert self.rows_read(read, source_kit.table) == [("r", 1, "new")]
            assert not any(len(v.hidden(xids(events))) for v in read.visibilities)

    @needs("hold commits")
    def test_keys_tell_of_a_change_that_was_delivered_and_is_not_visible(self, source_kit: SourceKit) -> None:
        """Rows read by key show the old value after the stream delivered the new one, so they must be read again (hard
        cases W01, W03)."""
        source_kit.execute("INSERT INTO items VALUES (1, 'old')")
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (stream, chunks):
            plan = chunks.plan(source_kit.table, 1)
            with source_kit.hold_commit("UPDATE items SET name = 'new' WHERE id = 1"):
                events = collect(stream, lambda seen: bool(rows_of(seen, source_kit.table)))
                read = self.read_keys(chunks, plan, keys(plan.shape, 1))
                assert any(len(v.hidden(xids(events))) == 1 for v in read.visibilities)

    def test_keys_give_the_rows_that_have_them_now(self, source_kit: SourceKit) -> None:
        """The key of a deleted row yields nothing, the key of a moved row yields the row that has it now, and a
        repeated key yields one row (hard case W11)."""
        source_kit.execute(*numbers(1, 5))
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (_, chunks):
            plan = chunks.plan(source_kit.table, 1)
            source_kit.execute(
                "DELETE FROM items WHERE id = 2",
                "UPDATE items SET id = 7 WHERE id = 3",
                "UPDATE items SET name = 'now' WHERE id = 4",
                "INSERT INTO items VALUES (3, 'another')",
            )
            read = self.read_keys(chunks, plan, keys(plan.shape, 1, 2, 3, 4, 4, 99))
            rows = sorted(self.rows_read(read, source_kit.table), key=lambda row: row[1])
            assert rows == [("r", 1, "row 1"), ("r", 3, "another"), ("r", 4, "now")]
            assert read.visibilities
            assert self.rows_read(self.read_keys(chunks, plan, keys(plan.shape, 2, 99)), source_kit.table) == []

    def test_predicate_gives_the_keys_of_rows_that_it_is_true_for(self, source_kit: SourceKit) -> None:
        """An operator who has unverified rows read again selects them by their values."""
        source_kit.execute(*numbers(1, 2), *(f"INSERT INTO items VALUES ({i}, 'doubtful')" for i in (3, 4, 5)))
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (_, chunks):
            plan = chunks.plan(source_kit.table, 1)
            found = chunks.keys_where(source_kit.table, "name = 'doubtful'", 9)
            assert sorted(found.keys.column("id").to_pylist()) == [3, 4, 5]
            assert found.keys.schema == keys(plan.shape, 1).keys.schema
            assert len(chunks.keys_where(source_kit.table, "name = 'doubtful'", 2)) == 2
            assert len(chunks.keys_where(source_kit.table, "id = 99", 9)) == 0
            rows = self.rows_read(self.read_keys(chunks, plan, found), source_kit.table)
            assert sorted(rows) == [("r", i, "doubtful") for i in (3, 4, 5)]

    @pytest.mark.parametrize(
        "predicate",
        [
            "nothing = 1",
            "id =",
            "id = 1); DELETE FROM items; SELECT (1 = 1",
            "id = 1); DELETE FROM items; -- ",
            "id = 1) -- ",
            "id = 1 /* ",
            "id = 1)) AS t) TO STDOUT; COMMIT; DELETE FROM items; COMMIT; COPY (SELECT no FROM (SELECT 1 WHERE (1 = 1",
        ],
    )
    def test_invalid_predicate_is_refused(self, source_kit: SourceKit, predicate: str) -> None:
        """An invalid predicate is a wrong setting, not an unavailable source: trying again would not change it.

        And no other statement can be injected with it.
        """
        source_kit.execute(*numbers(1, 2))
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (_, chunks):
            with pytest.raises(ConfigurationError, match="refuses the predicate"):
                chunks.keys_where(source_kit.table, predicate, 9)
            found = chunks.keys_where(source_kit.table, "id = 2", 9)
            assert found.keys.column("id").to_pylist() == [2], "the connection is as good as before"
        assert len(source_kit.rows("items")) == 2

    @needs("tables without key")
    def test_table_without_a_key_is_read_whole_after_a_truncate(self, source_kit: SourceKit) -> None:
        """Rows without a key cannot be replayed over each other, so the chunk replaces all rows; equal rows are kept
        (hard case P08)."""
        source_kit.create("bare", keyed=False)
        source_kit.execute("INSERT INTO bare VALUES (1, 'a'), (1, 'a'), (2, 'b')")
        source, checkpoint = self.prepare_source(source_kit)
        bare = source_kit.named("bare")
        with self.reading(source, checkpoint) as (_, chunks):
            plan = chunks.plan(bare, 1)
            assert plan.whole
            chunk = Chunk(bare, 1, 1, plan.plan, None, plan.size, Token("1/1/low"), kind="whole")
            read = chunks.read_chunk(chunk)
            rows = self.rows_read(read, bare)
            assert rows[0][0] == "t"
            assert sorted(rows[1:]) == [("r", 1, "a"), ("r", 1, "a"), ("r", 2, "b")]
            assert read.exhausted
            assert read.visibilities

    @needs("tables without key")
    def test_update_without_a_key_is_a_delete_and_an_insert(self, source_kit: SourceKit) -> None:
        """Without a key all columns together identify a row, so every update changes the row's identity (hard case
        P08)."""
        source_kit.create("bare", keyed=False)
        source_kit.execute("INSERT INTO bare VALUES (1, 'a')")
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute("UPDATE bare SET name = 'b' WHERE id = 1")
        rows = rows_of(self.stream_to_mark(source, checkpoint), source_kit.named("bare"))
        assert rows == [("d", 1, "a"), ("c", 1, "b")]
        source.close()

    # ── what happens to a table between its plan and its chunks ─────────────────────────────────────────────

    def test_chunk_after_a_truncate_brings_no_row_of_before(self, source_kit: SourceKit) -> None:
        """The plan's rows are gone: the chunk must either report that, or read the current rows."""
        source_kit.execute(*numbers(1, 50))
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (_, chunks):
            plan = chunks.plan(source_kit.table, 1)
            source_kit.truncate("items")
            source_kit.execute("INSERT INTO items VALUES (7, 'now')")
            read = self.read(chunks, plan)
            assert read.rewritten or self.rows_read(read, source_kit.table) == [("r", 7, "now")]

    @needs("alter tables")
    def test_chunk_of_a_recreated_table_differs_from_the_old_table_s(self, source_kit: SourceKit) -> None:
        """Another table has the name now. Its rows may arrive only with its own incarnation, or not at all (hard case
        P25)."""
        source_kit.execute(*numbers(1, 50))
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (_, chunks):
            plan = chunks.plan(source_kit.table, 1)
            source_kit.execute("DROP TABLE items")
            source_kit.create("items")
            source_kit.execute("INSERT INTO items VALUES (7, 'now')")
            try:
                read = self.read(chunks, plan)
            except SourceUnavailable:
                return  # the next check of the catalog finds the new table
            assert read.rewritten or self.rows_read(read, source_kit.table) == [("r", 7, "now")]

    @needs("alter tables")
    def test_column_that_is_added_between_two_chunks_is_in_the_next(self, source_kit: SourceKit) -> None:
        """A chunk's shape must be that of its rows, or their values would be read as those of other columns (hard cases
        P18, M36)."""
        source_kit.execute(*numbers(1, 300))
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (_, chunks):
            plan = chunks.plan(source_kit.table, 1)
            first = self.read(chunks, plan, size=1)
            source_kit.add_column_with_values("items", "extra")
            second = self.read(chunks, plan, first)
            assert names(first.shape) == ["id", "name"]
            if second.rewritten:
                plan = chunks.plan(source_kit.table, 2)
                second = self.read(chunks, plan)
            assert names(second.shape) == ["id", "name", "extra"]
            assert isinstance(second.run, Run)
            expected = {row["id"]: row for row in source_kit.rows("items")}
            found = placed_rows(second.run, source_kit.table)
            assert found
            assert all({n: row[n] for n in ("id", "name", "extra")} == expected[row["id"]] for _, row in found)

    def test_change_that_a_chunk_may_show_comes_through_the_stream_too(self, source_kit: SourceKit) -> None:
        """A change committed between the low and the high mark may show in the chunk; the stream must deliver it all
        the same."""
        source_kit.execute("INSERT INTO items VALUES (1, 'old')")
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (stream, chunks):
            plan = chunks.plan(source_kit.table, 1)
            chunks.write_mark(Token("1/1/low"))
            source_kit.execute("UPDATE items SET name = 'new' WHERE id = 1")
            read = self.read(chunks, plan)
            chunks.write_mark(Token("1/1/high"))
            events = collect(stream, seen_mark(Token("1/1/high")))
            assert self.rows_read(read, source_kit.table) == [("r", 1, "new")]
            assert changes(events, source_kit.table) == [("u", 1, "new")]
            assert isinstance(read.run, Run)
            shapes = [e.run.shapes_of(source_kit.table) for e in events if isinstance(e, Committed)]
            assert {shape for found in shapes for shape in found} == {read.shape}


def keys(shape: object, *ids: int) -> KeySet:
    assert isinstance(shape, Table)
    return KeySet(pa.table({"id": pa.array(ids, shape.row_schema.field("id").type)}))


def names(shape: object) -> list[str]:
    assert isinstance(shape, Table)
    return [c.name for c in shape.columns]
