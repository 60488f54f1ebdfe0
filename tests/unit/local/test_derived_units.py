"""Derived tables: computing only the rows that changes concern gives what computing all of them gives."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdcflow.tables.derived.increments import PLACE, Increments
from cdcflow.tables.derived.lineage import Lineage, NotCovered, lineage_of
from cdcflow.tables.derived.queries import query_of
from cdcflow.tables.local.derived_increments import continue_rows, read_increments
from cdcflow.tables.local.derived_rows import stored_types
from cdcflow.tables.local.derived_units import recompute
from cdcflow.tables.local.query_database import QueryDatabase

SEED = int(os.environ.get("CDCFLOW_DERIVED_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)

SHAPES: Mapping[str, tuple[str, str]] = {
    "groups": ("k", "SELECT k, count(*) AS n, sum(x) AS t FROM a GROUP BY k"),
    "filter": ("id", "SELECT id, x + 1 AS y, s FROM a WHERE x > 2"),
    "join": ("k", "SELECT a.k, count(*) AS n, sum(b.y) AS t FROM a JOIN b ON a.k = b.id GROUP BY a.k"),
    "key of the other table": ("i", "SELECT b.id AS i, sum(a.x) AS t FROM a JOIN b ON a.k = b.id GROUP BY b.id"),
    "left join": ("id", "SELECT a.id, a.x, b.y FROM a LEFT JOIN b ON a.k = b.id"),
    "groups of a left join": (
        "k",
        "SELECT a.k, count(b.id) AS n, max(b.y) AS m FROM a LEFT JOIN b ON a.k = b.id AND b.y > 1 GROUP BY a.k",
    ),
    "three tables": (
        "z",
        "SELECT z, sum(x) AS t FROM a JOIN b ON a.k = b.id JOIN c ON c.b_id = b.id GROUP BY z HAVING count(*) > 1",
    ),
    "two left joins": (
        "id",
        "SELECT a.id, count(c.id) AS n FROM a LEFT JOIN b ON a.k = b.k LEFT JOIN c ON c.b_id = b.id GROUP BY a.id",
    ),
    "left join on what another lacks": (
        "id",
        "SELECT a.id, count(c.id) AS n FROM a LEFT JOIN b ON a.k = b.id"
        " LEFT JOIN c ON c.b_id = a.k AND (b.y IS NULL OR b.y = c.z) GROUP BY a.id",
    ),
    "windows": (
        "k id",
        "SELECT id, k, rank() OVER (PARTITION BY k ORDER BY x, id) AS r, sum(x) OVER (PARTITION BY k) AS t FROM a",
    ),
    "commas": (
        "k",
        "SELECT b.k, count(*) AS n FROM a, b, c WHERE a.k = b.id AND c.b_id = b.id AND (c.z > 1 OR a.x > 2)"
        " GROUP BY b.k",
    ),
    "the same table twice": ("k", "SELECT p.k, count(*) AS n FROM a AS p JOIN a AS q ON p.x = q.k GROUP BY p.k"),
    "using": ("id", "SELECT id, x, y FROM a JOIN b USING (id)"),
    "expression": ("g", "SELECT x % 3 AS g, count(DISTINCT s) AS n FROM a GROUP BY g"),
    "number of an item": ("g", "SELECT lower(s) AS g, count(*) AS n FROM a GROUP BY 1"),
    "distinct": ("k s", "SELECT DISTINCT k, s FROM a"),
    "first of each": (
        "k",
        "SELECT k, id, x FROM a QUALIFY row_number() OVER (PARTITION BY k ORDER BY x DESC NULLS LAST, id) = 1",
    ),
    "two columns": ("k l", "SELECT a.k, b.k AS l, count(*) AS n FROM a JOIN b ON a.x = b.y GROUP BY a.k, b.k"),
    "other comparison": ("id", "SELECT a.id, count(b.id) AS n FROM a LEFT JOIN b ON b.y < a.x GROUP BY a.id"),
    "conditional": (
        "s",
        "SELECT s, sum(CASE WHEN k = 1 THEN x END) AS o, count(*) FILTER (WHERE x IS NULL) AS e FROM a GROUP BY s",
    ),
    "star": ("id", "SELECT a.*, b.y FROM a JOIN b ON a.k = b.id"),
    "other side of a join": ("z", "SELECT c.z, count(*) AS n FROM c JOIN a ON a.k = c.b_id AND a.x > c.z GROUP BY c.z"),
    "sums without counts": ("k", "SELECT k, sum(x) AS t FROM a GROUP BY k"),
    "counted values": ("k", "SELECT k, sum(x) AS t, count(x) AS v, count(*) AS n FROM a GROUP BY k"),
    "least and greatest": ("k", "SELECT k, min(x) AS l, max(s) AS g, count(*) AS n FROM a GROUP BY k"),
    "least without a count": ("k", "SELECT k, min(x) AS l FROM a GROUP BY k"),
    "nothing but groups": ("k s", "SELECT k, s FROM a GROUP BY k, s"),
    "groups with more than the key": (
        "id",
        "SELECT b.id, b.y, count(*) AS n, sum(a.x) AS t FROM a JOIN b ON a.k = b.id GROUP BY b.id, b.y",
    ),
    "sums over a join": (
        "k z",
        "SELECT b.k, c.z, sum(a.x * b.y) AS t, min(c.z + a.x) AS l, count(*) AS n, count(a.s) FILTER (WHERE x > 1) AS f"
        " FROM a JOIN b ON a.k = b.id JOIN c ON c.b_id = b.id WHERE a.x IS NOT NULL GROUP BY b.k, c.z",
    ),
    "sums of filtered values": (
        "s",
        "SELECT s, sum(x) FILTER (WHERE k > 0) AS t, sum(x) AS u, count(x) FILTER (WHERE k > 0) AS v FROM a GROUP BY s",
    ),
    "sums of a left join": (
        "k",
        "SELECT a.k, sum(b.y) AS t, count(b.y) AS v FROM a LEFT JOIN b ON a.k = b.id AND b.y > 1 GROUP BY a.k",
    ),
    "decimals": (
        "k",
        "SELECT k, sum(CAST(x AS DECIMAL(9, 4)) * 0.37) AS d, sum(CAST(x AS DECIMAL(38, 33))) AS t FROM a GROUP BY k",
    ),
    "having": ("k", "SELECT k, count(*) AS n, sum(x) AS t FROM a GROUP BY k HAVING sum(x) > 2 AND n < 5 OR k IS NULL"),
    "having a quotient": (
        "k",
        "SELECT k, sum(x) AS t, count(x) AS v FROM a GROUP BY k HAVING sum(x) / count(x) > 1.5 AND t % 3 <> 1",
    ),
    "having over a join": (
        "k",
        "SELECT b.k, max(a.x) AS m, count(*) AS n FROM a JOIN b ON a.k = b.id GROUP BY b.k HAVING max(a.x) > b.k",
    ),
    "having without a count": ("k", "SELECT k, sum(x) AS t FROM a GROUP BY k HAVING sum(x) IS NULL OR sum(x) > 2"),
    "having what is not selected": ("k", "SELECT k, count(*) AS n FROM a GROUP BY k HAVING sum(x) > 2"),
    "having a name of two columns": (
        "k x",
        "SELECT x AS k, k AS x, count(*) AS n FROM a GROUP BY a.x, a.k HAVING k > 1",
    ),
    "means": ("k", "SELECT k, avg(x) AS m, count(x) AS v, sum(x) AS t FROM a GROUP BY k"),
    "means of counted rows": ("k", "SELECT k, count(*) AS n, avg(x) AS m FROM a GROUP BY k"),
    "means of large numbers": ("x", "SELECT x, avg(id) AS m, count(*) AS n FROM a GROUP BY x"),
    "means of a join": (
        "k",
        "SELECT a.k, avg(b.id) AS m, avg(a.x * b.y) FILTER (WHERE b.y > 1) AS p, count(*) AS n,"
        " count(a.x * b.y) FILTER (WHERE b.y > 1) AS v FROM a JOIN b ON a.k = b.id GROUP BY a.k",
    ),
    "means of a left join": (
        "k",
        "SELECT a.k, avg(b.id) AS m, count(*) AS n FROM a LEFT JOIN b ON a.k = b.id GROUP BY a.k",
    ),
    "means without a count": ("k", "SELECT k, avg(x) AS m FROM a GROUP BY k"),
    "means of quotients": ("k", "SELECT k, avg(x / 3) AS m, count(x / 3) AS v FROM a GROUP BY k"),
    "having a mean": ("k", "SELECT k, avg(x) AS m, count(x) AS v FROM a GROUP BY k HAVING avg(x) > 1.5 AND m <> 2"),
    "no condition": ("k", "SELECT a.k, count(*) AS n FROM a CROSS JOIN b WHERE b.y = 1 GROUP BY a.k"),
}
"""The key of a derived table, and its query."""

COLUMNS: Mapping[str, Mapping[str, pa.DataType]] = {
    "a": {"id": pa.int64(), "k": pa.int64(), "x": pa.int32(), "s": pa.string()},
    "b": {"id": pa.int64(), "k": pa.int64(), "y": pa.int32()},
    "c": {"id": pa.int64(), "b_id": pa.int32(), "z": pa.int32()},
}

Rows = dict[int, dict[str, Any]]


class Given:
    """An input in memory."""

    def __init__(self, rows: Rows, columns: Mapping[str, pa.DataType]) -> None:
        self.table = pa.Table.from_pylist(list(rows.values()), pa.schema(list(columns.items())))

    def rows(self, columns: Sequence[str]) -> pa.Table:
        return self.table.select(columns)

    def may_have_null(self, column: str) -> bool:
        return bool(self.table.column(column).null_count)

    def rows_with(self, columns: Sequence[str], column: str, values: pa.ChunkedArray) -> pa.Table:
        wanted = values.cast(self.table.schema.field(column).type)
        return self.table.filter(pc.is_in(self.table.column(column), value_set=wanted)).select(columns)


@pytest.fixture(scope="module")
def db() -> Iterator[QueryDatabase]:
    with closing(QueryDatabase(None)) as made:
        yield made


def lineage(db: QueryDatabase, name: str) -> Lineage:
    key, sql = SHAPES[name]

    def inputs(schema: str, table: str) -> tuple[str, Mapping[str, str]]:
        return table, {column: str(type_) for column, type_ in COLUMNS[table].items()}

    return lineage_of(query_of(db.parse(sql)), key.split(), inputs, db.render)


def some_row(chance: random.Random, table: str, id_: int) -> dict[str, Any]:
    few = [None, 0, 1, 2, 3]
    values = {name: chance.choice(few) for name in COLUMNS[table]}
    return values | {"id": id_} | ({"s": chance.choice([None, "A", "a", "b"])} if table == "a" else {})


def changed(chance: random.Random, table: str, rows: Rows) -> Rows:
    """Some changes, often none."""
    found = dict(rows)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 5])):
        id_ = chance.randrange(8)
        if id_ in found and chance.random() < 0.4:
            del found[id_]
        else:
            found[id_] = some_row(chance, table, id_)
    return found


def whole(db: QueryDatabase, sql: str, tables: Mapping[str, Rows]) -> list[tuple[Any, ...]]:
    named = [db.name("", name, db.give(Given(rows, COLUMNS[name]).table)) for name, rows in tables.items()]
    found = db.arrow(sql)
    db.forget(named)
    return rows_of(found)


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(table.column(n).to_pylist() for n in range(table.num_columns)), strict=True))


def difference(rows: Rows, others: Rows, table: str) -> pa.Table:
    return Given({id_: row for id_, row in rows.items() if others.get(id_) != row}, COLUMNS[table]).table


def differences(db: QueryDatabase, name: str, chance: random.Random, rounds: int, *, forgets_old: bool = False) -> int:
    """Change the inputs several times, compute the rows concerned, and return how often the result was wrong."""
    sql = SHAPES[name][1]
    found, wrong = lineage(db, name), 0
    names = [field.lower() for field in db_columns(db, sql)]
    tables: dict[str, Rows] = {table: changed(chance, table, {}) for table in COLUMNS}
    for _ in range(rounds):
        after = {table: changed(chance, table, rows) for table, rows in tables.items()}
        changes = {
            table: (difference(tables[table], after[table], table), difference(after[table], tables[table], table))
            for table in COLUMNS
        }
        if forgets_old:
            changes = {table: (gone.slice(0, 0), come) for table, (gone, come) in changes.items()}
        new = {table: Given(rows, COLUMNS[table]) for table, rows in after.items()}
        units, rows = recompute(db, found, changes, new)
        db.forget()
        places = [names.index(unit.lower()) for unit in found.units]
        concerned = set(rows_of(units))
        before = whole(db, sql, tables)
        kept = [row for row in before if tuple(row[place] for place in places) not in concerned]
        wrong += sorted(map(repr, kept + rows_of(rows))) != sorted(map(repr, whole(db, sql, after)))
        tables = after
    return wrong


def increments(db: QueryDatabase, name: str) -> Increments | None:
    """How the results of a shape are continued, if they are."""
    found = lineage(db, name)
    empty = {one.number: Given({}, COLUMNS[one.table]).rows(found.needed_columns(one.number)) for one in found.joined}
    try:
        return read_increments(db, found, empty)
    except NotCovered:
        return None
    finally:
        db.forget()


CONTINUED = (
    "groups", "join", "key of the other table", "groups of a left join", "commas", "the same table twice",
    "number of an item", "two columns", "conditional", "other side of a join", "no condition", "sums without counts",
    "counted values", "least and greatest", "least without a count", "nothing but groups", "sums over a join",
    "groups with more than the key", "sums of filtered values", "sums of a left join", "decimals",
    "two left joins", "left join on what another lacks", "other comparison",
    "having", "having a quotient", "having over a join", "having without a count",
    "means", "means of counted rows", "means of large numbers", "means of a join", "having a mean",
)  # fmt: skip


def continued_wrongly(db: QueryDatabase, name: str, chance: random.Random, rounds: int) -> tuple[int, int]:
    """Change the inputs several times, continue the rows, and return how often that was possible, and wrong."""
    known = increments(db, name)
    assert known is not None
    times = wrong = 0
    tables: dict[str, Rows] = {table: changed(chance, table, {}) for table in COLUMNS}
    present = arrow(db, SHAPES[name][1], tables)
    for _ in range(rounds):
        after = {table: changed(chance, table, rows) for table, rows in tables.items()}
        changes = {
            table: (difference(tables[table], after[table], table), difference(after[table], tables[table], table))
            for table in COLUMNS
        }
        new = {table: Given(rows, COLUMNS[table]) for table, rows in after.items()}
        placed = present.append_column(PLACE, pa.array(range(len(present)), pa.int64()))
        found = continue_rows(db, known, changes, new, partial(_same, placed))
        db.forget()
        tables, present = after, arrow(db, SHAPES[name][1], after)
        if found is not None:
            times += 1
            wrong += sorted(map(repr, rows_of(found[1]))) != sorted(map(repr, rows_of(present)))
    return times, wrong


def _same(placed: pa.Table, units: pa.Table) -> pa.Table:
    return placed


def arrow(db: QueryDatabase, sql: str, tables: Mapping[str, Rows]) -> pa.Table:
    named = [db.name("", name, db.give(Given(rows, COLUMNS[name]).table)) for name, rows in tables.items()]
    found = stored_types(db.arrow(sql))
    db.forget(named)
    return found


def db_columns(db: QueryDatabase, sql: str) -> list[str]:
    empty: dict[str, Rows] = {table: {} for table in COLUMNS}
    named = [db.name("", name, db.give(Given(rows, COLUMNS[name]).table)) for name, rows in empty.items()]
    found: list[str] = db.arrow(sql).column_names
    db.forget(named)
    return found


@pytest.mark.spread(24)
@pytest.mark.parametrize("name", SHAPES)
def test_rows_that_changes_concern_are_all_that_differ(db: QueryDatabase, name: str) -> None:
    """A derived table that keeps a row whose input has changed is wrong until its query changes."""
    assert differences(db, name, random.Random(f"{SEED} {name}"), 2) == 0, f"CDCFLOW_DERIVED_SEED={SEED}"


@pytest.mark.long
@pytest.mark.parametrize("name", SHAPES)
def test_rows_that_changes_concern_are_all_that_differ_in_many_histories(db: QueryDatabase, name: str) -> None:
    """Joins have combinations of changes that few histories have."""
    for number in range(300):
        assert differences(db, name, random.Random(f"{SEED} {name} {number}"), 6) == 0, f"{SEED} {number}"


@pytest.mark.parametrize("name", ["groups", "join", "first of each"])
def test_forgotten_old_rows_are_noticed(db: QueryDatabase, name: str) -> None:
    """The comparison above can fail: a row that moved to another key must be taken from its old one."""
    assert any(differences(db, name, random.Random(number), 4, forgets_old=True) for number in range(9))


def test_shapes_that_are_continued(db: QueryDatabase) -> None:
    """A shape that silently fell back to reading whole units would be right, and slow."""
    assert {name for name in SHAPES if increments(db, name) is not None} == set(CONTINUED)


@pytest.mark.spread(16)
@pytest.mark.parametrize("name", CONTINUED)
def test_continued_rows_are_those_of_the_query(db: QueryDatabase, name: str) -> None:
    """A sum that is continued wrongly stays wrong for as long as the table exists."""
    assert continued_wrongly(db, name, random.Random(f"{SEED} {name}"), 4)[1] == 0, f"CDCFLOW_DERIVED_SEED={SEED}"


@pytest.mark.long
@pytest.mark.parametrize("name", CONTINUED)
def test_continued_rows_are_those_of_the_query_in_many_histories(db: QueryDatabase, name: str) -> None:
    """Which of a group's values are the last, or the least, differs between histories."""
    times = 0
    for number in range(300):
        some, wrong = continued_wrongly(db, name, random.Random(f"{SEED} {name} {number}"), 6)
        assert wrong == 0, f"{SEED} {number}"
        times += some
    assert times > 300


class _Read(Given):
    """An input that notes the groups whose rows were read."""

    def __init__(self, rows: Rows, read: set[int]) -> None:
        super().__init__(rows, COLUMNS["a"])
        self._read = read

    def rows_with(self, columns: Sequence[str], column: str, values: pa.ChunkedArray) -> pa.Table:
        self._read |= set(values.to_pylist())
        return super().rows_with(columns, column, values)


def test_means_are_continued_to_the_last_bit(db: QueryDatabase) -> None:
    """A mean that is continued is compared with one that is computed, and copied to readers who compare it, too."""
    chance, known = random.Random(SEED), increments(db, "means of large numbers")
    assert known is not None
    sizes = [chance.choice([1, 2, 3, 7, 49, 511, 512, 513]) for _ in range(60)]
    groups = [(number, size, 1 << chance.randrange(2, 51 - size.bit_length())) for number, size in enumerate(sizes)]
    groups += [(60, 2, 1 << 52), (61, 3, 1 << 62)]
    listed = [(x, most) for x, size, most in groups for _ in range(size)]
    rows: Rows = {n: {"id": chance.randrange(-most, most), "x": x} for n, (x, most) in enumerate(listed)}
    present = arrow(db, SHAPES["means of large numbers"][1], {"a": rows})
    for _ in range(3):
        after = dict(rows)
        for n in {chance.choice([n for n, row in rows.items() if row["x"] == x]) for x, _, _ in groups}:
            after[n] = {"id": chance.randrange(-listed[n][1], listed[n][1]), "x": rows[n]["x"]}
        read = set[int]()
        changes = {"a": (difference(rows, after, "a"), difference(after, rows, "a"))}
        placed = present.append_column(PLACE, pa.array(range(len(present)), pa.int64()))
        found = continue_rows(db, known, changes, {"a": _Read(after, read)}, partial(_same, placed))
        db.forget()
        rows, present = after, arrow(db, SHAPES["means of large numbers"][1], {"a": after})
        assert found is not None
        assert sorted(map(repr, rows_of(found[1]))) == sorted(map(repr, rows_of(present))), (
            f"CDCFLOW_DERIVED_SEED={SEED}"
        )
        assert read <= {x for x, size, most in groups if size > 512 or most > 1 << 50}
