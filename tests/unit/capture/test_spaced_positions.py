"""A server that is busy elsewhere makes few cuts, and no position is lost."""

from __future__ import annotations

from collections.abc import Sequence

from cdcflow.capture.interleave.messages import Advanced, MarkSeen
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.capture.spaced_positions import SPACE_S, SpacedPositions
from cdcflow.model.position import Position, Token


class Stream:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.spaced = SpacedPositions(lambda: self.now_s)

    def poll(self, *events: StreamEvent, after_s: float = 0.001) -> Sequence[StreamEvent]:
        self.now_s += after_s
        return self.spaced.after(events)


def at(position: int, commit_ts: int = 0) -> Advanced:
    return Advanced(Position(f"{position:04}"), commit_ts)


def test_busy_server_makes_few_cuts_and_the_last_position_counts() -> None:
    """Each is a cut, which is synced; but the server discards only log that is acknowledged."""
    stream = Stream()
    found = [event for position in range(1, 1001) for event in stream.poll(at(position))]
    assert len(found) <= 1 + 1.0 / SPACE_S
    found += stream.poll(after_s=SPACE_S)
    assert found[0] == at(1), "the first one without delay"
    assert found[-1] == at(1000), "also when nothing else arrives"
    assert not stream.poll(after_s=1.0)


def test_change_takes_the_place_of_a_position_that_waits() -> None:
    """A position is never reported after one that is later."""
    stream = Stream()
    stream.poll(at(1))
    assert not stream.poll(at(2))
    mark = MarkSeen(Token("1/1/low"), Position("0003"), 3)
    assert stream.poll(mark, at(4)) == (mark, at(4)), "and no change waits"
    assert not stream.poll(after_s=1.0)


def test_time_of_a_heartbeat_is_kept() -> None:
    """It is the only proof of how fresh quiet tables are."""
    stream = Stream()
    stream.poll(at(1))
    stream.poll(at(2, commit_ts=50))
    stream.poll(at(3))
    assert stream.poll(after_s=1.0) == (at(3, commit_ts=50),)
