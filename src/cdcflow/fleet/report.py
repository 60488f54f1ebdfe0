"""What a member of a fleet publishes: a small JSON object, which its next one replaces. Pure.

    capture  the daemon, with the merges and comparisons that it knows of
    merge    `cdcflow merge`, on another machine: again and again, or once, as a cron job does

A report is read by another machine, perhaps of another version, and any process that can write into the register can
write one. So what is read is checked field by field: texts are bounded, numbers are numbers, and a link leads to a web
page. Unknown fields are ignored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from cdcflow.config.fleet import EVERY_MAX_S, NAME_CHARACTERS_MAX

VERSION = 1
REPORT_BYTES_MAX = 32 << 10
FINDINGS_MAX = 5
TEXT_CHARACTERS_MAX = 300

Kind = Literal["capture", "merge"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LEVELS = ("error", "warning", "note")
"""The levels of findings, the worst first."""

NUMBERS = (
    *("lag_bytes", "lag_seconds", "rows_per_second", "kept_bytes", "kept_bytes_max", "budget_used", "durable_offset"),
    *("tables", "tables_reading", "tables_failed", "tables_not_fresh", "fresh_as_of"),
    *("tables_verified", "verified_at", "rows_different"),
    *("merge_cut", "merge_offset", "merge_ended_at", "merge_seconds", "merge_left_out", "merge_every_s"),
)
"""The numbers of a report; `…_at` and `fresh_as_of` are seconds since 1970, each omitted if it is not known.

`budget_used`: the share of the log that the source may keep. `fresh_as_of`, `verified_at`: the oldest of all tables.
`rows_different`: of the table that differs most. `merge_every_s`: omitted by a process that merges once.
"""
TEXTS = ("source", "reason", "merge_state", "merge_reason")
_LINK = re.compile(r"https?://[^\s/@?#]+(/[^\s@?#]*)?")


class Unreadable(Exception):
    """The error for a report that cannot be read. The text describes why, without the report's content."""


@dataclass(frozen=True, slots=True)
class MemberFinding:
    """Something to know about a member. `remedy`: what to do about it, if anything."""

    level: str
    text: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class MemberReport:
    """One report of a member. `name`: its pipeline's. `place`: its machine. `at`: when it was written, in seconds since
    1970 by the clock of that machine; `every_s`: when the next is due. `ended`: the process has ended, and no further
    report follows. `errors`, `warnings`: how many findings there are; `findings` has the worst of them."""

    name: str
    kind: Kind
    place: str
    at: float
    every_s: float
    state: str
    version: str = ""
    page: str | None = None
    ended: bool = False
    numbers: Mapping[str, float] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    findings: Sequence[MemberFinding] = ()
    errors: int = 0
    warnings: int = 0

    def to_bytes(self) -> bytes:
        return json.dumps({"format": VERSION, **asdict(self)}, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> MemberReport:
        """Read what `to_bytes` wrote.

        Raises:
            Unreadable: it is not a report, or one of a newer version.
        """
        if len(content) > REPORT_BYTES_MAX:
            raise Unreadable(f"it has more than {REPORT_BYTES_MAX} bytes")
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            raise Unreadable("it is not JSON") from None
        return cls.from_json(found)

    @classmethod
    def from_json(cls, found: object) -> MemberReport:
        """Read the JSON of a report.

        Raises:
            Unreadable: as `from_bytes`.
        """
        if not isinstance(found, dict) or not isinstance(found.get("format"), int):
            raise Unreadable("it is not a report of cdcflow")
        if found["format"] > VERSION:
            raise Unreadable("a newer cdcflow wrote it: upgrade this one")
        if found.get("kind") not in KINDS:
            raise Unreadable("it is of an unknown kind")
        every_s = _number(found, "every_s")
        if not 0 < every_s <= EVERY_MAX_S:
            raise Unreadable(f"its interval is not from 0 to {EVERY_MAX_S:g} s")
        numbers, texts = _part(found, "numbers"), _part(found, "texts")
        findings = found.get("findings")
        return cls(
            name=_text(found, "name")[:NAME_CHARACTERS_MAX],
            kind=found["kind"],
            place=_text(found, "place"),
            at=_number(found, "at"),
            every_s=every_s,
            state=_text(found, "state")[:40],
            version=_text(found, "version"),
            page=_link(found.get("page")),
            ended=found.get("ended") is True,
            numbers={name: _number(numbers, name) for name in NUMBERS if numbers.get(name) is not None},
            texts={name: _text(texts, name) for name in TEXTS if texts.get(name) is not None},
            findings=[_finding(one) for one in (findings if isinstance(findings, list) else [])[:FINDINGS_MAX]],
            errors=max(0, int(_number(found, "errors"))),
            warnings=max(0, int(_number(found, "warnings"))),
        )


def bounded_text(text: str) -> str:
    """Return a text, shortened to the length that reports allow."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[: TEXT_CHARACTERS_MAX - 2]} …"


def bounded_remedy(remedy: object) -> str | None:
    """Return a remedy, shortened to the length that reports allow; `None` if there is no text."""
    return bounded_text(remedy) if isinstance(remedy, str) and remedy else None


def _part(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = found.get(name)
    return part if isinstance(part, dict) else {}


def _text(found: Mapping[str, Any], name: str) -> str:
    text = found.get(name)
    if not isinstance(text, str):
        raise Unreadable(f"its {name} is not a text")
    return bounded_text(text)


def _number(found: Mapping[str, Any], name: str) -> float:
    number = found.get(name)
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise Unreadable(f"its {name} is not a number")
    return number


def _link(url: object) -> str | None:
    """Return a link to a web page; `None` for anything else: a browser would execute `javascript:`."""
    return url if isinstance(url, str) and _LINK.fullmatch(url) and len(url) <= TEXT_CHARACTERS_MAX else None


def _finding(found: object) -> MemberFinding:
    if not isinstance(found, dict) or found.get("level") not in LEVELS:
        raise Unreadable("one of its findings has no level")
    return MemberFinding(found["level"], _text(found, "text"), bounded_remedy(found.get("remedy")))
