"""A query over only the columns that `needed_columns` returns has the answer of the same query over all columns."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from cdcflow.tables.local.settings_sql import tree_of
from cdcflow.tables.sql.needed_columns import needed_columns
from cdcflow.tables.sql.trees import Node, select_of

ROWS = pa.table(
    {
        "id": [1, 2, 3, 4],
        "Note": ["a", "b", None, "d"],
        "amount": [10, 20, 30, None],
        "seq": [4, 3, 2, 1],
        "s": [{"id": 1, "x": 2}, {"id": 2, "x": 3}, None, {"id": 4, "x": 5}],
        "o": [7, 8, 9, 10],
    }
)
QUERIES = {
    "SELECT amount FROM t": {"amount"},
    "SELECT note FROM t ORDER BY seq": {"Note", "seq"},
    'SELECT "NOTE" FROM t WHERE amount > 15': {"Note", "amount"},
    "SELECT count(*) FROM t": {"id"},
    "SELECT q.amount FROM t AS q JOIN t AS r USING (seq) ORDER BY 1": {"amount", "seq"},
    "SELECT t.s.x FROM t": {"s"},
    "SELECT (SELECT max(amount) FROM t AS u WHERE u.seq <= t.seq) AS m FROM t ORDER BY m": {"amount", "seq"},
    "WITH w AS (SELECT seq, id FROM t) SELECT sum(seq) OVER (ORDER BY id) AS n FROM w ORDER BY n": {"seq", "id"},
    "SELECT amount FROM t UNION ALL SELECT seq FROM t ORDER BY 1": {"amount", "seq"},
    "SELECT * FROM t": set(ROWS.column_names),
    "FROM t": set(ROWS.column_names),
    "SELECT * EXCLUDE (s) FROM t": set(ROWS.column_names),
    "SELECT COLUMNS('a.*') FROM t": set(ROWS.column_names),
    "SELECT q FROM t AS q": set(ROWS.column_names),
    "SELECT t FROM t": set(ROWS.column_names),
    "SELECT count(DISTINCT t) FROM t": set(ROWS.column_names),
    "SELECT count(*) FROM t NATURAL JOIN t AS u": set(ROWS.column_names),
    "SELECT count(*) FROM t JOIN (SELECT * FROM t) AS u USING (id)": set(ROWS.column_names),
    "SELECT c FROM t AS q(a, b, c, d, e, f) ORDER BY c": set(ROWS.column_names),
    "SELECT list_transform([1, 2], lambda i: i + amount) FROM t": set(ROWS.column_names),
    "SELECT DISTINCT ON (seq) id FROM t ORDER BY seq": set(ROWS.column_names),
    "SELECT n FROM (SUMMARIZE t) AS z(n, b, c, d, e, f, g, h, i, j, k, l) ORDER BY n": set(ROWS.column_names),
}


def tree(sql: str) -> Node:
    with duckdb.connect() as connection:
        return select_of(tree_of(connection, sql))


def answer(sql: str, rows: pa.Table) -> list[tuple[object, ...]]:
    with duckdb.connect() as connection:
        connection.register("t", rows)
        return connection.execute(sql).fetchall()


@pytest.mark.parametrize("sql", QUERIES)
def test_the_answer_needs_no_other_column(sql: str) -> None:
    read = needed_columns(tree(sql), "t", ROWS.column_names)
    assert set(read) == QUERIES[sql]
    assert answer(sql, ROWS.select(read)) == answer(sql, ROWS)


def test_a_name_of_a_row_is_recognized_among_columns() -> None:
    """An alias that is also a column's name may mean the row."""
    assert needed_columns(tree("SELECT o FROM t AS o"), "t", ROWS.column_names) == ROWS.column_names
