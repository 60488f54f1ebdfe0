"""The shadow check of a capture that a test watches: what it has checked, and what it has found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.capture.watched_capture import Watched
from tests.support.polling import AtIntervals


def checks(status: dict[str, Any]) -> int:
    return int(status["counts"]["shadow_checks"])


def differences(on: Watched) -> list[dict[str, object]]:
    return [fields for event, fields in on.told if event == "shadow check found a difference"]


def until_checked(on: Watched, change: Callable[[], object], count: int) -> None:
    """Change a row until this many checks are complete.

    A change that arrives before the next check is due is not sampled, so one alone is not enough. A row that changes
    again before its check has read it is not compared, so the changes must leave the check some time.
    """
    done = checks({"counts": on.capture.counts()})
    while done < count:
        done = _until_more(on, change, done)


def _until_more(on: Watched, change: Callable[[], object], done: int) -> int:
    again = AtIntervals(change)

    def are_more(status: dict[str, Any]) -> bool:
        again()
        return checks(status) > done

    return checks(on.until(are_more, f"check {done + 1}"))


def until_different(on: Watched, change: Callable[[], object], table: str) -> dict[str, Any]:
    """Change a row until the status shows a difference of its table; that status."""
    again = AtIntervals(change)

    def is_different(status: dict[str, Any]) -> object:
        again()
        return status["tables"][table].get("shadow_difference")

    return on.until(is_different, f"a difference in {table}")


__all__ = ["checks", "differences", "until_checked", "until_different"]
