"""The daemon joins small segments while it seals more: no reader sees a difference, wherever it dies."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.servers.disks import Unsynced

from cdcflow.config import Seal
from cdcflow.errors import InvariantViolated
from cdcflow.log.disk.maintenance_lock import maintenance
from cdcflow.log.files import notes
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.notes import Note
from cdcflow.log.maintenance.background_compaction import RETRY_S, UNREAD_S, WHILE_SEALING, BackgroundCompaction
from cdcflow.log.maintenance.retention import COMPACTED, ExpiryRule, LogRetention
from cdcflow.log.read.reader import check, list_segments, read_rows, read_transactions
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import Writer, orders

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
SMALL = WHILE_SEALING.count_min + 2
LAYER = Unsynced()

Told = list[tuple[str, Mapping[str, object]]]


@pytest.fixture
def log(tmp_path: Path) -> FileLog:
    """Ten sealed segments of two rows, all of them read by the only merge."""
    made = FileLog.open(tmp_path / "log", IDENTITY, Seal(), layer=LAYER)
    for number in range(SMALL):
        seal(made, 2 * number, 2 * number + 1)
    merged(made)
    return made


def seal(log: FileLog, *ids: int) -> None:
    Writer.of(log).put(orders(*ids))
    assert log.roll()
    log.seal_pending()


def merged(log: FileLog, upto: int | None = None) -> None:
    layout = Layout(log.path)
    notes.write(layout, Note("merge", "/warehouse", layout.segment_offsets()[-1][1] if upto is None else upto))


def task(log: FileLog | Path, told: Told | None = None, **more: Any) -> BackgroundCompaction:
    events: Told = [] if told is None else told
    path = log if isinstance(log, Path) else log.path
    return BackgroundCompaction(
        Layout(path), lambda event, fields: events.append((event, fields)), **{"layer": LAYER, **more}
    )


def seen(path: Path) -> list[Any]:
    """Every row at its offset, and every transaction."""
    rows = [(str(t.id), v, *row.items()) for t, v, found in read_rows(path) for row in found.to_pylist()]
    headers = [header for found in read_transactions(path) for header in found.to_pylist()]
    return [*sorted(rows, key=lambda row: dict(row[2:])["_offset"]), *headers]


def bounds(path: Path) -> list[tuple[int, int]]:
    return [(s.first_offset, s.last_offset) for s in list_segments(path)]


def test_small_segments_become_one_and_every_row_stays_at_its_offset(log: FileLog) -> None:
    """The daemon compacts without being asked to: it must not be noticed."""
    before, told = seen(log.path), Told()
    task(log, told).step()
    assert bounds(log.path) == [(1, 18), (19, 20)]
    assert seen(log.path) == before
    assert [event for event, _ in told] == ["log compacted"]
    assert {**told[0][1], "bytes": 0} == {"segments": 1, "replaced": 9, "bytes": 0}
    assert len(Layout(log.path).listed_segments()[0]) == SMALL + 1, "the replaced ones stay for their readers"
    seal(log, 100)
    log.close()
    assert check(log.path, deep=True).faults == ()


def test_few_segments_are_left_alone(log: FileLog) -> None:
    """Joining them two by two would write every row again for each new segment."""
    joining = task(log)
    joining.step()
    for number in range(WHILE_SEALING.count_min - 2):
        seal(log, 100 + number)
        merged(log)
        joining.step()
    assert len(bounds(log.path)) == WHILE_SEALING.count_min
    log.close()


def test_log_that_is_sealed_all_the_time_has_few_segments(log: FileLog) -> None:
    """With `merge.every: 2s` a day has 43,200 segments: each reader lists and opens them."""
    joining, most = task(log, grace_s=0), 0
    for number in range(60):
        seal(log, 1000 + number)
        merged(log)
        joining.step()
        most = max(most, len(bounds(log.path)))
    assert most < 20
    assert sum(rows.num_rows for _, _, rows in read_rows(log.path)) == 2 * SMALL + 60
    log.close()
    assert check(log.path, deep=True).faults == ()


@pytest.mark.parametrize("note", [None, 4])
def test_segments_that_a_merge_has_yet_to_read_wait_for_it_for_an_hour(log: FileLog, note: int | None) -> None:
    """A first merge reads for an hour, or has not reported yet: what it listed must exist until it is read."""
    if note is None:
        next((log.path / "readers").iterdir()).unlink()
    else:
        merged(log, note)
    task(log).step()
    assert len(bounds(log.path)) == SMALL
    task(log, clock=lambda: time.time() + UNREAD_S + 60).step()
    assert bounds(log.path) == [(1, 18), (19, 20)]
    log.close()


def test_publisher_counts_like_a_merge(log: FileLog) -> None:
    """Of all readers the slowest decides."""
    notes.write(Layout(log.path), Note("publish", "shop", 3))
    task(log).step()
    assert len(bounds(log.path)) == SMALL
    log.close()


def test_replaced_segments_are_removed_after_their_time(log: FileLog) -> None:
    """Otherwise the log has every row several times."""
    task(log).step()
    place = Layout(log.path)
    wide = place.segment(1, 18) / "segment.json"
    task(log).step()
    assert len(place.listed_segments()[0]) == SMALL + 1
    os.utime(wide, (0, time.time() - 3600))
    task(log).step()
    assert place.listed_segments()[0] == [(1, 18), (19, 20)]
    log.close()


class Died(BaseException):
    """The process was killed."""


class Dying(Unsynced):
    """Files of a process that is killed before one of its steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Died


def _counted(name: str) -> Callable[..., Any]:
    right = getattr(Unsynced, name)

    def step(self: Dying, *given: Any) -> Any:
        self._count()
        return right(self, *given)

    return step


for _name in ("create", "write", "rename", "unlink", "mkdir", "rmdir"):
    setattr(Dying, _name, _counted(_name))


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.long)])
def test_compaction_killed_at_any_step_loses_and_doubles_nothing(log: FileLog, tmp_path: Path, stride: int) -> None:
    """Half a compaction must never be read as two copies of its rows, nor as none (hard case L18)."""
    task(log).step()
    for number in range(SMALL):
        seal(log, 1000 + number)
    merged(log)
    log.close()
    before, deaths = seen(log.path), 0
    for steps in count(step=stride):
        copy = tmp_path / f"killed-{steps}"
        shutil.copytree(log.path, copy)
        dying = task(copy, layer=Dying(steps), grace_s=0)
        try:
            dying.step()
        except Died:
            deaths += 1
        else:
            break
        assert seen(copy) == before, f"after {steps} steps"
        task(copy, grace_s=0).step()
        assert seen(copy) == before, f"after {steps} steps and another start"
        assert bounds(copy) == [(1, 18), (19, 29), (30, 30)], f"after {steps} steps and another start"
        assert not list((copy / "segments").glob(".*")), f"after {steps} steps and another start"
        assert check(copy).faults == (), f"after {steps} steps and another start"
    assert deaths > 40 // stride


def test_expiry_removes_segments_that_are_being_joined(log: FileLog) -> None:
    """Both work on the same segments: one of them waits, and neither brings rows back."""
    task(log).step()
    gone = LogRetention(Layout(log.path), layer=LAYER).expire(ExpiryRule(bytes_max=1))
    assert [(s.first_offset, s.last_offset) for s in gone] == [(1, 18)]
    task(log).step()
    assert Layout(log.path).listed_segments()[0] == [(19, 20)]
    log.close()


def test_sealing_does_not_wait_for_a_compaction(log: FileLog) -> None:
    """The capture would wait with it."""
    with maintenance(Layout(log.path)):
        seal(log, 100)
    assert bounds(log.path)[-1] == (21, 21)
    log.close()


def test_compaction_waits_for_an_upload_and_ends_with_the_daemon(log: FileLog) -> None:
    """An upload holds the lock; a daemon that stops must not wait for either."""
    joining = task(log, every_s=0.01)
    with maintenance(Layout(log.path)), joining:
        time.sleep(0.1)
    assert joining._closing.is_set()
    joining._thread.join(60)
    assert len(bounds(log.path)) == SMALL
    log.close()


def test_damaged_segment_is_reported_once_and_tried_again_later(log: FileLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that cannot be read must not be read again every ten seconds, and the capture continues."""
    segment = list_segments(log.path)[2]
    file = Layout(log.path).file(segment, segment.transactions_file)
    file.write_bytes(file.read_bytes()[:-100] + bytes(100))
    told = Told()
    joining = task(log, told)
    before = bounds(log.path)
    with pytest.raises(InvariantViolated, match=r"segment 5-6: transactions.parquet is damaged"):
        joining.step()
    joining.step()
    assert bounds(log.path) == before
    assert not list((log.path / "segments").glob(f".*{COMPACTED}")), "a full disk would stay full"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + RETRY_S + 1)
    with pytest.raises(InvariantViolated, match="damaged"):
        joining.step()
    log.close()


def test_thread_compacts_by_itself(log: FileLog) -> None:
    """It is started with the capture, and ends with it."""
    done = threading.Event()
    with BackgroundCompaction(Layout(log.path), lambda *_: done.set(), every_s=0.01, layer=LAYER):
        assert done.wait(60)
    assert bounds(log.path) == [(1, 18), (19, 20)]
    log.close()
