"""The paths in a log's directory, and the content of its `log.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.log.format.framing import other_version
from cdcflow.log.format.segment import Segment, SegmentFile
from cdcflow.model.position import Checkpoint, SourceIdentity
from cdcflow.model.stores import StoreAddress

LOG_VERSION = 2
_SEGMENT_NAME = 41
_JOURNAL = re.compile(r"(\d{20})\.journal")


@dataclass(frozen=True, slots=True)
class LogFile:
    """The content of `log.json`: the identity of a log. `first_offset` is the first offset that is still stored; older
    ones have expired."""

    log_id: str
    source: SourceIdentity
    created: str
    first_offset: int = 1
    version: int = LOG_VERSION

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "source": self.source.to_json()}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> LogFile:
        """Read what `to_json` wrote. Raises ConfigurationError if another version of cdcflow wrote it."""
        value: Mapping[str, Any] = json.loads(text)
        if value["version"] != LOG_VERSION:
            raise other_version(name, f"version {value['version']}", value["version"], LOG_VERSION)
        source = SourceIdentity.from_json(value["source"])
        return cls(value["log_id"], source, value["created"], value["first_offset"], value["version"])


UPLOADS = "uploads.json"
"""The file that records how much of the log a store has."""
CHECKPOINT = "checkpoint.json"
"""In a store: the object with the log's latest checkpoint. It is uploaded now and then while no row has arrived since
the latest segment, so that readers with access only to the store know how far the source's time has advanced."""

Bounds = tuple[int, int]
"""First and last offset of a segment, both inclusive."""


class Store(Protocol):
    """A second place for segments: a bucket in which everything has the same name as on disk.

    For a missing object each method raises FileNotFoundError; if the store is unavailable, or denies access, it raises
    a `CdcflowError`.
    """

    @property
    def name(self) -> str:
        """The store's name for users: its URL."""
        ...

    @property
    def address(self) -> StoreAddress:
        """The address by which another client finds the store."""
        ...

    @property
    def bytes_max(self) -> int:
        """How many bytes of downloaded copies to keep on the local disk at a time."""
        ...

    @property
    def room(self) -> Path:
        """An existing directory for temporary downloads."""
        ...

    def log_json(self) -> bytes: ...
    def schemas(self) -> bytes: ...
    def checkpoint(self) -> bytes:
        """Return the log's latest checkpoint, as uploaded while no row arrived (see `CHECKPOINT`)."""
        ...

    def segments(self) -> Sequence[Bounds]:
        """Return the segments that have a manifest, in any order."""
        ...

    def segments_behind(self, offset: int) -> Sequence[Bounds]:
        """Return the segments with rows after an offset, and the one that contains the offset, if it exists; the result
        may include some older ones. The cost does not depend on how many segments precede them."""
        ...

    def manifest(self, bounds: Bounds) -> bytes: ...

    def file(self, bounds: Bounds, file: SegmentFile, *, from_store: bool = False) -> Path:
        """Return a local copy of one file, verified against the manifest. The copy may be deleted soon, so open it at
        once. `from_store`: read the file from the store even if a copy exists."""
        ...

    def fetch(self, bounds: Bounds, file: SegmentFile, target: Path) -> None:
        """Write one file, verified against the manifest, to `target`."""
        ...

    def forget(self, bounds: Bounds) -> None:
        """Delete the local copies of a segment that was removed from the store."""
        ...

    def states(self) -> Sequence[int]:
        """Return the offsets of the complete states (`log.files.states`), ascending."""
        ...

    def state(self, offset: int) -> bytes:
        """Return the content of a state's `state.json`."""
        ...

    def state_file(self, offset: int, file: SegmentFile) -> Path:
        """Return a local copy of one file of a state. It may be deleted soon, like the copy from `file`."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one log. Names are zero-padded offsets, so that a listing is in order (hard case L22).

    With a `store` there are two cases. On the machine that writes the log (`is_home`: log.json is in the directory)
    every segment has its directory and its manifest; files missing from it are in the store, and only those are ever
    read from there. Everywhere else there is only the store.
    """

    root: Path
    store: Store | None = None

    @classmethod
    def of(cls, location: Path | str | Layout) -> Layout:
        """Return a log's layout, from its directory, or the given layout itself."""
        return location if isinstance(location, Layout) else cls(Path(location))

    @property
    def is_home(self) -> bool:
        """Whether the log is or was written in this directory."""
        return self.store is None or self.log_json.exists()

    @property
    def away(self) -> Store | None:
        """The store, if the log is not on this machine and there is only the store; otherwise `None`."""
        return None if self.is_home else self.store

    @property
    def absolute(self) -> Layout:
        """The layout with an absolute path, for a process with another working directory."""
        return replace(self, root=self.root.resolve())

    @property
    def name(self) -> str:
        """The log's name for users."""
        return str(self.root) if self.store is None or self.is_home else self.store.name

    @property
    def log_json(self) -> Path:
        return self.root / "log.json"

    @property
    def schemas(self) -> Path:
        return self.root / "schemas.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def epoch(self) -> Path:
        return self.root / "epoch"

    @property
    def journals(self) -> Path:
        return self.root / "journal"

    @property
    def newest(self) -> Path:
        return self.root / "newest"

    @property
    def segments(self) -> Path:
        return self.root / "segments"

    @property
    def spools(self) -> Path:
        return self.root / "spool"

    def journal(self, first_offset: int) -> Path:
        return self.journals / f"{first_offset:020d}.journal"

    def segment(self, first_offset: int, last_offset: int) -> Path:
        return self.segments / segment_name((first_offset, last_offset))

    def spool(self, name: str) -> Path:
        return self.spools / _plain(name, self.spools)

    def journal_offsets(self) -> list[int]:
        """Return the first offsets of the existing journals, ascending."""
        found = (_JOURNAL.fullmatch(p.name) for p in _list_folder(self.journals))
        return sorted(int(m[1]) for m in found if m)

    def segment_offsets(self) -> list[Bounds]:
        """Return the first and last offsets of the segments that count, ascending. A segment that replaced others
        counts in their place."""
        return widest_segments(self.listed_segments()[0])

    def segments_behind(self, offset: int) -> list[Bounds]:
        """Return at least those of the segments that have rows after an offset, and the one that contains the offset,
        if it exists. Return all segments if listing all is as fast."""
        away = self.away
        return self.segment_offsets() if away is None else widest_segments(away.segments_behind(offset))

    def listed_segments(self) -> tuple[list[Bounds], list[Path]]:
        """Return the first and last offsets of the existing segments, ascending, and the directories of unfinished
        ones.

        A log may have tens of thousands of segments, so the daemon does not call this at its start; it walks back from
        the latest segment instead.
        """
        if (away := self.away) is not None:
            return sorted(away.segments()), []
        names = [path.name for path in _list_folder(self.segments)]
        found = sorted(bounds for n in names if (bounds := segment_bounds(n)) is not None)
        unfinished = [self.segments / n for n in names if n.startswith(".") and n.endswith(".tmp")]
        return found, unfinished

    def manifests_back(self, newest: Bounds | None, first_offset: int) -> Iterator[tuple[Segment, bytes]]:
        """Yield the manifests (and their bytes) from the segment `newest` back to the one that has `first_offset`.

        Raises as `manifest` does, and InvariantViolated if one is missing.
        """
        while newest is not None and newest[1] >= first_offset:
            try:
                segment, text = self.manifest(*newest)
            except FileNotFoundError:
                segment, text = self._manifest_ending(newest)
            yield segment, text
            newest = segment.before

    def _manifest_ending(self, bounds: Bounds) -> tuple[Segment, bytes]:
        """Return the manifest of the segment that replaced this one and others before it."""
        wider = next((b for b in self.segment_offsets() if b[1] == bounds[1] and b[0] < bounds[0]), None)
        if wider is not None:
            return self.manifest(*wider)
        directory = self.segment(*bounds)
        what = "has no segment.json" if directory.exists() else "is missing"
        raise InvariantViolated(f"reading the log {self.name}: {directory} {what}", runbook="log-damaged")

    def is_here(self, segment: Segment, file: SegmentFile) -> bool:
        """Whether a file of a segment is in the directory; otherwise it is in the store."""
        return (self.segment(segment.first_offset, segment.last_offset) / file.path).exists()

    def file(self, segment: Segment, file: SegmentFile, *, from_store: bool = False) -> Path:
        """Return a local path where one of a segment's files can be opened now. Raises FileNotFoundError if it exists
        nowhere.

        `from_store`: a file that is not in the directory is read from the store even if a local copy of it exists.

        Raises:
            SinkUnavailable, ConfigurationError: the store is unavailable, or denies access.
            InvariantViolated: the store's content differs from what was sealed.
        """
        path = self.segment(segment.first_offset, segment.last_offset) / file.path
        if path.exists():
            return path
        if self.store is None:
            if (self.root / UPLOADS).exists():
                raise ConfigurationError(
                    f"reading {path}: the files of this segment have moved to an object store",
                    remedy="set log.objects in the settings and read the log with those settings",
                    runbook="no-log",
                )
            return path
        return self.store.file((segment.first_offset, segment.last_offset), file, from_store=from_store)

    def exists(self) -> bool:
        """Whether the log exists, in the directory or in the store."""
        if self.log_json.exists():
            return True
        try:
            return self.store is not None and bool(self.store.log_json())
        except FileNotFoundError:
            return False

    def log_file(self) -> LogFile:
        """Return the content of `log.json`. Raises ConfigurationError if there is no log here."""
        name = str(self.log_json)
        try:
            text = self.log_json.read_bytes()
        except FileNotFoundError:
            if self.store is None:
                raise ConfigurationError(
                    f"reading the log {self.root}: there is no log here (no log.json)", runbook="no-log"
                ) from None
            try:
                name, text = f"{self.store.name}/log.json", self.store.log_json()
            except FileNotFoundError:
                raise ConfigurationError(
                    f"reading the log {self.store.name}: there is no log there (no log.json)",
                    remedy="start `cdcflow run` first: it writes log.json with the first segment; or correct "
                    "log.objects.url",
                    runbook="no-log",
                ) from None
        return LogFile.from_json(text, name)

    def newest_journal(self) -> tuple[int, int] | None:
        """Return the epoch and first offset that were recorded for the latest journal; `None` before the first record.
        A later journal may exist already; an older one is never the latest.

        Raises:
            InvariantViolated: the file has different content.
        """
        try:
            epoch, first = self.newest.read_text().split()
            return int(epoch), int(first)
        except FileNotFoundError:
            return None
        except ValueError:
            raise InvariantViolated(
                f"reading {self.newest}: not an epoch and an offset", runbook="log-damaged"
            ) from None

    def schemas_json(self) -> bytes | None:
        """Return the content of `schemas.json`; `None` if it does not exist yet."""
        try:
            if (away := self.away) is not None:
                return away.schemas()
            return self.schemas.read_bytes()
        except FileNotFoundError:
            return None

    def reached_checkpoint(self, sealed: Checkpoint) -> Checkpoint:
        """Return the latest checkpoint of a log whose latest segment ends with `sealed`. If the log is in a store
        alone, that may be a later checkpoint in the store, with no row between the two; otherwise it is `sealed`.

        Raises:
            ConfigurationError: another version of cdcflow wrote it.
        """
        if (away := self.away) is None:
            return sealed
        try:
            told = Checkpoint.from_json(away.checkpoint())
        except FileNotFoundError:
            return sealed
        except ValueError as error:
            raise ConfigurationError(
                f"reading {away.name}/{CHECKPOINT}: {error}",
                remedy="read it with the daemon's version of cdcflow",
                runbook="newer-format",
            ) from None
        return told if told.next_offset == sealed.next_offset and told.cut > sealed.cut else sealed

    def manifest(self, first_offset: int, last_offset: int) -> tuple[Segment, bytes]:
        """Return a segment's manifest, and its bytes (for the hash chain). Raises FileNotFoundError if it does not
        exist.

        Raises:
            ConfigurationError: another version of cdcflow wrote it.
            InvariantViolated: it is not a manifest, or not this segment's.
        """
        path = self.segment(first_offset, last_offset) / "segment.json"
        away = self.away
        text = path.read_bytes() if away is None else away.manifest((first_offset, last_offset))
        try:
            segment = Segment.from_json(text, str(path))
        except (ValueError, KeyError, TypeError) as error:
            raise InvariantViolated(
                f"reading {path}: not a segment's manifest ({type(error).__name__})", runbook="log-damaged"
            ) from None
        for file in segment.files:
            _plain(file.path, path.parent)
        if (segment.first_offset, segment.last_offset) != (first_offset, last_offset):
            raise InvariantViolated(
                f"reading {path}: it is the manifest of {segment.first_offset}-{segment.last_offset}",
                runbook="log-damaged",
            )
        return segment, text


def _plain(name: str, directory: Path) -> str:
    """Return a file name that was read from a file, after checking that it does not leave its directory (hard cases
    L28, S11)."""
    if "/" in name or "\0" in name or name in ("", ".", ".."):
        raise InvariantViolated(
            f"reading {directory}: a name in it points outside of it; cdcflow did not write it", runbook="log-damaged"
        )
    return name


def widest_segments(found: Sequence[Bounds]) -> list[Bounds]:
    """Return the segments that no wider one covers, ascending (see `compaction`)."""
    kept: list[Bounds] = []
    for bounds in sorted(found, key=lambda b: (b[0], -b[1])):
        if not kept or bounds[0] > kept[-1][1]:
            kept.append(bounds)
    return kept


def segment_name(bounds: Bounds) -> str:
    """Return the name of a segment's directory."""
    return f"{bounds[0]:020d}-{bounds[1]:020d}"


def segment_bounds(name: str) -> Bounds | None:
    """Return first and last offset in the name of a segment's directory; `None` if it is not such a name."""
    # Only a segment's name of this length has its hyphen at this position, with digits in both halves.
    if len(name) == _SEGMENT_NAME and name[20] == "-" and (name[:20] + name[21:]).isdecimal():
        return int(name[:20]), int(name[21:])
    return None


def state_name(offset: int) -> str:
    """Return the name of a state's directory."""
    return f"{offset:020d}"


def state_offset(name: str) -> int | None:
    """Return the offset in the name of a state's directory; `None` if it is not such a name."""
    return int(name) if len(name) == len(state_name(0)) and name.isdecimal() else None


def _list_folder(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
