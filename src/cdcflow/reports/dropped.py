"""The end of a pipeline as text: what was removed, and what is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdcflow.capture.ports.findings import Dropped


def dropped_lines(dropped: Sequence[Dropped], left: Sequence[tuple[str, str]]) -> Iterator[str]:
    """What was removed at the source, and what is left, with how to remove it."""
    for found in dropped:
        match found.outcome:
            case "removed":
                yield f"removed: {found.subject}"
            case "absent":
                yield f"did not exist: {found.subject}"
            case "left":
                yield f"left: {found.subject} ({found.text})"
                if found.remedy is not None:
                    yield f"    {found.remedy}"
    if not any(d.outcome == "removed" for d in dropped):
        yield "nothing was removed at the source"
    yield "what is left, and how to remove it:"
    for subject, how in left:
        yield f"  {subject}"
        yield f"    {how}"
