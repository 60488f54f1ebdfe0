"""A table with a base: rows that were loaded another way, written as its first version.

    log      ══segment══segment══segment══▶
    shape       before     now      now
    base              │                      as if it had been merged up to here: at this cut, with this offset

Everything that the log has behind that cut is merged onto the base, and each change in it has a greater offset. So the
log may have begun before the rows were loaded, and then nothing of what changed since is missing in the table.

The daemon knows the rows by a name, and the table's property has the same name: a table that was made otherwise, or
has another base, is never taken for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cdcflow.changelog.segment import SegmentFile
from cdcflow.errors import HistoryLost
from cdcflow.model.table import Table, TableId, table_from_json, word
from cdcflow.warehouse.segments import Range

ATTACHED_PROPERTY = "cdcflow.attached"


@dataclass(frozen=True, slots=True)
class Attached:
    """The base of a table. `since`: the log's next offset when the daemon heard of it; a backfill that began later has
    read all rows anew."""

    base: str
    since: int

    def properties(self) -> dict[str, str]:
        return {ATTACHED_PROPERTY: json.dumps(asdict(self), separators=(",", ":"))}

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Attached | None:
        """What a table says of its base; None: it has none."""
        text = properties.get(ATTACHED_PROPERTY)
        return None if text is None else cls(**json.loads(text))


def stand(log: Range, shape: Table) -> tuple[int, int]:
    """The cut at which a base of this shape is, and the last offset of that: as early as the log goes, but behind the
    last row of another shape."""
    first = len(log.segments)
    while first and _is_of(log.segments[first - 1].files, shape):
        first -= 1
    if not log.segments:
        return 0, 0
    if first == len(log.segments):
        return log.segments[-1].last_cut, log.segments[-1].last_offset
    return log.segments[first].first_cut - 1, log.segments[first].first_offset - 1


def lacks_base(table: TableId) -> HistoryLost:
    """The error of a table with a base that would be made of the log alone."""
    return HistoryLost(
        f"table {table} was attached, so the log does not have all of its rows, and no cut shows those that it lacks",
        remedy=f"run `cdcflow merge` if the base is written; else run `cdcflow attach {word(table)} --from PATH`"
        f" again, or `cdcflow backfill {word(table)}` to read all of it",
        runbook="attach",
    )


def _is_of(files: Iterable[SegmentFile], shape: Table) -> bool:
    """Whether the table's rows in these files are all of this shape."""
    found = (table_from_json(f.table) for f in files if f.table is not None)
    return all(_words(other) == _words(shape) for other in found if other.id == shape.id)


def _words(shape: Table) -> tuple[Any, ...]:  # Any: of several kinds, only compared
    return shape.incarnation, shape.key, [(c.number, c.name, c.type.arrow) for c in shape.columns]
