"""Retention by policy: what expires, what waits for a reader, and that it never ends the capture. Logs in files."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import wiring
from cdcflow.config import load
from cdcflow.daemon import daemon
from cdcflow.errors import ConfigurationError
from cdcflow.log.files import notes
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.notes import Note
from cdcflow.log.maintenance.expiry import Expiring, ExpiryPolicy
from cdcflow.log.read.reader import list_segments
from cdcflow.wiring import captures

ORDERS = make_table("orders", id="int64")
MERGE = ("merge", "/warehouse")
OLD = ExpiryPolicy(age_s=60.0, bytes_max=None, keep_for=[MERGE])
Told = list[tuple[str, Mapping[str, object]]]


@pytest.fixture
def log(tmp_path: Path) -> Layout:
    """Four segments of two rows each, all of them long ago."""
    made = HandLog(tmp_path / "log")
    for n in range(4):
        made.segment([(ORDERS, "c", {"id": 2 * n}), (ORDERS, "c", {"id": 2 * n + 1})])
    return Layout(made.root)


def stepped(log: Layout, policy: ExpiryPolicy, told: Told | None = None) -> list[tuple[int, int]]:
    """The segments that remain after one step."""
    events: Told = [] if told is None else told
    Expiring(log, policy, lambda event, fields: events.append((event, fields)), every_s=600).step()
    return [(s.first_offset, s.last_offset) for s in list_segments(log)]


def test_nothing_expires_before_the_merge_has_reported_its_position(log: Layout) -> None:
    """Expired log that a warehouse lacks costs a full backfill: silence is no permission."""
    told: Told = []
    assert len(stepped(log, OLD, told)) == 4
    assert told == [
        (
            "retention waits",
            {"reason": "3 segments are due and kept: no merge into /warehouse has reported its position yet "
            "(log.retention.keep_for)"},
        )
    ]  # fmt: skip


def test_reader_that_limits_expiry_is_reported_once_while_it_advances(log: Layout) -> None:
    """Its offset and the number of segments change at each step; another reader is another report."""
    events: Told = []
    expiring = Expiring(log, OLD, lambda event, fields: events.append((event, fields)), every_s=600)
    for warehouse, offset in (("/warehouse", 0), ("/warehouse", 1), ("/other", 0)):
        notes.write(log, Note("merge", warehouse, offset))
        if warehouse == "/other":
            notes.write(log, Note("merge", "/warehouse", 8))
        expiring.step()
    waits = [str(fields["reason"]) for event, fields in events if event == "retention waits"]
    assert [reason.rpartition(" the merge ")[2] for reason in waits] == [
        "into /warehouse has reached offset 0",
        "into /other has reached offset 0",
    ]


def test_segments_that_every_reader_has_expire_and_the_latest_stays(log: Layout) -> None:
    """Of two warehouses the slower one decides, also in the middle of a segment."""
    notes.write(log, Note("merge", "/warehouse", 8))
    notes.write(log, Note("merge", "/other", 5))
    told: Told = []
    assert stepped(log, OLD, told) == [(5, 6), (7, 8)]
    assert [event for event, _ in told] == ["log expired", "retention waits"]
    assert told[0][1]["first_offset"] == 5
    assert "the merge into /other has reached offset 5" in str(told[1][1]["reason"])
    notes.write(log, Note("merge", "/other", 8))
    assert stepped(log, OLD) == [(7, 8)]


def test_skipped_table_holds_the_log(log: Layout) -> None:
    """It may continue from its position, far before the published cut."""
    notes.write(log, Note("merge", "/warehouse", 2, ("shop.items",)))
    told: Told = []
    assert len(stepped(log, OLD, told)) == 3
    assert "skips shop.items" in str(told[-1][1]["reason"])


def test_publisher_counts_where_it_is_requested(log: Layout) -> None:
    """It reads the log at its own pace, and stops permanently where its rows have expired."""
    policy = ExpiryPolicy(age_s=60.0, bytes_max=None, keep_for=[MERGE, ("publish", "shop")])
    notes.write(log, Note("merge", "/warehouse", 8))
    assert len(stepped(log, policy)) == 4
    notes.write(log, Note("publish", "shop", 4))
    assert stepped(log, policy) == [(5, 6), (7, 8)]


def test_retention_without_readers_keeps_by_age_and_size_alone(log: Layout) -> None:
    """The operator decided so: `keep_for: []`."""
    size = sum(s.size for s in list_segments(log))
    assert len(stepped(log, ExpiryPolicy(None, size, []))) == 4
    assert len(stepped(log, ExpiryPolicy(None, size - 1, []))) == 3
    assert len(stepped(log, ExpiryPolicy(1e12, None, []))) == 3
    assert len(stepped(log, ExpiryPolicy(60.0, None, []))) == 1


def test_failure_of_retention_is_reported_once_and_ends_nothing(log: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture must not stop because its oldest segments could not be removed."""
    told: Told = []
    expiring = Expiring(log, OLD, lambda event, fields: told.append((event, fields)), every_s=0.001)
    steps = []

    def fail() -> None:
        steps.append(1)
        if len(steps) > 3:
            expiring._closing.set()
        raise ConfigurationError("expiring: the store refuses") if len(steps) < 3 else ValueError("a row's value")

    monkeypatch.setattr(expiring, "step", fail)
    expiring._run()
    assert told == [
        ("retention put off", {"reason": "expiring: the store refuses"}),
        ("retention put off", {"reason": "ValueError"}),
    ]


def _settings(folder: Path, **log: Any) -> Path:
    source = {"kind": "postgres", "url": "postgresql://cdc@127.0.0.1:1/shop"}
    path = folder / "cdcflow.yaml"
    path.write_text(yaml.safe_dump({"source": source, "log": log}))
    return path


def test_settings_give_a_policy_or_no_policy_where_they_are_empty(log: Layout, tmp_path: Path) -> None:
    """The warehouse of the settings is waited for by the name that a merge into it writes."""
    assert wiring.expiring(load(_settings(tmp_path, path="log")), lambda event, fields: None) is None
    config = load(_settings(tmp_path, path="log", retention={"age": "1m"}))
    notes.write(log, Note("merge", notes.warehouse_name(tmp_path / "warehouse"), 8))
    made = wiring.expiring(config, lambda event, fields: None)
    assert made is not None
    made.step()
    assert len(list_segments(log)) == 1


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ({"path": "log", "retention": {}}, "set age"),
        ({"path": "log", "retention": {"age": "7d", "keep_for": ["publish"]}}, "publish is not set"),
        ({"kafka": {"brokers": "b:9092", "topic": "t"}, "retention": {"age": "7d"}}, "set the topic's retention.ms"),
    ],
    ids=["nothing", "no publisher", "kafka"],
)
def test_a_policy_that_cannot_be_carried_out_is_refused(log: dict[str, Any], words: str, tmp_path: Path) -> None:
    """A log in Kafka expires by the topic's own settings."""
    with pytest.raises(ConfigurationError, match=words):
        load(_settings(tmp_path, **log))


def test_daemon_runs_retention_next_to_its_capture(log: Layout, tmp_path: Path) -> None:
    """The capture below ends when retention has finished, and not before."""
    spoken = threading.Event()

    class Capturing:
        def run(self) -> None:
            assert spoken.wait(30)

        def seal_soon(self) -> None:
            """Nothing is captured."""

        def status(self) -> dict[str, object]:
            return {"state": "capturing"}

        def stop(self) -> None:
            """No expiry is under way."""

    def tell(event: str, fields: Mapping[str, object]) -> None:
        if event == "log expired":
            spoken.set()

    retention = {"age": "1m", "keep_for": [], "every": "10ms"}
    capture: Any = Capturing()
    daemon.run(load(_settings(tmp_path, path="log", retention=retention)), capture, tell)
    assert len(list_segments(log)) == 1


def test_a_publisher_notes_what_it_has_sent(log: Layout, tmp_path: Path) -> None:
    """From its first offset: an idle publisher must not hold the log indefinitely."""
    told: Told = []
    tell = captures._noting(load(_settings(tmp_path, path="log")), "shop", lambda *event: told.append(event))
    tell("publishing begun", {"prefix": "shop", "offset": 3})
    assert notes.read(log, "publish", "shop") == Note("publish", "shop", 2)
    tell("published", {"offset": 6, "seconds": 0.1})
    assert notes.read(log, "publish", "shop") == Note("publish", "shop", 6)
    assert [event for event, _ in told] == ["publishing begun", "published"]
