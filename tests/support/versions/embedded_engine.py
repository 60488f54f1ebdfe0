"""A history without Spark: `cdcflow.tables.merge.history`'s own SQL on a table that an embedded DuckDB holds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from tests.support.log.hand_log import position_of, time_of
from tests.support.versions.histories import COLUMNS, KEY, Piece

from cdcflow.log.fold.fold import End, Key, LogChange, Version
from cdcflow.model.table import MISSING, OFFSET, Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.tables.local.dialect import connect_again, duckdb_sql
from cdcflow.tables.merge import history, history_columns, moves
from cdcflow.tables.merge import reduce as reduction
from cdcflow.tables.merge.evolution import evolve

ARROW = {"id": pa.int64(), "a": pa.int32(), "doc": pa.string()}
SHAPE = Table(
    TableId("public", "versions"),
    1,
    tuple(Column(n, i, ColumnType(str(t), t)) for i, (n, t) in enumerate(ARROW.items(), start=1)),
    KEY,
)
LAYOUT = replace(reduction.ColumnLayout.of(evolve(None, [SHAPE]), [SHAPE]), stamped=True)


class EmbeddedHistory:
    """One table of versions. `merge` takes the segments of a range."""

    def __init__(self, names: history_columns.OffsetNames = history_columns.OffsetNames()) -> None:  # noqa: B008 - it is frozen
        self._db = connect_again()
        self._names = names
        self._numbers = itertools.count(1)
        self._of: list[tuple[int, int]] = []
        self._begun: set[tuple[int, int]] = set()
        columns = [f"{n} {t}" for n, t in zip(COLUMNS, ("bigint", "int", "string"), strict=True)]
        columns += [f"{name} {type_}" for name, type_ in history_columns.columns(names)]
        self.run(f"CREATE TEMP TABLE t ({', '.join(columns)}, {OFFSET} bigint, {MISSING} array<string>)")

    def close(self) -> None:
        self._db.close()

    def run(self, spark_sql: str) -> list[tuple[Any, ...]]:
        return self._db.execute(duckdb_sql(spark_sql)).fetchall()

    def merge(self, pieces: Sequence[Piece], gap: tuple[int, int] | None = None) -> None:
        changes = [change for piece in pieces for change in piece.changes]
        self._of += [(c.offset, c.transaction) for c in changes]
        truncates = sorted({c.transaction: c.offset for c in changes if c.op == "t"}.items())
        rows = [c for c in changes if c.op != "t"]
        since = pieces[-1].since
        numbers = sorted({c.transaction for c in changes})
        read = {c.transaction for c in changes if c.read}
        transactions = self._table(
            "txns",
            [{"n": n, "p": position_of(n), "t": time_of(n), "k": n in read} for n in numbers],
            _TRANSACTIONS,
        )
        asked = {o: n for o, n in self._of if (n, o) in truncates}
        if since and (begun := max(((o, n) for o, n in self._of if o <= since), default=None)) is not None:
            asked[since] = begun[1]  # nothing may have arrived since
            self._begun.add((since, begun[1]))
        moments = self._table(
            "moments", [{"o": o, "p": position_of(n), "t": time_of(n)} for o, n in asked.items()], _MOMENTS
        )
        view = self._table("changes", [self._row(c) for c in rows], _CHANGES)
        masks = self._masks(view)
        if masks and any(c.before for c in rows):
            view = self._completed(view, masks, [o for _, o in truncates])
        range_ = history.RangeFacts(
            view,
            transactions,
            moments,
            "t",
            [piece.last_offset for piece in _sealed(changes)],
            has_reads=bool(read),
            truncates=[(o, n) for n, o in truncates],
            since=since,
            swept=since if pieces[-1].is_done else 0,
            gap=gap,
        )
        alone = range_.may_be_alone and not self.run(history.crowded_transactions(LAYOUT, view))
        range_ = replace(range_, alone=alone)
        at = {n: i for i, n in enumerate(COLUMNS)}
        stand = {
            frozenset(at[name] for name in missing)
            for (missing,) in self.run(f"SELECT DISTINCT {MISSING} FROM t WHERE {MISSING} IS NOT NULL")
        }
        found = reduction.families(LAYOUT, self._masks(view) | stand)
        made = self._view("made", history.versions(LAYOUT, found, self._names, range_))
        missing = "CASE WHEN m IS NOT NULL THEN transform(m, x -> element_at(map(0, 'id', 1, 'a', 2, 'doc'), x)) END"
        many = self.run(f"SELECT c0, c3 FROM {made} GROUP BY c0, c3 HAVING count(*) > 1")
        assert not many, f"more than one row for a version: {many}"
        start = self._names.start
        older = self.run(f"SELECT 1 FROM t JOIN {made} m ON t.id = m.c0 AND t.{start} = m.c3 WHERE t.{OFFSET} >= m.o")
        assert not older, "an inserted row is not newer than the one that it replaces"
        self.run(f"DELETE FROM t WHERE (id, {start}) IN (SELECT (c0, c3) FROM {made})")
        listed = ", ".join(f"c{i}" for i in range(len(COLUMNS) + 8))
        self.run(f"INSERT INTO t SELECT {listed}, o, {missing} FROM {made}")

    def versions(self) -> list[tuple[Key, Version]]:
        """The table's content, in the oracle's form."""
        found: list[tuple[Key, Version]] = []
        of = dict(self._of)
        for *values, f, fp, ft, fx, o, op, ot, ox, offset, missing in self.run("SELECT * FROM t"):
            assert missing != []
            left = frozenset(missing or ())
            row = {n: v for n, v in zip(COLUMNS, values, strict=True) if n not in left}
            assert all(v is None for n, v in zip(COLUMNS, values, strict=True) if n in left)
            assert (fp, ft) == (position_of(of[f]), time_of(of[f]))
            if o is None:
                assert (op, ot, ox) == (None, None, None)
            else:
                numbers = {n for since, n in self._begun if since == o} | ({of[o]} if o in of else set())
                assert (op, ot) in {(position_of(n), time_of(n)) for n in numbers}
            found.append(((values[0],), Version(row, left, End(f, fx), None if o is None else End(o, ox), offset)))
        return sorted(found, key=lambda kv: (str(kv[0]), kv[1].start.offset))

    def _completed(self, view: str, masks: frozenset[reduction.Mask], truncates: list[int]) -> str:
        columns = sorted(frozenset[int]().union(*masks))
        moved = self._view("moves", moves.moves(LAYOUT, view))
        ended = self._view("ended", moves.ended_lives(LAYOUT, view, moved, truncates))
        lives = self._view("lives", moves.lives(LAYOUT, columns, view, moved, truncates))
        table = f"(SELECT * FROM t WHERE {self._names.end} IS NULL)"
        known = self._view("known", moves.first_round(LAYOUT, columns, ended, lives, table))
        while self.run(f"SELECT 1 FROM {known} WHERE parent IS NOT NULL LIMIT 1"):
            known = self._view("known", moves.next_round(columns, known))
        return self._view("completed", moves.changes_with_moves(LAYOUT, columns, view, known))

    def _masks(self, view: str) -> frozenset[reduction.Mask]:
        rows = self.run(f"SELECT DISTINCT m FROM {view} WHERE op <> 'd' AND m IS NOT NULL")
        return frozenset(frozenset(m) for (m,) in rows)

    def _row(self, change: LogChange) -> dict[str, Any]:
        row: dict[str, Any] = {f"c{i}": change.values.get(n) for i, n in enumerate(COLUMNS)}
        unchanged = sorted(COLUMNS.index(n) for n in change.unchanged)
        row |= {
            "o": change.offset,
            "op": change.op,
            "v": 0,
            "n": change.transaction,
            "ts": None,
            "m": unchanged or None,
        }
        return row | {"b0": None if change.before is None else change.before["id"]}

    def _table(self, what: str, rows: list[dict[str, Any]], schema: pa.Schema) -> str:
        name = f"{what}_{next(self._numbers)}"
        self._db.register("given", pa.Table.from_pylist(rows, schema))
        self._db.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM given").fetchall()
        self._db.unregister("given")
        return name

    def _view(self, what: str, sql: str) -> str:
        name = f"{what}_{next(self._numbers)}"
        self.run(f"CREATE TEMP TABLE {name} AS {sql}")
        return name


_TRANSACTIONS = pa.schema([("n", pa.int64()), ("p", pa.string()), ("t", pa.timestamp("us", "UTC")), ("k", pa.bool_())])
_MOMENTS = pa.schema([("o", pa.int64()), ("p", pa.string()), ("t", pa.timestamp("us", "UTC"))])
_CHANGES = pa.schema(
    [
        *(
            ("o", pa.int64()),
            ("op", pa.string()),
            ("v", pa.int32()),
            ("n", pa.int64()),
            ("ts", pa.timestamp("us", "UTC")),
            ("m", pa.list_(pa.int32())),
        ),
        *((f"c{i}", t) for i, t in enumerate(ARROW.values())),
        ("b0", pa.int64()),
    ]
)


def _sealed(changes: Sequence[LogChange]) -> list[Piece]:
    """The segments that these were sealed in."""
    grouped = itertools.groupby(changes, key=lambda c: c.segment)
    return [Piece(own, own[-1].offset, 0, False) for own in (list(group) for _, group in grouped)]
