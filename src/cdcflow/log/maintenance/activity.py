"""The activity of a log's processes over time, as spans: for `cdcflow timeline`.

    activity/capture.json      the daemon, in each of its states; a span ends with the last time that it was seen in it
    activity/merges.json       merges, joined while they succeed, or fail, one after another
    activity/comparisons.json  tables that were compared with their source

The log itself has commit times, but not the time when something was captured: only these files show that no daemon ran.
They are small, replaced as a whole, and not needed by the log: a process that cannot write or read one continues
without it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

FOLDER = "activity"
SPANS_MAX = 500
MERGES_JOIN_WITHIN_S = 300.0
TEXT_CHARACTERS_MAX = 200

Kind = Literal["capture", "merges", "comparisons"]


@dataclass(frozen=True, slots=True)
class ActivitySpan:
    """A span of time, from `begin` to `end` (seconds since 1970), in which something was in a state, or was done
    `times` times.

    `of`: what the span belongs to: the start of a daemon, or a table. Spans of different things are not joined. `rows`:
    how many rows were merged. `reason`: the latest reason, for a state that has one. `ended`: the daemon ended by
    itself at the end of the span.
    """

    begin: float
    end: float
    state: str
    of: str = ""
    times: int = 1
    rows: int = 0
    reason: str = ""
    ended: bool = False

    def to_json(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in found.items() if value or name in ("begin", "end", "state")}


@dataclass(frozen=True, slots=True)
class Activity:
    """All known spans, oldest first of each kind."""

    capture: tuple[ActivitySpan, ...] = ()
    merges: tuple[ActivitySpan, ...] = ()
    comparisons: tuple[ActivitySpan, ...] = field(default=())


def of_log(folder: Path) -> Activity:
    """Return the activity that is known in a log's folder."""
    return Activity(*(tuple(_read(folder, kind)) for kind in ("capture", "merges", "comparisons")))


def note(folder: Path, kind: Kind, span: ActivitySpan, *, joins_within_s: float = 0.0) -> None:
    """Add a span. If the last span of the same thing and state ended at most `joins_within_s` seconds before it, that
    one is extended instead."""
    spans = _read(folder, kind)
    last = spans[-1] if spans else None
    if last is not None and _may_join(last, span, joins_within_s):
        spans[-1] = _join(last, span)
    else:
        spans.append(span)
    _write(folder, kind, spans[-SPANS_MAX:])


def note_merge(folder: Path, begin: float, end: float, *, rows: int = 0, failure: str | None = None) -> None:
    """Record a merge that ended. `failure`: why it failed, if it did."""
    state = "merged" if failure is None else "failed"
    span = ActivitySpan(begin, end, state, rows=rows, reason=(failure or "")[:TEXT_CHARACTERS_MAX])
    note(folder, "merges", span, joins_within_s=MERGES_JOIN_WITHIN_S)


def note_comparison(folder: Path, at: float, table: str, against: str, different: int) -> None:
    """Record that a table was compared with its source. `different`: how many keys differ."""
    state = "different" if different else "equal"
    note(folder, "comparisons", ActivitySpan(at, at, state, f"{table} ({against})", rows=different))


def _may_join(last: ActivitySpan, span: ActivitySpan, joins_within_s: float) -> bool:
    if (last.state, last.of) != (span.state, span.of) or last.ended:
        return False
    return 0 <= span.begin - last.end <= joins_within_s or last.begin <= span.begin <= last.end


def _join(last: ActivitySpan, span: ActivitySpan) -> ActivitySpan:
    return ActivitySpan(
        begin=last.begin,
        end=max(last.end, span.end),
        state=span.state,
        of=span.of,
        times=last.times + span.times,
        rows=last.rows + span.rows,
        reason=span.reason,
        ended=span.ended,
    )


def _read(folder: Path, kind: str) -> list[ActivitySpan]:
    try:
        found = json.loads((folder / FOLDER / f"{kind}.json").read_text(encoding="utf-8"))
        return [ActivitySpan(**one) for one in found["spans"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def _write(folder: Path, kind: str, spans: list[ActivitySpan]) -> None:
    if not folder.is_dir():
        return
    path = folder / FOLDER / f"{kind}.json"
    temporary = path.with_name(f".{kind}.{os.getpid()}")
    words: Mapping[str, object] = {"spans": [one.to_json() for one in spans]}
    with contextlib.suppress(OSError):  # another machine's or a read-only folder: ignored
        path.parent.mkdir(mode=0o750, exist_ok=True)
        temporary.write_text(json.dumps(words), encoding="utf-8")
        temporary.replace(path)
