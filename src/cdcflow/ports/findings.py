"""What is told of a source to people: a result of `doctor`, and what became of a thing of ours after `drop`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Remedy:
    """What ends a finding: a sentence, and the bare statements where it is SQL. `then`: what is to be done after them,
    as a restart of the server."""

    text: str
    sql: tuple[str, ...] = ()
    then: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of `doctor`: `level` ok, warning or error; `remedy` is the exact SQL or setting that fixes it, `sql`
    its bare statements and `then` what is to be done after them (see `Remedy`)."""

    level: Literal["ok", "warning", "error"]
    subject: str
    text: str
    remedy: str | None = None
    sql: tuple[str, ...] = ()
    then: str = ""

    def to_json(self) -> dict[str, object]:
        """For programs. `sql` and `then` each only where there is one."""
        return {k: v for k, v in asdict(self).items() if v or k not in ("sql", "then")}


@dataclass(frozen=True, slots=True)
class Dropped:
    """One thing of ours at the source after `Source.drop`. Where it was left, `text` says why, and `remedy` is the SQL
    that removes it."""

    subject: str
    outcome: Literal["removed", "absent", "left"]
    text: str = ""
    remedy: str | None = None
