"""Notes that readers leave in a log's folder: how far each has read, so that retention keeps what it still needs.

A note is a file `readers/<kind>-<digest>.json`. It is for retention only; no reader reads it. A missing note blocks all
expiry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cdcflow.log.files.layout import Layout


@dataclass(frozen=True, slots=True)
class Note:
    """A note of a reader that no longer needs anything up to `offset`. `kind`: merge or publish; `name`: the warehouse,
    or the topics' prefix; `held_by`: the tables for which the reader may still go back before the cut of `offset`."""

    kind: str
    name: str
    offset: int
    held_by: tuple[str, ...] = ()


def write(layout: Layout, note: Note) -> None:
    """Replace the reader's last note. It is not durable on return: a lost note only keeps the log for longer.

    Raises:
        OSError: the folder cannot be written.
    """
    path = _path(layout, note.kind, note.name)
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(asdict(note)))
    temporary.replace(path)


def warehouse_name(place: Path | str) -> str:
    """Return the name that a merge into this folder or URL has in its note."""
    return place if isinstance(place, str) else str(place.resolve())


def read(layout: Layout, kind: str, name: str) -> Note | None:
    """Return the note of one reader; `None` if it has left none."""
    try:
        return _of(_path(layout, kind, name).read_bytes())
    except FileNotFoundError:
        return None


def all_of(layout: Layout, kind: str) -> Sequence[Note]:
    """Return the notes of all readers of a kind."""
    found = [_of(path.read_bytes()) for path in sorted((layout.root / "readers").glob(f"{kind}-*.json"))]
    return [note for note in found if note is not None]


def _path(layout: Layout, kind: str, name: str) -> Path:
    return layout.root / "readers" / f"{kind}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"


def _of(text: bytes) -> Note | None:
    """Return the note in a text; `None` if the file is incomplete or was not written by cdcflow."""
    try:
        found = json.loads(text)
        return Note(str(found["kind"]), str(found["name"]), int(found["offset"]), tuple(found["held_by"]))
    except (ValueError, KeyError, TypeError):
        return None
