"""Logs in an object store for tests: opened, uploaded, read from the store alone, copied down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from tests.support.polling import wait_until

from cdcflow.config import Objects
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.retention import LogRetention
from cdcflow.log.read.reader import check, list_segments, read_rows
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import OFFSET
from cdcflow.sinks.files.log import FileLog
from cdcflow.sinks.objects.remote import RemoteBucket
from cdcflow.sinks.objects.store import BucketStore
from cdcflow.sinks.objects.uploaded import status
from cdcflow.sinks.objects.uploads import Uploads
from cdcflow.stores.bucket import Bucket
from cdcflow.testing.sinks import PRODUCTS, Writer, changes, orders, transactions

IDENTITY = SourceIdentity("postgres", "7301", "shop", "1")
CACHE_BYTES_MAX = 1 << 20
NO_SOURCE = "postgresql://cdc@127.0.0.1:1/shop"


@dataclass
class ObjectLog:
    """A log whose directory is `root` and whose segments go to `objects`."""

    root: Path
    objects: Objects
    keep_local_s: float = 0
    uploads: Uploads | None = None
    opened: list[FileLog] = field(default_factory=list)

    @property
    def layout(self) -> Layout:
        return Layout(self.root, BucketStore(Bucket(self.objects), self.root.parent / "cache", CACHE_BYTES_MAX))

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.objects)

    @property
    def alone(self) -> Layout:
        """The log as seen by a process that has only the bucket."""
        return Layout(
            self.root.parent / "nothing", BucketStore(self.bucket, self.root.parent / "elsewhere", CACHE_BYTES_MAX)
        )

    def open(self, *, uploading: bool = True) -> FileLog:
        self.uploads = None
        if uploading:
            store = BucketStore(self.bucket, self.root.parent / "cache", CACHE_BYTES_MAX)
            self.uploads = Uploads(Layout(self.root), self.bucket, keep_local_s=self.keep_local_s, cached=store.copy)
        log = FileLog.open(self.layout, IDENTITY, uploads=self.uploads)
        self.opened.append(log)
        return log

    def retention(self, grace_s: float = 0) -> LogRetention:
        return LogRetention(self.layout, RemoteBucket(self.bucket), grace_s=grace_s)

    def settled(self) -> None:
        """Wait until everything sealed is in the bucket, and its files are dropped here."""
        settled(self.layout, self.uploads)

    def uploaded(self) -> None:
        """Wait until everything sealed is in the bucket; its files stay here for `keep_local_s`."""
        assert self.uploads is not None
        uploads = self.uploads

        def all_uploaded() -> bool:
            assert uploads.error is None
            return not status(self.layout)["upload_waiting_segments"]

        wait_until(all_uploaded, "all segments to be uploaded")

    def let_go(self) -> None:
        """From now on, local files that were uploaded may be dropped."""
        assert self.uploads is not None
        self.uploads._keep_local_s = 0

    def copied_down(self, target: Path) -> Path:
        """Every object of the bucket under its name in a directory: a log on files."""
        for name in self.bucket.list_objects(""):
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.bucket.get(name))
        return target


def settings_file(folder: Path, log: ObjectLog, *, objects: bool = True) -> Path:
    """A settings file for this log; its source cannot be reached."""
    place: dict[str, object] = {"path": str(log.root)}
    if objects:
        place["objects"] = {k: v for k, v in log.objects.model_dump(mode="json").items() if v is not None} | {
            "cache": str(log.root.parent / "cache")
        }
    path = folder / "cdcflow.yaml"
    path.write_text(yaml.safe_dump({"source": {"kind": "postgres", "url": NO_SOURCE}, "log": place}))
    return path


def settled(layout: Layout, uploads: Uploads | None) -> None:
    """Wait until the files of all segments were uploaded and dropped; only manifests remain."""
    assert uploads is not None

    def all_dropped() -> bool:
        assert uploads.error is None
        if not _with_files(layout):
            return True
        uploads.wake()
        return False

    wait_until(all_dropped, "the files of all segments to be uploaded and dropped")


def _with_files(layout: Layout) -> bool:
    listed = [layout.segment(*bounds) for bounds in layout.segment_offsets()]
    return any(len(list(directory.iterdir())) > 1 for directory in listed)


def write(log: FileLog, ids: Sequence[int]) -> None:
    """One segment with these orders and as many products."""
    writer = Writer.of(log)
    wide = changes(PRODUCTS, [{"id": i, "picture": b"\0" * 50} for i in ids])
    writer.put(orders(*ids, xid=ids[0]), transactions([ids[0] + 1000], [len(ids)], wide))
    assert log.roll()
    log.seal_pending()


def seen(place: Path | Layout, first: int = 1) -> list[tuple[int, str, object]]:
    """Every row a reader sees, starting at offset `first`: offset, table, id."""
    found = [(row[OFFSET], t.id.name, row["id"]) for t, _, rows in read_rows(place, first) for row in rows.to_pylist()]
    return sorted(found)


def written(ids: Sequence[Sequence[int]]) -> list[tuple[int, str, object]]:
    """What `seen` shows of segments that `write` made."""
    found: list[tuple[int, str, object]] = []
    for part in ids:
        found += [(len(found) + 1 + n, "orders", i) for n, i in enumerate(part)]
        found += [(len(found) + 1 + n, PRODUCTS.id.name, i) for n, i in enumerate(part)]
    return found


def assert_whole(log: ObjectLog, ids: Sequence[Sequence[int]], room: Path) -> None:
    """Here, in the bucket alone, and in a copy of the bucket: the same rows, each once, and every hash right."""
    for place in (log.layout, log.alone, log.copied_down(room)):
        assert check(place, deep=True).faults == ()
        assert seen(place) == written(ids)
        bounds = [(s.first_offset, s.last_offset) for s in list_segments(place)]
        assert bounds == [(s.first_offset, s.last_offset) for s in list_segments(log.layout)]


def put_away(root: Path, bucket: Bucket) -> None:
    """Upload the sealed part of a log made by hand to a bucket, manifests last; existing objects stay."""
    there = set(bucket.list_objects(""))
    listed = sorted(root.rglob("*"), key=lambda p: (p.name == "segment.json", str(p)))
    for path in listed:
        name = path.relative_to(root).as_posix()
        if path.is_file() and name not in there and not name.startswith(("journal", "lock", "epoch")):
            bucket.put(name, path.read_bytes())
