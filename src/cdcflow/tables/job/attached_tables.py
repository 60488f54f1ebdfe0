"""A table with a base: rows that were loaded another way, written as its first version.

    log      ══segment══segment══segment══▶
    shape       before     now      now
    base              │                      treated as merged up to this cut and offset

The merge applies everything that the log has after that cut to the base, and each of these changes has a greater
offset. So the log may begin before the rows were loaded; the table still gets every change made since they were.

The daemon knows the base by a name, and a property of the table has the same name. So cdcflow never mistakes a table
that was created in another way, or that has a different base, for this one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cdcflow.errors import HistoryLost
from cdcflow.log.format.segment import SegmentFile
from cdcflow.model.table import Table, TableId, table_from_json, word
from cdcflow.tables.segments import Range

ATTACHED_PROPERTY = "cdcflow.attached"


@dataclass(frozen=True, slots=True)
class Attached:
    """The base of a table. `since`: the log's next offset when the daemon learned of it; a backfill that began later
    has read all rows again."""

    base: str
    since: int

    def properties(self) -> dict[str, str]:
        return {ATTACHED_PROPERTY: json.dumps(asdict(self), separators=(",", ":"))}

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Attached | None:
        """Return the base that a table's properties describe; `None` if it has no base."""
        text = properties.get(ATTACHED_PROPERTY)
        return None if text is None else cls(**json.loads(text))


def stand(log: Range, shape: Table) -> tuple[int, int]:
    """Return the cut through which a base of this shape counts as merged, and that cut's last offset. It is the
    earliest cut after which the log is complete and has no row of a different shape of the table."""
    first = len(log.segments)
    while first and _is_of(log.segments[first - 1].files, shape):
        first -= 1
    if not log.segments:
        return 0, 0
    if first == len(log.segments):
        return log.segments[-1].last_cut, log.segments[-1].last_offset
    return log.segments[first].first_cut - 1, log.segments[first].first_offset - 1


def lacks_base(table: TableId) -> HistoryLost:
    """Return the error for a table with a base when only the log is available to create it."""
    return HistoryLost(
        f"table {table} was attached, so the log does not have all of its rows, and no cut shows those that it lacks",
        remedy=f"run `cdcflow merge` if the base is written; otherwise run `cdcflow attach {word(table)} --from PATH`"
        f" again, or `cdcflow backfill {word(table)}` to read all of it",
        runbook="attach",
    )


def _is_of(files: Iterable[SegmentFile], shape: Table) -> bool:
    """Return whether the table's rows in these files all have this shape."""
    found = (table_from_json(f.table) for f in files if f.table is not None)
    return all(_words(other) == _words(shape) for other in found if other.id == shape.id)


def _words(shape: Table) -> tuple[Any, ...]:  # Any: of several kinds, only compared
    return shape.incarnation, shape.key, [(c.number, c.name, c.type.arrow) for c in shape.columns]
