"""The answer of a running daemon to a command, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

UNCHANGED_SHOWN_MAX = 20
CHANGED_NOTHING = ("nothing to do", "refused")


def has_changed(answer: Mapping[str, Any]) -> bool:
    """Return whether a command changed something, given the daemon's answer."""
    return any(_fits(one) for one in _outcomes(answer).values())


def outcome_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """What a command did to each table, and to the capture."""
    outcomes = _outcomes(answer)
    unchanged = {name: one for name, one in outcomes.items() if not _fits(one)}
    for name, one in outcomes.items():
        if name not in unchanged or len(unchanged) <= UNCHANGED_SHOWN_MAX:
            yield f"{name}: {one['outcome']}" + (f" ({one['reason']})" if one.get("reason") else "")
    if len(unchanged) > UNCHANGED_SHOWN_MAX:
        yield f"{len(unchanged)} more tables: nothing to do (--json names them)"
    if answer.get("number") is not None and not answer.get("durable"):
        yield "this is not durable yet; `cdcflow log commands` shows it once it is"


def _fits(outcome: Mapping[str, Any]) -> bool:
    """Return whether the outcome for one table, or for the capture, is a change."""
    return outcome["outcome"] not in CHANGED_NOTHING


def _outcomes(answer: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    about = {"the capture": answer["capture"]} if "capture" in answer else {}
    return {**about, **answer["tables"]}
