"""What a merge reports, while it runs and when it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cdcflow.model.html_tables import html_table
from cdcflow.tables.cut import Cut, LogPart


@dataclass(frozen=True, slots=True)
class MergeProgress:
    """A table whose merge begins now. It is table `number` of the merge's `tables` tables, in step `step` (a range of
    cuts)."""

    table: str
    number: int
    tables: int
    step: int = 1


Watch = Callable[[MergeProgress], None]
"""A function that is called with the progress of a merge, from several threads concurrently."""


def ignore_progress(progress: MergeProgress) -> None:
    """Ignore the progress of a merge."""


def ignore_tables_done() -> None:
    """Ignore that all tables of a merge are done and only the cut remains to be published."""


@dataclass(frozen=True, slots=True)
class TableMergeReport:
    """One table of a merge. `changes` counts rows read from the log; 0 with an unchanged `version` means that nothing
    was new. `edits`: what other writers did to the table's rows since the last published cut. `complete`: every row is
    present. `state`: the state of its backfill in the log. `left_out`: why the table is not in the cut; `None` if it
    is. `engine`: the engine that merged it ("" if there was nothing to merge). `place`: the name of the table of the
    warehouse that has its rows ("": its own). `warned`: how many rows break each promise of the table's contract that
    only warns; `quarantined`: how many rows are in its quarantine since this merge."""

    name: str
    changes: int
    version: int
    complete: bool
    seconds: float
    edits: tuple[str, ...] = ()
    state: str = ""
    left_out: str | None = None
    engine: str = ""
    place: str = ""
    warned: Mapping[str, int] = field(default_factory=dict)
    quarantined: int = 0


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge did. `cut` 0: the log has no sealed segment yet. `published`: this run published the cut. `latest`:
    the latest published cut, of this run or an earlier one."""

    cut: int
    offset: int
    published: bool
    seconds: float
    tables: tuple[TableMergeReport, ...]
    latest: Cut | None = None

    def _repr_html_(self) -> str:
        """Return a row for each table as HTML, for notebooks."""
        done = "published" if self.published else "published before"
        return _merged_tables(self.tables, f"cut {self.cut}, {done}, {self.seconds:.1f} s")


@dataclass(frozen=True, slots=True)
class SeveralReport:
    """What a merge of several logs did. `cut`: the latest published one (0 if no cut was ever published); `published`:
    this run published it. `clocks`: the commit clock (µs since 1970 UTC) up to which each log is sealed, by the log's
    name (0: nothing is sealed). `held_back_by`: the log with the lowest clock of those that the merge waited for;
    `without`: the logs that it did not wait for. `logs`: each log's part in the latest cut, keyed by its name."""

    cut: int
    published: bool
    seconds: float
    tables: tuple[TableMergeReport, ...]
    clocks: Mapping[str, int]
    held_back_by: str
    logs: Mapping[str, LogPart]
    without: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """Return a row for each table as HTML, for notebooks."""
        done = "published" if self.published else "published before"
        notes = [f"cut {self.cut}, {done}, {self.seconds:.1f} s", f"held back by {self.held_back_by}"]
        return _merged_tables(self.tables, *notes, *[f"without {name}" for name in self.without])


def _merged_tables(tables: Sequence[TableMergeReport], *notes: str) -> str:
    rows = [(t.name, t.changes, t.version, t.state or None, t.left_out) for t in tables]
    return html_table(["table", "changes", "version", "state", "left out because"], rows, notes)


def both(before: TableMergeReport | None, after: TableMergeReport) -> TableMergeReport:
    """Combine the reports of one table from two successive steps into one."""
    if before is None:
        return after
    return replace(
        after,
        changes=before.changes + after.changes,
        seconds=before.seconds + after.seconds,
        edits=(*before.edits, *after.edits),
    )
