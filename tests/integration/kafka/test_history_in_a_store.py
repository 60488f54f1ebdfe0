"""A Kafka log's history in an object store: the same as in a folder, for machines that share no disk and no lock."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.servers.kafka import KafkaBroker
from tests.servers.objects import SECRET_KEY, ObjectServer
from tests.support.kafka.log_pairs import (
    FolderReader,
    history_of_a_shop,
    into_topic,
    rows_of,
    topics_on,
    transactions_of,
)
from tests.support.objects.logs import NO_SOURCE

from cdcflow import wiring
from cdcflow.config import Config, Objects
from cdcflow.errors import ConfigurationError, InvariantViolated, SinkUnavailable
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.segment import Segment
from cdcflow.log.maintenance.index import Indexing
from cdcflow.sinks.kafka import loss
from cdcflow.sinks.kafka.reader import KafkaReader
from cdcflow.sinks.kafka.tier import KafkaTier, OpenedTier, TieredReader
from cdcflow.sinks.kafka.topics import Topics
from cdcflow.sinks.objects.history import StoredHistory
from cdcflow.sinks.objects.remote_sealer import StoreSealer
from cdcflow.sinks.objects.store import BucketStore
from cdcflow.stores.bucket import Bucket, StoredObject
from cdcflow.testing.sinks import orders

pytestmark = pytest.mark.kafka
SMALL = 500
"""Bytes of the topic to a segment: each cut of the tests' ends one."""


@pytest.fixture
def topics(broker: KafkaBroker) -> Topics:
    return topics_on(broker.address)


class Machine:
    """One that seals: it shares a bucket with others, and no disk."""

    def __init__(self, topics: Topics, objects: Objects, room: Path) -> None:
        self.bucket = Bucket(objects)
        self.layout = Layout(room, BucketStore(self.bucket, room, 1 << 20))
        self.topics = topics

    def tier(self, segment_bytes: int = SMALL) -> KafkaTier:
        opening = partial(StoredHistory.open, self.layout, self.bucket)
        return KafkaTier(self.topics, self.layout, segment_bytes, opening)

    def sealed(self, opened: OpenedTier) -> Iterator[str]:
        """What Spark's task does, in another process: only values come there."""
        if opened.tail is not None:
            sealer: StoreSealer = pickle.loads(pickle.dumps(opened.sealer))  # noqa: S301  our own
            with self.topics.reader(self.topics.name) as reader:
                yield from sealer(reader.messages(opened.tail.begin, opened.tail.end))

    def seal(self, segment_bytes: int = SMALL) -> int:
        """Seal all that is committed; the number of segments that were added."""
        with self.tier(segment_bytes).open() as opened:
            said = list(self.sealed(opened))
            for one in said:
                opened.put(one)
        return len(said)

    def check(self) -> None:
        """The bucket has all rows of the topic's log, once each and in order, is whole, and has nothing else."""
        stored, topic = FolderReader(self.layout), KafkaReader(self.topics)
        report = stored.check(deep=True)
        assert report.is_whole, report.faults
        assert rows_of(stored) == rows_of(topic)
        assert transactions_of(stored) == transactions_of(topic)
        assert self.left() == []

    def left(self) -> list[str]:
        """Files of segments that no manifest names."""
        known = set()
        for bounds in self.layout.segment_offsets():
            segment, _ = self.layout.manifest(*bounds)
            name = self.layout.segment(*bounds).name
            known |= {f"{name}/{file.path}" for file in segment.files}
            known |= {f"{name}/segment.json", f"{name}/place.json"}
        return sorted(set(self.bucket.list_objects("segments")) - known)


@pytest.fixture
def machine(topics: Topics, objects: Objects, tmp_path: Path) -> Machine:
    return Machine(topics, objects, tmp_path / "one")


@pytest.fixture
def other(topics: Topics, objects: Objects, tmp_path: Path) -> Machine:
    return Machine(topics, objects, tmp_path / "other")


def test_what_is_sealed_is_what_the_topic_has(machine: Machine, other: Machine) -> None:
    """Every value, offset and transaction of the log, sealed by turns from two machines; neither machine's disk holds
    rows, and both know where in the topic it ends.
    """
    steps = history_of_a_shop()
    ends = []
    for at in range(len(steps)):
        into_topic(machine.topics, steps[at : at + 1], roll=at % 2 == 0)
        sealing = (machine, other)[at % 2]
        sealing.seal()
        with machine.tier().open() as one:
            here = dict(one.origin())
        with other.tier().open() as two:
            assert dict(two.origin()) == here
        ends.append(here["place"])
        assert here["topic"] == machine.topics.name
        assert not list(sealing.layout.root.rglob("*.parquet"))
    assert ends == sorted(ends)
    assert machine.seal() == 0
    machine.check()
    other.check()


def test_reader_reads_the_rest_from_the_brokers(machine: Machine) -> None:
    """Without a history yet, and with one that the log has outgrown: one log."""
    reader = TieredReader(machine.topics, machine.layout)
    steps = history_of_a_shop()
    into_topic(machine.topics, steps[:3])
    assert rows_of(reader) == rows_of(KafkaReader(machine.topics))
    assert reader.check(deep=True).is_whole
    machine.seal()
    into_topic(machine.topics, steps[3:])
    assert rows_of(reader) == rows_of(KafkaReader(machine.topics))
    assert transactions_of(reader) == transactions_of(KafkaReader(machine.topics))
    report = reader.check(deep=True)
    assert report.is_whole, report.faults
    assert report.segments > 0
    assert loss._last_sealed_offset(machine.layout, KafkaReader(machine.topics).state()) > 0


class Dies(BaseException):
    """Simulates the end of a process."""


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, bool], None]:
    """dying(n, after): this process ends before (or right after) it changes something in a bucket for the n-th time."""

    def plan(count: int, after: bool) -> None:
        left = [count]

        def counted(original: Any, *args: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                raise Dies
            try:
                return original(*args, **more)
            finally:
                if left[0] == 0:
                    raise Dies

        for name, original in originals.items():
            monkeypatch.setattr(Bucket, name, lambda *args, _of=original, **more: counted(_of, *args, **more))

    originals = {name: getattr(Bucket, name) for name in ("put_new", "put", "delete")}
    return plan


@pytest.mark.long
@pytest.mark.spread(1)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_process_that_dies_at_any_request_is_succeeded_by_another_machine(
    topics: Topics, objects: Objects, tmp_path: Path, dying: Callable[[int, bool], None], *, after: bool
) -> None:
    """Before or after each request that changes something, including the files', the link's and the manifest's: the
    next process continues where the valid history ends, and removes invalid leftovers. The log grows in the meantime,
    so that the next one's segments end elsewhere.
    """
    into_topic(topics, history_of_a_shop()[:1])
    died = True
    count = 0
    while died:
        count += 1
        own = objects.model_copy(update={"url": f"{objects.url}/{count}"})
        one, two = Machine(topics, own, tmp_path / f"one-{count}"), Machine(topics, own, tmp_path / f"two-{count}")
        dying(count, after)
        try:
            one.seal()
            died = False
        except Dies:
            dying(0, False)
        if two.layout.exists():
            report = FolderReader(two.layout).check(deep=True)
            assert report.is_whole, (count, report)
        if count in (5, 9, 14):
            into_topic(topics, [[orders(1000 + count, xid=1000 + count)]])
        two.seal(SMALL if count % 2 else 1 << 20)
        two.check()
        one.check()
    assert count > 10


@pytest.mark.spread(1)
@pytest.mark.parametrize("looked", [False, True], ids=["before it looks", "when it has looked"])
def test_of_two_that_seal_at_once_one_adds_and_the_other_is_notified(
    machine: Machine, other: Machine, monkeypatch: pytest.MonkeyPatch, *, looked: bool
) -> None:
    """They share no lock, and the later one ends its segment further on: nothing may appear twice or be skipped."""
    steps = history_of_a_shop()
    into_topic(machine.topics, steps[:3])
    with machine.tier(1 << 20).open() as early:
        (of_early,) = machine.sealed(early)
        into_topic(machine.topics, steps[3:])
        with other.tier(1 << 20).open() as late:
            (of_late,) = other.sealed(late)
            if looked:
                look = StoredHistory._objects_within

                def overtaken(history: StoredHistory, segment: Segment) -> dict[str, StoredObject]:
                    found = look(history, segment)
                    if history is early.history:
                        late.put(of_late)
                    return found

                monkeypatch.setattr(StoredHistory, "_objects_within", overtaken)
            else:
                late.put(of_late)
            with pytest.raises(SinkUnavailable, match=r"another process has added one .*\n.*merge again"):
                early.put(of_early)
    assert machine.seal() == 0
    machine.check()


@pytest.mark.long
def test_two_processes_with_equal_segments_use_separate_files(machine: Machine, other: Machine) -> None:
    """The same offsets from both: files that one uploaded stay whole whatever the other does, and do not block it."""
    into_topic(machine.topics, history_of_a_shop())
    with machine.tier().open() as one, other.tier().open() as two:
        first, second = list(machine.sealed(one)), list(other.sealed(two))
        one.put(first[0])
        with pytest.raises(SinkUnavailable, match="another process"):
            two.put(second[0])
        for said in first[1:]:
            one.put(said)
    machine.check()
    other.check()


def test_one_process_of_a_machine_adds_at_a_time(machine: Machine) -> None:
    """Two merges on one machine need not seal the same in vain."""
    into_topic(machine.topics, history_of_a_shop())
    with (
        machine.tier().open(),
        pytest.raises(SinkUnavailable, match="another process"),
        machine.tier().open(),
    ):
        pass


def test_segment_that_does_not_follow_or_is_missing_is_not_added(machine: Machine) -> None:
    """The driver trusts neither tasks nor the store."""
    into_topic(machine.topics, history_of_a_shop())
    with machine.tier().open() as opened:
        first, second, *_ = machine.sealed(opened)
        with pytest.raises(InvariantViolated, match="do not follow"):
            opened.put(second)
        gone = next(name for name in machine.bucket.list_objects("segments") if name.startswith(f"{1:020d}"))
        machine.bucket.delete([f"segments/{gone}"])
        with pytest.raises(SinkUnavailable, match="does not have it as uploaded"):
            opened.put(first)
    assert machine.layout.segment_offsets() == []
    machine.seal()
    machine.check()


def test_another_log_s_history_is_refused(machine: Machine, objects: Objects, tmp_path: Path) -> None:
    into_topic(machine.topics, history_of_a_shop()[:1])
    machine.seal()
    theirs = topics_on(machine.topics.brokers)
    into_topic(theirs, history_of_a_shop()[:1])
    with pytest.raises(ConfigurationError, match=r"belongs to another log .*\n.*log\.kafka\.history"):
        Machine(theirs, objects, tmp_path / "theirs").seal()
    with pytest.raises(ConfigurationError, match="belongs to another log"):
        rows_of(TieredReader(theirs, machine.layout))


def test_a_store_without_conditional_writes_is_refused(
    topics: Topics, own_object_server: ObjectServer, tmp_path: Path
) -> None:
    """There two processes that seal at once would not notice each other."""
    assert own_object_server.is_real, "only versitygw can be started so; `make servers` builds it with Go"
    own_object_server.kill()
    own_object_server.conditional_writes = False
    own_object_server.start()
    into_topic(topics, history_of_a_shop()[:1])
    with pytest.raises(ConfigurationError, match="despite a conditional write"):
        Machine(topics, own_object_server.objects("plain"), tmp_path / "one").seal()


def config(topics: Topics, objects: Objects, work: Path, **access: str | None) -> Config:
    """Settings with a history in a store."""
    found = {"endpoint": objects.endpoint, "access_key": objects.access_key, "secret_key": objects.secret_key}
    url = access.pop("history", objects.url)
    kafka = {"brokers": topics.brokers, "topic": topics.name, "work": str(work), "history": url}
    log = {"kafka": {**kafka, "objects": {**found, **access}}}
    return Config.model_validate({"source": {"kind": "postgres", "url": NO_SOURCE}, "log": log})


@pytest.mark.long
@pytest.mark.parametrize("place", ["store", "folder"])
def test_a_history_is_indexed_by_executors(machine: Machine, objects: Objects, tmp_path: Path, place: str) -> None:
    """`cdcflow log index --on`: the keys of what is sealed, as without; and where nothing is sealed yet, nothing."""
    into_topic(machine.topics, history_of_a_shop())
    settings = config(machine.topics, objects, tmp_path)
    if place == "folder":
        kafka = {"brokers": machine.topics.brokers, "topic": machine.topics.name, "work": str(tmp_path)}
        settings = Config.model_validate({"source": settings.source, "log": {"kafka": kafka}})
    (tmp_path / "cdcflow.yaml").write_text(yaml.safe_dump(settings.model_dump(mode="json", exclude_defaults=True)))
    command = [sys.executable, "-m", "cdcflow.cli", "log", "index", "--json", "--on", "local[2]"]

    def indexed() -> dict[str, int]:
        done = subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.PIPE)
        found: dict[str, int] = json.loads(done.stdout)
        return found

    assert indexed()["indexed"] == 0
    tier = wiring.tier(settings)
    assert isinstance(tier, KafkaTier)
    with tier.open() as opened:
        for one in machine.sealed(opened):
            opened.put(one)
    layout = wiring.sealed_layout(settings)
    by_executors = indexed()
    assert by_executors["indexed"] == len(list(layout.segment_offsets())) > 0
    assert by_executors["last_offset"] == FolderReader(layout).newest_checkpoint().next_offset - 1
    files = {path.name: path.read_bytes() for path in layout.root.rglob("*.keys")}
    assert files
    shutil.rmtree(next(layout.root.rglob("*.keys")).parent)
    assert Indexing(layout).step() == by_executors["indexed"]
    assert {path.name: path.read_bytes() for path in layout.root.rglob("*.keys")} == files


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ({"secret_key": "${env:WRONG}"}, r"the store refuses .*\n.*log\.kafka\.objects\.secret_key"),
        ({"history": "s3://no-such-bucket/x"}, r"no such bucket\n.*log\.kafka\.history"),
    ],
)
def test_wrong_setting_is_reported_under_its_name_in_the_file(
    topics: Topics,
    objects: Objects,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    access: dict[str, str],
    words: str,
) -> None:
    """By the merge, and by doctor; neither prints a secret."""
    monkeypatch.setenv("WRONG", "not-the-secret")
    into_topic(topics, history_of_a_shop()[:1])
    settings = config(topics, objects, tmp_path, **access)
    with pytest.raises(ConfigurationError, match=words) as caught, wiring.tier(settings).open():
        pass
    findings = wiring.findings._log_findings(settings)
    assert any(f.level == "error" and "log.kafka." in (f.remedy or "") for f in findings), findings
    assert "not-the-secret" not in str(caught.value) + str(findings)


def test_objects_sent_to_an_executor_show_no_secret(machine: Machine) -> None:
    """Spark shows functions by their names, and users print them."""
    into_topic(machine.topics, history_of_a_shop()[:1])
    with machine.tier().open() as opened:
        assert SECRET_KEY not in repr(opened.sealer)
