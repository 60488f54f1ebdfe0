"""Reads segments from a bucket, as `log.files.layout` requires of a store, with a bounded cache of what was read.

    <cache>/<log id>/manifests/<segment>.json      a few KB each; stays as long as the segment does
    <cache>/<log id>/files/<segment>/<file>        what was read last, up to the bytes allowed
    <cache>/<log id>/files/<state>/<file>          the same for a state

Nothing under these names ever changes in the store, so a copy is as good as the original: this is why a reader lists a
bucket of thousands of segments with a request per thousand, and not with one each. The list of segments is queried each
time. A folder counts once it has a manifest, which is written last.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cdcflow.errors import ConfigurationError, InvariantViolated, SinkUnavailable
from cdcflow.log.files.layout import CHECKPOINT, Bounds, segment_bounds, segment_name, state_name, state_offset
from cdcflow.log.format.segment import Segment, SegmentFile
from cdcflow.model.stores import StoreAddress
from cdcflow.stores.bucket import Bucket

LEFT_FOR_S = 2 * 86400.0
WIDER = 16
AT_ONCE = 16
"""How many manifests are requested at the same time."""


class BucketStore:
    """A log's segments in a bucket. Implements `cdcflow.log.files.layout.Store`; for several threads and processes."""

    def __init__(self, bucket: Bucket, cache: Path, cache_bytes_max: int) -> None:
        self._bucket = bucket
        self._cache = cache
        self._bytes_max = cache_bytes_max
        self._log_id: str | None = None

    @property
    def name(self) -> str:
        return self._bucket.name

    @property
    def address(self) -> StoreAddress:
        return self._bucket.address

    @property
    def bytes_max(self) -> int:
        """The maximum size of the cache."""
        return self._bytes_max

    @property
    def room(self) -> Path:
        """A directory for temporary files; created if it does not exist."""
        rooms = _make_directory(self._cache / "rooms")
        for left in _paths_in(rooms):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > LEFT_FOR_S:
                    shutil.rmtree(left, ignore_errors=True)  # left by a killed process
        return rooms

    def log_json(self) -> bytes:
        text = self._bucket.get("log.json")
        try:
            self._log_id = str(json.loads(text)["log_id"])
        except (ValueError, KeyError, TypeError):
            raise InvariantViolated(
                f"reading {self.name}/log.json: cdcflow did not write it", runbook="log-damaged"
            ) from None
        return text

    def schemas(self) -> bytes:
        return self._bucket.get("schemas.json")

    def checkpoint(self) -> bytes:
        return self._bucket.get(CHECKPOINT)

    def segments(self) -> Sequence[Bounds]:
        found = sorted(b for n in self._bucket.folders("segments") if (b := segment_bounds(n)) is not None)
        if not found:  # there may be no log yet: a log in Kafka may have nothing sealed
            return []
        known = self._cached_bounds(found)
        new = [bounds for bounds in found if bounds not in known]
        if len(new) > 1:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                there = list(pool.map(self._has_manifest, new))
        else:
            there = [self._has_manifest(bounds) for bounds in new]
        return [*known, *(bounds for bounds, is_there in zip(new, there, strict=True) if is_there)]

    def segments_behind(self, offset: int) -> Sequence[Bounds]:
        step = 1
        while True:
            start = max(0, offset - step)
            found = self._listed_from(start, offset)
            if found is not None:
                return found
            step *= WIDER  # the segment with the offset begins earlier

    def _listed_from(self, start: int, offset: int) -> list[Bounds] | None:
        """The segments whose first offset is `start` or more; None if the one with `offset` is not among them."""
        found: list[Bounds] = []
        for name, _ in self._bucket.each_listed("segments", f"{start:020d}"):
            folder, _, file = name.partition("/")
            bounds = segment_bounds(folder)
            if bounds is None or file != "segment.json":
                continue
            if not found and start and bounds[0] > offset:
                return None
            found.append(bounds)
        return found if found or not start else None

    def manifest(self, bounds: Bounds) -> bytes:
        copy = self._manifests / f"{segment_name(bounds)}.json"
        with contextlib.suppress(FileNotFoundError):
            return copy.read_bytes()
        text = self._bucket.get(f"segments/{segment_name(bounds)}/segment.json")
        with self._keeping(copy) as temporary:
            temporary.write_bytes(text)
        return text

    def file(self, bounds: Bounds, file: SegmentFile, *, from_store: bool = False) -> Path:
        return self._local_copy("segments", segment_name(bounds), file, from_store=from_store)

    def fetch(self, bounds: Bounds, file: SegmentFile, target: Path) -> None:
        self._fetch(f"segments/{segment_name(bounds)}/{file.path}", file, target)

    def states(self) -> Sequence[int]:
        parts = [name.split("/") for name in self._bucket.list_objects("states")]
        return sorted(offset for n in parts if n[1:] == ["state.json"] and (offset := state_offset(n[0])) is not None)

    def state(self, offset: int) -> bytes:
        return self._bucket.get(f"states/{state_name(offset)}/state.json")

    def state_file(self, offset: int, file: SegmentFile) -> Path:
        return self._local_copy("states", state_name(offset), file)

    def copy(self, segment: Segment, file: SegmentFile) -> Path:
        """The path of a file that was read back, if it still exists; does not query the store."""
        name = segment_name((segment.first_offset, segment.last_offset))
        return self._cache / segment.log_id / "files" / name / file.path

    def forget(self, bounds: Bounds) -> None:
        """Drop the copies of a segment that was removed from the store."""
        (self._manifests / f"{segment_name(bounds)}.json").unlink(missing_ok=True)
        shutil.rmtree(self._files / segment_name(bounds), ignore_errors=True)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _own(self) -> Path:
        if self._log_id is None:
            self.log_json()
        return self._cache / str(self._log_id)

    @property
    def _manifests(self) -> Path:
        return self._own / "manifests"

    @property
    def _files(self) -> Path:
        return self._own / "files"

    def _local_copy(self, kind: str, folder: str, file: SegmentFile, *, from_store: bool = False) -> Path:
        copy = self._files / folder / file.path
        if not from_store:
            with contextlib.suppress(FileNotFoundError):
                os.utime(copy)  # the last one used is evicted last
                return copy
        self._make_room(file.bytes)
        with self._keeping(copy) as temporary:
            self._fetch(f"{kind}/{folder}/{file.path}", file, temporary)
        return copy

    def _fetch(self, name: str, file: SegmentFile, target: Path) -> None:
        try:
            found = self._bucket.fetch(name, target)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise SinkUnavailable(
                f"copying {self.name}/{name} to {target}: {error.strerror or error}", runbook="store-unreachable"
            ) from error
        if found != file.sha256:
            target.unlink()
            raise InvariantViolated(
                f"reading {self.name}/{name}: its content differs from what was sealed",
                remedy="run `cdcflow log check`, and restore the object from a copy",
                runbook="log-damaged",
            )

    def _cached_bounds(self, found: Sequence[Bounds]) -> list[Bounds]:
        """Return those folders whose manifest is cached. The copies of expired and compacted segments are removed."""
        there = set(found)
        known: list[Bounds] = []
        for path in _paths_in(self._manifests):
            bounds = segment_bounds(path.name.removesuffix(".json"))
            if bounds in there and bounds is not None:
                known.append(bounds)
            elif bounds is not None:
                self.forget(bounds)
        return known

    def _has_manifest(self, bounds: Bounds) -> bool:
        try:
            self.manifest(bounds)
        except FileNotFoundError:
            return False
        return True

    @contextlib.contextmanager
    def _keeping(self, copy: Path) -> Iterator[Path]:
        """Provide a file to write, which gets its name when it is whole: another process may fetch the same one."""
        _make_directory(copy.parent)
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=copy.parent)
        os.close(handle)
        try:
            yield Path(temporary)
            Path(temporary).replace(copy)
        finally:
            Path(temporary).unlink(missing_ok=True)

    def _make_room(self, needed: int) -> None:
        """Evict the least recently used files, until `needed` more bytes are allowed."""
        kept: list[tuple[float, int, Path]] = []
        for path in self._files.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                if not path.name.endswith(".tmp"):
                    found = path.stat()
                    kept.append((found.st_mtime, found.st_size, path))
        total = sum(size for _, size, _ in kept) + needed
        for _, size, path in sorted(kept):
            if total <= self._bytes_max:
                break
            path.unlink(missing_ok=True)
            total -= size


def _make_directory(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigurationError(
            f"caching objects of the store in {directory}: {error.strerror}",
            remedy="set log.objects.cache to a directory that can be written",
            runbook="log-not-writable",
        ) from error
    return directory


def _paths_in(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
