"""Scenarios of restarts: a position is a promise about the next changes, and about what the source may discard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from cdcflow.capture.interleave.messages import Advanced, Committed, MarkSeen
from cdcflow.capture.ports.source import Source, SourceHistory, TransactionsBack
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import HistoryLost
from cdcflow.model.change import Run
from cdcflow.model.position import Checkpoint, Epoch, Token
from cdcflow.testing.sources.kit import SourceKit, needs
from cdcflow.testing.sources.reading import (
    LOG_ID,
    Scenarios,
    changes,
    collect,
    headers,
    placed_rows,
    position_at,
    positions,
    rows_of,
    seen_mark,
)


class RestartScenarios(Scenarios):
    """Scenarios of restarts."""

    def test_restart_continues_after_the_given_position(self, source_kit: SourceKit) -> None:
        """What the log has already is never delivered again, whether or not it was acknowledged (hard cases P40,
        L15)."""
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute("INSERT INTO items VALUES (1, 'a')")
        last = positions(self.stream_to_mark(source, checkpoint))[-1]
        source.close()
        source_kit.execute("INSERT INTO items VALUES (2, 'b')")
        again, later = self.again(source_kit, checkpoint, last)
        rows = rows_of(self.stream_to_mark(again, later, "2/1/low"), source_kit.table)
        assert rows == [("c", 2, "b")]
        again.close()

    def test_restart_after_any_transaction_brings_all_that_follow_and_no_other(self, source_kit: SourceKit) -> None:
        """A restart may follow any transaction, here of several rows with rollbacks inside (hard case P40)."""
        source, checkpoint = self.prepare_source(source_kit)
        for n in (10, 20, 30):
            source_kit.execute(
                f"INSERT INTO items VALUES ({n}, 'first')",
                "SAVEPOINT s",
                f"INSERT INTO items VALUES ({n + 1}, 'dropped')",
                "ROLLBACK TO SAVEPOINT s",
                f"INSERT INTO items VALUES ({n + 2}, 'last')",
            )
        events = self.stream_to_mark(source, checkpoint)
        source.close()
        whole = changes(events, source_kit.table)
        assert [row[1] for row in whole] == [10, 12, 20, 22, 30, 32]
        for number, position in enumerate(positions(events), start=1):
            again, later = self.again(source_kit, checkpoint, position)
            assert (
                changes(self.stream_to_mark(again, later, f"2/{number}/low"), source_kit.table) == whole[2 * number :]
            )
            again.close()

    def test_every_position_that_a_stream_reports_is_one_to_restart_from(self, source_kit: SourceKit) -> None:
        """Cuts are also taken at marks and in idle periods: after a restart from there, nothing may be lost or
        doubled."""
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (stream, chunks):
            source_kit.execute("INSERT INTO items VALUES (1, 'a')")
            chunks.write_mark(Token("1/1/low"))
            source_kit.execute("INSERT INTO items VALUES (2, 'b')")
            chunks.heartbeat()
            chunks.write_mark(Token("1/1/high"))
            events = collect(stream, seen_mark(Token("1/1/high")))
        whole = changes(events, source_kit.table)
        for number, event in enumerate(events, start=1):
            position = position_at(event)
            if position is not None:
                rest = whole[len(changes(events[:number], source_kit.table)) :]
                again, later = self.again(source_kit, checkpoint, position)
                assert changes(self.stream_to_mark(again, later, f"2/{number}/low"), source_kit.table) == rest
                again.close()

    def test_marks_of_an_earlier_epoch_are_not_this_one_s(self, source_kit: SourceKit) -> None:
        """Marks of the earlier epoch arrive again after a restart, and must be recognized as such (hard case W09)."""
        source, checkpoint = self.prepare_source(source_kit)
        self.stream_to_mark(source, checkpoint, "1/1/low")
        source.close()
        assert checkpoint.position is not None
        again, later = self.again(source_kit, checkpoint, checkpoint.position)
        events = self.stream_to_mark(again, later, "2/1/low")
        tokens = [e.token.text for e in events if isinstance(e, MarkSeen)]
        assert tokens[-1] == "2/1/low"
        assert set(tokens) <= {"1/1/low", "2/1/low"}
        again.close()

    @needs("alter tables")
    def test_rows_of_before_a_statement_keep_their_shape_after_a_restart(self, source_kit: SourceKit) -> None:
        """The catalog is newer than the log that is read: values must not get into wrong columns (hard case M33)."""
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute("INSERT INTO items VALUES (1, 'a')")
        first = positions(self.stream_to_mark(source, checkpoint))[-1]
        source.close()
        source_kit.execute("INSERT INTO items VALUES (2, 'b')")
        source_kit.execute("ALTER TABLE items ADD COLUMN extra integer")
        source_kit.execute("INSERT INTO items VALUES (3, 'c', 4)")
        again, later = self.again(source_kit, checkpoint, first)
        events = self.stream_to_mark(again, later, "2/1/low")
        assert changes(events, source_kit.table) == [("c", 2, "b"), ("c", 3, "c")]
        runs = [e.run for e in events if isinstance(e, Committed) and isinstance(e.run, Run)]
        found = {r["id"]: r.get("extra") for run in runs for _, r in placed_rows(run, source_kit.table)}
        assert found == {2: None, 3: 4}
        again.close()

    def test_two_streams_in_a_row_tell_the_same(self, source_kit: SourceKit) -> None:
        """An attempt that failed acknowledges nothing; the next one on the same source begins where it began."""
        source, checkpoint = self.prepare_source(source_kit)
        source_kit.execute("INSERT INTO items VALUES (1, 'a')")
        first = self.stream_to_mark(source, checkpoint, "1/1/low")
        second = self.stream_to_mark(source, checkpoint, "1/2/low")
        assert changes(first, source_kit.table) == changes(second, source_kit.table) == [("c", 1, "a")]
        assert positions(first) == positions(second)
        source.close()

    def test_acknowledged_history_is_not_delivered_again_nor_asked_back(self, source_kit: SourceKit) -> None:
        """Acknowledging an earlier position after a later one changes nothing, and the changes that follow are
        complete."""
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (stream, chunks):
            for n in (1, 2):
                source_kit.execute(f"INSERT INTO items VALUES ({n}, 'a')")
            chunks.write_mark(Token("1/1/low"))
            first, second = positions(collect(stream, seen_mark(Token("1/1/low"))))[:2]
            stream.acknowledge(second)
            stream.acknowledge(first)
            source_kit.execute("INSERT INTO items VALUES (3, 'a')")
        again, later = self.again(source_kit, checkpoint, second)
        assert changes(self.stream_to_mark(again, later, "2/1/low"), source_kit.table) == [("c", 3, "a")]
        again.close()

    def acknowledge_a_row(self, source_kit: SourceKit, source: Source, checkpoint: Checkpoint) -> None:
        """Write a row, receive it and acknowledge it, so that the source may discard its history."""
        with self.reading(source, checkpoint) as (stream, chunks):
            source_kit.execute("INSERT INTO items VALUES (1, 'a')")
            chunks.write_mark(Token("1/1/low"))
            stream.acknowledge(positions(collect(stream, seen_mark(Token("1/1/low"))))[-1])

    @needs("forget history")
    def test_log_that_is_older_than_what_it_acknowledged_is_refused(self, source_kit: SourceKit) -> None:
        """A log restored from an old copy needs changes that the source has discarded: that gap must be reported (hard
        case L21)."""
        source, checkpoint = self.prepare_source(source_kit)
        assert checkpoint.position is not None
        self.acknowledge_a_row(source_kit, source, checkpoint)
        with pytest.raises(HistoryLost) as lost:
            self.again(source_kit, checkpoint, checkpoint.position)
        assert "accept" in str(lost.value) or lost.value.remedy

    @needs("forget history")
    def test_accepted_loss_creates_a_new_position_and_reports_it(self, source_kit: SourceKit) -> None:
        """Accepting the loss is the remedy for a gap: the caller then reads every table again."""
        source, checkpoint = self.prepare_source(source_kit)
        assert checkpoint.position is not None
        self.acknowledge_a_row(source_kit, source, checkpoint)
        again = source_kit.open_source()
        placed = again.prepare(replace(checkpoint, epoch=Epoch(2)), LOG_ID, accept_history_loss=True)
        assert placed.history is SourceHistory.LOST
        source_kit.execute("INSERT INTO items VALUES (2, 'b')")
        assert changes(self.stream_to_mark(again, placed.checkpoint, "2/1/low"), source_kit.table) == [("c", 2, "b")]
        again.close()

    @needs("restore a copy")
    def test_restored_copy_is_distinguished_from_the_log_s_database(self, source_kit: SourceKit) -> None:
        """A restored copy may have been written to beyond cdcflow's position, so the position alone does not show that
        it is another history (hard case P43)."""
        source_kit.execute("INSERT INTO items VALUES (1, 'a')")
        source, checkpoint = self.prepare_source(source_kit)
        restore = source_kit.copied()
        source_kit.execute("INSERT INTO items VALUES (2, 'in our log')")
        events = self.stream_to_mark(source, checkpoint)
        source.close()
        restore()
        for n in range(3, 9):
            source_kit.execute(f"INSERT INTO items VALUES ({n}, 'another history')")
        again = source_kit.open_source()
        last = positions(events)[-1]
        with pytest.raises(HistoryLost):
            again.prepare(Checkpoint(position=last, source=checkpoint.source, epoch=Epoch(2)), LOG_ID, back(events))
        again.close()

    def test_position_never_goes_back_in_a_stream(self, source_kit: SourceKit) -> None:
        """A cut is stored with the position of its last event: after an earlier position, rows would be delivered
        twice."""
        source, checkpoint = self.prepare_source(source_kit)
        with self.reading(source, checkpoint) as (stream, chunks):
            for n in range(1, 4):
                source_kit.execute(f"INSERT INTO items VALUES ({n}, 'a')")
                chunks.heartbeat()
            chunks.write_mark(Token("1/1/low"))
            events = collect(stream, seen_mark(Token("1/1/low")))
            last = position_at(events[-1])
            assert last is not None
            lag = [source.status(p).lag_bytes for e in events if (p := position_at(e)) is not None]
        known = [n for n in lag if n is not None]
        assert known == sorted(known, reverse=True)
        assert len(set(positions(events))) == 3
        assert not any(isinstance(e, Advanced) and e.position == checkpoint.position for e in events)


def back(events: Sequence[StreamEvent]) -> TransactionsBack:
    """Return a function that returns the transactions of these events as a log would."""
    found = headers(events)
    return lambda is_enough: found
