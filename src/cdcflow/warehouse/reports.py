"""What a merge tells: while it runs, and when it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cdcflow.warehouse.cut import LogPart


@dataclass(frozen=True, slots=True)
class Progress:
    """A table that a merge begins with: the `number`th of `tables`, in the `step`th range of cuts."""

    table: str
    number: int
    tables: int
    step: int = 1


Watch = Callable[[Progress], None]
"""Called as a merge goes on, from several threads at once."""


def unwatched(progress: Progress) -> None:
    """For a merge that nobody looks at."""


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table of a merge. `changes` counts rows read from the log; 0 with `version` unchanged: nothing was new.
    `edits`: what someone else did to the table's rows since the last published cut. `complete`: every row is there;
    `state` is what the log says of its backfill. `left_out`: why the table is not in the cut; None: it is.
    `engine`: what merged it ("": there was nothing to merge)."""

    name: str
    changes: int
    version: int
    complete: bool
    seconds: float
    edits: tuple[str, ...] = ()
    state: str = ""
    left_out: str | None = None
    engine: str = ""


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge did. `cut` 0: the log has no sealed segment yet. `published`: this run published the cut."""

    cut: int
    offset: int
    published: bool
    seconds: float
    tables: tuple[TableReport, ...]


@dataclass(frozen=True, slots=True)
class SeveralReport:
    """What a merge of several logs did. `cut`: the newest one (0: none was ever published); `published`: by this run.
    `clocks`: by name the commit clock (µs since 1970 UTC) up to which each log is sealed (0: nothing is);
    `held_back_by`: the log that has come least far of those that are waited for; `without`: those that are not.
    `logs`: by name where each is in the newest cut."""

    cut: int
    published: bool
    seconds: float
    tables: tuple[TableReport, ...]
    clocks: Mapping[str, int]
    held_back_by: str
    logs: Mapping[str, LogPart]
    without: tuple[str, ...] = ()


def both(before: TableReport | None, after: TableReport) -> TableReport:
    """One report of a table over several steps."""
    if before is None:
        return after
    return replace(
        after,
        changes=before.changes + after.changes,
        seconds=before.seconds + after.seconds,
        edits=(*before.edits, *after.edits),
    )
