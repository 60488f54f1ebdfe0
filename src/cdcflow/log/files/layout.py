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
    """`log.json`: the identity of this log. `first_offset` is the first offset still stored; older ones have
    expired."""

    log_id: str
    source: SourceIdentity
    created: str
    first_offset: int = 1
    version: int = LOG_VERSION

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "source": self.source.to_json()}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> LogFile:
        """Read what `to_json` wrote. ConfigurationError if another version of cdcflow wrote it."""
        value: Mapping[str, Any] = json.loads(text)
        if value["version"] != LOG_VERSION:
            raise other_version(name, f"version {value['version']}", value["version"], LOG_VERSION)
        source = SourceIdentity.from_json(value["source"])
        return cls(value["log_id"], source, value["created"], value["first_offset"], value["version"])


UPLOADS = "uploads.json"
"""Records how much of the log a store has."""
CHECKPOINT = "checkpoint.json"
"""In a store: the log's latest checkpoint, uploaded now and then while no row has arrived since the latest segment. It
lets a reader with access only to the store know how far the source's time has advanced."""

Bounds = tuple[int, int]
"""First and last offset of a segment, both inclusive."""


class Store(Protocol):
    """A second place for segments: a bucket in which everything has the same name as on disk.

    An object that it does not have raises FileNotFoundError; a store that is unavailable, or denies access, raises a
    `CdcflowError`.
    """

    @property
    def name(self) -> str:
        """Its name for users: its url."""
        ...

    @property
    def address(self) -> StoreAddress:
        """The address by which another client finds it."""
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
        """The log's latest checkpoint, as uploaded while no row arrived (see `CHECKPOINT`)."""
        ...

    def segments(self) -> Sequence[Bounds]:
        """The segments that have a manifest, in any order."""
        ...

    def segments_behind(self, offset: int) -> Sequence[Bounds]:
        """The segments with rows after an offset, and the one with the offset, if it exists; may include some older
        ones. The cost does not depend on how many segments come before."""
        ...

    def manifest(self, bounds: Bounds) -> bytes: ...

    def file(self, bounds: Bounds, file: SegmentFile, *, from_store: bool = False) -> Path:
        """A local copy of one file, verified against the manifest. It may be deleted soon: open it at once.
        `from_store`: read it from the store even if a copy exists."""
        ...

    def fetch(self, bounds: Bounds, file: SegmentFile, target: Path) -> None:
        """The same, written to `target`."""
        ...

    def forget(self, bounds: Bounds) -> None:
        """Delete the local copies of a segment that was removed from the store."""
        ...

    def states(self) -> Sequence[int]:
        """The offsets of the complete states (`log.files.states`), ascending."""
        ...

    def state(self, offset: int) -> bytes:
        """The content of a state's `state.json`."""
        ...

    def state_file(self, offset: int, file: SegmentFile) -> Path:
        """A local copy of one file of a state, as `file`."""
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
        """A log's layout, from its directory, or the given layout itself."""
        return location if isinstance(location, Layout) else cls(Path(location))

    @property
    def is_home(self) -> bool:
        """Whether the log is or was written in this directory."""
        return self.store is None or self.log_json.exists()

    @property
    def away(self) -> Store | None:
        """The store, if there is only the store; otherwise None."""
        return None if self.is_home else self.store

    @property
    def absolute(self) -> Layout:
        """The same, for a process with another working directory."""
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
        """First offsets of the existing journals, ascending."""
        found = (_JOURNAL.fullmatch(p.name) for p in _list_folder(self.journals))
        return sorted(int(m[1]) for m in found if m)

    def segment_offsets(self) -> list[Bounds]:
        """First and last offsets of the segments that count, ascending: a segment that replaced others covers them."""
        return widest_segments(self.listed_segments()[0])

    def segments_behind(self, offset: int) -> list[Bounds]:
        """At least those of these segments with rows after an offset, and the one with the offset, if it exists.
        Returns all segments if listing all is as fast."""
        away = self.away
        return self.segment_offsets() if away is None else widest_segments(away.segments_behind(offset))

    def listed_segments(self) -> tuple[list[Bounds], list[Path]]:
        """First and last offsets of the existing segments, ascending; and the directories of unfinished ones.

        A log may have tens of thousands of segments, so a start walks back from the latest one instead.
        """
        if (away := self.away) is not None:
            return sorted(away.segments()), []
        names = [path.name for path in _list_folder(self.segments)]
        found = sorted(bounds for n in names if (bounds := segment_bounds(n)) is not None)
        unfinished = [self.segments / n for n in names if n.startswith(".") and n.endswith(".tmp")]
        return found, unfinished

    def manifests_back(self, newest: Bounds | None, first_offset: int) -> Iterator[tuple[Segment, bytes]]:
        """The manifests (and their bytes) from this segment back to the one that has `first_offset`.

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
        """The manifest of the segment that replaced this one and others before it."""
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
        """A local path where one of a segment's files can be opened now. FileNotFoundError if it exists nowhere.

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
        """The content of `log.json`. ConfigurationError if there is no log here."""
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
        """Epoch and first offset of the latest journal when it was recorded, or None before the first record. A later
        journal may exist already; an older one is never the latest.

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
        """The content of `schemas.json`, or None if it does not exist yet."""
        try:
            if (away := self.away) is not None:
                return away.schemas()
            return self.schemas.read_bytes()
        except FileNotFoundError:
            return None

    def reached_checkpoint(self, sealed: Checkpoint) -> Checkpoint:
        """The checkpoint that a log has reached whose latest segment ends with `sealed`: if there is only the store,
        and it has a later checkpoint with no row in between, that one.

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
        """A segment's manifest, and its bytes (for the hash chain). FileNotFoundError if it does not exist.

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
    """A file name that was read from a file: it must not leave its directory (hard cases L28, S11)."""
    if "/" in name or "\0" in name or name in ("", ".", ".."):
        raise InvariantViolated(
            f"reading {directory}: a name in it points outside of it; cdcflow did not write it", runbook="log-damaged"
        )
    return name


def widest_segments(found: Sequence[Bounds]) -> list[Bounds]:
    """Those of some segments that no wider one covers, ascending (see `compaction`)."""
    kept: list[Bounds] = []
    for bounds in sorted(found, key=lambda b: (b[0], -b[1])):
        if not kept or bounds[0] > kept[-1][1]:
            kept.append(bounds)
    return kept


def segment_name(bounds: Bounds) -> str:
    """The name of a segment's directory."""
    return f"{bounds[0]:020d}-{bounds[1]:020d}"


def segment_bounds(name: str) -> Bounds | None:
    """First and last offset in the name of a segment's directory, or None if it is not such a name."""
    # Only a segment's name of this length has its hyphen at this position, with digits in both halves.
    if len(name) == _SEGMENT_NAME and name[20] == "-" and (name[:20] + name[21:]).isdecimal():
        return int(name[:20]), int(name[21:])
    return None


def state_name(offset: int) -> str:
    """The name of a state's directory."""
    return f"{offset:020d}"


def state_offset(name: str) -> int | None:
    """The offset in the name of a state's directory, or None if it is not such a name."""
    return int(name) if len(name) == len(state_name(0)) and name.isdecimal() else None


def _list_folder(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
