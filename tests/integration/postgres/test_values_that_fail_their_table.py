"""Values that a table's settings do not allow: the table fails alone, until they are corrected or the settings allow
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import Database
from tests.support.verify.compared_shop import ComparedShop

from cdcflow.model.table import TableId
from cdcflow.testing.folded import folded_log

pytestmark = pytest.mark.postgres

ODD = {"date": "infinity", "numeric(5,2)": "NaN", "int[]": "{{1,2},{3,4}}"}


def fails(shop: ComparedShop, table: str, words: str) -> None:
    """Wait until the table fails for a reason with these words."""

    def is_failed(status: dict[str, Any]) -> bool:
        known = status["tables"][f"public.{table}"]
        return known["state"] == "failed" and words in str(known["reason"])

    shop.wait_until(is_failed, f"{table} to fail")


@pytest.mark.spread(1)
@pytest.mark.parametrize("remedy", ["rows", "setting"])
@pytest.mark.parametrize("killed", [False, True], ids=["running", "killed"])
def test_values_under_stop_fail_their_tables_alone_until_the_remedy_was_followed(
    database: Database, tmp_path: Path, remedy: str, *, killed: bool
) -> None:
    """T04: one infinite date stopped every table, and a capture that was stopped loses its slot in the end."""
    database.execute("CREATE TABLE fine (id int PRIMARY KEY, v text)")
    tables = {f"odd_{number}": (kind, value) for number, (kind, value) in enumerate(ODD.items())}
    for table, (kind, _) in tables.items():
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v {kind}); INSERT INTO {table} VALUES (1), (2)")
    with ComparedShop.on_postgres(database, tmp_path) as shop:
        shop.start("fine", *tables)
        changes = [f"DELETE FROM {t} WHERE id = 1; INSERT INTO {t} VALUES (3, '{v}')" for t, (_, v) in tables.items()]
        database.execute(f"BEGIN; INSERT INTO fine VALUES (1, 'same'); {'; '.join(changes)}; COMMIT")
        for table in tables:
            fails(shop, table, f"public.{table}.v")
        if killed:
            shop.kill()
        database.execute(
            "INSERT INTO fine VALUES (2, 'later'); " + "; ".join(f"DELETE FROM {t} WHERE id = 2" for t in tables)
        )
        if killed:
            shop.start("fine")
        shop.assert_copies_equal_source("fine", ("id", "v"))
        for table in tables:
            fails(shop, table, f"run `cdcflow backfill public.{table}`")
            assert len(folded_log(tmp_path / "log")[TableId("public", table)]) == 2, "the rows before the failure"
        if remedy == "rows":
            database.execute("; ".join(f"UPDATE {table} SET v = NULL" for table in tables))
        else:
            shop.settings["source"]["columns"] = {f"public.{table}.v": "null" for table in tables}
            shop.write()
            shop.said("apply", "--yes")
        database.execute("INSERT INTO fine VALUES (3, 'passed')")
        shop.assert_copies_equal_source("fine", ("id", "v"))
        for table in tables:
            shop.said("backfill", f"public.{table}")
        if killed:
            shop.kill()
            shop.start()
        for table in tables:
            shop.wait_until_done(table)
            database.execute(f"INSERT INTO {table} VALUES (4)")
            shop.assert_copies_equal_source(table, ("id", "v"), f"SELECT id, NULL FROM {table}")
