"""A topic's records as frames again, and which of them are not in the history yet: without a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from cdcflow.errors import InvariantViolated
from cdcflow.log.format.framing import FrameKind
from cdcflow.log.format.journal import CutMark, Encoder, JournalHeader, Progressed
from cdcflow.log.format.records import HEAD, Message, RangeDecoder, head_from, head_of, pieces
from cdcflow.log.format.rows import ShapeRows
from cdcflow.log.format.topic_tail import TailSplitter
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.model.position import Checkpoint, Epoch, Offset, Position
from cdcflow.testing.sinks import ORDERS, orders


@dataclass
class Topic:
    """A topic that is written topic range by topic range; each step is one transaction of one row, then a cut."""

    log_id: str = "log-a"
    bytes_max: int = 1 << 20
    messages: list[Message] = field(default_factory=list)
    cuts: list[Checkpoint] = field(default_factory=lambda: [Checkpoint()])
    epoch: int = 0

    def topic_range(self, count: int, *, idle: int = 0) -> Topic:
        self.epoch += 1
        head = JournalHeader(self.log_id, Epoch(self.epoch), self.cuts[-1])
        encoder = Encoder(0, head.base)
        self._put([(HEAD, [head_of(head)])])
        for number in range(count + idle):
            last = self.cuts[-1]
            rows = number < count
            if rows:
                run = orders(last.next_offset)
                encoder.transactions(
                    TransactionHeaders.of(run, last.next_offset, last.next_transaction, np.array([last.cut]))
                )
                encoder.shape(ORDERS, 1)
                encoder.rows(run.batches[0], last.next_offset)
            offset, transaction = Offset(last.next_offset + rows), last.next_transaction + rows
            cut = Checkpoint(
                Position(f"p{last.cut + 1}"), offset, transaction, last.cut + 1, last.cut, Epoch(self.epoch)
            )
            encoder.cut(cut, 0)
            self.cuts.append(cut)
        self._put([(int(kind), payload) for kind, payload in encoder.payloads()])
        return self

    def _put(self, frames: Sequence[tuple[int, list[bytes | memoryview]]]) -> None:
        for kind, payload in frames:
            for key, value in pieces(kind, payload, self.bytes_max):
                self.messages.append(Message(len(self.messages), key, value))

    def tail(self, after: Checkpoint | None, bytes_max: int = 1 << 30, log_id: str = "log-a") -> TailSplitter:
        return TailSplitter(iter(self.messages), "topic t", log_id, after, bytes_max)


def segments(tail: TailSplitter) -> list[tuple[int, int, list[int], int]]:
    """Each segment as the cut before it, its epoch, the offsets of its rows, and its last cut."""
    found = list[tuple[int, int, list[int], int]]()
    for unsealed in tail.segments():
        records = list(unsealed.records)
        offsets = [int(o) for r in records if isinstance(r, ShapeRows) for o in r.offsets]
        last = [r.checkpoint.cut for r in records if isinstance(r, CutMark)][-1]
        found.append((unsealed.base.cut, unsealed.epoch, offsets, last))
    return found


def test_a_topic_without_a_history_is_sealed_from_its_first_head() -> None:
    """Several topic ranges become one segment as long as there is room."""
    topic = Topic().topic_range(2).topic_range(1)
    tail = topic.tail(None)
    assert tail.topic_offset == 0
    assert segments(tail) == [(0, 1, [1, 2, 3], 3)]
    assert tail.topic_offset == len(topic.messages)


@pytest.mark.parametrize("after", range(5))
def test_what_the_history_has_is_read_over(after: int) -> None:
    """Up to and including the last cut, wherever it is: within a topic range, or at its end."""
    topic = Topic().topic_range(2).topic_range(3)
    tail = topic.tail(topic.cuts[after])
    found = segments(tail)
    assert [(base, offsets, last) for base, _, offsets, last in found] == [(after, list(range(after + 1, 6)), 5)]
    assert tail.topic_offset == len(topic.messages)


def test_tail_that_had_nothing_new_is_positioned_after_the_last_cut() -> None:
    """The next read begins there, and not at a record that was read already."""
    topic = Topic().topic_range(2).topic_range(1)
    for count, cut in enumerate(topic.cuts[1:], start=1):
        ends = [n for n, m in enumerate(topic.messages, start=1) if m.key[0] == FrameKind.CUT]
        tail = TailSplitter(iter(topic.messages[: ends[count - 1]]), "topic t", "log-a", cut, 1)
        assert segments(tail) == []
        assert tail.topic_offset == ends[count - 1]


@pytest.mark.parametrize("bytes_max", [1, 50])
def test_frames_in_several_records_are_sealed_like_others(bytes_max: int) -> None:
    """A topic accepts no record larger than its limit; the last cut ends with its last piece."""
    topic = Topic(bytes_max=bytes_max).topic_range(2).topic_range(1)
    assert len(topic.messages) > len(Topic().topic_range(2).topic_range(1).messages)
    for after in (0, 1, 2):
        tail = topic.tail(topic.cuts[after])
        assert [s[2:] for s in segments(tail)] == [(list(range(after + 1, 4)), 3)]
        assert tail.topic_offset == len(topic.messages)


def test_segments_end_at_the_first_cut_after_their_size() -> None:
    """With rows in each, and every segment begins where the one before it ended."""
    topic = Topic().topic_range(3)
    assert [s[::2] for s in segments(topic.tail(None, bytes_max=1))] == [(0, [1]), (1, [2]), (2, [3])]


def test_cuts_of_an_idle_log_are_no_segment() -> None:
    """They are sealed with the next rows; alone they are nothing to seal."""
    topic = Topic().topic_range(1, idle=3)
    assert segments(topic.tail(topic.cuts[1])) == []
    topic.topic_range(1)
    assert [s[2:] for s in segments(topic.tail(topic.cuts[1]))] == [([2], 5)]
    assert [s[2:] for s in segments(topic.tail(topic.cuts[3]))] == [([2], 5)]


def refused(topic: Topic, after: Checkpoint | None, said: str) -> None:
    with pytest.raises(InvariantViolated, match=said):
        segments(topic.tail(after))


@pytest.mark.parametrize(
    "changed",
    [
        {"position": Position("elsewhere")},
        {"next_offset": Offset(9)},
        {"next_transaction": 9},
        {"commit_clock": 99},
    ],
)
def test_history_of_another_log_is_not_continued(changed: dict[str, Any]) -> None:
    """The cut that it ends with must be in the topic as the history has it."""
    topic = Topic().topic_range(2).topic_range(1)
    refused(topic, replace(topic.cuts[1], **changed), "cut 1 of the history .* is not in it")
    refused(topic, replace(topic.cuts[2], **changed), "cut 2 of the history .* is not in it")


def test_a_topic_that_ends_before_the_history_is_refused() -> None:
    """It is an older copy, or another topic."""
    topic = Topic().topic_range(2)
    refused(topic, Checkpoint(Position("p9"), Offset(9), 9, 9, 8), "ends before cut 9")


def test_another_log_in_the_topic_is_refused() -> None:
    """Otherwise its contents would be sealed as this log's."""
    refused(Topic(log_id="log-b").topic_range(1), None, "belongs to another log")


def without(topic: Topic, gone: Callable[[int, Message], bool]) -> Topic:
    topic.messages = [m for n, m in enumerate(topic.messages) if not gone(n, m)]
    return topic


def test_a_gap_is_refused_wherever_it_is() -> None:
    """A missing run, a missing topic range, and a cut that moved after other rows."""
    one = Topic().topic_range(3)
    kinds = [m.key[0] for m in one.messages]
    runs = [n for n, kind in enumerate(kinds) if kind == FrameKind.TRANSACTIONS]
    refused(without(one, lambda n, _: n == runs[1]), None, "cut 2 is not at the end|comes where 2 is expected")
    two = Topic().topic_range(1).topic_range(1).topic_range(1)
    heads = [n for n, m in enumerate(two.messages) if m.key[0] == HEAD]
    refused(without(two, lambda n, _: heads[1] <= n < heads[2]), None, "begins with offset 3 where 2 is expected")
    three = Topic().topic_range(2)
    last = max(n for n, m in enumerate(three.messages) if m.key[0] == FrameKind.CUT)
    refused(without(three, lambda n, _: n == last), None, "ends at offset 2, and its last cut is before it")


@pytest.mark.parametrize("bytes_max", [1, 7, 100, 1 << 20])
def test_frames_larger_than_a_record_are_read_back_whole(bytes_max: int) -> None:
    """No record is larger than the topic accepts, or empty."""
    topic = Topic(bytes_max=bytes_max).topic_range(2)
    assert all(0 < len(m.value) <= max(bytes_max, 1) for m in topic.messages)
    decoder = RangeDecoder("t")
    placed = [p for m in topic.messages if (p := decoder.take(m)) is not None]
    assert placed[0].record == head_from(Topic().topic_range(2).messages[0].value)
    assert [type(p.record).__name__ for p in placed] == [
        "JournalHeader",
        *("TransactionHeaders", "ShapeEntry", "ShapeRows", "CutMark"),
        *("TransactionHeaders", "ShapeRows", "CutMark"),
    ]
    assert [p.topic_offset for p in placed] == sorted({p.topic_offset for p in placed})
    assert placed[0].topic_offset == 0


def test_frames_that_no_reader_needs_are_not_decoded() -> None:
    """Shapes and progress are always decoded: later frames need them."""
    topic = Topic().topic_range(1)
    decoder = RangeDecoder("t", wanted=[FrameKind.CUT])
    found = [p.record for m in topic.messages if (p := decoder.take(m)) is not None]
    assert [type(r).__name__ for r in found] == ["JournalHeader", "Skipped", "ShapeEntry", "Skipped", "CutMark"]
    assert not any(isinstance(r, Progressed) for r in found)


@pytest.mark.parametrize("before", range(1, 7))
def test_rows_before_an_offset_are_not_decoded_and_everything_else_is(before: int) -> None:
    """A reader that continues in the middle of a range needs its shapes and numbers, and no rows that it already
    has."""
    topic = Topic().topic_range(5, idle=1)
    whole, late = RangeDecoder("t"), RangeDecoder("t", before=before)
    for message in topic.messages:
        expected, found = whole.take(message), late.take(message)
        assert expected is not None
        assert found is not None
        if isinstance(expected.record, ShapeRows):
            # Later rows refer to the first ones of a shape: those are always decoded.
            needed = isinstance(found.record, ShapeRows)
            assert needed == (int(expected.record.offsets[-1]) >= before or int(expected.record.offsets[0]) == 1)
        elif isinstance(expected.record, TransactionHeaders):
            assert isinstance(found.record, TransactionHeaders)
            assert found.record.headers.equals(expected.record.headers)
        else:
            assert found == expected


def test_records_that_cdcflow_did_not_write_are_refused() -> None:
    """By the position of the record, never by its content."""
    good = Topic().topic_range(1).messages
    bad = [
        [Message(7, b"", b"secret")],
        [Message(7, bytes((HEAD, 2)), b"secret")],
        [Message(7, bytes((HEAD, 0)), b"secret")],
        [Message(7, bytes((HEAD, 0)), b"{}")],
        [Message(7, bytes((FrameKind.CUT, 0)), b"secret")],
        [good[0], Message(7, bytes((99, 0)), b"secret")],
        [good[0], Message(6, bytes((FrameKind.CUT, 1)), b"sec"), Message(7, bytes((FrameKind.ROWS, 0)), b"ret")],
    ]
    for messages in bad:
        with pytest.raises(InvariantViolated, match="record at offset 7") as caught:
            list(map(RangeDecoder("topic t").take, messages))
        assert "secret" not in str(caught.value)
    assert head_from(good[0].value) == JournalHeader("log-a", Epoch(1), Checkpoint())


def test_repeated_cut_is_refused() -> None:
    """Each cut is a later one: two with one number would make two segments out of one."""
    topic = Topic().topic_range(1, idle=1)
    topic.messages.append(topic.messages[-1])
    refused(topic, None, "cut 2 is not at the end")


def test_a_segment_is_full_with_its_last_byte() -> None:
    """And with one byte of room the next run goes into it, too."""
    topic = Topic().topic_range(3)
    kinds = [message.key[0] for message in topic.messages]
    first = topic.messages[1 : kinds.index(FrameKind.CUT) + 1]
    size = sum(len(message.value) for message in first)
    assert [segments(topic.tail(None, bytes_max=most))[0][2] for most in (size, size + 1)] == [[1], [1, 2]]


def test_a_segment_fills_over_the_heads_of_topic_ranges() -> None:
    """Otherwise a daemon that starts often would never fill one."""
    topic = Topic().topic_range(1).topic_range(2)
    kinds = [message.key[0] for message in topic.messages]
    ends = [n for n, kind in enumerate(kinds, start=1) if kind == FrameKind.CUT]
    size = sum(len(message.value) for message in topic.messages[1 : ends[1]])
    assert [s[2] for s in segments(topic.tail(None, bytes_max=size))] == [[1, 2], [3]]
    assert [s[2] for s in segments(topic.tail(None, bytes_max=size + 1))] == [[1, 2, 3]]


def test_topic_that_begins_after_the_history_is_refused() -> None:
    """The records between the two have expired there: nothing may be appended to the history."""
    topic = Topic().topic_range(2).topic_range(2)
    second = [n for n, m in enumerate(topic.messages) if m.key[0] == HEAD][1]
    late = without(topic, lambda n, _: n < second)
    assert segments(late.tail(late.cuts[2])) == [(2, 2, [3, 4], 4)]
    refused(late, late.cuts[1], "cut 1 of the history .* is not in it")


def test_a_topic_range_that_begins_before_the_history_s_last_cut_is_read_over_up_to_it() -> None:
    """Cuts of an idle log change no offset: they are told apart by their numbers."""
    topic = Topic().topic_range(0, idle=3).topic_range(1)
    for cut in (1, 2, 3):
        assert segments(topic.tail(topic.cuts[cut])) == [(cut, 2, [1], 4)]
