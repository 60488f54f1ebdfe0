"""What a store may do to a log: be unavailable, hang, refuse, forget, or belong to another owner."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.servers.objects import SECRET_KEY, ObjectServer
from tests.support.objects.logs import ObjectLog, assert_whole, seen, settled, write, written
from tests.support.polling import wait_until

from cdcflow.config import Objects
from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated
from cdcflow.log.files.layout import segment_name
from cdcflow.log.read.reader import check, list_segments
from cdcflow.sinks.files.log import FileLog
from cdcflow.sinks.objects import uploads
from cdcflow.sinks.objects.doctor import doctor
from cdcflow.sinks.objects.uploaded import status
from cdcflow.stores.bucket import Bucket
from cdcflow.testing.sinks import Writer, orders


@pytest.fixture
def log(objects: Objects, tmp_path: Path) -> ObjectLog:
    return ObjectLog(tmp_path / "log", objects)


def refused(found: ObjectLog) -> CdcflowError:
    """What the start ended with, before anything was captured."""
    with pytest.raises(CdcflowError) as heard:
        found.open()
    return heard.value


def ended(opened: FileLog, found: ObjectLog) -> CdcflowError:
    """The error with which the upload ended; the log reports it, too."""
    wait_until(lambda: found.uploads is not None and found.uploads.error is not None, "an upload to fail")
    with pytest.raises(CdcflowError) as heard:
        Writer.of(opened).put(orders(99))
    opened.close()
    return heard.value


def test_capture_continues_while_the_store_is_unavailable(own_object_server: ObjectServer, tmp_path: Path) -> None:
    """A store's outage must cost disk, never a change and never make the source wait; cdcflow reports what waits."""
    log = ObjectLog(tmp_path / "log", own_object_server.objects("shop"))
    opened = log.open()
    write(opened, [1])
    log.settled()
    own_object_server.kill()
    write(opened, [2])
    write(opened, [3])
    wait_until(lambda: bool(status(log.layout)["upload_problem"]), "the problem in the status")
    told = status(log.layout)
    assert told["upload_waiting_segments"] == 2
    assert told["upload_offset"] == 2
    assert seen(log.layout, 3) == written([[1], [2], [3]])[2:]
    own_object_server.start()
    log.settled()
    opened.close()
    if own_object_server.is_real:
        assert_whole(log, [[1], [2], [3]], tmp_path / "copy")
    assert status(log.layout) == {
        "upload_offset": 6,
        "upload_waiting_segments": 0,
        "upload_waiting_bytes": 0,
        "upload_problem": "",
        "store_lost": [],
        "store_problem": "",
    }


def test_store_that_hangs_holds_up_neither_syncs_nor_the_end(
    own_object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A half-open connection does not answer for minutes; the loop must not wait for it."""
    monkeypatch.setattr(uploads, "LAST_TRY_S", 0.3)
    log = ObjectLog(tmp_path / "log", own_object_server.objects("shop"))
    opened = log.open()
    write(opened, [1])
    log.settled()
    own_object_server.halt()
    write(opened, [2])
    Writer.of(opened).put(orders(3))
    opened.close()  # returns although the upload hangs
    assert seen(log.layout, 3) == [*written([[1], [2]])[2:], (5, "orders", 3)]
    own_object_server.go_on()
    opened = log.open()
    log.settled()
    opened.close()
    assert check(log.alone, deep=True).faults == ()


def test_start_needs_nothing_from_the_store(own_object_server: ObjectServer, tmp_path: Path) -> None:
    """A daemon that restarts in the middle of the store's outage must capture on, or the source keeps its log."""
    log = ObjectLog(tmp_path / "log", own_object_server.objects("shop"))
    opened = log.open()
    write(opened, [1])
    write(opened, [2])
    log.settled()
    opened.close()
    own_object_server.kill()
    opened = log.open()
    write(opened, [3])
    assert [s.last_offset for s in list_segments(log.layout)] == [2, 4, 6]
    opened.close()


def test_competing_writers_manifest_is_named_and_not_overwritten(log: ObjectLog, tmp_path: Path) -> None:
    """A restored copy of the log's directory keeps writing under the same id: the second of the two must get an error
    (L10).
    """
    opened = log.open()
    write(opened, [1])
    log.settled()
    opened.close()
    with pytest.raises(ConfigurationError, match=r"log\.objects"):
        seen(log.root)  # without its settings it is unknown where the rest is
    shutil.copytree(log.root, tmp_path / "copied")
    other = ObjectLog(tmp_path / "copied", log.objects)
    opened = log.open()
    write(opened, [2])
    log.settled()
    opened.close()
    stale = other.open()
    write(stale, [77])
    error = ended(stale, other)
    assert isinstance(error, InvariantViolated)
    assert "epoch 2 of the log" in str(error)
    assert "3-4" in str(error)
    assert seen(log.alone) == written([[1], [2]])
    assert seen(other.layout, 4)[-1] == (4, 'pro/ducts"; ../x', 77), "what was captured stays on the disk"


def test_place_of_another_log_is_refused_before_anything_is_uploaded(log: ObjectLog, tmp_path: Path) -> None:
    """Two logs under one prefix would take each other's segments for their own."""
    opened = log.open()
    write(opened, [1])
    log.settled()
    opened.close()
    other = ObjectLog(tmp_path / "other", log.objects)
    error = refused(other)
    assert isinstance(error, ConfigurationError)
    assert "it already has the log" in str(error)
    assert "log.objects.url" in str(error)
    assert seen(log.alone) == written([[1]])


def test_segments_in_another_bucket_are_not_forgotten(log: ObjectLog, object_server: ObjectServer) -> None:
    """Only half of the log would be in the new place, and nothing would record where the rest is."""
    opened = log.open()
    write(opened, [1])
    log.settled()
    opened.close()
    moved = ObjectLog(log.root, object_server.objects("moved"))
    with pytest.raises(ConfigurationError, match=r"(?s)its segments are in s3://bucket-.*copy everything"):
        moved.open()
    for name in log.bucket.list_objects(""):
        moved.bucket.put_new(name, log.bucket.get(name))
    (log.root / "uploads.json").unlink()
    opened = moved.open()
    write(opened, [2])
    settled(moved.layout, moved.uploads)
    opened.close()
    assert seen(moved.alone) == written([[1], [2]])


def test_segment_that_is_in_neither_place_is_named(log: ObjectLog) -> None:
    """An operator emptied the bucket: the error must name the missing segment; the log must not continue as if nothing
    had happened.
    """
    opened = log.open()
    write(opened, [1])
    log.settled()
    opened.close()
    log.bucket.delete(list(log.bucket.list_objects("")))
    (log.root / "uploads.json").unlink()
    error = ended(log.open(), log)
    assert "missing" in str(error)
    assert "not in the store either" in str(error)


def test_changed_object_is_never_read(log: ObjectLog) -> None:
    """Whatever happens in the bucket, a row that was not sealed must not reach the warehouse."""
    opened = log.open()
    write(opened, [1])
    log.settled()
    opened.close()
    folder = f"segments/{segment_name((1, 2))}"
    name = next(n for n in log.bucket.list_objects(folder) if n.startswith("shop.orders"))
    content = bytearray(log.bucket.get(f"{folder}/{name}"))
    content[len(content) // 2] ^= 1
    log.bucket.put(f"{folder}/{name}", bytes(content))
    for place in (log.layout, log.alone):
        with pytest.raises(InvariantViolated, match="differs from what was sealed"):
            seen(place)
        assert any("differs from what was sealed" in fault.text for fault in check(place).faults)


def test_store_without_conditional_writes_is_refused(tmp_path: Path) -> None:
    """There two writers would silently overwrite each other (versitygw without attributes is one such)."""
    with ObjectServer() as server:
        if server.is_real:
            server.kill()
            server.conditional_writes = False
            server.start()
            log = ObjectLog(tmp_path / "log", server.objects("shop"))
            error = refused(log)
            assert isinstance(error, ConfigurationError)
            assert "If-None-Match" in str(error)


REFUSED = {
    "bucket": ({"url": "s3://not-there/x"}, "log.objects.url"),
    "name": ({"url": "s3://NOT_A_NAME/x"}, "log.objects.url"),
    "access key": ({"access_key": "${env:CDCFLOW_WRONG_KEY}"}, "log.objects.access_key"),
    "secret key": ({"secret_key": "${env:CDCFLOW_WRONG_KEY}"}, "log.objects.secret_key"),
    "region": ({"region": "eu-nowhere-1"}, "log.objects.region"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_start_and_doctor_name_the_wrong_setting_and_no_secret(
    object_server: ObjectServer, tmp_path: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reported only at the first upload, it would leave hours of segments on the local disk; a secret in an error ends
    up in every log (S03).
    """
    monkeypatch.setenv("CDCFLOW_WRONG_KEY", SECRET_KEY + "-wrong")
    update, setting = REFUSED[wrong]
    objects = object_server.objects("there").model_copy(update=update)
    if "bucket" not in wrong and not object_server.is_real:
        return  # moto requires no key
    log = ObjectLog(tmp_path / "log", objects)
    error = refused(log)
    assert isinstance(error, ConfigurationError)
    assert setting in (error.remedy or "")
    assert SECRET_KEY not in str(error)
    (found,) = doctor(log.bucket, log.layout, lambda segment, file: None)
    assert found.level == "error"
    assert setting in (found.remedy or "")
    assert SECRET_KEY not in found.text


def test_doctor_requests_only_what_a_capture_may(object_server: ObjectServer, log: ObjectLog, tmp_path: Path) -> None:
    """It changes nothing, and reports which log is in the bucket."""
    before = log.bucket.list_objects("")
    (found,) = doctor(log.bucket, log.layout, lambda segment, file: None)
    assert (found.level, "no log in it yet" in found.text) == ("ok", True)
    assert log.bucket.list_objects("") == before
    opened = log.open()
    write(opened, [1])
    log.settled()
    opened.close()
    (found,) = doctor(log.bucket, log.layout, lambda segment, file: None)
    assert (found.level, "has the log" in found.text) == ("ok", True)
    other = ObjectLog(tmp_path / "other", object_server.objects("other"))
    other.open().close()
    (found,) = doctor(log.bucket, other.layout, lambda segment, file: None)
    assert (found.level, "log.objects.url" in (found.remedy or "")) == ("error", True)


def test_bucket_is_listed_without_reading_every_manifest_again(log: ObjectLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge every half minute over ten thousand segments must not make ten thousand requests each time."""
    opened = log.open()
    for n in range(5):
        write(opened, [n])
    log.settled()
    opened.close()
    asked: list[str] = []
    get = Bucket.get

    def noted(self: Bucket, name: str) -> bytes:
        asked.append(name)
        return get(self, name)

    monkeypatch.setattr(Bucket, "get", noted)
    assert len(list_segments(log.alone)) == 5
    assert sum(name.endswith("segment.json") for name in asked) == 5
    asked.clear()
    assert len(list_segments(log.alone)) == 5
    assert set(asked) == {"log.json"}
    asked.clear()
    assert len(list_segments(log.layout)) == 5
    assert asked == [], "where the log is written the manifests are on the disk"


def test_what_is_read_back_stays_bounded(log: ObjectLog) -> None:
    """A log of terabytes read through must not fill the reader's disk."""
    opened = log.open()
    for n in range(4):
        write(opened, [n, n + 10])
    log.settled()
    opened.close()
    store = log.alone.store
    assert store is not None
    size = max(s.size for s in list_segments(log.layout))
    monkey = log.alone
    monkey.store._bytes_max = 2 * size  # type: ignore[union-attr]  # of the class that it is
    assert seen(monkey) == written([[n, n + 10] for n in range(4)])
    kept = [p.stat().st_size for p in (log.root.parent / "elsewhere").rglob("*.parquet")]
    assert 0 < sum(kept) <= 2 * size


def test_local_files_are_kept_for_the_configured_time(log: ObjectLog) -> None:
    """A merge that has begun to read them must find them to its end."""
    log.keep_local_s = 3600
    opened = log.open()
    write(opened, [1])
    wait_until(lambda: status(log.layout)["upload_offset"] == 2, "an upload")
    opened.close()
    assert len(list(log.layout.segment(1, 2).iterdir())) == 4
    log.keep_local_s = 0
    opened = log.open()
    log.settled()
    opened.close()
    assert [p.name for p in log.layout.segment(1, 2).iterdir()] == ["segment.json"]
