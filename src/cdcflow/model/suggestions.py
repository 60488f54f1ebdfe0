"""Suggests the existing name that a user most likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The beginning of a remedy: "did you mean public.orders? ", or "" if no known name is similar.

    A name without its schema, or in another letter case, is as close a match as one with a typo.
    """
    names = sorted(known)
    wanted = name.casefold()
    alike = [one for one in names if one.casefold() == wanted or one.casefold().rpartition(".")[2] == wanted]
    by_case = {one.casefold(): one for one in names}
    if "." not in wanted:
        by_case = {**{key.rpartition(".")[2]: one for key, one in by_case.items()}, **by_case}
    found = alike or [by_case[one] for one in difflib.get_close_matches(wanted, by_case, n=1, cutoff=0.75)]
    return f"did you mean {' or '.join(found[:3])}? " if found else ""
