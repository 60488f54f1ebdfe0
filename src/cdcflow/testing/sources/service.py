"""Scenarios around the data: rights, an operator's requests, and a close that nothing delays."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cdcflow.capture.interleave.messages import Chunk, KnownRows
from cdcflow.capture.ports.source import Prepared
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.position import Checkpoint, Epoch, Token
from cdcflow.testing.sources import reading
from cdcflow.testing.sources.kit import SourceKit, needs
from cdcflow.testing.sources.reading import LOG_ID, Scenarios, collect, seen_mark

OTHER_LOG_ID = "0f0e0d0c-0b0a-4999-8888-777777777777"


class ServiceScenarios(Scenarios):
    """Rights, status, doctor, closing."""

    def test_tables_are_described_with_name_columns_and_key(self, source_kit: SourceKit) -> None:
        """`tables` must list the tables sorted, with the shapes that rows and chunks have."""
        source, checkpoint = self.prepare_source(source_kit)
        tables = source.tables()
        assert [t.id for t in tables] == [source_kit.table, source_kit.named("others")]
        assert [([c.name for c in t.columns], t.key) for t in tables] == [(["id", "name"], ("id",))] * 2
        with self.reading(source, checkpoint) as (_, chunks):
            assert chunks.plan(source_kit.table, 1).shape == tables[0]

    def test_unchanged_rows_compare_as_equal(self, source_kit: SourceKit) -> None:
        """A check of the catalog must not cause whole tables to be read again unnecessarily."""
        source_kit.execute("INSERT INTO items VALUES (1, 'a')")
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (_, chunks):
            known = {source_kit.table: KnownRows(1, chunks.plan(source_kit.table, 1).row_version)}
            source_kit.execute("UPDATE items SET name = 'b' WHERE id = 1")
            assert not source.compare_rows({}).found
            assert not any(version.changed for version in source.compare_rows(known).found)

    def test_preview_names_what_a_start_captures_and_changes_nothing(self, source_kit: SourceKit) -> None:
        """An operator relies on a preview before a start, also before the first one, so it must be right and change
        nothing."""
        source_kit.execute("INSERT INTO items VALUES (1, 'a')")
        first = source_kit.open_source()
        wanted = [source_kit.table, source_kit.named("others")]
        assert [t.id for t in first.preview(Checkpoint(epoch=Epoch(1)), LOG_ID).tables] == wanted
        first.close()
        source, checkpoint = self.prepare_source(source_kit)
        found = source.preview(checkpoint, LOG_ID)
        assert [(t.id, t.incarnation, t.reread) for t in found.tables] == [
            (t.id, t.incarnation, "") for t in source.tables()
        ]
        assert all(t.rows is None or 0 <= t.rows < 1000 for t in found.tables)
        assert source.prepare(checkpoint, LOG_ID) == Prepared(checkpoint)
        with pytest.raises(ConfigurationError):
            source.preview(checkpoint, "another log's id")
        source.close()

    def test_lag_grows_with_what_is_written_and_ends_with_what_is_read(self, source_kit: SourceKit) -> None:
        """The lag is the number that operators check first (hard case O20)."""
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (stream, chunks):
            before = source.status(checkpoint.position)
            for n in range(50):  # many rows: a server writes into its log for itself, too
                source_kit.execute(f"INSERT INTO items VALUES ({n}, '{'x' * 1500}')")
            after = source.status(checkpoint.position)
            assert before.lag_bytes is not None
            assert after.lag_bytes is not None
            assert after.lag_bytes > before.lag_bytes
            assert after.retained_bytes is None or after.retained_bytes > 0
            assert all(isinstance(name, str) and value for name, value in after.details.items())
            chunks.write_mark(Token("1/1/low"))
            last = reading.position_at(collect(stream, seen_mark(Token("1/1/low")))[-1])
            caught_up = source.status(last).lag_bytes
            assert caught_up is not None
            assert caught_up < after.lag_bytes

    def test_doctor_finds_nothing_wrong_where_nothing_is(self, source_kit: SourceKit) -> None:
        """False alarms teach operators to ignore findings."""
        source, _ = self.prepare_source(source_kit)
        found = source.doctor()
        assert found
        assert [f for f in found if f.level == "error"] == []
        source.close()

    def test_objects_of_this_log_are_not_reported_as_leftovers(self, source_kit: SourceKit) -> None:
        """The remedy of such a finding drops the objects that it names, so objects in use must not be among them."""
        source, checkpoint = self.prepare_source(source_kit)
        ours = set(checkpoint.source.values())
        assert not [f for f in source.left_behind(LOG_ID) if f.subject in ours]
        source.close()

    def test_drop_leaves_nothing_of_a_log_and_all_of_another(self, source_kit: SourceKit) -> None:
        """An object that stays costs the source resources permanently, and an object of another log is still needed.

        A second drop is harmless, and reports that nothing was left.
        """
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (stream, chunks):
            chunks.write_mark(Token("1/1/low"))
            collect(stream, seen_mark(Token("1/1/low")))
        other = source_kit.open_source()
        kept = other.prepare(Checkpoint(epoch=Epoch(1)), OTHER_LOG_ID).checkpoint
        with self.reading(other, kept) as (stream, chunks):
            chunks.write_mark(Token("1/1/other"))
            collect(stream, seen_mark(Token("1/1/other")))
        ending = source_kit.open_source()
        ending.drop(LOG_ID, checkpoint)
        assert "removed" not in {d.outcome for d in ending.drop(LOG_ID, checkpoint)}
        ending.close()
        going_on = source_kit.open_source()
        left = going_on.left_behind(OTHER_LOG_ID)
        assert not [f for f in left if checkpoint.source.get("slot", "-") in f.subject]
        again = going_on.prepare(kept, OTHER_LOG_ID).checkpoint
        with self.reading(going_on, again) as (stream, chunks):
            chunks.write_mark(Token("1/1/still"))
            collect(stream, seen_mark(Token("1/1/still")))
        last = source_kit.open_source()
        last.drop(OTHER_LOG_ID, again)
        last.close()

    @needs("revoke rights")
    def test_right_that_was_taken_away_is_named_and_given_back(self, source_kit: SourceKit) -> None:
        """A table that may not be read must not look like an empty one. When the right is granted again, reading
        continues (hard case P65)."""
        source_kit.execute("INSERT INTO items VALUES (1, 'a')")
        source = source_kit.open_reader()
        checkpoint = source.prepare(Checkpoint(epoch=Epoch(1)), LOG_ID).checkpoint
        with self.reading(source, checkpoint) as (_, chunks):
            plan = chunks.plan(source_kit.table, 1)
            source_kit.revoke_select("items")
            with pytest.raises(ConfigurationError, match=r"(?s)items.*GRANT SELECT"):
                self.read(chunks, plan)
            source_kit.grant_select("items")
            assert self.rows_read(self.read(chunks, plan), source_kit.table) == [("r", 1, "a")]

    @needs("lock tables")
    def test_closing_wakes_who_waits_for_a_locked_table(self, source_kit: SourceKit) -> None:
        """A daemon that is stopped must not wait for another session's ALTER TABLE (hard case O09)."""
        source_kit.execute("INSERT INTO items VALUES (1, 'a')")
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (_, chunks), ThreadPoolExecutor(1) as other:
            plan = chunks.plan(source_kit.table, 1)
            asked = threading.Event()

            def read() -> object:
                asked.set()
                return chunks.read_chunk(Chunk(plan.table, 1, 1, plan.plan, None, 100, Token("1/1/low")))

            with source_kit.locked("items"):
                waiting = other.submit(read)
                asked.wait(reading.PATIENCE_S)
                chunks.close()
                with pytest.raises(SourceUnavailable):
                    waiting.result(reading.PATIENCE_S)

    def test_closing_twice_is_closing_once(self, source_kit: SourceKit) -> None:
        """Several callers may clean up after an error."""
        source, checkpoint = self.prepare_source(source_kit)
        stream, chunks = source.stream(checkpoint, reading.refuse_spool), source.chunks()
        for _ in range(2):
            stream.close()
            chunks.close()
            source.close()
