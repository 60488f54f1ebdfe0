"""Registers: the places where members publish their reports, each as a small file or object that the next replaces.

    <name>.<kind>.<instance>.json     one for each process of a pipeline: its daemon, its standby, its merges

Names have no characters that a folder or a store would treat specially; see `object_name`. Whatever else is in a
register is ignored.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable
from cdcflow.fleet.report import KINDS, REPORT_BYTES_MAX, Kind

if TYPE_CHECKING:
    from cdcflow.stores.bucket import Bucket

SUFFIX = ".json"
PLACE_CHARACTERS = 12
MEMBERS_MAX = 5_000
READ_AT_ONCE = 16
Content = bytes | None
"""The bytes of a report; None if it is larger than a report may be."""


class ReportRegister(Protocol):
    """A place where members publish. Used by one thread."""

    name: str
    """The register's name in messages."""

    def publish(self, name: str, content: bytes) -> None:
        """Store a report under this name, replacing the previous one.

        Raises:
            CdcflowError: it cannot be written at present.
        """
        ...

    def read(self) -> Mapping[str, Content]:
        """Return all reports, by their names.

        Raises:
            CdcflowError: the register cannot be read at present.
        """
        ...

    def remove(self, name: str) -> None:
        """Remove a report, if it exists.

        Raises:
            CdcflowError: it cannot be removed at present.
        """
        ...


def object_name(pipeline: str, kind: Kind, place: str) -> str:
    """Return the name of a process's report. `place`: a text that no other process of this pipeline and kind has.

    A pipeline's name has letters, digits and `._-` only; a place may have any characters.
    """
    return f"{pipeline}.{kind}.{hashlib.sha256(place.encode()).hexdigest()[:PLACE_CHARACTERS]}{SUFFIX}"


class ReportFolder:
    """The reports in a folder, which is created if it is missing."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._folder = folder
        self._known: dict[str, tuple[tuple[int, int, int], Content]] = {}

    def publish(self, name: str, content: bytes) -> None:
        temporary = self._folder / f".{name}.{os.getpid()}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            temporary.replace(self._folder / name)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise _unavailable("writing", self.name, error) from None

    def remove(self, name: str) -> None:
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise _unavailable("removing from", self.name, error) from None

    def read(self) -> Mapping[str, Content]:
        found: dict[str, tuple[tuple[int, int, int], Content]] = {}
        try:
            for name in self._names():
                with suppress(FileNotFoundError):  # removed since it was listed
                    found[name] = self._current(name)
        except OSError as error:
            raise _unavailable("reading", self.name, error) from None
        self._known = found
        return {name: content for name, (_, content) in found.items()}

    def _names(self) -> Iterator[str]:
        with os.scandir(self._folder) as entries:
            names = sorted(e.name for e in entries if is_report(e.name) and e.is_file(follow_symlinks=False))
        return iter(names[:MEMBERS_MAX])

    def _current(self, name: str) -> tuple[tuple[int, int, int], Content]:
        path = self._folder / name
        state = path.stat()
        stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
        known = self._known.get(name)
        if known is not None and known[0] == stamp:
            return known
        with path.open("rb") as file:
            content = file.read(REPORT_BYTES_MAX + 1)
        return stamp, content if len(content) <= REPORT_BYTES_MAX else None


class ReportBucket:
    """The reports below a prefix of a bucket. Only reports that have changed are read again."""

    def __init__(self, bucket: Bucket) -> None:
        self.name = bucket.name
        self._bucket = bucket
        self._known: dict[str, tuple[tuple[str, float, int], Content]] = {}

    def publish(self, name: str, content: bytes) -> None:
        self._bucket.put(name, content)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._bucket.delete([name])

    def read(self) -> Mapping[str, Content]:
        listed = {
            name: (one.tag, one.modified, one.bytes)
            for name, one in self._bucket.each_listed("")
            if is_report(name) and "/" not in name
        }
        stamps = dict(sorted(listed.items())[:MEMBERS_MAX])
        changed = [name for name, stamp in stamps.items() if self._known.get(name, (None,))[0] != stamp]
        with ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="fleet-register") as threads:
            read = threads.map(lambda name: self._get(name, stamps[name][2]), changed)
            contents = dict(zip(changed, read, strict=True))
        found = {}
        for name, stamp in stamps.items():
            content = contents[name] if name in contents else self._known[name][1]
            found[name] = stamp, content
        self._known = found
        return {name: content for name, (_, content) in found.items()}

    def _get(self, name: str, size: int) -> Content:
        if size > REPORT_BYTES_MAX:
            return None
        try:
            return self._bucket.get(name)
        except FileNotFoundError:
            return b""  # removed since it was listed


def pipeline_of(name: str) -> str:
    """Return the pipeline whose report has this name."""
    parts = name.removesuffix(SUFFIX).rsplit(".", 2)
    return parts[0] if len(parts) == 3 and parts[1] in KINDS else name.removesuffix(SUFFIX)


def is_report(name: str) -> bool:
    """Whether a file or object of this name is a report."""
    return name.endswith(SUFFIX) and not name.startswith(".")


def _unavailable(what: str, place: str, error: OSError) -> CdcflowError:
    text = f"{what} the fleet's register {place}: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return ConfigurationError(text, remedy="start a member that publishes there, or correct the setting")
    return SinkUnavailable(text)
