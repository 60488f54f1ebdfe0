"""What is told of a source to people: a result of `doctor`, and what became of a thing of ours after `drop`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of `doctor`: `level` ok, warning or error; `remedy` is the exact SQL or setting that mends it."""

    level: Literal["ok", "warning", "error"]
    subject: str
    text: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Dropped:
    """One thing of ours at the source after `Source.drop`. Where it was left, `text` says why, and `remedy` is the SQL
    that removes it."""

    subject: str
    outcome: Literal["removed", "absent", "left"]
    text: str = ""
    remedy: str | None = None
