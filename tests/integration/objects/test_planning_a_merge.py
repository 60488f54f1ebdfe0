"""The number of a merge's requests to a store before it begins does not grow with the age of the log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.objects.logs import put_away

from cdcflow import local
from cdcflow.config import Objects
from cdcflow.log.files.layout import Layout
from cdcflow.sinks.objects.store import BucketStore
from cdcflow.stores.bucket import Bucket, StoredObject
from cdcflow.tables.segments import OlderNeeded, sealed_range

ORDERS = make_table("orders", id="int64")


@pytest.fixture
def hand_log(tmp_path: Path) -> HandLog:
    return HandLog(tmp_path / "made" / "log")


@pytest.fixture
def elsewhere(tmp_path: Path, objects: Objects) -> Callable[[], Layout]:
    """The log as a machine sees it that has never read it."""
    rooms = iter(range(100))

    def seen() -> Layout:
        room = tmp_path / f"elsewhere-{next(rooms)}"
        return Layout(room, BucketStore(Bucket(objects), room, 1 << 20))

    return seen


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were read or listed."""
    seen: list[str] = []
    get, listed, folders = Bucket.get, Bucket.each_listed, Bucket.folders

    def counted(bucket: Bucket, name: str) -> bytes:
        seen.append(name)
        return get(bucket, name)

    def each(bucket: Bucket, name: str, after: str = "") -> Iterator[tuple[str, StoredObject]]:
        for found in listed(bucket, name, after):
            seen.append(found[0])
            yield found

    def all_folders(bucket: Bucket, name: str) -> list[str]:
        found = folders(bucket, name)
        seen.extend(found)
        return found

    monkeypatch.setattr(Bucket, "get", counted)
    monkeypatch.setattr(Bucket, "each_listed", each)
    monkeypatch.setattr(Bucket, "folders", all_folders)
    return seen


def segments_of_one_row(log: HandLog, objects: Objects, count: int) -> None:
    """A log of this many segments, in the store: copies of one that was sealed, but for their numbers."""
    log.state(ORDERS)
    log.segment([(ORDERS, "c", {"id": 1})])
    (first,) = (log.root / "segments").iterdir()
    text = json.loads((first / "segment.json").read_text())
    for number in range(2, count + 1):
        directory = log.root / "segments" / f"{number:020d}-{number:020d}"
        shutil.copytree(first, directory)
        text |= {"first_offset": number, "last_offset": number, "first_cut": number, "last_cut": number}
        (directory / "segment.json").write_text(json.dumps(text))
    put_away(log.root, Bucket(objects))


@pytest.mark.parametrize("age", [30, 90])
def test_repeated_merge_requests_only_new_segments(
    age: int, hand_log: HandLog, objects: Objects, elsewhere: Callable[[], Layout], asked: list[str]
) -> None:
    """Also where nothing of the log was ever read, and whether the last merge ended with a segment or inside one."""
    segments_of_one_row(hand_log, objects, age)
    for position in (age, age - 2):
        asked.clear()
        found = sealed_range(elsewhere(), position, recent=True)
        assert found.newest is not None
        assert found.newest.last_offset == age
        assert len(asked) < 30, "it was listed from the beginning"
        assert found.older
        with pytest.raises(OlderNeeded):
            found.files(ORDERS.id, 0)
        with pytest.raises(OlderNeeded):
            found.reaches(1)
        with pytest.raises(OlderNeeded):
            found.tables(None)
    whole = sealed_range(elsewhere(), 1, recent=True)
    assert (whole.older, len(whole.segments)) == (False, age)


def test_rebuilt_table_gets_all_of_the_log(
    hand_log: HandLog, objects: Objects, elsewhere: Callable[[], Layout], tmp_path: Path, asked: list[str]
) -> None:
    """The published cut is far on; the table's folder was moved away, so the fold begins at the beginning."""
    warehouse = tmp_path / "warehouse"
    hand_log.state(ORDERS)

    def merged(*ids: int) -> Any:
        for id_ in ids:
            hand_log.segment([(ORDERS, "c", {"id": id_})])
        put_away(hand_log.root, Bucket(objects))
        asked.clear()
        (report,) = local.merge(elsewhere(), warehouse).tables
        return report

    for id_ in range(1, 41):
        hand_log.segment([(ORDERS, "c", {"id": id_})])
    assert merged().changes == 40
    assert merged(41).changes == 1
    assert len([name for name in asked if name.endswith("segment.json")]) < 20
    (warehouse / "public" / "orders").rename(tmp_path / "moved")
    assert merged(42).changes == 42
