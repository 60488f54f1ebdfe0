"""A Kafka log's history in a folder: what is sealed, in whatever order processes die; and reading the two as one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from tests.servers.kafka import KafkaBroker
from tests.support.kafka.log_pairs import (
    IDENTITY,
    FolderReader,
    history_of_a_shop,
    into_topic,
    rows_of,
    shapes_of,
    topics_on,
    transactions_of,
)

from cdcflow.errors import ConfigurationError, HistoryLost, InvariantViolated, SinkUnavailable
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.framing import FrameKind
from cdcflow.sinks.kafka.log import KafkaLog
from cdcflow.sinks.kafka.reader import KafkaReader
from cdcflow.sinks.kafka.tier import KafkaTier, OpenedTier, TieredReader
from cdcflow.sinks.kafka.topics import Topics
from cdcflow.testing.sinks import Writer, orders

pytestmark = pytest.mark.kafka
SMALL = 500
"""Bytes of the topic to a segment: each cut of the tests' ends one."""


@pytest.fixture
def topics(broker: KafkaBroker) -> Topics:
    return topics_on(broker.address)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "work" / "history"


def sealed(opened: OpenedTier, topics: Topics) -> Iterator[str]:
    """What Spark's task does, without Spark."""
    if opened.tail is not None:
        with topics.reader(topics.name) as reader:
            yield from opened.sealer(reader.messages(opened.tail.begin, opened.tail.end))


def seal(topics: Topics, history: Path, segment_bytes: int = SMALL) -> int:
    """Seal all that is committed; the number of segments that were added."""
    with KafkaTier(topics, history, segment_bytes).open() as opened:
        directories = list(sealed(opened, topics))
        for directory in directories:
            opened.put(directory)
    return len(directories)


def assert_history(history: Path, topics: Topics) -> None:
    """The folder has all rows of the topic's log, once each and in order, and is whole."""
    folder, topic = FolderReader(history), KafkaReader(topics)
    report = folder.check(deep=True)
    assert report.is_whole, report.faults
    assert rows_of(folder) == rows_of(topic)
    assert transactions_of(folder) == transactions_of(topic)
    assert shapes_of(folder) == shapes_of(topic)


def test_what_is_sealed_is_what_the_topic_has(topics: Topics, history: Path) -> None:
    """Every value, offset and transaction of the log: the warehouse is built from the history alone."""
    into_topic(topics, history_of_a_shop())
    assert seal(topics, history) > 3
    assert_history(history, topics)
    assert seal(topics, history) == 0


def test_sealing_resumes_where_it_ended(topics: Topics, history: Path) -> None:
    """Daemon and merge alternate, with restarts of the daemon and cuts without rows."""
    steps = history_of_a_shop()
    for at in range(len(steps)):
        into_topic(topics, steps[at : at + 1], roll=at % 2 == 0)
        seal(topics, history)
        assert_history(history, topics)
    assert len(Layout(history).segment_offsets()) == sum(not isinstance(step, dict) for step in steps)


def test_one_topic_range_is_sealed_piece_by_piece(topics: Topics, history: Path) -> None:
    """After a long topic range's head each merge skips what it has, by cuts, and takes only what is new."""
    log = KafkaLog.open(topics, IDENTITY)
    writer = Writer.of(log)
    for step in history_of_a_shop():
        if not isinstance(step, dict):
            writer.put(*step)
            log._topics.wait_until_shown()
            assert seal(topics, history, segment_bytes=1 << 20) == 1
    log.close()
    assert_history(history, topics)


@pytest.mark.parametrize("put_before", [0, 1, 3])
def test_a_run_that_dies_is_repeated_without_doubles_or_holes(topics: Topics, history: Path, put_before: int) -> None:
    """Killed after the segments were written, before the first, the second or the fourth of them had its name."""
    into_topic(topics, history_of_a_shop())
    with KafkaTier(topics, history, SMALL).open() as opened:
        directories = list(sealed(opened, topics))
        for directory in directories[:put_before]:
            opened.put(directory)
    assert len(list(Layout(history).segments.glob(".*.tmp"))) == len(directories) - put_before
    assert len(Layout(history).segment_offsets()) == put_before
    assert seal(topics, history) == len(directories) - put_before
    assert_history(history, topics)
    assert not list(Layout(history).segments.glob(".*.tmp"))


def test_a_task_that_dies_in_a_segment_leaves_nothing_that_counts(topics: Topics, history: Path) -> None:
    """Half a Parquet file, no manifest: the next run removes it and begins again."""
    into_topic(topics, history_of_a_shop())

    with KafkaTier(topics, history, SMALL).open() as opened, topics.reader(topics.name) as reader:
        assert opened.tail is not None
        messages = list(reader.messages(opened.tail.begin, opened.tail.end))
        cut = max(at for at, message in enumerate(messages) if message.key == bytes((FrameKind.CUT, 0)))
        with pytest.raises(InvariantViolated, match="its last cut is before it"):
            list(opened.sealer(messages[:cut]))
    assert list(Layout(history).segments.iterdir())
    seal(topics, history)
    assert_history(history, topics)


def test_segments_in_another_order_are_refused(topics: Topics, history: Path) -> None:
    """The driver does not trust tasks: a segment that does not follow is not installed."""
    into_topic(topics, history_of_a_shop())
    with KafkaTier(topics, history, SMALL).open() as opened:
        first, second, *_ = sealed(opened, topics)
        with pytest.raises(InvariantViolated, match="do not follow"):
            opened.put(second)
        opened.put(first)


def test_two_do_not_add_to_a_history_at_once(topics: Topics, history: Path) -> None:
    """Two merges of one log, each on its own schedule: the second gets an error to retry later."""
    into_topic(topics, history_of_a_shop())
    with (
        KafkaTier(topics, history).open(),
        pytest.raises(SinkUnavailable, match="another process"),
        KafkaTier(topics, history).open(),
    ):
        pass


def test_a_transaction_that_is_open_or_was_aborted_is_not_sealed(topics: Topics, history: Path) -> None:
    """Its records are in the topic like all others; they never became part of the log."""
    into_topic(topics, history_of_a_shop()[:1])
    dying = KafkaLog.open(topics, IDENTITY)
    writer = Writer.of(dying)
    writer.append(orders(666, xid=99))
    writer.cut()

    def never() -> None:
        raise SinkUnavailable("killed before the commit")

    dying._sender.commit = never  # type: ignore[method-assign]
    with pytest.raises(SinkUnavailable):
        dying.sync()
    assert seal(topics, history) == 1
    assert [row["id"] for _, row in rows_of(FolderReader(history))] == [1, 2, 3, 4, 5]
    into_topic(topics, [[orders(7, xid=100)]])
    assert seal(topics, history) == 1
    assert [row["id"] for _, row in rows_of(FolderReader(history))] == [1, 2, 3, 4, 5, 7]
    assert_history(history, topics)
    dying.close()


def expire(topics: Topics, topic_offset: int) -> None:
    """The brokers delete the records before this offset."""
    admin = AdminClient({"bootstrap.servers": topics.brokers})
    for future in admin.delete_records([TopicPartition(topics.name, 0, topic_offset)]).values():
        future.result(30)


def test_history_is_read_from_files_and_only_the_tail_from_the_brokers(topics: Topics, history: Path) -> None:
    """Brokers with a short retention keep only the latest records; a reader that starts at offset 1 still gets every
    row.
    """
    steps = history_of_a_shop()
    into_topic(topics, steps[:4])
    seal(topics, history)
    into_topic(topics, steps[4:])
    whole, parts = rows_of(KafkaReader(topics)), transactions_of(KafkaReader(topics))
    tail = next(
        s for s in KafkaReader(topics).topic_ranges() if s.first_offset == Layout(history).segment_offsets()[-1][1] + 1
    )
    expire(topics, tail.topic_offset)
    with pytest.raises(HistoryLost):
        rows_of(KafkaReader(topics))
    log = TieredReader(topics, history)
    assert rows_of(log) == whole
    assert transactions_of(log) == parts
    middle = tail.first_offset
    assert rows_of(log, from_offset=middle - 3, to_offset=middle + 1) == whole[middle - 4 : middle + 1]
    assert rows_of(log, from_offset=2, to_offset=3) == whole[1:3]
    report = log.check(deep=True)
    assert report.is_whole, report.faults
    assert (report.first_offset, report.next_offset) == (1, len(whole) + 1)
    assert seal(topics, history) > 0
    assert rows_of(FolderReader(history)) == whole


def test_what_expired_before_it_was_sealed_is_lost_history(topics: Topics, history: Path) -> None:
    """A hole in the history would silently be missing rows in the warehouse."""
    steps = history_of_a_shop()
    into_topic(topics, steps[:1])
    seal(topics, history)
    into_topic(topics, steps[1:])
    expire(topics, KafkaReader(topics).topic_ranges()[-1].topic_offset)
    with pytest.raises(HistoryLost, match="cdcflow backfill"):
        seal(topics, history)


def other_log(topics: Topics, history: Path) -> None:
    shutil.rmtree(history)
    other = Topics(topics.brokers, f"{topics.name}-other", message_bytes=2000)
    into_topic(other, history_of_a_shop()[:1])
    seal(other, history)


def ahead(topics: Topics, history: Path) -> None:
    layout = Layout(history)
    first, last = layout.segment_offsets()[-1]
    text = (layout.segment(first, last) / "segment.json").read_text()
    moved = layout.segment(first, last + 5)
    layout.segment(first, last).rename(moved)
    text = text.replace(f'"last_offset": {last}', f'"last_offset": {last + 5}')
    text = text.replace(f'"next_offset": {last + 1}', f'"next_offset": {last + 6}')
    (moved / "segment.json").write_text(text)


def diverged(topics: Topics, history: Path) -> None:
    layout = Layout(history)
    manifest = layout.segment(*layout.segment_offsets()[-1]) / "segment.json"
    manifest.write_text(manifest.read_text().replace('"position": "0/', '"position": "9/'))


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (other_log, ConfigurationError, "another log"),
        (ahead, ConfigurationError, "older copy"),
        (diverged, InvariantViolated, "not in it in the same form"),
    ],
)
def test_history_of_another_log_is_refused(
    topics: Topics,
    history: Path,
    spoil: Callable[[Topics, Path], None],
    kind: type[Exception],
    words: str,
) -> None:
    """A mistaken folder must not get another log's rows after its own."""
    steps = history_of_a_shop()
    into_topic(topics, steps[:3])
    seal(topics, history)
    spoil(topics, history)
    if spoil is diverged:
        into_topic(topics, steps[3:4])
    with pytest.raises(kind, match=words):
        seal(topics, history)
