"""`cdcflow plan --ddl` before each statement, and what the capture and the merge then really did on PostgreSQL."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

import pytest
from tests.integration.daemon.test_rewritten_rows import Ledger
from tests.servers.postgres import PostgresServer

from cdcflow import local, wiring
from cdcflow.config import load
from cdcflow.model.table import TableId

pytestmark = [pytest.mark.postgres, pytest.mark.long]

ACTIONS = {
    "nullable": "ADD COLUMN c int",
    "constant": "ADD COLUMN c int NOT NULL DEFAULT 7",
    "volatile": "ADD COLUMN c double precision DEFAULT random()",
    "serial": "ADD COLUMN c serial",
    "stored": "ADD COLUMN c int GENERATED ALWAYS AS (v * 2) STORED",
    "dropped": "DROP COLUMN w",
    "readded": "DROP COLUMN w, ADD COLUMN w int",
    "computed": "ALTER v TYPE int USING v * 10",
    "bigger": "ALTER v TYPE bigint",
    "longer": "ALTER w TYPE varchar(20)",
    "texted": "ALTER w TYPE text USING w::text",
    "shorter": "ALTER w TYPE varchar(5)",
    "digits": "ALTER n TYPE numeric(12,2)",
    "scale": "ALTER n TYPE numeric(12,4)",
    "precise": "ALTER at TYPE timestamp(6)",
    "coarse": "ALTER at TYPE timestamp(3)",
    "zoned": "ALTER at TYPE timestamptz",
    "inet": "ALTER a TYPE inet",
    "renamed": "RENAME COLUMN w TO x",
    "settings": "ALTER v SET DEFAULT 3, ALTER v SET NOT NULL, ALTER w SET STORAGE EXTERNAL",
    "checked": "ADD CONSTRAINT positive CHECK (v > -100) NOT VALID",
    "other_key": "DROP CONSTRAINT other_key_pkey, ADD PRIMARY KEY (v)",
    "whole": "REPLICA IDENTITY FULL",
    "together": "ADD COLUMN c int, ALTER v TYPE bigint, DROP COLUMN n",
}
"""What each does to a table of its name. A merge refuses another key, and a type that does not hold the old values."""
COLUMNS = "id int PRIMARY KEY, v int, w varchar(10), n numeric(10,2), at timestamp, a cidr"


def plain(value: object) -> object:
    """A network as the warehouse has it: as text."""
    return str(value) if isinstance(value, IPv4Network | IPv4Interface | IPv4Address) else value


def test_each_statement_does_what_was_foretold(wheel_server: PostgresServer, tmp_path: Path) -> None:
    """Whether the table is read again, its columns at the source, those of its table in the warehouse, and its rows
    there."""
    database = wheel_server.create_database("foretold")
    database.execute("; ".join(f"CREATE TABLE {t} ({COLUMNS})" for t in ACTIONS))
    row = "SELECT i, i, 'w' || i, i, '2026-01-01', '10.0.0.1/32' FROM generate_series(1, 4) i"
    database.execute("; ".join(f"INSERT INTO {t} {row}" for t in ACTIONS))
    ledger = Ledger(database, tmp_path, tuple(ACTIONS), heartbeat="1s")
    config = load(ledger.config_path)
    place = tmp_path / "warehouse"

    def merge() -> None:
        newest = ledger.reader.newest_checkpoint().next_offset - 1
        ledger.wait_until(lambda: ledger.sealed_offset() >= newest, f"offset {newest} to be sealed")
        local.merge(ledger.log, place)

    try:
        with ledger.capturing():
            ledger.wait_until(lambda: ledger.has_reached(""), "the first backfill")
            merge()
            foretold = {}
            for table, action in ACTIONS.items():
                statement = f"ALTER TABLE {table} {action}"
                [foretold[table]] = wiring.rehearse_ddl(config, statement).tables
                database.execute(statement)
                database.execute(f"INSERT INTO {table} (id, v) VALUES (50, 5)")
            again = [t for t, found in foretold.items() if found.effect == "read again"]
            ledger.wait_until(lambda: all(ledger.progress()[t].generation > 1 for t in again), "tables read again")
            fence = ledger.fence()
            ledger.wait_until(lambda: ledger.has_reached(fence), "the log to pass the fence")
            merge()
        shapes = ledger.reader.table_shapes()
        cut = local.read_cut(place)
        progress = ledger.progress()
        for table in (t for t in ACTIONS if f"public.{t}" in cut):
            names = ledger.columns(table)
            rows = [tuple(row[name] for name in names) for row in cut[f"public.{table}"].select(names).to_pylist()]
            source = [tuple(map(plain, row)) for row in ledger.source_rows(table)]
            assert sorted(rows, key=repr) == sorted(source, key=repr), table
    finally:
        database.drop()
    effects = {t: "read again" if progress[t].generation > 1 else "nothing" for t in ACTIONS}
    assert {t: f.effect for t, f in foretold.items() if f.effect not in (effects[t], "depends")} == {}
    assert [t for t, found in foretold.items() if found.effect == "depends"] == ["readded"]
    for table, found in foretold.items():
        latest = list(shapes[TableId("public", table)].values())[-1]
        assert list(found.source_columns) == [c.name for c in latest.columns], (table, shapes[latest.id])
        assert [one.breaks for one in found.findings] == [True] * (f"public.{table}" not in cut), table
        if found.findings:
            continue
        there = cut[f"public.{table}"].schema.names
        assert {name for name, _ in found.destination_columns} == {
            name for name in there if not name.startswith("_")
        }, table
