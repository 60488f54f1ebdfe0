"""Constants of columns that PostgreSQL added without rewriting the rows, merged without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.daemon.test_rewritten_rows import Ledger
from tests.servers.postgres import PostgresServer

from cdcflow import local

pytestmark = pytest.mark.postgres

CONSTANTS = {
    "double precision": "'NaN' '-0' '1e300' '0.1' '-Infinity' '5e-324'",
    "real": "'3.4028235e38' '0.1' 'Infinity'",
    "integer[]": "'{1,NULL,-3}' '{}'",
    "text[]": """'{"a b","x\\"y\\\\z",NULL,"NULL",q,"","{1,2}","it''s"}' '{" padded "}' '{ä,"€ $1 {} "}'""",
    "boolean[]": "'{t,f,NULL}'",
    "numeric(6,2)[]": "'{1.5,-0.01}'",
    "double precision[]": "'{1.5,NaN,-Infinity,-0}'",
    "bytea": r"'\x00ff' '\x'",
    "bytea[]": r"""'{"\\x00ff",NULL}'""",
    "date": "'2020-02-29' '0001-01-01' '9999-12-31'",
    "timestamp": "'2020-02-29 23:59:59.123456' '1969-12-31 23:59:59'",
    "timestamptz": "'2020-02-29 23:59:59.5+02' '1969-12-31 23:59:59+00'",
    "timestamptz[]": "'{2020-02-29 23:59:59.5+02}'",
    "time": "'24:00:00' '12:34:56.7'",
    "inet": "'10.0.0.1/8'",
    "char(5)": "'ab'",
    "numeric": "'1.500' 'NaN'",
    "small": "'{7}'",
}
"""Constants by type; `small` is a domain over integer[]."""


def texts(rows: list[dict[str, object]]) -> list[str]:
    """Rows as texts that tell apart what Python calls equal, such as zeros and lists of them."""
    return sorted(repr(sorted((k, v) for k, v in row.items() if k[0] != "_")) for row in rows)


@pytest.mark.spread(1)
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_rows_from_before_a_column_have_its_constant_exactly(
    wheel_server: PostgresServer, tmp_path: Path, table_format: str
) -> None:
    """P18: the merge without Spark refused constants of most types, and every engine those that are lists. A table of
    the same rows that is read afterwards has the values as the server stores them.
    """
    database = wheel_server.create_database("constants")
    columns = [(t, f"'{c}'") for t, found in CONSTANTS.items() for c in found.strip("'").split("' '")]
    with database.connect(autocommit=True) as session:
        session.execute("CREATE DOMAIN small AS integer[]")
        session.execute("CREATE TABLE t (id int PRIMARY KEY)")
        session.execute("INSERT INTO t SELECT generate_series(1, 3)")
        ledger = Ledger(database, tmp_path, ("t",))
        warehouse = tmp_path / "tables"
        with ledger.capturing():
            ledger.wait_until(lambda: ledger.has_reached(""), "the backfill")
        local.merge(ledger.log, warehouse, table_format=table_format)
        for number, (type_, constant) in enumerate(columns):
            session.execute(f"ALTER TABLE t ADD COLUMN c{number} {type_} NOT NULL DEFAULT {constant}".encode())
        session.execute("INSERT INTO t VALUES (4)")
        session.execute("CREATE TABLE u (LIKE t INCLUDING ALL)")
        session.execute("INSERT INTO u SELECT * FROM t")
        with ledger.capturing():
            fence = ledger.fence()
            ledger.wait_until(lambda: ledger.has_reached(fence), "the changes")
    assert ledger.progress()["t"].generation == 1
    local.merge(ledger.log, warehouse, table_format=table_format)
    found = {str(table): texts(rows.to_pylist()) for table, rows in local.read_cut(warehouse).items()}
    database.drop()
    assert len(found["public.t"]) == 4
    assert found["public.t"] == found["public.u"]
