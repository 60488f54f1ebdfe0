"""When a captured table ends in the binary log, and when a new one begins. Pure.

The catalog shows the current tables, and the stream may be far behind them:

    log      ──c──c──c──[DROP t]──c──[CREATE u]──c──[ADD KEY]──c──▶
              ▲ position                                         ▲ the catalog was read here: t is gone, u has a key

For a table that is gone, changes and its end are still to arrive. So a table that was captured before remains captured
until the stream has passed the place where it was found missing (`ends`). Its shape is that of the log's rows and of
the table maps.

A new table is read by a backfill that begins later than now, so its changes before now are included in the rows that
are read (`begins`). Changes that cannot be captured, because the table had no key or a different type then, are skipped
instead of stopping the capture. This holds only if every later snapshot sees all of them; if the source cannot
determine that, nothing is skipped.

A table that is named without wildcards remains on the list after its end, until it exists again: a name that was
captured once is not an error in the settings. If no captured table exists any longer, all of them remain on it.

Places are coordinates of one server (`position.coordinate`). The checkpoint's `source` stores them as `lives`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.position import Coordinate

Places = Mapping[TableId, Coordinate]


@dataclass(frozen=True, slots=True)
class Lives:
    """The captured tables that are gone, with the place after their end (`ends`); and the new ones, with the place
    through which their backfill sees all changes (`begins`)."""

    ends: Places = field(default_factory=dict)
    begins: Places = field(default_factory=dict)

    @property
    def gone_tables(self) -> frozenset[TableId]:
        return frozenset(self.ends)

    def tables_ended_by(self, position: Coordinate | None) -> frozenset[TableId]:
        """Return the tables whose end the log has at this position (None: the position is another server's)."""
        return frozenset(t for t, end in self.ends.items() if position is not None and position >= end)

    def to_json(self) -> str:
        return json.dumps(
            {"ends": _places_as_json(self.ends), "begins": _places_as_json(self.begins)}, separators=(",", ":")
        )

    @classmethod
    def from_json(cls, text: str) -> Lives:
        value = json.loads(text)
        return cls(_read(value["ends"]), _read(value["begins"]))


def _places_as_json(places: Places) -> list[list[object]]:
    return [[table.schema, table.name, place.value] for table, place in sorted(places.items())]


def _read(entries: list[list[object]]) -> Places:
    return {TableId(str(schema), str(name)): Coordinate(int(str(place))) for schema, name, place in entries}


def ended_tables(
    before: Lives,
    captured: Collection[TableId],
    present: Collection[TableId],
    *,
    position: Coordinate | None,
    end: Coordinate,
    is_kept: Callable[[TableId], bool],
) -> Places:
    """Return the captured tables that no longer exist, each with the place after its end.

    `captured`: the tables of the earlier run that the settings still select; `present`: the tables that exist.
    `position`: the log's position; None if that is a position at another server. `end` is the end of the server's log,
    read after the catalog. `is_kept`: whether a table remains on the list after its end.
    """
    passed = before.tables_ended_by(position)
    known = {} if position is None else before.ends
    gone = {t: known.get(t, end) for t in captured if t not in present}
    left = {t: place for t, place in gone.items() if t not in passed or is_kept(t)}
    return left if left or present else gone


def new_tables(
    before: Lives,
    captured: Collection[TableId],
    present: Collection[TableId],
    *,
    position: Coordinate | None,
    visible: Coordinate | None,
) -> Places:
    """Return the new tables, each with the place after which all of its changes count.

    `visible`: a place before which every later snapshot sees all transactions; None: unknown, and all changes count.
    """
    if position is None:
        return {}
    places = {t: place for t, place in before.begins.items() if t in present and place > position}
    if visible is not None:
        over = before.tables_ended_by(position)
        places |= {t: visible for t in present if t not in captured or t in over}
    return places
