"""The result of a comparison. It contains row values only if they were requested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from cdcflow.model.html_tables import html_table

Against = Literal["log", "tables"]

Verdict = Literal["equal", "equal but for", "different", "unsettled", "not compared"]
"""`equal but for`: nothing differs, but a column of the source is not in the copy, so its values were not compared.
`unsettled`: nothing certainly differs, but some rows changed at every read. `not compared`: see the reason."""

By = Literal["digests", "rows"]

What = Literal["missing", "extra", "different", "doubled"]
"""`missing`: only the source has the row; `extra`: only the copy has it; `doubled`: the copy has it more than once (or,
in a table without a key, a different number of times)."""

NOT_THERE_YET = "the copy does not have it yet"
"""The reason why a column of the source was not compared, if the copy will get the column later."""

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """A change of a row in the log."""

    offset: int
    op: str
    transaction: int
    position: str
    commit_ts: int


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that differs. `columns`: the columns that differ, if both sides have the row. `source` and `copy`: the row
    on each side; `times`: how often each side has it. `history`: the latest changes of its key in the log, oldest
    first."""

    key: Row
    what: What
    columns: tuple[str, ...]
    source: Row | None
    copy: Row | None
    times: tuple[int, int]
    history: tuple[LoggedChange, ...] = ()


@dataclass(frozen=True, slots=True)
class TableReport:
    """The result for a table. `rows`: the number of rows read from the source. `position`: the comparison includes
    everything up to this position in the source's log; `offset` is the same place in cdcflow's log. `cut`: the copy's
    cut.

    `epoch`: the epoch of the log's latest cut before the source was read. `different`: the number of keys that differ;
    `differences` lists some of them, and `keys` names as many as requested, as texts. `unsettled`: the number of keys
    that changed at every read. `shape_key`: the key of a row; reading that row again adds the columns that the copy
    lacks. It is () if the copy lacks none, or the table has no row. `left_out`: columns that were not compared, and
    why. `by`: "digests" if the server computed digests, and only rows with different ones were read; "rows" if all rows
    were read, for the reason in `read_why`.
    """

    table: str
    against: Against
    verdict: Verdict
    reason: str = ""
    rows: int = 0
    position: str = ""
    offset: int = 0
    cut: int = 0
    epoch: int = 0
    different: int = 0
    unsettled: int = 0
    differences: tuple[RowDifference, ...] = ()
    keys: tuple[tuple[str, ...], ...] = ()
    shape_key: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 1
    seconds: float = 0.0
    by: By = "rows"
    read_why: str = ""

    @property
    def missing_columns(self) -> tuple[str, ...]:
        """The source's columns that the copy does not have."""
        return tuple(sorted(column for column, why in self.left_out.items() if why == NOT_THERE_YET))


@dataclass(frozen=True, slots=True)
class Report:
    """The results for all tables."""

    tables: tuple[TableReport, ...]
    seconds: float

    @property
    def is_clean(self) -> bool:
        """Whether every table was compared and is equal."""
        return all(table.verdict == "equal" for table in self.tables)

    def _repr_html_(self) -> str:
        """Return a row for each comparison as HTML, for notebooks. It has no values of rows."""
        rows = [(t.table, t.against, t.verdict, t.rows, t.different or None, t.reason or None) for t in self.tables]
        columns = ["table", "compared with", "verdict", "rows", "different keys", "reason"]
        verdict = "all are equal" if self.is_clean else "not all are equal"
        return html_table(columns, rows, [f"{verdict}, {self.seconds:.1f} s"])
