"""Questions to a log that is in an object store alone: what a row costs, and that new segments are seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.objects.logs import put_away

from cdcflow.config import Objects
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.index import Indexing
from cdcflow.log.query.log import ChangeLog
from cdcflow.log.read.folder import FolderReader
from cdcflow.sinks.objects.store import BucketStore
from cdcflow.stores.bucket import Bucket, StoredObject
from cdcflow.tables.local.current import LocalCurrent

ORDERS = make_table("orders", id="int64", v="string")
SEGMENTS = 20
REQUESTS_MAX = 4


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every request to the store."""
    seen: list[str] = []
    get, each, fetch = Bucket.get, Bucket.each_listed, Bucket.fetch

    def counted_get(bucket: Bucket, name: str) -> bytes:
        seen.append(f"get {name}")
        return get(bucket, name)

    def counted_list(bucket: Bucket, name: str, after: str = "") -> Iterator[tuple[str, StoredObject]]:
        seen.append(f"list {name} behind {after}")
        return each(bucket, name, after)

    def counted_fetch(bucket: Bucket, name: str, target: Path) -> str:
        seen.append(f"get {name}")
        return fetch(bucket, name, target)

    monkeypatch.setattr(Bucket, "get", counted_get)
    monkeypatch.setattr(Bucket, "each_listed", counted_list)
    monkeypatch.setattr(Bucket, "fetch", counted_fetch)
    return seen


def test_row_lookup_needs_few_requests_and_sees_new_segments(
    objects: Objects, tmp_path: Path, requests: list[str]
) -> None:
    """With the index on this machine: one look for new segments, and the file that has the row."""
    log = HandLog(tmp_path / "log", has_transactions=True)
    log.state(ORDERS)
    for number in range(SEGMENTS):
        log.segment([(ORDERS, "c" if number < 10 else "u", {"id": number % 10, "v": f"v{number}"})])
    put_away(log.root, Bucket(objects))
    layout = Layout(tmp_path / "elsewhere", BucketStore(Bucket(objects), tmp_path / "elsewhere", 1 << 20))
    assert Indexing(layout).step() == SEGMENTS
    files = layout.root.glob("**/*.parquet")
    for path in list(files):
        path.unlink()  # read again from the store
    asked = ChangeLog(FolderReader(layout), layout, LocalCurrent)
    assert asked.get("public.orders", 0).values == {"id": 0, "v": "v10"}
    for key in range(1, 10):
        requests.clear()
        assert asked.get("public.orders", key).values == {"id": key, "v": f"v{key + 10}"}
        assert 0 < len(requests) <= REQUESTS_MAX, requests
    requests.clear()
    assert asked.get("public.orders", 99).state == "never there"
    assert len(requests) == 1, requests
    log.segment([(ORDERS, "u", {"id": 3, "v": "newest"})])
    put_away(log.root, Bucket(objects))
    assert asked.get("public.orders", 3).values == {"id": 3, "v": "newest"}
