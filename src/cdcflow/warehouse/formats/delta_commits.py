"""Commits of a Delta table as files in a folder: whether one is whole, what identifies it, and how a torn one goes.

    _delta_log/00000000000000000041.json       a JSON object per line
               00000000000000000042.json       0 bytes: the machine lost power before the file reached its disk
               .torn-…-00000000000000000042    the same after the next merge

A writer makes a commit's file under another name and then gives it its own, so a file without all of its lines was
left by a power cut. Its version was never durable, and counts as one that never came.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog

_COMMIT = re.compile(r"(\d{20})\.json")

_log = structlog.get_logger()


def lines_of(text: str) -> list[str]:
    """A commit's lines: only a line feed ends one, as texts within may hold other separators."""
    return [line for line in text.split("\n") if line.strip()]


def actions_of(content: bytes) -> list[dict[str, Any]] | None:
    """What a commit changed; None if its file is torn."""
    try:
        found = [json.loads(line) for line in lines_of(content.decode())]
    except ValueError:  # JSON and characters that are cut short
        return None
    return found if found and all(isinstance(action, dict) for action in found) else None


def identity(lines: Sequence[str]) -> str:
    """What no other commit has, also not one of the same version: it names files of its own, and its time."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def newest_torn(log: Path) -> int | None:
    """The version of a table's newest commit if its file is torn; None otherwise. `log`: the folder `_delta_log`."""
    try:
        versions = [int(found[1]) for name in os.listdir(log) if (found := _COMMIT.fullmatch(name))]
        version = max(versions, default=-1)
        return None if version < 0 or actions_of(_file(log, version).read_bytes()) is not None else version
    except FileNotFoundError:
        return None


def set_aside(log: Path, version: int) -> None:
    """Give a torn commit's file a name that no reader looks at, and remove what was computed from it. Only for a merge,
    which has the warehouse's lease."""
    file = _file(log, version)
    _log.warning("a torn commit is set aside, its range is merged again", table=log.parent.name, version=version)
    for computed in (f".{file.name}.crc", f"{version:020d}.crc", f".{version:020d}.crc.crc"):
        (log / computed).unlink(missing_ok=True)
    file.rename(log / f".torn-{uuid4()}-{version:020d}")


def _file(log: Path, version: int) -> Path:
    return log / f"{version:020d}.json"


__all__ = ["actions_of", "identity", "lines_of", "newest_torn", "set_aside"]
