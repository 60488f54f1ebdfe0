"""Facts about a source for operators: results of `doctor`, and the result of `drop` for each object of cdcflow's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Remedy:
    """What resolves a finding: a sentence, and, if it is SQL, the bare statements. `then`: a step that must follow
    them, such as a restart of the server."""

    text: str
    sql: tuple[str, ...] = ()
    then: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of `doctor`: `level` is ok, warning or error; `remedy` is the exact SQL or setting that fixes it,
    `sql` its bare statements and `then` the step that must follow them (see `Remedy`). `at_first_start`: the finding is
    about an object that the first start of a log creates, so it is of no interest afterwards."""

    level: Literal["ok", "warning", "error"]
    subject: str
    text: str
    remedy: str | None = None
    sql: tuple[str, ...] = ()
    then: str = ""
    at_first_start: bool = False

    def to_json(self) -> dict[str, object]:
        """Return the finding for programs. `sql` and `then` are present only if they are not empty."""
        shown = {k: v for k, v in asdict(self).items() if k != "at_first_start"}
        return {k: v for k, v in shown.items() if v or k not in ("sql", "then")}


@dataclass(frozen=True, slots=True)
class Dropped:
    """One of cdcflow's objects at the source after `Source.drop`. If it still exists, `text` is the reason, and
    `remedy` is the SQL that removes it."""

    subject: str
    outcome: Literal["removed", "absent", "left"]
    text: str = ""
    remedy: str | None = None
