"""Remote access to a bucket, and to a log in a bucket for a process that can reach only the object store.

Objects of these classes can be sent to another process. They contain the keys to the store, unless that machine finds
keys itself (environment, role).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError
from cdcflow.log.disk.layer import storing
from cdcflow.log.files.layout import Layout
from cdcflow.model.stores import StoreAddress

if TYPE_CHECKING:
    from cdcflow.stores.bucket import Bucket

CACHE_BYTES_MAX = 4 << 30


@dataclass(frozen=True, slots=True)
class StoredLog:
    """Implements `cdcflow.log.workers.AwayLog`."""

    url: str
    address: StoreAddress

    @contextlib.contextmanager
    def open(self) -> Iterator[Layout]:
        bucket = self._bucket()
        from cdcflow.sinks.objects.store import BucketStore

        with room_for(self._work) as root:
            yield Layout(root, BucketStore(bucket, root / "cache", CACHE_BYTES_MAX))

    def put(self, name: str, path: Path, sha256: str) -> None:
        bucket = self._bucket()
        from cdcflow.sinks.objects.upload import put_file

        put_file(bucket, name, path, sha256)

    def take(self, name: str, target: Path) -> str:
        bucket = self._bucket()
        sha256 = bucket.fetch(name, target)
        bucket.delete([name])
        return sha256

    @property
    def _work(self) -> str:
        return f"working on the log in {self.url}"

    def _bucket(self) -> Bucket:
        return bucket_at(self.url, self.address, self._work, {})


def bucket_at(url: str, address: StoreAddress, doing: str, names: Mapping[str, str]) -> Bucket:
    """Open a bucket on a machine that may lack the client library. `names`: see `Bucket.of_url`.

    Raises:
        ConfigurationError: the store's client library is not installed here.
    """
    try:
        from cdcflow.stores.bucket import Bucket
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{doing}: the package {error.name} is not installed on the machine that does it",
            remedy="pip install 'cdcflow[objects]' on every machine of the cluster",
            runbook="package-missing",
        ) from None
    return Bucket.of_url(url, lambda _: address, names)


@contextlib.contextmanager
def room_for(doing: str) -> Iterator[Path]:
    """Provide a temporary folder, on one of Spark's disks if Spark names one to this process.

    Spark removes from it what its processes leave.
    """
    disk = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
    with storing(f"creating a folder for {doing}"):
        room = tempfile.TemporaryDirectory(prefix="cdcflow-", dir=disk)
    with room:
        yield Path(room.name)
