"""The coverage of a log: the shapes of its tables at an offset, and whether all of their rows are in it.

    offsets   ░░ expired ░░│ state │ 1 ──────── 40 ═══════════ 70 ────────▶
    backfill                         │ generation 1 done │      │ generation 2, under way
    floor                            a whole table's rows are those with a change since this offset, and the state's

Everything refers to the log's extent at the last `KeyRows.refresh`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdcflow.errors import ConfigurationError
from cdcflow.log.files import states
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.states import LogState
from cdcflow.log.fold.completeness import ACTIVE, TableBackfill
from cdcflow.log.query.keyrows import KeyRows
from cdcflow.model.position import Checkpoint
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import Table, TableId


@dataclass(frozen=True, slots=True)
class Standing:
    """The coverage of a table at an offset. If the log `is_whole` for it, a row without a change since `floor` is not
    in the table. `entry`: its backfill facts in the checkpoint. `state`: the log's state from before; rows of the state
    whose last change is older than `since` are not in the table."""

    floor: int
    is_whole: bool
    entry: Mapping[str, Any]
    state: LogState | None
    notes: tuple[str, ...]
    since: int = 1


class KnownTables:
    """The tables of one log."""

    def __init__(self, layout: Layout, rows: KeyRows, name: str) -> None:
        """`name`: the log's name for users."""
        self._layout = layout
        self._rows = rows
        self._name = name

    def table_named(self, name: str) -> TableId:
        """Return the table of this name.

        Raises:
            ConfigurationError: the log has no such table.
        """
        known = {str(table): table for table in self._rows.shapes()}
        if name not in known:
            raise ConfigurationError(
                f"the log {self._name} has no table {name}; it has: {', '.join(sorted(known)) or 'none yet'}",
                remedy=f"{did_you_mean(name, known)}name it as schema.table",
                runbook="table-not-found",
            )
        return known[name]

    def shapes(self, table: TableId, offset: int) -> tuple[Sequence[Table], Table]:
        """Return all shapes that the table has had, oldest first, and the one at an offset."""
        known = self._rows.shapes()[table]
        shapes = [known[number] for number in sorted(known)]
        shape = self.shape(table, offset)
        if shape is None:  # its rows have expired, or are after the offset
            shape = shapes[-1 if self.first_offset > 1 else 0]
        return shapes, shape

    def standing(self, table: TableId, offset: int) -> Standing:
        """Return how the log covers a table at an offset."""
        begins = self.first_offset
        entry, later = self._backfill(table, offset)
        known = TableBackfill.of(entry)
        notes: list[str] = []
        floor = known.floor if known.floor is not None and known.floor <= offset else None
        if known.lacks_changes or later.lacks_at(offset, known.finished_generation):
            notes.append(LACKS)
            floor = None
        elif known.base:
            notes.append("its rows were loaded another way, and the log has only what changed since")
            floor = None
        elif floor is None:
            state = f" (state: {known.state})" if known.state in ACTIVE else ""
            notes.append(f"not all rows of the table are in the log at that point{state}")
        if known.in_doubt and not known.base:
            notes.append("changes of it were lost, and no comparison has shown since that it is right")
        at = max(1, floor or 1)
        kept = self.state(table, offset) if at < begins else None
        if at < begins and kept is None:
            notes.append(expiry_note(begins))
        is_whole = floor is not None and (at >= begins or kept is not None)
        return Standing(max(at, begins), is_whole, entry, kept, tuple(notes), at)

    @property
    def first_offset(self) -> int:
        """The first offset of the log, or 1 if nothing has expired."""
        segments = self._rows.segments
        return segments[0][0] if segments else 1

    def shape(self, table: TableId, offset: int) -> Table | None:
        """Return a table's shape at an offset; `None` if the log has no row of it up to the offset."""
        shape = self._rows.shape_at(table, offset)
        if shape is None and (kept := self.state(table, offset)) is not None:
            shape = kept.tables[str(table)].table
        return shape

    def state(self, table: TableId, offset: int) -> LogState | None:
        """Return the state that has a table's rows from before the log's first offset, if it applies to an offset;
        otherwise `None`."""
        begins = self.first_offset
        if begins - 1 > offset or begins - 1 not in states.state_offsets(self._layout):
            return None
        state = states.open_state(self._layout, begins - 1)
        return state if str(table) in state.tables else None

    def _backfill(self, table: TableId, offset: int) -> tuple[Mapping[str, Any], TableBackfill]:
        """Return a table's backfill facts at an offset, and those at the end of its segment. Within a segment the facts
        at an offset are the ones at its end, if the rows that they refer to are at or before the offset, and otherwise
        those before the segment."""
        newest, segments = self._rows.newest, self._rows.segments
        at = self._rows.segment_of(offset)
        bounds = segments[at] if at < len(segments) else None
        end = int(newest.next_offset) - 1
        begin, after, before = self._known_before(table, offset, at)
        if bounds is not None and offset < end:
            # In a compacted segment, the original segment that has the offset.
            segment = self._rows.manifest(bounds)
            inside, end = segment.ends_around(offset)
            after = segment.facts_at(end).get(str(table), {})
            if inside >= bounds[0]:
                begin, before = inside, segment.facts_at(inside).get(str(table), {})
        known, was = TableBackfill.of(after), TableBackfill.of(before)
        if offset >= end or known.floor == was.floor:
            return after, known
        is_there = known.floor is not None and known.floor <= offset
        is_read = is_there and self._rows.last_read(table, bounds, begin + 1, end) <= offset
        return after if is_read else before, known

    def _known_before(self, table: TableId, offset: int, at: int) -> tuple[int, Mapping[str, Any], Mapping[str, Any]]:
        """Return the last offset of the segment before segment `at`, the table's backfill facts at the end of the
        log, and its facts at that last offset."""
        now, segments = _entry(self._rows.newest, table), self._rows.segments
        if at:
            return segments[at - 1][1], now, _entry(self._rows.manifest(segments[at - 1]).last_checkpoint(), table)
        kept = self.state(table, offset)
        return self.first_offset - 1, now, {} if kept is None else kept.tables[str(table)].backfill


LACKS = "changes of it are missing, because they could not leave the source: the table must be read again"


def expiry_note(first: int) -> str:
    """Return the note for a log that begins at an offset."""
    return f"the log begins at offset {first}: what was before has expired"


def _entry(checkpoint: Checkpoint, table: TableId) -> Mapping[str, Any]:
    tables = checkpoint.progress.get("tables", {})
    found = tables.get(str(table)) if isinstance(tables, Mapping) else None
    return found if isinstance(found, Mapping) else {}
