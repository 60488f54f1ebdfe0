"""Which queries derived tables may have, and which of them are computed as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest

from cdcflow.tables.derived.lineage import NotCovered, lineage_of
from cdcflow.tables.derived.queries import query_of, resolve_table, tables_of
from cdcflow.tables.local.query_database import QueryDatabase
from cdcflow.tables.sql.trees import SqlRefused

REFUSED: Mapping[str, str] = {
    "DROP TABLE orders": "not one SELECT",
    "SELECT 1; DROP TABLE orders": "not one SELECT",
    "SELECT id FROM orders; SELECT 2": "2 statements",
    "INSTALL httpfs": "not one SELECT",
    "COPY orders TO '/tmp/x'": "not one SELECT",
    "SELECT * FROM read_csv('/etc/passwd')": "read_csv()",
    "SELECT * FROM glob('/*')": "glob()",
    "SELECT id FROM orders WHERE id IN (SELECT 1 FROM read_text('/etc/passwd'))": "read_text()",
    "WITH x AS (SELECT * FROM read_parquet('s3://b/x')) SELECT * FROM x": "read_parquet()",
    "SELECT getenv('HOME') AS h FROM orders": "getenv()",
    "SELECT current_setting('threads') AS h FROM orders": "current_setting()",
    "SELECT id, now() AS n FROM orders": "now()",
    "SELECT id, random() AS n FROM orders": "random()",
    "SELECT id, uuid() AS n FROM orders": "uuid()",
    "SELECT id, nextval('s') AS n FROM orders": "nextval()",
    "SELECT id, current_timestamp AS n FROM orders": "current_timestamp",
    "SELECT id, rowid AS n FROM orders": "rowid",
    "SELECT id, main.lower(s) AS n FROM orders": "of a schema",
    "SELECT id FROM orders LIMIT 3": "LIMIT",
    "SELECT DISTINCT ON (id) id FROM orders": "DISTINCT ON",
    "SELECT id FROM orders USING SAMPLE 10%": "sample",
    "SELECT id FROM orders TABLESAMPLE 10%": "sample",
    "SELECT id FROM memory.main.orders": "catalog",
    "SELECT id FROM information_schema.tables": "catalog",
    "SELECT id FROM orders AT (VERSION => 3)": "version",
    "SELECT id FROM orders WHERE id = $1": "parameter",
    "SELECT array_agg(id) AS i FROM orders": "ORDER BY",
    "SELECT first(id) AS i FROM orders": "first()",
    "SELECT list_transform([id], lambda x: x) AS i FROM orders": "derived tables do not support",
    "SELECT unnest([1, 2]) AS i FROM orders": "unnest()",
    "SHOW TABLES": "do not support",
    "SUMMARIZE orders": "do not support",
    "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r) SELECT i FROM r": "recursive_cte_node",
    "FROM 'orders.csv'": "neither captured nor derived",
    "SELECT id FROM items": "neither captured nor derived",
    "SELECT id FROM ordres": "did you mean",
    "SELECT id FROM twice": "may be any of",
    "SELECT": "not one SELECT",
    "": "0 statements",
}

WHOLE: Mapping[str, str] = {
    "SELECT id FROM orders UNION ALL SELECT id FROM customers": "UNION",
    "WITH x AS (SELECT id FROM orders) SELECT id FROM x": "WITH",
    "SELECT id FROM orders WHERE customer = (SELECT max(id) FROM customers)": "subquery",
    "SELECT id FROM (SELECT id FROM orders) AS o": "subquery",
    "SELECT count(*) AS id FROM orders": "aggregates without GROUP BY",
    "SELECT customer AS id, count(*) AS n FROM orders GROUP BY ALL": "GROUP BY ALL",
    "SELECT customer AS id, count(*) AS n FROM orders GROUP BY ROLLUP (customer)": "set of groups",
    "SELECT o.id FROM orders AS o FULL JOIN customers AS c ON o.customer = c.id": "FULL JOIN",
    "SELECT c.id FROM orders AS o LEFT JOIN customers AS c ON o.customer = c.id": "LEFT JOIN",
    "SELECT o.id FROM orders AS o NATURAL JOIN customers": "NATURAL JOIN",
    "SELECT max(id) AS id, customer FROM orders GROUP BY customer": "no column of its key",
    "SELECT id, row_number() OVER (ORDER BY id) AS n FROM orders": "windows",
    "SELECT id, rank() OVER (PARTITION BY customer ORDER BY id) AS n FROM orders": "windows",
    "SELECT o.id FROM orders AS o LEFT JOIN customers AS c ON o.customer = c.id JOIN customers AS d ON c.id = d.id": (
        "follows a LEFT JOIN"
    ),
}

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "public.orders": {"id": "int64", "customer": "int64", "s": "string"},
    "public.customers": {"id": "int64", "name": "string"},
    "public.twice": {"id": "int64"},
    "other.twice": {"id": "int64"},
}
TABLES = {name: (name.split(".")[0], name.split(".")[1]) for name in COLUMNS}


@pytest.fixture(scope="module")
def db() -> Iterator[QueryDatabase]:
    with closing(QueryDatabase(None)) as made:
        yield made


def tables_in(db: QueryDatabase, sql: str) -> list[str]:
    return [resolve_table(*table, TABLES) for table in tables_of(query_of(db.parse(sql)))]


@pytest.mark.parametrize("sql", REFUSED)
def test_query_that_reads_or_depends_on_something_else_is_refused(db: QueryDatabase, sql: str) -> None:
    """The author of a query need not be allowed to read files, and a table must not depend on the time."""
    with pytest.raises(SqlRefused) as refused:
        tables_in(db, sql)
    assert REFUSED[sql] in str(refused.value)


def test_database_of_queries_reaches_no_file(db: QueryDatabase) -> None:
    """Should a query pass the check that must not, the database refuses it."""
    for sql in ("SELECT * FROM read_text('/etc/passwd')", "SELECT * FROM '/etc/passwd'", "SELECT * FROM db"):
        with pytest.raises(Exception, match=r"Permission|disabled|does not exist"):
            db.arrow(sql)


@pytest.mark.parametrize("sql", WHOLE)
def test_query_that_is_not_covered_is_computed_as_a_whole(db: QueryDatabase, sql: str) -> None:
    """What the argument for single rows does not cover must not be computed in parts."""

    def inputs(schema: str, table: str) -> tuple[str, Mapping[str, str]]:
        name = resolve_table(schema, table, TABLES)
        return name, COLUMNS[name]

    with pytest.raises(NotCovered) as reason:
        lineage_of(query_of(db.parse(sql)), ["id"], inputs, db.render)
    assert WHOLE[sql] in str(reason.value)


def test_names_of_tables_are_found_as_the_database_finds_them() -> None:
    """Upper and lower case matter only if two names differ in nothing else."""
    known = {"public.Orders": ("public", "Orders"), "public.orders": ("public", "orders"), "s.Items": ("s", "Items")}
    assert resolve_table("", "orders", known) == "public.orders"
    assert resolve_table("public", "Orders", known) == "public.Orders"
    assert resolve_table("S", "items", known) == "s.Items"
    with pytest.raises(SqlRefused):
        resolve_table("", "ORDERS", known)
