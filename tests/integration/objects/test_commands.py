"""The commands on a log whose segments are in a bucket, with and without the log's own directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.support.objects.logs import IDENTITY, ObjectLog, write
from typer.testing import CliRunner

from cdcflow import wiring
from cdcflow.cli.app import app
from cdcflow.config import Objects, load
from cdcflow.errors import ConfigurationError
from cdcflow.log.files import notes
from cdcflow.log.files.layout import Layout
from cdcflow.stores import bucket
from cdcflow.stores.bucket import AlreadyThere

SOURCE = {"kind": "postgres", "url": "postgresql://cdc@127.0.0.1:1/shop"}


@pytest.fixture
def log(objects: Objects, tmp_path: Path) -> ObjectLog:
    found = ObjectLog(tmp_path / "log", objects)
    opened = found.open()
    for n in range(1, 5):
        write(opened, [n])
    found.settled()
    opened.close()
    return found


def settings(tmp_path: Path, log: ObjectLog, *, home: bool) -> Path:
    """A settings file that names the bucket, and the directory too if `home`."""
    objects = {k: v for k, v in log.objects.model_dump(mode="json").items() if v is not None}
    objects["cache"] = str(tmp_path / f"cache-{home}")
    place = {"objects": objects, **({"path": str(log.root)} if home else {})}
    path = tmp_path / f"{'home' if home else 'alone'}.yaml"
    path.write_text(yaml.safe_dump({"source": SOURCE, "log": place}))
    return path


def said(config: Path, *command: str, status: int = 0) -> str:
    ran = CliRunner().invoke(app, [*command, "-c", str(config)])
    assert ran.exit_code == status, ran.output
    return ran.output


def test_retention_by_policy_expires_here_and_in_the_bucket(log: ObjectLog, tmp_path: Path) -> None:
    """A bucket that only grows is paid for, month after month."""
    config = settings(tmp_path, log, home=True)
    text = yaml.safe_load(config.read_text())
    text["log"]["retention"] = {"bytes": "1B"}
    config.write_text(yaml.safe_dump(text))
    expiring = wiring.expiring(load(config), lambda event, fields: None)
    assert expiring is not None
    expiring.step()
    assert len(json.loads(said(config, "log", "ls", "--json"))) == 4
    last = json.loads(said(config, "log", "ls", "--json"))[1]["last_offset"]
    notes.write(Layout(log.root), notes.Note("merge", notes.warehouse_name(tmp_path / "warehouse"), last))
    expiring.step()
    assert len(json.loads(said(config, "log", "ls", "--json"))) == 2
    assert len(json.loads(said(settings(tmp_path, log, home=False), "log", "ls", "--json"))) == 2
    assert "the log is whole: 2 segments" in said(config, "log", "check", "--deep")


@pytest.mark.parametrize("home", [True, False], ids=["home", "alone"])
def test_log_commands_read_the_bucket(log: ObjectLog, tmp_path: Path, home: bool) -> None:
    """Operators inspect a log when something is wrong: often from another machine, with no daemon running."""
    config = settings(tmp_path, log, home=home)
    assert len(json.loads(said(config, "log", "ls", "--json"))) == 4
    assert "the log is whole: 4 segments" in said(config, "log", "check", "--deep")
    lines = said(config, "log", "show", "--from", "1", "--limit", "3", "--json").splitlines()
    assert [json.loads(line)["id"] for line in lines] == [1, 1, 2]
    assert "1 shop.orders" not in said(config, "log", "show", "--table", "shop.orders", "--limit", "1")


def test_consumer_reads_the_bucket_with_every_daemon_off(log: ObjectLog, tmp_path: Path) -> None:
    """Its folder is the one that the reader names, as the error without one says."""
    alone = settings(tmp_path, log, home=False)
    create = ("consumer", "create", "shop", "--from", "beginning")
    assert "name a folder for them: --state ./consumers" in said(alone, *create, status=78)
    kept = ("--state", str(tmp_path / "kept"))
    said(alone, *create, *kept)
    read = ("consumer", "read", "shop", "--json", "--commit", *kept)
    lines = [json.loads(line) for line in said(alone, *read).splitlines()]
    assert [line["offset"] for line in lines] == list(range(1, 9))
    assert said(alone, *read) == ""
    opened = log.open()
    write(opened, [5])
    log.settled()
    opened.close()
    assert [json.loads(line)["offset"] for line in said(alone, *read).splitlines()] == [9, 10]
    assert "shop" in said(alone, "consumer", "ls", *kept)


def test_bucket_without_a_log_is_reported_to_have_none(objects: Objects, tmp_path: Path) -> None:
    """A mistyped prefix is an empty place, and must not look like a log that is."""
    config = settings(tmp_path, ObjectLog(tmp_path / "log", objects), home=False)
    for command in (("log", "show"), ("log", "ls"), ("merge",)):
        assert f"there is no change log at {objects.url}" in said(config, *command, status=78)


def test_compact_and_expire_change_the_bucket(log: ObjectLog, tmp_path: Path) -> None:
    """Both places must tell the same afterwards, and every byte of what is gone must be gone."""
    home, alone = settings(tmp_path, log, home=True), settings(tmp_path, log, home=False)
    assert "3 segments became 1" in said(home, "log", "compact", "--grace", "0s")
    for config in (home, alone):
        assert len(json.loads(said(config, "log", "ls", "--json"))) == 2
        assert "the log is whole: 2 segments" in said(config, "log", "check", "--deep")
    assert "the log begins at offset 7" in said(home, "log", "expire", "--bytes-max", "1KiB")
    for config in (home, alone):
        assert "the log is whole: 1 segments" in said(config, "log", "check", "--deep")
        assert "has expired" in said(config, "log", "show", "--from", "1", status=65)
    assert len(log.bucket.folders("segments")) == 1


def test_maintenance_without_the_directory_is_refused(log: ObjectLog, tmp_path: Path) -> None:
    """The writer's machine has the manifests: if another machine changed the segments, the writer would search for them
    in vain.
    """
    alone = settings(tmp_path, log, home=False)
    assert "log.path" in said(alone, "log", "compact", status=78)
    assert "no limit is given" in said(settings(tmp_path, log, home=True), "log", "expire", status=78)


def test_capture_without_a_directory_is_refused(log: ObjectLog, tmp_path: Path) -> None:
    """The journal needs a disk; one in a cache would be wiped with it."""
    with pytest.raises(ConfigurationError, match=r"log\.path"):
        wiring.open_log(load(settings(tmp_path, log, home=False)), IDENTITY)


def test_status_reports_what_waits(log: ObjectLog, tmp_path: Path) -> None:
    """A store that is unavailable for a day fills the disk: an operator must see that in time."""
    config = settings(tmp_path, log, home=True)
    assert "all sealed segments are in the store, up to offset 8" in said(config, "status")
    opened = log.open(uploading=False)
    write(opened, [9])
    opened.close()
    assert "1 segments (" in said(config, "status")


def test_large_file_is_uploaded_once_and_in_parts(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction of gigabytes makes one file: memory must not hold it."""
    monkeypatch.setattr(bucket, "ONE_REQUEST_BYTES", 1 << 20)
    monkeypatch.setattr(bucket, "PART_BYTES", 5 << 20)
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * (6 << 12))
    found = bucket.Bucket(objects)
    found.put_new("large", path)
    assert found.fetch("large", tmp_path / "back") == found.hash_of("large")
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
    with pytest.raises(AlreadyThere):
        found.put_new("large", path)
