"""Commits of a Delta table as files in a folder: whether one is whole, its identity, and how to remove a torn one.

    _delta_log/00000000000000000041.json       a JSON object per line
               00000000000000000042.json       0 bytes: the machine lost power before the file reached its disk
               .torn-…-00000000000000000042    the same after the next merge

A writer creates a commit's file under another name and then renames it, so a file that lacks lines was left by a power
cut. Its version was never durable, and counts as never made.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import structlog

from cdcflow.tables import durable
from cdcflow.tables.formats.delta import vector_path
from cdcflow.tables.formats.hadoop_checksums import checksum_file, matches_checksums

_VECTOR_FRAME = 8
"""The bytes around a deletion vector in its file: the size before it, and the checksum after it."""
_COMPUTED = re.compile(r"\.?(\d{20})\.(?:json\.crc|crc|crc\.crc)")
_COMMIT = re.compile(r"(\d{20})\.json")

_log = structlog.get_logger()


def lines_of(text: str) -> list[str]:
    """Split a commit into lines at line feeds only, as texts in it may contain other separators."""
    return [line for line in text.split("\n") if line.strip()]


def actions_of(content: bytes) -> list[dict[str, Any]] | None:
    """Return the actions of a commit; `None` if its file is torn."""
    try:
        found = [json.loads(line) for line in lines_of(content.decode())]
    except ValueError:  # JSON or characters that are cut short
        return None
    return found if found and all(isinstance(action, dict) for action in found) else None


def identity(lines: Sequence[str]) -> str:
    """Return a text that no other commit has, not even one with the same version, since a commit names its own files
    and its time."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def torn_since(log: Path, published: int | None) -> list[int]:
    """Return the versions of a table that a power cut left torn, the latest first. No whole version follows them.

    `log`: the folder `_delta_log`. For versions after `published` (`None`: for the latest one) the data files are
    checked as well; files of published versions had been synced before. A commit whose files are missing or end early
    is torn, and so is every later one.
    """
    try:
        versions = sorted(int(found[1]) for name in os.listdir(log) if (found := _COMMIT.fullmatch(name)))
    except FileNotFoundError:
        return []
    later = versions[-1:] if published is None else [v for v in versions if v > published] or versions[-1:]
    _drop_torn_sums(log, later)
    commits = {v: actions_of(_file(log, v).read_bytes()) for v in later}
    gone = {_path(a["remove"]) for actions in commits.values() for a in actions or () if "remove" in a}
    for version, actions in commits.items():
        # A torn commit that is not the latest is reported by the reader: see `built_on_torn`.
        if actions is None:
            return [version] if version == versions[-1] else []
        was_synced = published is not None and version <= published
        added = [action["add"] for action in actions if "add" in action and not was_synced]
        if not all(_is_whole(log.parent, add) for add in added if _path(add) not in gone):
            return [v for v in reversed(later) if v >= version]
    return []


def _path(action: Mapping[str, Any]) -> tuple[str, str]:
    vector = action.get("deletionVector") or {}
    return action["path"], f"{vector.get('pathOrInlineDv')}@{vector.get('offset')}"


def _is_whole(folder: Path, add: Mapping[str, Any]) -> bool:
    """Return whether a file and its deletion vector are as long as the commit records. Files in other folders belong to
    the table that this one is a clone of, and are not checked."""
    parts, vector = urlsplit(add["path"]), add.get("deletionVector") or {}
    if parts.scheme or parts.path.startswith("/"):
        return True
    path = folder / unquote(parts.path)
    if _size(path) != add["size"] or not matches_checksums(path):
        return False
    if vector.get("storageType") != "u":
        return True
    end = int(vector.get("offset") or 0) + int(vector["sizeInBytes"]) + _VECTOR_FRAME
    return _size(folder / vector_path(vector["pathOrInlineDv"])) >= end


def _drop_torn_sums(log: Path, versions: Sequence[int]) -> None:
    """Remove files that were computed from commits if they are torn or do not match; readers compute them again, or do
    without."""
    latest = versions[-1] if versions else -1
    for name in os.listdir(log):
        # Computed from a commit that was never made: it would not match the next commit with its number.
        if (found := _COMPUTED.fullmatch(name)) is not None and int(found[1]) > latest:
            (log / name).unlink()
    for version in versions:
        state = log / f"{version:020d}.crc"
        if not matches_checksums(_file(log, version)):
            checksum_file(_file(log, version)).unlink()
        if state.exists() and (not matches_checksums(state) or actions_of(state.read_bytes()) is None):
            state.unlink()
            checksum_file(state).unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


def set_aside(log: Path, versions: Sequence[int]) -> None:
    """Rename torn commits' files, the latest first, so that no reader sees them, and remove what was computed from
    them. Only for a merge that holds the warehouse's lease."""
    for version in versions:
        file = _file(log, version)
        _log.warning("a torn commit is set aside, its range is merged again", table=log.parent.name, version=version)
        computed = (f"{version:020d}.crc", f"{version:020d}.checkpoint.parquet")
        for name in (*computed, *(f".{name}.crc" for name in (file.name, *computed))):
            (log / name).unlink(missing_ok=True)
        file.rename(log / f".torn-{uuid4()}-{version:020d}")
    if versions:
        durable.sync_folder(log)


def _file(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"
