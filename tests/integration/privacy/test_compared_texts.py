"""Texts that the server takes for equal, and a condition does not: `cdcflow doctor` names the columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.servers.mysql import MySQLDatabase
from tests.servers.postgres import PostgresServer
from tests.support.daemon.bank import Bank, Branch
from tests.support.daemon.mysql_bank import MySQLBank

from cdcflow import wiring
from cdcflow.config import load

WHERE = "status <> 'draft' AND id > 0"


def warnings_about(bank: Branch, table: str, where: str) -> list[str]:
    bank.other_settings = {"tables": {f"{bank.schema}.{table}": {"where": where, "computed": {"x": "lower(note)"}}}}
    bank.configure()
    findings: list[Any] = wiring.doctor(load(bank.config_path))
    return [f.text for f in findings if f.subject == f"{bank.schema}.{table}" and f.level == "warning"]


@pytest.mark.mysql
def test_doctor_names_columns_that_ignore_case(mysql_database: MySQLDatabase, tmp_path: Path) -> None:
    """Only those that a condition compares, and whose collation has other equal texts."""
    mysql_database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status varchar(20) COLLATE utf8mb4_unicode_ci, note varchar(20),"
        " code varchar(20) COLLATE utf8mb4_bin) DEFAULT CHARACTER SET utf8mb4"
    )
    bank = MySQLBank(mysql_database, tmp_path, create=False)
    [found] = warnings_about(bank, "orders", WHERE)
    assert "equal in status (utf8mb4_unicode_ci): 'a' is not 'A' here" in found
    assert warnings_about(bank, "orders", "lower(status) <> 'draft' AND code = 'x'") == []


@pytest.mark.postgres
def test_doctor_names_columns_with_a_collation_that_is_not_deterministic(
    private_server: PostgresServer, tmp_path: Path
) -> None:
    database = private_server.create_database("compared_texts")
    with database.connect(autocommit=True) as conn:
        conn.execute('CREATE COLLATION loose FROM "C"')  # a server that was built without ICU creates no other one
        conn.execute("SET allow_system_table_mods = on")
        conn.execute("UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'loose'")
        conn.execute("CREATE TABLE orders (id int PRIMARY KEY, status text COLLATE loose, note text)")
    bank = Bank(database, tmp_path, create=False)
    [found] = warnings_about(bank, "orders", WHERE)
    assert "equal in status (loose)" in found
    assert warnings_about(bank, "orders", "note <> 'draft'") == []
    database.drop()
