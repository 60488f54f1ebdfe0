"""Where everything lies in a log's directory, and what its `log.json` says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from cdcflow.changelog.framing import other_version
from cdcflow.changelog.segment import Segment, SegmentFile
from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.position import Checkpoint, SourceIdentity
from cdcflow.model.stores import StoreAddress

LOG_VERSION = 2
_SEGMENT_NAME = 41
_JOURNAL = re.compile(r"(\d{20})\.journal")


@dataclass(frozen=True, slots=True)
class LogFile:
    """`log.json`: whose log this is. `first_offset` is the first that is still here; older ones have expired."""

    log_id: str
    source: SourceIdentity
    created: str
    first_offset: int = 1
    version: int = LOG_VERSION

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "source": self.source.to_json()}, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> LogFile:
        """Read what `to_json` wrote. ConfigurationError when another version of cdcflow wrote it."""
        value: Mapping[str, Any] = json.loads(text)
        if value["version"] != LOG_VERSION:
            raise other_version(name, f"version {value['version']}", value["version"], LOG_VERSION)
        source = SourceIdentity.from_json(value["source"])
        return cls(value["log_id"], source, value["created"], value["first_offset"], value["version"])


UPLOADS = "uploads.json"
"""Says how far a store holds the log."""
CHECKPOINT = "checkpoint.json"
"""In a store: the log's newest checkpoint, put now and then while no row came since the newest segment. It tells who
has only the store how far the source's time has come meanwhile."""

Bounds = tuple[int, int]
"""First and last offset of a segment, both inclusive."""


class Store(Protocol):
    """Where segments lie besides the directory: a bucket in which everything has the name it has on disk.

    What it does not have is a FileNotFoundError; a store that is away, or refuses, is a `CdcflowError`.
    """

    @property
    def name(self) -> str:
        """What people call it: its url."""
        ...

    @property
    def address(self) -> StoreAddress:
        """Where another client finds it."""
        ...

    @property
    def bytes_max(self) -> int:
        """So much of what was read is to lie on the local disk at one time."""
        ...

    @property
    def room(self) -> Path:
        """A directory that is there, for what is fetched for a while."""
        ...

    def log_json(self) -> bytes: ...
    def schemas(self) -> bytes: ...
    def checkpoint(self) -> bytes:
        """What was put of the log's newest checkpoint while it stood still (see `CHECKPOINT`)."""
        ...

    def segments(self) -> Sequence[Bounds]:
        """The segments that have a manifest, in any order."""
        ...

    def segments_behind(self, offset: int) -> Sequence[Bounds]:
        """Of these the ones with rows behind an offset, and the one with the offset, if there is one; some older ones
        may be among them. What it costs does not depend on how many there are before."""
        ...

    def manifest(self, bounds: Bounds) -> bytes: ...

    def file(self, bounds: Bounds, file: SegmentFile, *, anew: bool = False) -> Path:
        """A copy of one file here, its content compared with the manifest. It may vanish: open it at once. `anew`: as
        the store has it now, whatever was read before."""
        ...

    def fetch(self, bounds: Bounds, file: SegmentFile, target: Path) -> None:
        """The same under a name of one's own."""
        ...

    def forget(self, bounds: Bounds) -> None:
        """Drop what was read of a segment that was removed from the store."""
        ...

    def states(self) -> Sequence[int]:
        """The offsets of the states that are whole (`changelog.states`), ascending."""
        ...

    def state(self, offset: int) -> bytes:
        """What a state's `state.json` says."""
        ...

    def state_file(self, offset: int, file: SegmentFile) -> Path:
        """A copy of one file of a state here, as `file`."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one log. Names are zero-padded offsets, so that a listing is in order (hard case L22).

    With a `store` there are two kinds. Where the log is written (`is_home`: log.json lies here) every segment has its
    directory and its manifest, and files that are not in it are in the store: nothing but they is ever asked for
    there. Everywhere else the store is all there is.
    """

    root: Path
    store: Store | None = None

    @classmethod
    def of(cls, location: Path | str | Layout) -> Layout:
        """A log's layout, from its directory or from itself."""
        return location if isinstance(location, Layout) else cls(Path(location))

    @property
    def is_home(self) -> bool:
        """The log is written here, or was."""
        return self.store is None or self.log_json.exists()

    @property
    def away(self) -> Store | None:
        """The store, where it is all there is."""
        return None if self.is_home else self.store

    @property
    def absolute(self) -> Layout:
        """The same, for a process that works in another directory."""
        return replace(self, root=self.root.resolve())

    @property
    def name(self) -> str:
        """What people call this log."""
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
        """First offsets of the journals that are there, ascending."""
        found = (_JOURNAL.fullmatch(p.name) for p in _listed(self.journals))
        return sorted(int(m[1]) for m in found if m)

    def segment_offsets(self) -> list[Bounds]:
        """First and last offsets of the segments that count, ascending: one that took the place of others covers
        them."""
        return uncovered(self.listed_segments()[0])

    def segments_behind(self, offset: int) -> list[Bounds]:
        """Of these at least the ones with rows behind an offset, and the one with the offset, if there is one. Where
        all are as quickly listed: all."""
        away = self.away
        return self.segment_offsets() if away is None else uncovered(away.segments_behind(offset))

    def listed_segments(self) -> tuple[list[Bounds], list[Path]]:
        """First and last offsets of the segments that are there, ascending; and what was begun and never put in place.

        A log may have tens of thousands of segments: what is asked at a start walks back from the newest instead.
        """
        if (away := self.away) is not None:
            return sorted(away.segments()), []
        names = [path.name for path in _listed(self.segments)]
        found = sorted(bounds for n in names if (bounds := segment_bounds(n)) is not None)
        unfinished = [self.segments / n for n in names if n.startswith(".") and n.endswith(".tmp")]
        return found, unfinished

    def manifests_back(self, newest: Bounds | None, first_offset: int) -> Iterator[tuple[Segment, bytes]]:
        """The manifests (and their bytes) from this segment back to the one that has `first_offset`.

        Raises as `manifest` does, and InvariantViolated when one is not there.
        """
        while newest is not None and newest[1] >= first_offset:
            try:
                segment, text = self.manifest(*newest)
            except FileNotFoundError:
                segment, text = self._manifest_ending(newest)
            yield segment, text
            newest = segment.before

    def _manifest_ending(self, bounds: Bounds) -> tuple[Segment, bytes]:
        """The manifest of the segment that took the place of this one, and of others before it."""
        wider = next((b for b in self.segment_offsets() if b[1] == bounds[1] and b[0] < bounds[0]), None)
        if wider is not None:
            return self.manifest(*wider)
        directory = self.segment(*bounds)
        what = "has no segment.json" if directory.exists() else "is missing"
        raise InvariantViolated(f"reading the log {self.name}: {directory} {what}", runbook="log-damaged")

    def is_here(self, segment: Segment, file: SegmentFile) -> bool:
        """Whether a file of a segment lies in the directory; else it is in the store."""
        return (self.segment(segment.first_offset, segment.last_offset) / file.path).exists()

    def file(self, segment: Segment, file: SegmentFile, *, anew: bool = False) -> Path:
        """Where one of a segment's files can be opened, now. FileNotFoundError when it is nowhere.

        `anew`: a file that is not in the directory is read from the store even if a copy of it is here.

        Raises:
            SinkUnavailable, ConfigurationError: the store is away, or refuses.
            InvariantViolated: what the store has is not what was sealed.
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
        return self.store.file((segment.first_offset, segment.last_offset), file, anew=anew)

    def exists(self) -> bool:
        """There is a log: here, or else in the store."""
        if self.log_json.exists():
            return True
        try:
            return self.store is not None and bool(self.store.log_json())
        except FileNotFoundError:
            return False

    def log_file(self) -> LogFile:
        """What `log.json` says. ConfigurationError when there is no log here."""
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
        """Epoch and first offset of the journal that was the newest when it was noted; None: none was noted yet. There
        may be a newer one, and never only older ones.

        Raises:
            InvariantViolated: the file does not say so.
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
        """What `schemas.json` says; None: there is none yet."""
        try:
            if (away := self.away) is not None:
                return away.schemas()
            return self.schemas.read_bytes()
        except FileNotFoundError:
            return None

    def reached(self, sealed: Checkpoint) -> Checkpoint:
        """How far a log has come whose newest segment ends with this checkpoint: where a store is all there is and was
        told a later one, with no row in between, that one.

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
        """A segment's manifest, and its bytes (for the hash chain). FileNotFoundError when it is not there.

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
    """A name that came out of a file: it must stay in its directory (hard cases L28, S11)."""
    if "/" in name or "\0" in name or name in ("", ".", ".."):
        raise InvariantViolated(
            f"reading {directory}: a name in it points outside of it; cdcflow did not write it", runbook="log-damaged"
        )
    return name


def uncovered(found: Sequence[Bounds]) -> list[Bounds]:
    """Of some segments, ascending, those that no wider one covers (see `compaction`)."""
    kept: list[Bounds] = []
    for bounds in sorted(found, key=lambda b: (b[0], -b[1])):
        if not kept or bounds[0] > kept[-1][1]:
            kept.append(bounds)
    return kept


def segment_name(bounds: Bounds) -> str:
    """The name of a segment's directory."""
    return f"{bounds[0]:020d}-{bounds[1]:020d}"


def segment_bounds(name: str) -> Bounds | None:
    """First and last offset that a segment's directory is named by; None: it is no such name."""
    # Of names that long only a segment's has its hyphen there, and both halves all digits.
    if len(name) == _SEGMENT_NAME and name[20] == "-" and (name[:20] + name[21:]).isdecimal():
        return int(name[:20]), int(name[21:])
    return None


def state_name(offset: int) -> str:
    """The name of a state's directory."""
    return f"{offset:020d}"


def state_offset(name: str) -> int | None:
    """The offset that a state's directory is named by; None: it is no such name."""
    return int(name) if len(name) == len(state_name(0)) and name.isdecimal() else None


def _listed(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
