"""States of a log whose segments are in an object store: the bucket alone has every row, whatever has expired."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.objects.logs import CACHE_BYTES_MAX, NO_SOURCE, put_away
from typer.testing import CliRunner

from cdcflow import local
from cdcflow.cli.app import app
from cdcflow.config import Objects
from cdcflow.errors import InvariantViolated
from cdcflow.log.files import states
from cdcflow.log.files.layout import UPLOADS, Layout
from cdcflow.log.maintenance.retention import ExpiryRule, LogRetention
from cdcflow.log.maintenance.snapshots_before_expiry import Keeping
from cdcflow.log.query.log import ChangeLog
from cdcflow.log.read.folder import FolderReader
from cdcflow.sinks.objects.remote import RemoteBucket
from cdcflow.sinks.objects.store import BucketStore
from cdcflow.sinks.objects.uploaded import Uploaded
from cdcflow.stores.bucket import Bucket
from cdcflow.tables.local.current import LocalCurrent

ORDERS = make_table("orders", id="int64", v="string")
EMPTIED = make_table("emptied", id="int64")
EXPECTED = {1: "v1", 2: "v2", 4: "new", 5: "v5"}


class Died(Exception):
    """The process ended here."""


class Place:
    """A log of three segments in a bucket, and its readers."""

    def __init__(self, folder: Path, objects: Objects) -> None:
        self.folder = folder
        self.objects = objects
        self.log = HandLog(folder / "log", has_transactions=True)
        for table in (ORDERS, EMPTIED):
            self.log.state(table)
        rows = [(ORDERS, "r", {"id": n, "v": f"v{n}"}) for n in range(1, 6)]
        self.log.segment([*rows, (EMPTIED, "c", {"id": 1})])
        gone = [(ORDERS, "d", {"id": 3}), (EMPTIED, "d", {"id": 1})]
        self.log.segment([(ORDERS, "u", {"id": 2, "_unchanged": ["v"]}), *gone])
        self.log.segment([(ORDERS, "u", {"id": 4, "v": "new"})])
        self.put()

    @property
    def layout(self) -> Layout:
        store = BucketStore(Bucket(self.objects), self.folder / "cache", CACHE_BYTES_MAX)
        return Layout(self.folder / "log", store)

    @property
    def alone(self) -> Layout:
        """As a machine sees it that has nothing but the bucket."""
        store = BucketStore(Bucket(self.objects), self.folder / "elsewhere", CACHE_BYTES_MAX)
        return Layout(self.folder / "nothing", store)

    def put(self) -> None:
        """The sealed segments are in the bucket, and the folder records that."""
        put_away(self.folder / "log", Bucket(self.objects))
        known = Uploaded(str(self.objects.url), self.log.next_offset - 1)
        (self.folder / "log" / UPLOADS).write_text(json.dumps(asdict(known)))

    def kept(self, offset: int) -> None:
        layout = self.layout
        Keeping(ChangeLog(FolderReader(layout), layout, LocalCurrent), layout).keep(offset)

    def expire(self, before_cut: int) -> None:
        LogRetention(self.layout, RemoteBucket(Bucket(self.objects)), grace_s=0).expire(
            ExpiryRule(before_cut=before_cut)
        )

    def values(self) -> dict[int, str]:
        """The orders, read by a machine that has only the bucket."""
        rows = ChangeLog(FolderReader(self.alone), self.alone, LocalCurrent).current("public.orders")
        return dict(zip(rows.column("id").to_pylist(), rows.column("v").to_pylist(), strict=True))


@pytest.fixture
def place(objects: Objects, tmp_path: Path) -> Place:
    return Place(tmp_path, objects)


def settings(folder: Path, objects: Objects, log: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    known = {key: value for key, value in objects.model_dump(mode="json").items() if value is not None}
    value = {
        "source": {"kind": "postgres", "url": NO_SOURCE},
        "log": {**log, "objects": {**known, "cache": str(folder / "cache")}},
        "merge": {"warehouse": "warehouse", "engine": "local"},
    }
    (folder / "cdcflow.yaml").write_text(yaml.safe_dump(value))


def run(*command: str) -> str:
    found = CliRunner().invoke(app, list(command))
    assert found.exit_code == 0, found.output
    return found.output


def test_warehouse_is_rebuilt_from_the_bucket_after_the_machine_is_gone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every daemon is off, the log's folder is lost, and most of the log has expired."""
    settings(place.folder / "home", place.objects, {"path": str(place.folder / "log")})
    monkeypatch.chdir(place.folder / "home")
    run("log", "expire", "--before-cut", "3", "--state")
    assert states.state_offsets(place.alone) == [9]
    shutil.rmtree(place.folder / "log")
    settings(place.folder / "away", place.objects, {})
    monkeypatch.chdir(place.folder / "away")
    run("rebuild", "--into", "anew")
    found = local.read_cut("anew")
    ids, values = (found["public.orders"].column(name).to_pylist() for name in ("id", "v"))
    assert dict(zip(ids, values, strict=True)) == EXPECTED
    assert found["public.emptied"].num_rows == 0
    assert json.loads(run("get", "public.orders", "2", "--json"))["values"] == {"id": 2, "v": "v2"}


@pytest.mark.parametrize("expired", [False, True], ids=["before anything expires", "which an older cdcflow kept"])
def test_bucket_has_every_row_wherever_the_expiry_dies(
    place: Place, monkeypatch: pytest.MonkeyPatch, expired: bool
) -> None:
    """A concurrent reader of the bucket sees all rows; the next run continues."""
    place.kept(9)
    if expired:  # the folder begins with a state, and the bucket does not know of it
        file = place.layout.log_file()
        place.layout.log_json.write_text(file.to_json().replace('"first_offset": 1', '"first_offset": 10'))
    left = 0
    for name in ("put_new", "put", "delete"):
        monkeypatch.setattr(Bucket, name, dying(getattr(Bucket, name), lambda: left))
    deaths = 0
    while True:
        deaths += 1
        left = deaths
        steps.clear()
        try:
            place.expire(3)
        except Died:
            left = 10**6
            assert place.values() == EXPECTED
        else:
            break
    assert deaths > 3
    left = 10**6
    assert states.state_offsets(place.alone) == [9]
    assert place.values() == EXPECTED


steps: list[str] = []


def dying(asked: Callable[..., Any], left: Callable[[], int]) -> Callable[..., Any]:
    """A request that is not sent after this many were."""

    def request(bucket: Bucket, *given: Any) -> Any:
        steps.append("")
        if len(steps) > left():
            raise Died
        return asked(bucket, *given)

    return request


def test_state_that_is_no_longer_needed_is_removed_from_the_bucket(place: Place) -> None:
    place.log.segment([(ORDERS, "u", {"id": 5, "v": "newer"})])
    place.put()
    place.kept(9)
    place.expire(3)
    place.kept(10)
    place.expire(4)
    names = {name.split("/")[0] for name in Bucket(place.objects).list_objects("states")}
    assert names == {f"{10:020d}"}
    assert place.values() == EXPECTED | {5: "newer"}


def test_state_that_the_bucket_falsified_is_named(place: Place) -> None:
    place.kept(9)
    place.expire(3)
    (entry,) = [e for name, e in states.open_state(place.alone, 9).tables.items() if name == "public.orders"]
    Bucket(place.objects).put(f"states/{9:020d}/{entry.file}", b"something else")
    with pytest.raises(InvariantViolated, match="its content differs"):
        place.values()
