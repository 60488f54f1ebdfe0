"""Files of Iceberg tables for PyIceberg: in folders of this machine (`synced`), and in buckets.

    PyIceberg ──▶ TableIO.new_input, new_output, delete
                     ├── a path, file:///…          SyncedIO
                     └── s3://…, gs://…, abfss://…  TableBuckets ──▶ BucketFolder ──▶ stores.Bucket

The schemes of one kind of store name the same object. Names of Iceberg's files are never used twice, so a write needs
no condition, and a file that was read once never changes. The keys are those that the catalog gave with the table;
otherwise those in `merge.catalog`, those of `merge.objects`, or the environment's.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import DataFile
from pyiceberg.typedef import EMPTY_DICT, Properties

from cdcflow.model.stores import StorePlace, place_in_store
from cdcflow.tables.folders import DiskFolder, RandomAccess, WarehouseFolder
from cdcflow.tables.local.synced import SyncedIO
from cdcflow.tables.local.table_buckets import BUCKETS, Identifier, TableBuckets
from cdcflow.tables.port import HandOver

if TYPE_CHECKING:
    from cdcflow.tables.bucket_folders import BucketFolder


def in_bucket(location: str) -> StorePlace | None:
    """Return the bucket and key of a location; `None` for a file of this machine.

    Raises:
        HandOver: only Spark reaches the location.
    """
    url = urlsplit(location.partition("?")[0]) if "://" in location else None
    if url is None or url.scheme == "file":
        return None
    found = place_in_store(location)
    if found is None:
        raise HandOver(f"its files are in {url.scheme}://{url.netloc}, which only Spark reaches")
    return found


class TableIO(SyncedIO):
    """Reads and writes files of a catalog's tables. `owner`: the table whose keys are used, () for the warehouse's
    keys."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self.owner: Identifier = ()

    def new_input(self, location: str) -> Any:  # Any, here and below: its base promises pyarrow's files
        found = in_bucket(location)
        return super().new_input(location) if found is None else BucketFile(self.bucket(found), location, found.key)

    def new_output(self, location: str) -> Any:
        found = in_bucket(location)
        return super().new_output(location) if found is None else BucketFile(self.bucket(found), location, found.key)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self.delete_all([location if isinstance(location, str) else location.location])

    def delete_all(self, locations: Sequence[str]) -> None:
        """Delete files. A file that does not exist counts as deleted."""
        keys: dict[str, tuple[StorePlace, list[str]]] = {}
        for location in locations:
            found = in_bucket(location)
            if found is None:
                path = self.parse_location(location)[2]
                self.forget(path)
                folder, _, name = path.rpartition("/")
                DiskFolder(Path(folder)).delete([name])
            else:
                keys.setdefault(found.root, (found, []))[1].append(found.key)
        for place, listed in keys.values():
            self.bucket(place).delete(listed)

    def open_random(self, location: str, size: int) -> RandomAccess:
        """Open a file for reading parts of it. `size`: its bytes."""
        found = in_bucket(location)
        if found is None:
            return RandomAccess(super().new_input(location).open())
        return self.bucket(found).open(found.key, size)

    def folder(self, location: str) -> WarehouseFolder:
        """Return the folder at a location."""
        found = in_bucket(location)
        if found is None:
            return DiskFolder(Path(self.parse_location(location)[2]))
        return self.bucket(found).folder(found.key.rstrip("/"))

    def path(self, location: str) -> Path | None:
        """Return the path of a location on this machine; `None` if it is in a bucket."""
        return None if in_bucket(location) is not None else Path(self.parse_location(location)[2])

    def bucket(self, place: StorePlace) -> BucketFolder:
        buckets: TableBuckets = self.properties[BUCKETS]
        return buckets.folder(place, self.owner)


def open_random(io_: FileIO, file: DataFile) -> RandomAccess:
    """Open a data file or delete file for reading parts of it."""
    if isinstance(io_, TableIO):
        return io_.open_random(file.file_path, int(file.file_size_in_bytes))
    return RandomAccess(io_.new_input(file.file_path).open())


class BucketFile(InputFile, OutputFile):
    """An object of a bucket."""

    def __init__(self, folder: BucketFolder, location: str, key: str) -> None:
        super().__init__(location=location)
        self._folder = folder
        self._key = key
        self._bytes: int | None = None

    def __len__(self) -> int:
        if self._bytes is None:
            self._bytes = self._folder.size_of(self._key)
        return self._bytes

    def exists(self) -> bool:
        try:
            len(self)
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> Any:
        if self._key.endswith((".avro", ".json")):
            return pa.BufferReader(self._folder.read_kept(self._key))
        found = self._folder.open(self._key, self._bytes).source
        # PyIceberg closes it by `with`, and gives it to pyarrow's datasets.
        return found if isinstance(found, pa.NativeFile) else pa.PythonFile(found, mode="r")

    def to_input_file(self) -> BucketFile:
        return self

    def create(self, overwrite: bool = False) -> Any:
        return _Writer(self._folder, self._key, self._set_size)

    def _set_size(self, size: int) -> None:
        self._bytes = size


class _Writer(io.BytesIO):
    """Writes an object that appears, whole, when this is closed; after an error it never appears."""

    def __init__(self, folder: BucketFolder, key: str, on_written: Callable[[int], None]) -> None:
        super().__init__()
        self._folder = folder
        self._key = key
        self._on_written = on_written

    def close(self) -> None:
        if self.closed:
            return
        content = self.getvalue()
        super().close()
        self._on_written(self._folder.write(self._key, lambda file: file.write(content)))

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if kind is None:
            self.close()
        else:
            super().close()
