"""From a case that fails to the fewest of its steps that still do. Pure: a callback decides whether one fails."""

from __future__ import annotations

from collections.abc import Callable

from tests.ddlfuzz.draw import Case
from tests.ddlfuzz.kinds import Step


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Take steps away, many at a time and then one by one, as long as it still fails; then reduce numbers."""
    steps = list(case.steps)
    size = max(len(steps) // 2, 1)
    while True:
        at, before = 0, len(steps)
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            if fewer and fails(case.with_steps(fewer)):
                steps = fewer
            else:
                at += size
        if size > 1:
            size //= 2
        elif len(steps) == before:
            break
    for at, step in enumerate(steps):
        for plainer in _plainer(step):
            tried = [*steps[:at], plainer, *steps[at + 1 :]]
            if fails(case.with_steps(tried)):
                steps = tried
                break
    return case.with_steps(steps)


def _plainer(step: Step) -> list[Step]:
    """The same with fewer rows, or with all of them."""
    match step:
        case Step("insert", (table, _, count, seed)) if count != "1":
            return [Step("insert", (table, "1", n, seed)) for n in ("1", "3")]
        case Step("update", (table, column, modulus, _, seed)) if modulus != "1":
            return [Step("update", (table, column, "1", "0", seed))]
        case _:
            return []


__all__ = ["shrunk"]
