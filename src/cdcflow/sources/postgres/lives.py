"""Until when a captured table keeps the name that it was captured by. Pure.

The catalog shows what exists now, and the stream may lag far behind it:

    log      ──c──c──c──[DROP t]──c──[u RENAME TO v]──c──▶
              ▲ position                                ▲ the catalog was read here: t is gone, u is called v

The server decodes each change with the catalog of that time, so the changes of `t` and `u` still arrive. Therefore a
table that was captured under a name that it no longer has stays captured under it until the stream has passed the
position where the catalog was read (`Life.end`). A table is identified by its number (oid), so a different table of the
same name has a separate life.

A Relation message has the name of its time, which decides between several names of one table. A name that the settings
do not select is not captured. If no table of this number exists any longer, every other name counts as its last one.

A name without wildcards in the settings stays here after its end, for as long as no table has it: a table that was
captured once is not a mistake in the settings. The checkpoint's `source` keeps all of this as `lives`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from cdcflow.model.table import TableId
from cdcflow.sources.postgres.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Life:
    """A table under a name that it was captured by and does not have now. `end`: the end of the server's log when that
    was noticed."""

    oid: int
    table: TableId
    end: Lsn


@dataclass(frozen=True, slots=True)
class Lives:
    """The tables that a stream captures: those `present`, by oid, and earlier names of tables, oldest first."""

    present: Mapping[int, TableId] = field(default_factory=dict)
    ended: tuple[Life, ...] = ()
    selects: Callable[[TableId], bool] = lambda table: True

    @property
    def tables(self) -> frozenset[TableId]:
        """The names that tables were captured by and do not have now."""
        return frozenset(life.table for life in self.ended)

    def captures(self, oid: int) -> bool:
        """Whether changes of this table may be captured, under whatever name."""
        return oid in self.present or any(life.oid == oid for life in self.ended)

    def is_ended(self, oid: int, table: TableId) -> bool:
        """Whether `table` is an earlier name of the table with this oid."""
        return any((life.oid, life.table) == (oid, table) for life in self.ended)

    def name(self, oid: int, told: TableId) -> TableId | None:
        """Return the name under which to capture a change whose message names its table `told`; None if it is not
        captured."""
        if self.is_ended(oid, told):
            return told
        if oid in self.present:
            return self.present[oid]
        earlier = [life.table for life in self.ended if life.oid == oid]
        return earlier[-1] if earlier and self.selects(told) else None


def lives_as_json(ended: Iterable[Life]) -> str:
    """Return these names, whose tables no longer have them, in the form that a checkpoint stores."""
    listed = [[life.oid, life.table.schema, life.table.name, life.end.value] for life in ended]
    return json.dumps(listed, separators=(",", ":"))


def lives_from_json(text: str) -> tuple[Life, ...]:
    return tuple(Life(oid, TableId(schema, name), Lsn(end)) for oid, schema, name, end in json.loads(text))


def ended_lives(
    before: Iterable[Life],
    captured: Mapping[int, TableId],
    present: Mapping[int, TableId],
    *,
    position: Lsn,
    end: Lsn,
    is_kept: Callable[[TableId], bool],
) -> tuple[Life, ...]:
    """Return the names whose end a stream that begins at `position` has yet to pass.

    `captured`: the tables that the last start captured, as far as the settings still select them; `present`: the tables
    that exist and are captured now. `end`: the end of the server's log, read after the catalog. `is_kept`: whether a
    name stays after its end; see the top.
    """
    names = frozenset(present.values())
    found = {(life.oid, life.table): life for life in before}
    for oid, table in captured.items():
        if present.get(oid) != table:
            # Missing again after it had existed in between: its later end counts.
            found[oid, table] = Life(oid, table, end)
    left = [life for life in found.values() if present.get(life.oid) != life.table]
    return tuple(life for life in left if life.end > position or (is_kept(life.table) and life.table not in names))
