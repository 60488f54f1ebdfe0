"""Versions of rows for a table in mode `history`: the rows that result from a range, by key and start.

The table's rows are identified by the source's key and by the offset where a version began. So versions are merged like
rows of any other table: versions that began in the range as new rows, those that ended in place of the open ones.
"""

# ruff: noqa: S608 - SQL is built here; every name from outside goes through name_sql, every text through text_sql
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdcflow.model.sqltypes import name_sql, text_sql
from cdcflow.model.table import MISSING, OFFSET
from cdcflow.tables.merge.history_columns import OffsetNames, columns
from cdcflow.tables.merge.reduce import OURS, ColumnLayout, Family
from cdcflow.tables.merge.statement import Folding, Replaced
from cdcflow.tables.merge.target import TargetColumn


def layout_of(layout: ColumnLayout, names: OffsetNames) -> ColumnLayout:
    """Return the layout in which the rows of `history.versions` are merged into the table. `layout`: that of the log's
    changes."""
    ours = tuple(TargetColumn(name, OURS, type_) for name, type_ in columns(names))
    target = replace(layout.target, key=(*layout.target.key, names.start), columns=(*layout.target.columns, *ours))
    return ColumnLayout(target, (), {})


@dataclass(frozen=True, slots=True)
class Versions(Folding):
    """The versions that a range writes into a table. `changes` has each version once, and whole: its `v` is 1 if the
    version takes the place of a row of the table, and 0 if it is new; its `op` is `d` if the table must not have it
    (`checked_rows`)."""

    @property
    def replaced_rows(self) -> Replaced:
        """The open versions that ended, or that a later event confirmed."""
        key = {self.layout.target.columns[i].name: f"c{i}" for i in self.layout.key}
        return Replaced(f"(SELECT {', '.join(key.values())} FROM {self.changes} WHERE v = 1)", key)

    def statements(self, table: str) -> Sequence[str]:
        """Return two statements: one for the versions that replace rows, and an INSERT of the new ones, for which the
        table need not be searched."""
        if self.empty:
            return [self.sql(table)]
        kept, new = (replace(self, changes=f"(SELECT * FROM {self.changes} WHERE v = {n})") for n in (1, 0))
        names = ", ".join([*(name_sql(c.name) for c in self.layout.target.columns), OFFSET, MISSING])
        return [kept.sql(table), f"INSERT INTO {table} ({names}) {new.rows()}"]

    def reduced_query(self, kinds: Sequence[Family]) -> str:
        listed = self.layout.target.columns
        names = ", ".join(f"{i}, {text_sql(c.name)}" for i, c in enumerate(listed))
        missing = f"transform(m, x -> element_at(map({names}), x))" if self.masks else "CAST(NULL AS array<string>)"
        parts = [*(f"c{i}" for i in range(len(listed))), "o", "(op = 'd') AS gone", "true AS whole"]
        parts += [f"true AS f{j}" for j in range(len(kinds))]
        parts += ["CAST(NULL AS array<string>) AS sent", f"{missing} AS miss"]
        return f"(SELECT {', '.join(parts)} FROM {self.changes})"


def sweep_assignments(names: OffsetNames, since: int, moment: tuple[str, int] | None) -> dict[str, str]:
    """Return the values, as SQL by column, that end a version which a backfill did not find. `since`: the offset where
    the backfill began. `moment`: position and time (microseconds since 1970) of that offset's transaction; `None` if
    the log no longer has it."""
    position = "CAST(NULL AS string)" if moment is None else text_sql(moment[0])
    time = "CAST(NULL AS timestamp)" if moment is None else f"timestamp_micros({moment[1]})"
    return {
        names.end: str(since),
        "_valid_to_position": position,
        "_valid_to_time": time,
        "_valid_to_exact": "false",
        OFFSET: str(since),
    }
