"""The part of a log's folder that peers store: `log.json`, and the files in `journal` and `spool`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cdcflow.errors import InvariantViolated

FOLDERS = ("journal", "spool")
LOG_FILE = "log.json"
_UNNAMED_LOG_FILE = re.compile(r"log\.json(\.[0-9a-f]+)?\.tmp")
"""The names under which log.json is written before it is renamed."""
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file of an image: its path in the log's folder, its size, and the sha256 of its content."""

    name: str
    bytes: int
    sha256: str


def is_stored(name: str) -> bool:
    """Whether peers store a file, given its path in the log's folder."""
    folder, _, file = name.rpartition("/")
    return (folder in FOLDERS and bool(file)) or name == LOG_FILE or _UNNAMED_LOG_FILE.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Return a path that was received from another machine. Raise InvariantViolated if it leads out of the folder."""
    folder, _, file = name.rpartition("/")
    if not is_stored(name) or file in (".", "..") or "\0" in name or "/" in folder:
        raise InvariantViolated("receiving a file for the journal: its name is not one that peers store")
    return name


def names(root: Path) -> Iterator[str]:
    """The paths of the files in a folder that peers store."""
    if (root / LOG_FILE).exists():
        yield LOG_FILE
    for folder in FOLDERS:
        if (root / folder).exists():
            yield from (f"{folder}/{path.name}" for path in sorted((root / folder).iterdir()))


def files(root: Path) -> list[ImageFile]:
    """The files of an image. Reads all of them."""
    return [ImageFile(name, (root / name).stat().st_size, sha256(root / name)) for name in names(root)]


def sha256(path: Path, size: int | None = None) -> str:
    """The sha256 of a file's content, or of its first `size` bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        left = path.stat().st_size if size is None else size
        while left and (block := file.read(min(BLOCK_BYTES, left))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def has(path: Path, file: ImageFile) -> bool:
    """Whether a local file has this content, or begins with it."""
    return path.exists() and path.stat().st_size >= file.bytes and sha256(path, file.bytes) == file.sha256
