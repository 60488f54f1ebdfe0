"""How far a stream of the binary log is, and which marks without a written row it has passed."""

from __future__ import annotations

import pytest

from cdcflow.capture.interleave.messages import Advanced, MarkSeen
from cdcflow.model.position import Position, Token
from cdcflow.sources.mysql.position import NOWHERE, BinlogFile, BinlogPosition, Coordinate, StreamProgress, coordinate

FIRST, FILE = BinlogFile("binlog.000001"), BinlogFile("binlog.000002")
LOW, HIGH = Token("1/1/low"), Token("1/1/high")


def at(pos: int) -> Position:
    return Position(f"{FILE}:{pos};0-1-5")


def stream() -> StreamProgress:
    return StreamProgress(BinlogPosition.parse(f"{FILE}:100;0-1-5"), by_gtid=False)


def advanced(progress: StreamProgress, pos: int) -> list[object]:
    return [*progress.advance(pos, "0-1-5", "", known=True)]


def test_mark_at_a_byte_is_seen_once_the_log_reaches_it_without_a_captured_row() -> None:
    """W03: where cdcflow writes nothing into the source, only other clients' transactions move the log past the
    mark."""
    progress = stream()
    progress.expect(LOW, coordinate(FILE, 300))
    progress.expect(HIGH, coordinate(FILE, 301))
    assert advanced(progress, 299) == [Advanced(at(299))]
    assert not progress.due
    assert advanced(progress, 300) == [MarkSeen(LOW, at(300), 0), Advanced(at(300))]
    assert advanced(progress, 300) == []


def test_mark_at_a_byte_that_the_log_is_past_already_is_due_at_once() -> None:
    """A quiet source sends nothing else for hours."""
    progress = stream()
    assert advanced(progress, 300) == [Advanced(at(300))]
    progress.expect(LOW, coordinate(FILE, 300))
    assert progress.due
    assert advanced(progress, 200) == [MarkSeen(LOW, at(300), 0)]
    assert not progress.due


def test_time_is_reported_once_the_log_is_where_it_ended_at_that_time_and_never_before() -> None:
    """G34: reported earlier, a commit in between would follow a time later than its own."""
    progress = stream()
    for commit_ts, pos in ((5, 300), (7, 300), (9, 302)):
        progress.expect_time(commit_ts, coordinate(FILE, pos))
    assert advanced(progress, 299) == [Advanced(at(299))]
    assert not progress.due
    assert advanced(progress, 301) == [Advanced(at(301), 7), Advanced(at(301))]
    progress.expect_time(8, coordinate(FILE, 301))
    assert progress.due
    assert progress.passed_marks() == [Advanced(at(301), 8)], "an idle server's log ends where it ended"
    assert progress.passed_marks() == []
    assert [*progress.advance(302, "0-1-5", "", known=True, commit_ts=10)] == [
        Advanced(at(302), 9),
        Advanced(at(302), 10),
    ], "the transaction that ends there has its own time"


def test_stream_begins_where_the_held_transactions_do_and_skips_what_was_delivered() -> None:
    """M45: an undecided XA transaction is stored before it."""
    begun = BinlogPosition.parse(f"{FILE}:100;0-1-5;xa=binlog.000001:50;0-1-3")
    progress = StreamProgress(begun, by_gtid=False)
    assert (progress.file, progress.pos, progress.base) == (FIRST, 50, coordinate(FIRST, 0).value)
    assert (progress.skip_until, progress.last, progress.commit_ts) == (coordinate(FILE, 100), Position(begun.text), 0)
    progress.enter_file(FILE)
    assert (progress.file, progress.base) == (FILE, coordinate(FILE, 0).value)
    assert advanced(progress, 100) == []
    assert advanced(progress, 101) == [Advanced(at(101))]


def test_nothing_is_reported_about_bytes_before_the_first_known_one_when_gtids_give_the_start() -> None:
    """Another server's coordinates mean other bytes; a position there would be one that was never reached."""
    progress = StreamProgress(BinlogPosition.parse(f"{FILE}:100;0-1-5"), by_gtid=True)
    assert progress.skip_until == NOWHERE
    progress.expect(LOW, coordinate(FILE, 10))
    assert [*progress.advance(20, "0-1-5", "", known=False)] == []
    assert progress.pos == 20
    assert not progress.due
    assert [*progress.advance(20, "0-1-5", "", known=True)] == [MarkSeen(LOW, at(20), 0), Advanced(at(20))]
    assert [*progress.advance(21, "0-1-5", "", known=False)] == [Advanced(at(21))], "all are known after that position"


def test_a_transaction_that_was_delivered_ends_the_silence() -> None:
    """And the marks before it are answered with its position and its time."""
    progress = StreamProgress(BinlogPosition.parse(f"{FILE}:100;0-1-5"), by_gtid=True)
    progress.expect(LOW, coordinate(FILE, 40))
    progress.expect(HIGH, coordinate(FILE, 41))
    progress.record_delivery(at(40), coordinate(FILE, 40), 77)
    assert progress.due
    assert progress.passed_marks() == [MarkSeen(LOW, at(40), 77)]
    assert not progress.due
    assert progress.passed_marks() == []
    assert [*progress.advance(40, "0-1-5", "", known=False)] == []
    assert [*progress.advance(41, "0-1-5", ";xa=b.1:4;", known=False)] == [
        MarkSeen(HIGH, Position(f"{FILE}:41;0-1-5;xa=b.1:4;"), 77),
        Advanced(Position(f"{FILE}:41;0-1-5;xa=b.1:4;")),
    ]


@pytest.mark.parametrize(("upto", "found"), [(9, []), (10, [LOW]), (19, [LOW]), (20, [LOW, HIGH]), (21, [LOW, HIGH])])
def test_marks_are_taken_through_a_coordinate_and_once(upto: int, found: list[Token]) -> None:
    """The caller that takes them answers them; the others keep waiting."""
    progress = stream()
    progress.expect(LOW, Coordinate(10))
    progress.expect(HIGH, Coordinate(20))
    assert [token for token, _ in progress.take_marks(Coordinate(upto))] == found
    assert [token for token, _ in progress.take_marks(Coordinate(upto))] == []
    assert [token for token, _ in progress.take_marks(Coordinate(99))] == [t for t in (LOW, HIGH) if t not in found]
