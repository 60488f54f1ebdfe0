"""Marks as places in a standby's log, among the events of its stream."""

from __future__ import annotations

import numpy as np
import pytest

from cdcflow.capture.interleave.messages import Advanced, Committed, MarkSeen
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import SourceUnavailable
from cdcflow.model.change import Run
from cdcflow.model.position import Token
from cdcflow.sources.postgres.lsn import START, Lsn, lsn_of, position_of, positions
from cdcflow.sources.postgres.replay_fences import DeliveredCommits
from cdcflow.sources.postgres.replay_marks import ExpectedMarks, PlacedMarks

LENGTH = 40
"""Of a commit record."""


class OneStream:
    """A stream that begins at 100, and what it has placed so far, in words."""

    def __init__(self) -> None:
        self.expected = ExpectedMarks()
        self._placed = PlacedMarks(self.expected, DeliveredCommits(Lsn(100)), Lsn(100))

    def committed(self, *begins: int) -> Committed:
        """One run of transactions whose commit records begin there."""
        at = np.array(begins, np.int64)
        self._placed.add(at.astype(np.uint64), at)
        return Committed(Run(at.astype(np.uint64), positions(at + LENGTH), at, np.arange(1, len(at) + 1), ()))

    def place(self, *events: StreamEvent, passed: int = 0) -> list[str]:
        return [_word(event) for event in self._placed.place(events, Lsn(passed) if passed else START)]

    def expect(self, name: str, replayed: int) -> None:
        self.expected.expect(Token(name), Lsn(replayed))


def _word(event: StreamEvent) -> str:
    match event:
        case Committed(run):
            return "+".join(str(xid) for xid in run.xids.tolist())
        case MarkSeen(token, position):
            return f"{token.text}@{lsn_of(position).value}"
        case Advanced(position, commit_ts):
            return f"advanced@{lsn_of(position).value}" + (f" {commit_ts}" if commit_ts else "")
        case _:
            raise AssertionError(event)


@pytest.fixture
def stream() -> OneStream:
    return OneStream()


def test_mark_splits_a_run_where_its_bound_is(stream: OneStream) -> None:
    stream.expect("low", 340)
    assert stream.place(stream.committed(200, 300, 400)) == ["200+300", "low@340", "400"]


def test_mark_waits_for_the_record_that_was_in_replay(stream: OneStream) -> None:
    """The chunk may have seen the commit that begins where the replayed log ended, so high comes after it."""
    stream.expected.look_beyond(Lsn(301))
    stream.expect("high", 300)
    assert stream.place(stream.committed(200), passed=300) == ["200"]
    assert stream.place(stream.committed(300, 400)) == ["300", "high@340", "400"]


def test_mark_in_an_idle_log_arrives_with_the_next_poll(stream: OneStream) -> None:
    assert stream.place(stream.committed(200), passed=260) == ["200"]
    stream.expect("low", 260)
    assert stream.place() == ["low@240"]


def test_mark_is_not_reported_before_the_server_has_passed_it(stream: OneStream) -> None:
    stream.expect("low", 500)
    assert stream.place(stream.committed(200), passed=499) == ["200"]
    assert stream.place(passed=500) == ["low@240"]


def test_position_of_a_mark_is_one_that_was_delivered(stream: OneStream) -> None:
    """A bound may be inside of a record: a stream that begins there again would lack that transaction."""
    stream.expected.look_beyond(Lsn(201))
    stream.expect("high", 200)
    assert stream.place(passed=260) == ["high@100"]
    assert stream.place(Advanced(position_of(Lsn(300)))) == ["advanced@300"]


def test_several_marks_in_one_run(stream: OneStream) -> None:
    stream.expect("a", 200)
    stream.expect("b", 240)
    stream.expect("c", 440)
    assert stream.place(stream.committed(200, 300, 400)) == ["a@100", "200", "b@240", "300+400", "c@440"]


def test_two_runs_keep_their_own_places(stream: OneStream) -> None:
    first, second = stream.committed(200), stream.committed(300, 400)
    stream.expect("low", 340)
    assert stream.place(first, second) == ["200", "300", "low@340", "400"]


def test_stream_that_begins_again_forgets_what_was_not_placed(stream: OneStream) -> None:
    stream.expect("low", 500)
    stream.place(passed=450)
    stream.committed(400)
    stream._placed.restart()
    assert stream.place(stream.committed(400, 520)) == ["400", "low@440", "520"]


def test_time_of_the_primary_advances_an_idle_stream(stream: OneStream) -> None:
    stream.expected.expect_time(77, Lsn(260))
    assert stream.place(stream.committed(200)) == ["200"]
    assert stream.place(passed=260) == ["advanced@240 77"]


def test_promotion_ends_the_stream(stream: OneStream) -> None:
    stream.expected.fail(SourceUnavailable("promoted"))
    with pytest.raises(SourceUnavailable, match="promoted"):
        stream.place()
