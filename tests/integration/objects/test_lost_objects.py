"""A bucket that is emptied, or loses or changes objects, while its log is in use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.servers.objects import ObjectServer
from tests.support.objects.logs import ObjectLog, assert_whole, settings_file, write
from tests.support.polling import wait_until
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.config import Objects
from cdcflow.errors import ConfigurationError
from cdcflow.log.files.layout import Bounds, segment_name
from cdcflow.log.maintenance.retention import ExpiryRule
from cdcflow.log.read.reader import check
from cdcflow.sinks.objects import inventory, restore
from cdcflow.sinks.objects.inventory import counting
from cdcflow.sinks.objects.uploaded import status


@pytest.fixture
def log(objects: Objects, tmp_path: Path) -> ObjectLog:
    return ObjectLog(tmp_path / "log", objects, keep_local_s=3600)


def put(log: ObjectLog, *ids: int) -> None:
    """One segment per id, uploaded to the bucket; its local files are kept for `keep_local_s`."""
    opened = log.open()
    for n in ids:
        write(opened, [n])
    if log.keep_local_s:
        log.uploaded()
    else:
        log.settled()
    opened.close()


def objects_of(log: ObjectLog, first: int, last: int) -> list[str]:
    folder = f"segments/{segment_name((first, last))}"
    return [f"{folder}/{name}" for name in log.bucket.list_objects(folder)]


@pytest.mark.parametrize("lost", ["everything", "one file", "a manifest", "content"])
def test_local_files_are_deleted_only_when_the_bucket_has_them(log: ObjectLog, tmp_path: Path, lost: str) -> None:
    """The daemon deletes the last good copy: not on the word of an upload that was ten minutes ago."""
    opened = log.open()
    write(opened, [1])
    write(opened, [2])
    log.uploaded()
    names = objects_of(log, 1, 2)
    victim = next(n for n in names if n.endswith("segment.json") == (lost == "a manifest"))
    match lost:
        case "everything":
            log.bucket.delete(list(log.bucket.list_objects("")))
        case "content":
            changed = bytearray(log.bucket.get(victim))
            changed[-1] ^= 1
            log.bucket.put(victim, bytes(changed))
        case _:
            log.bucket.delete([victim])
    log.let_go()
    log.settled()
    opened.close()
    opened = log.open()
    log.settled()
    opened.close()
    assert_whole(log, [[1], [2]], tmp_path / "copy")


def test_start_uploads_again_what_the_bucket_lost(log: ObjectLog, tmp_path: Path) -> None:
    """Emptied while nothing ran: cdcflow must check at some point, while the local files still exist."""
    put(log, 1, 2)
    log.bucket.delete([*objects_of(log, 1, 2), "log.json", "schemas.json"])
    opened = log.open()
    wait_until(lambda: len(objects_of(log, 1, 2)) == 4, "the files to be uploaded again")
    opened.close()
    assert_whole(log, [[1], [2]], tmp_path / "copy")
    assert status(log.layout)["store_lost"] == []


def test_start_uploads_again_from_the_cache(log: ObjectLog, tmp_path: Path) -> None:
    """The last copy may be in the cache, where a merge stored it: a check of the log neither loses nor deletes it."""
    log.keep_local_s = 0
    put(log, 1, 2)
    assert check(log.layout).faults == ()  # reads everything back
    log.bucket.delete(objects_of(log, 1, 2))
    assert [fault.text for fault in check(log.layout).faults if "is missing: offsets 1 to 2" in fault.text]
    opened = log.open()
    wait_until(lambda: len(objects_of(log, 1, 2)) == 4, "the files to be uploaded again")
    opened.close()
    assert_whole(log, [[1], [2]], tmp_path / "copy")


def test_segment_missing_in_both_places_is_reported_everywhere_until_it_is_restored(
    log: ObjectLog, tmp_path: Path
) -> None:
    """The first remedy to the letter: the objects are restored from a copy, and all is well at the next start."""
    log.keep_local_s = 0
    put(log, 1, 2, 3)
    kept = {name: log.bucket.get(name) for name in objects_of(log, 3, 4)}
    log.bucket.delete(list(kept))
    config = settings_file(tmp_path, log)
    finding = lost_finding(config)
    assert "has lost offsets 3-4 of the log" in finding["text"]
    assert f"restore the objects below {log.objects.url}/segments" in finding["remedy"]
    assert "is missing: offsets 3 to 4" in said(config, "log", "check", status=1)
    opened = log.open()
    wait_until(lambda: status(log.layout)["store_lost"] == [[3, 4]], "the daemon to notice the loss")
    write(opened, [4])
    opened.close()
    assert "has lost offsets 3-4" in said(config, "status")
    for name, content in kept.items():
        log.bucket.put(name, content)
    opened = log.open()
    wait_until(lambda: status(log.layout)["store_lost"] == [], "the loss to be over")
    opened.close()
    assert lost_finding(config) == {}
    assert "the log is whole" in said(config, "log", "check")
    assert_whole(log, [[1], [2], [3], [4]], tmp_path / "copy")


def test_permanent_loss_is_accepted_by_the_second_remedy(log: ObjectLog, tmp_path: Path) -> None:
    """Expired history is refused with an error that names it, and later changes can be read and merged again."""
    log.keep_local_s = 0
    put(log, 1, 2, 3)
    log.bucket.delete(objects_of(log, 3, 4))
    config = settings_file(tmp_path, log)
    command = re.search(r"`cdcflow (log expire --before-cut \d+)`", lost_finding(config)["remedy"])
    assert command is not None
    assert "the log begins at offset 5" in said(config, *command[1].split())
    assert lost_finding(config) == {}
    assert "the log is whole: 1 segments" in said(config, "log", "check")
    opened = log.open()
    opened.close()
    assert status(log.layout)["store_lost"] == []


def test_loss_in_the_bucket_is_reported_before_the_next_start_while_local_files_exist(
    log: ObjectLog, tmp_path: Path
) -> None:
    """While the files are local nothing at home reads the bucket; a check must still report the loss."""
    put(log, 1, 2)
    log.bucket.delete(objects_of(log, 1, 2))
    config = settings_file(tmp_path, log)
    assert "offsets 1 to 2 were uploaded and are missing" in said(config, "log", "check", status=1)
    found = json.loads(said(config, "doctor", "--json", status=1))
    assert [f["level"] for f in found if "has lost offsets 1-2" in f["text"]] == ["warning"]


def test_unreachable_store_has_lost_nothing(
    own_object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage or a wrong key (which one store answers with 404) must never look like a loss."""
    log = ObjectLog(tmp_path / "log", own_object_server.objects("shop"))
    put(log, 1)
    log.settled()
    monkeypatch.setenv("CDCFLOW_WRONG_KEY", "nobody")
    key = ObjectLog(log.root, log.objects.model_copy(update={"access_key": "${env:CDCFLOW_WRONG_KEY}"}))
    if own_object_server.is_real:  # moto requires no key
        with pytest.raises(ConfigurationError, match=r"log\.objects\.access_key"):
            key.bucket.list_objects("segments")
        with pytest.raises(ConfigurationError, match=r"log\.objects\.access_key"):
            key.bucket.get("log.json")
    own_object_server.kill()
    opened = log.open()
    wait_until(lambda: bool(status(log.layout)["upload_problem"]), "the problem in the status")
    opened.close()
    assert status(log.layout)["store_lost"] == []
    found = json.loads(said(settings_file(tmp_path, log), "doctor", "--json", status=1))
    assert [f["level"] for f in found if f["subject"].startswith("store")] == ["warning"]


def test_segments_that_expire_or_are_compacted_during_the_check_are_not_lost(
    log: ObjectLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing takes a while, and other processes remove segments on purpose in the middle of it."""
    log.keep_local_s = 0
    put(log, 1, 2, 3, 4)
    listed = inventory.suspects

    def late(*args: Any) -> list[Bounds]:
        found = listed(*args)
        assert found == []
        before = counting(log.layout, 8)
        log.retention().expire(ExpiryRule(before_cut=2))
        log.retention().compact()
        assert len(log.bucket.folders("segments")) == 2
        return before

    monkeypatch.setattr(restore, "suspects", late)
    opened = log.open()
    uploads = log.uploads
    assert uploads is not None
    wait_until(lambda: uploads._compare_at > 0 or uploads.error is not None, "a comparison")
    assert uploads.error is None
    opened.close()
    assert status(log.layout)["store_lost"] == []


def test_lost_compacted_segment_gives_way_to_the_segments_it_replaced(log: ObjectLog, tmp_path: Path) -> None:
    """They are removed minutes after the compaction, locally and in the store: not before the segment that replaces
    them was checked, and while they exist nothing is lost.
    """
    log.keep_local_s = 0
    put(log, 1, 2, 3)
    assert [count for _, count in log.retention(grace_s=600).compact()] == [2]
    log.bucket.delete(objects_of(log, 1, 4))
    log.retention(grace_s=0).sweep()
    assert len(log.bucket.folders("segments")) == 3, "the last copy of the rows was removed"
    assert len(log.layout.listed_segments()[0]) == 4
    opened = log.open()
    wait_until(lambda: len(log.layout.listed_segments()[0]) == 3, "the compaction to be undone")
    opened.close()
    assert status(log.layout)["store_lost"] == []
    assert_whole(log, [[1], [2], [3]], tmp_path / "copy")


def said(config: Path, *command: str, status: int = 0) -> str:
    ran = CliRunner().invoke(app, [*command, "-c", str(config)])
    assert ran.exit_code == status, ran.output
    return ran.output


def lost_finding(config: Path) -> dict[str, Any]:
    """What `doctor` reports of a loss; {} if it reports nothing."""
    found = json.loads(said(config, "doctor", "--json", status=1))  # 1: there is no source
    return next((f for f in found if f["subject"].startswith("store") and f["level"] == "error"), {})
