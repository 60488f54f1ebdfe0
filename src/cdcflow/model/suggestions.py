"""Which name somebody most likely meant, of those that there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(name: str, known: Iterable[str]) -> str:
    """The beginning of a remedy: "did you mean public.orders? "; "" if no name is like this one.

    A name without its schema, or with letters in another case, is as near as one with a letter wrong.
    """
    names = sorted(known)
    wanted = name.casefold()
    alike = [one for one in names if one.casefold() == wanted or one.casefold().rpartition(".")[2] == wanted]
    by_case = {one.casefold(): one for one in names}
    found = alike or [by_case[one] for one in difflib.get_close_matches(wanted, by_case, n=1, cutoff=0.75)]
    return f"did you mean {' or '.join(found[:3])}? " if found else ""


__all__ = ["meant"]
