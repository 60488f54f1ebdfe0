"""merge: how much of a log in an object store is read, relative to the size of what is new in it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from tests.servers.objects import ObjectServer

from bench.harness import tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import Party
from bench.results import Line, at_most, compared
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.reader import list_segments
from cdcflow.stores.bucket import Bucket

ROWS, CHANGES = 1_000_000, 200_000


def log_bytes(table_format: str, count: int) -> list[Line]:
    """A first load, then changes of whole rows, then such that leave a column unchanged."""
    tell("  merge: bytes of a log in a store")
    found: dict[str, tuple[list[float], list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder, ObjectServer() as server:
        room = Path(folder)
        objects = server.objects("logs", "bench")
        party = Party("this checkout", None, room / "scratch", table_format, s3=True)
        try:
            log, shape = SealedLog(room / "log"), table("large")
            chance = np.random.default_rng(17)
            log.segment({shape: rows(np.arange(ROWS), 1)}, "r")
            for number in range(2 * count + 1):
                if number:
                    ids = np.sort(chance.choice(ROWS, CHANGES, replace=False))
                    log.segment({shape: rows(ids, number)}, "u", unchanged=("doc",) if number % 2 else ())
                _put(log.root, Bucket(objects))
                told = party.ask(
                    "merge_stored",
                    objects=objects.model_dump(mode="json"),
                    room=str(room / "seen"),
                    warehouse=str(room / "lake"),
                )
                newest = list_segments(Layout(log.root))[-1]
                size = sum(f.bytes for f in newest.files if f.table is not None)
                what = "first load" if not number else "a column unchanged" if number % 2 else "whole rows"
                tell(f"    {what}: {told['read']:,} of {size:,} bytes")
                read, there = found.setdefault(what, ([], []))
                read.append(told["read"] / 1e6)
                there.append(size / 1e6)
        finally:
            party.close()
    return [
        compared("merge", f"log in a store, {what}", "MB read", read, there, "its size", at_most(1.05))
        for what, (read, there) in found.items()
    ]


def _put(root: Path, bucket: Bucket) -> None:
    """Upload the sealed part to a bucket, manifests last."""
    there = set(bucket.list_objects(""))
    for path in sorted(root.rglob("*"), key=lambda p: (p.name == "segment.json", str(p))):
        name = os.fspath(path.relative_to(root))
        if path.is_file() and name not in there:
            bucket.put(name, path.read_bytes())
