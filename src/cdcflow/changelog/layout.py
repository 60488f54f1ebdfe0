"""Where everything lies in a log's directory, and what its `log.json` says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cdcflow.changelog.framing import other_version
from cdcflow.changelog.segment import Segment
from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.position import SourceIdentity

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


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one log. Names are zero-padded offsets, so that a listing is in order (hard case L22)."""

    root: Path

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
    def segments(self) -> Path:
        return self.root / "segments"

    @property
    def spools(self) -> Path:
        return self.root / "spool"

    def journal(self, first_offset: int) -> Path:
        return self.journals / f"{first_offset:020d}.journal"

    def segment(self, first_offset: int, last_offset: int) -> Path:
        return self.segments / f"{first_offset:020d}-{last_offset:020d}"

    def spool(self, name: str) -> Path:
        return self.spools / _plain(name, self.spools)

    def journal_offsets(self) -> list[int]:
        """First offsets of the journals that are there, ascending."""
        found = (_JOURNAL.fullmatch(p.name) for p in _listed(self.journals))
        return sorted(int(m[1]) for m in found if m)

    def segment_offsets(self) -> list[tuple[int, int]]:
        """First and last offsets of the segments that are there, ascending."""
        return self.listed_segments()[0]

    def listed_segments(self) -> tuple[list[tuple[int, int]], list[Path]]:
        """First and last offsets of the segments that are there, ascending; and what was begun and never put in place.

        A log may have tens of thousands of segments: what is asked at a start walks back from the newest instead.
        """
        names = [path.name for path in _listed(self.segments)]
        # Of names that long only a segment's has its hyphen there, and both halves all digits.
        found = [n for n in names if len(n) == _SEGMENT_NAME and n[20] == "-" and (n[:20] + n[21:]).isdecimal()]
        found.sort()
        unfinished = [self.segments / n for n in names if n.startswith(".") and n.endswith(".tmp")]
        return [(int(n[:20]), int(n[21:])) for n in found], unfinished

    def manifests_back(self, newest: tuple[int, int] | None, first_offset: int) -> Iterator[tuple[Segment, bytes]]:
        """The manifests (and their bytes) from this segment back to the one that has `first_offset`.

        Raises as `manifest` does, and InvariantViolated when one is not there.
        """
        while newest is not None and newest[1] >= first_offset:
            try:
                segment, text = self.manifest(*newest)
            except FileNotFoundError:
                directory = self.segment(*newest)
                what = "has no segment.json" if directory.exists() else "is missing"
                raise InvariantViolated(f"reading the log {self.root}: {directory} {what}") from None
            yield segment, text
            newest = segment.before

    def log_file(self) -> LogFile:
        """What `log.json` says. ConfigurationError when there is no log here."""
        try:
            text = self.log_json.read_bytes()
        except FileNotFoundError:
            raise ConfigurationError(f"reading the log {self.root}: there is no log here (no log.json)") from None
        return LogFile.from_json(text, str(self.log_json))

    def manifest(self, first_offset: int, last_offset: int) -> tuple[Segment, bytes]:
        """A segment's manifest, and its bytes (for the hash chain). FileNotFoundError when it is not there.

        Raises:
            ConfigurationError: another version of cdcflow wrote it.
            InvariantViolated: it is not a manifest, or not this segment's.
        """
        path = self.segment(first_offset, last_offset) / "segment.json"
        text = path.read_bytes()
        try:
            segment = Segment.from_json(text, str(path))
        except (ValueError, KeyError, TypeError) as error:
            raise InvariantViolated(f"reading {path}: not a segment's manifest ({type(error).__name__})") from None
        for file in segment.files:
            _plain(file.path, path.parent)
        if (segment.first_offset, segment.last_offset) != (first_offset, last_offset):
            raise InvariantViolated(
                f"reading {path}: it is the manifest of {segment.first_offset}-{segment.last_offset}"
            )
        return segment, text


def _plain(name: str, directory: Path) -> str:
    """A name that came out of a file: it must stay in its directory (hard cases L28, S11)."""
    if "/" in name or "\0" in name or name in ("", ".", ".."):
        raise InvariantViolated(f"reading {directory}: a name in it leads elsewhere; cdcflow did not write it")
    return name


def _listed(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []
