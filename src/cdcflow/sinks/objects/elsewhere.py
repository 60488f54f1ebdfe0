"""A log in a bucket, as a process has it that has nothing else of it: an executor on another machine.

It can be sent to another process, with the keys to the store in it. Where that machine finds keys by itself (its
environment, its role), there need be none.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.changelog.layout import Layout
from cdcflow.errors import ConfigurationError
from cdcflow.model.stores import StoreAddress
from cdcflow.sinks.layer import storing

if TYPE_CHECKING:
    from cdcflow.sinks.objects.bucket import Bucket

CACHE_BYTES_MAX = 4 << 30


@dataclass(frozen=True, slots=True)
class StoredLog:
    """Implements `cdcflow.ports.workers.AwayLog`."""

    url: str
    address: StoreAddress

    @contextlib.contextmanager
    def opened(self) -> Iterator[Layout]:
        bucket = self._bucket()
        from cdcflow.sinks.objects.store import BucketStore

        # Spark names its disks to the processes that it starts, and removes what they leave there.
        disk = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
        with storing(f"making a folder for work on {self.url}"):
            room = tempfile.TemporaryDirectory(prefix="cdcflow-", dir=disk)
        with room:
            root = Path(room.name)
            yield Layout(root, BucketStore(bucket, root / "cache", CACHE_BYTES_MAX))

    def put(self, name: str, path: Path, sha256: str) -> None:
        bucket = self._bucket()
        from cdcflow.sinks.objects.uploading import put_file

        put_file(bucket, name, path, sha256)

    def take(self, name: str, target: Path) -> str:
        bucket = self._bucket()
        sha256 = bucket.fetch(name, target)
        bucket.delete([name])
        return sha256

    def _bucket(self) -> Bucket:
        try:
            from cdcflow.sinks.objects.bucket import Bucket
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"working on the log in {self.url}: {error.name} is not installed on the machine that works",
                remedy="pip install 'cdcflow[objects,local]' on every machine of the cluster",
                runbook="package-missing",
            ) from None
        return Bucket.at(self.url, lambda _: self.address)


__all__ = ["StoredLog"]
