"""What a comparison found. Row values are only here, where they were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Against = Literal["log", "tables"]

Verdict = Literal["equal", "equal but for", "different", "unsettled", "not compared"]
"""`equal but for`: nothing differs, but a column of the source is not in the copy, so its values were not compared.
`unsettled`: nothing differs, but some rows changed whenever they were looked at. `not compared`: see the reason."""

By = Literal["digests", "rows"]

What = Literal["missing", "extra", "different", "doubled"]
"""`missing`: the source has a row that the copy has not; `extra`: the copy has one that the source has not;
`doubled`: the copy has it more than once (or, in a table without a key, another number of times)."""

NOT_THERE_YET = "the copy does not have it yet"
"""Why a column of the source was not compared."""

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a row in the log."""

    offset: int
    op: str
    transaction: int
    position: str
    commit_ts: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs. `columns`: in which of them, where both sides have it. `source` and `copy`: the row there;
    `times`: how often each side has it. `history`: the log's newest changes of the key, oldest first."""

    key: Row
    what: What
    columns: tuple[str, ...]
    source: Row | None
    copy: Row | None
    times: tuple[int, int]
    history: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class TableReport:
    """What was found of a table. `rows`: as many were read at the source. `position`: up to here in the source's log
    everything is in the comparison, and `offset` is that place in ours. `cut`: of the copy.

    `epoch`: of the log's newest cut before the source was looked at. `different`: how many keys differ, of which
    `differences` are listed, and `keys` names as many as were asked for, as texts. `unsettled`: how many keys changed
    whenever they were looked at. `shape_key`: the key of a row that, read again, brings the columns that the copy does
    not have; () where there is none, or no row. `left_out`: columns that were not compared, and why. `by`: the server
    worked out digests, and only rows of which these differed were read; or all rows were read, and `read_why` says why.
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
    differences: tuple[Difference, ...] = ()
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
    """What was found of all tables."""

    tables: tuple[TableReport, ...]
    seconds: float

    @property
    def is_clean(self) -> bool:
        """Whether every table was compared and is equal."""
        return all(table.verdict == "equal" for table in self.tables)
