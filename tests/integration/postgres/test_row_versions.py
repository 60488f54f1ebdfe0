"""What each server's catalog says of rows that were read: whether they show other values now."""

from __future__ import annotations

import pytest
from capturing import Capture, table_id

from cdcflow.testing.postgres import Database

pytestmark = pytest.mark.postgres

T = table_id("public.t")

STATEMENTS = {
    "ALTER TABLE t ADD COLUMN c int DEFAULT 7": False,
    "ALTER TABLE t ALTER v TYPE int USING v * 2": True,
    "ALTER TABLE t ALTER d TYPE int": False,
    "ALTER TABLE t ALTER d TYPE bigint": True,
    "ALTER TYPE mood ADD VALUE 'glad'": False,
    "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'": True,
    "ALTER TABLE t ALTER w TYPE text": False,
    "ALTER TABLE t ALTER x TYPE timestamptz": True,
    "ALTER TABLE t DROP COLUMN w": False,
    "ALTER TABLE t RENAME v TO w": False,
    "CREATE TABLE t_3 PARTITION OF t FOR VALUES FROM (200) TO (300)": False,
    "TRUNCATE t_3": True,
    "TRUNCATE t": True,  # it is logged, and every partition has another file
    "ALTER TABLE t DETACH PARTITION t_2": True,
    "ALTER TABLE t ATTACH PARTITION t_2 FOR VALUES FROM (100) TO (200)": True,
    "DROP TABLE t_2": True,
    "BEGIN; CREATE TABLE t_4 (LIKE t); INSERT INTO t_4 (id) VALUES (300); "
    "ALTER TABLE t ATTACH PARTITION t_4 FOR VALUES FROM (300) TO (400); COMMIT": True,
    "CREATE TABLE u PARTITION OF t FOR VALUES FROM (400) TO (600) PARTITION BY RANGE (id); "
    "CREATE TABLE u_1 PARTITION OF u FOR VALUES FROM (400) TO (500)": False,
    "CREATE TABLE w (LIKE t) PARTITION BY RANGE (id); CREATE TABLE w_1 PARTITION OF w FOR VALUES FROM (600) TO (700); "
    "ALTER TABLE t ATTACH PARTITION w FOR VALUES FROM (600) TO (700)": True,
    "CREATE TABLE t_5 PARTITION OF t FOR VALUES FROM (700) TO (800); "
    "ALTER TABLE t ADD COLUMN y int; INSERT INTO t (id) VALUES (700)": False,
    "CREATE TABLE t_6 PARTITION OF t FOR VALUES FROM (800) TO (900); TRUNCATE t_6": True,
    "VACUUM FULL t_1": True,  # nothing tells it from TRUNCATE
}
"""One after the other, each compared with the version before it."""


def test_row_version_tells_which_statements_changed_rows(database: Database, capture: Capture) -> None:
    """The same rule on every server, of a partitioned table: each statement is compared with what was before it."""
    database.execute("CREATE TYPE mood AS ENUM ('sad'); CREATE DOMAIN moods AS mood[]; CREATE DOMAIN amount AS int")
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int, w varchar(9), d amount, m moods, x timestamp)"
        "PARTITION BY RANGE (id);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (100) TO (200);"
        "INSERT INTO t SELECT i, i, 'w', i, '{sad}', now() FROM generate_series(1, 199) i"
    )
    capture.prepare()
    known = capture.plan("public.t").row_version
    assert capture.source.compare_rows({T: known}).found == ()
    found = {}
    for statement in STATEMENTS:
        with database.connect(autocommit=True) as session:
            session.execute("SET timezone = 'UTC'")
            for part in statement.split("; "):
                session.execute(part)
        for version in capture.source.compare_rows({T: known}).found:
            assert (version.table, version.known) == (T, known)
            found[statement] = version.changed
            known = version.now
    assert {statement: found.get(statement, False) for statement in STATEMENTS} == STATEMENTS
    database.execute("DROP TABLE t")
    assert capture.source.compare_rows({T: known}).found == ()


def test_generated_column_that_becomes_an_ordinary_one_was_published_before_from_18_on(
    database: Database, capture: Capture
) -> None:
    """Where it was not, its values in rows that are there were never sent, and no file changes."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED)")
    capture.prepare()
    known = capture.plan("public.t").row_version
    database.execute("ALTER TABLE t ALTER g DROP EXPRESSION")
    (version,) = capture.source.compare_rows({T: known}).found
    assert version.changed is (int(str(database.execute("SHOW server_version_num")[0][0])) < 180000)


def test_table_of_an_older_log_is_compared_from_now_on(database: Database, capture: Capture) -> None:
    """Reading every table again after an upgrade of cdcflow would be for nothing."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture.prepare()
    (version,) = capture.source.compare_rows({T: None, table_id("public.gone"): None}).found
    assert (version.known, version.changed) == (None, False)
    assert capture.source.compare_rows({T: version.now}).found == ()
