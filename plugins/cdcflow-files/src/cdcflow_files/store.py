"""The objects below a prefix of a bucket, as items of a poll.

An object is whole as soon as it is listed, and its tag differs when its content does. So it is read at the first poll
that lists it, whatever its name.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable, SourceUnavailable
from cdcflow.ports import Finding
from cdcflow.sources.polled import Changing, Item
from cdcflow_files.formats import ending_of, read_file
from cdcflow_files.items import check_size, is_read, make_item, table_name
from cdcflow_files.settings import FilesSettings, Store

if TYPE_CHECKING:
    from cdcflow.stores.bucket import Bucket, StoredObject


class StoredFiles:
    """Implements `cdcflow.sources.polled.Poller` for a bucket."""

    def __init__(self, settings: FilesSettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._opened: Bucket | None = None

    @property
    def name(self) -> str:
        return self._store.url.removeprefix("s3://")

    def items(self) -> Sequence[Item]:
        """The objects, in the order of the times at which they were written."""
        with asking():
            found = [(path, seen) for path, seen in self._bucket().each_listed("") if is_read(path)]
        found.sort(key=lambda one: (one[1].modified, one[0]))
        return [
            make_item(self._settings, table_name(path), path, _print_of(seen), partial(self._read, path, seen))
            for path, seen in found
        ]

    def doctor(self) -> Iterator[Finding]:
        url = self._store.url
        try:
            with asking():
                next(iter(self._bucket().each_listed("")), None)
        except CdcflowError as error:
            yield Finding("error", "source.store", str(error).split("\n")[0], error.remedy)
        else:
            yield Finding("ok", "source.store", f"{url} can be listed")

    def _read(self, path: str, seen: StoredObject, types: Mapping[str, pa.DataType]) -> pa.Table:
        check_size(self._settings, seen.bytes)
        with tempfile.TemporaryDirectory(prefix="cdcflow-files-") as folder, asking():
            file = Path(folder) / f"content{ending_of(path)}"
            try:
                self._bucket().fetch(path, file)
                # If the tag is the same before and after the download, the content is that of the listed object.
                if _print_of(self._bucket().describe(path)) != _print_of(seen):
                    raise Changing
            except FileNotFoundError:
                raise Changing from None
            return read_file(file, types, self._settings.csv)

    def _bucket(self) -> Bucket:
        if self._opened is None:
            try:
                from cdcflow.stores.bucket import Bucket
            except ImportError as error:
                raise ConfigurationError(
                    "files in an object store need a package that is not installed",
                    remedy="run pip install 'cdcflow[objects]'",
                ) from error
            names = {"log.objects": "source.store"}
            self._opened = Bucket.of_url(self._store.url, self._store.address, names)
        return self._opened


@contextmanager
def asking() -> Iterator[None]:
    """Convert errors of the bucket's client into errors of a source: the client raises SinkUnavailable for reads,
    too."""
    try:
        yield
    except SinkUnavailable as error:
        raise SourceUnavailable(str(error).split("\n")[0], remedy=error.remedy, runbook="source-unavailable") from error


def _print_of(seen: StoredObject) -> str:
    return f"{seen.bytes} {seen.tag} {seen.modified:.0f}"
