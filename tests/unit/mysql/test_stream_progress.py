"""How far a stream of the binary log is, and which marks that nobody wrote are behind it."""

from __future__ import annotations

from cdcflow.interleave.messages import Advanced, MarkSeen
from cdcflow.model.position import Position, Token
from cdcflow.sources.mysql.position import BinlogPosition, StreamProgress, coordinate

FILE = "binlog.000002"
LOW, HIGH = Token("1/1/low"), Token("1/1/high")


def at(pos: int) -> Position:
    return Position(f"{FILE}:{pos};0-1-5")


def stream() -> StreamProgress:
    return StreamProgress(BinlogPosition.parse(f"{FILE}:100;0-1-5"), by_gtid=False)


def advanced(progress: StreamProgress, pos: int) -> list[object]:
    return [*progress.advanced(pos, "0-1-5", "", known=True)]


def test_mark_at_a_byte_is_seen_once_the_log_is_there_without_a_row_of_ours() -> None:
    """W03: where nothing is written into the source, only other people's log leads past the mark."""
    progress = stream()
    progress.expect(LOW, coordinate(FILE, 300))
    progress.expect(HIGH, coordinate(FILE, 301))
    assert advanced(progress, 299) == [Advanced(at(299))]
    assert not progress.due
    assert advanced(progress, 300) == [MarkSeen(LOW, at(300), 0), Advanced(at(300))]
    assert advanced(progress, 300) == []


def test_mark_at_a_byte_that_the_log_is_past_already_is_due_at_once() -> None:
    """A quiet source would bring nothing else for hours."""
    progress = stream()
    assert advanced(progress, 300) == [Advanced(at(300))]
    progress.expect(LOW, coordinate(FILE, 300))
    assert progress.due
    assert advanced(progress, 200) == [MarkSeen(LOW, at(300), 0)]
    assert not progress.due
