"""`cdcflow repair` repairs the rows that differ, and nothing else."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.support.verify.compared_shop import ComparedShop

ROWS = 200


def make(shop: ComparedShop) -> None:
    rows = ", ".join(f"({n}, 'name {n}')" for n in range(ROWS))
    shop.execute("CREATE TABLE items (id int PRIMARY KEY, name varchar(40))", f"INSERT INTO items VALUES {rows}")
    shop.start("items")
    shop.merge_until("items", lambda found: found.num_rows == ROWS)


def wrong(rows: pa.Table) -> pa.Table:
    """A row is missing, one is extra, one is off."""
    listed: list[dict[str, Any]] = [row for row in rows.to_pylist() if row["id"] != 3]
    listed.append({**listed[0], "id": ROWS + 7})
    next(row for row in listed if row["id"] == 5)["name"] = "off"
    return pa.Table.from_pylist(listed, schema=rows.schema)


def repaired(shop: ComparedShop) -> None:
    make(shop)
    shop.edit("items", wrong)
    shop.execute("UPDATE items SET name = 'published' WHERE id = 1")
    shop.merge_until("items", lambda rows: "published" in rows.column("name").to_pylist())
    assert shop.verify(code=1)["items/tables"]["different"] == 3
    said = shop.said("repair", f"{shop.schema}.items", code=0)
    assert f"{shop.schema}.items: 3 rows were read again" in said
    assert "source and copy agree" in said
    assert shop.verify(code=0)["items/tables"]["verdict"] == "equal", "before any merge: through the log"
    found = shop.merge_until("items", lambda rows: rows.num_rows == ROWS)
    names = dict(zip(found.column("id").to_pylist(), found.column("name").to_pylist(), strict=True))
    assert names == {n: "published" if n == 1 else f"name {n}" for n in range(ROWS)}
    [record] = [line for line in shop.said("log", "repairs").splitlines() if f"{shop.schema}.items" in line]
    assert record.split()


@pytest.mark.spread(1)
def test_rows_that_differ_in_postgres_are_repaired(postgres_shop: ComparedShop) -> None:
    """The printed remedy, followed to the letter."""
    repaired(postgres_shop)


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_rows_that_differ_in_mysql_and_mariadb_are_repaired(mysql_shop: ComparedShop) -> None:
    """The same."""
    repaired(mysql_shop)


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_rows_that_the_servers_log_lacks_are_repaired(mysql_shop: ComparedShop) -> None:
    """M09: a session may switch its log off. The log's fold is wrong then, and the tables with it."""
    shop = mysql_shop
    make(shop)
    shop.execute(
        "SET SESSION sql_log_bin = 0",
        "DELETE FROM items WHERE id = 3",
        "UPDATE items SET name = 'unlogged' WHERE id = 5",
        f"INSERT INTO items VALUES ({ROWS + 7}, 'unlogged')",
    )
    found = shop.verify("--against", "both", code=1)
    assert {name: (t["verdict"], t["different"]) for name, t in found.items()} == {
        "items/log": ("different", 3),
        "items/tables": ("different", 3),
    }
    assert {d["key"]["id"]: d["what"] for d in found["items/log"]["differences"]} == {
        3: "extra",
        5: "different",
        ROWS + 7: "missing",
    }
    assert "cdcflow repair" in shop.said("verify", code=1)
    shop.said("repair", code=0)
    shop.verify("--against", "both", code=0)
    shop.merge_until("items", lambda rows: "unlogged" in rows.column("name").to_pylist())
    shop.verify("--against", "both", code=0)


def zeros_kept(shop: ComparedShop) -> None:
    """-0.0, changed twice and together with changes of others; then a table as cdcflow before 0.1.0 wrote it."""
    rows = ", ".join(f"({n}, '-0', '-0', 0)" for n in range(4))
    columns = "id int PRIMARY KEY, ratio double precision, part real, v int"
    shop.execute(f"CREATE TABLE signs ({columns})", f"INSERT INTO signs VALUES {rows}")
    shop.start("signs")
    shop.execute(*(f"UPDATE signs SET v = {n}, ratio = '-0' WHERE id < 3" for n in (1, 2)))
    merged = shop.merge_until("signs", lambda found: 2 in found.column("v").to_pylist())
    assert {str(merged.column(name)[n]) for name in ("ratio", "part") for n in range(4)} == {"-0.0"}
    shop.verify("--against", "both", code=0)
    zero = pa.array([0.0] * 4)

    def unsigned(found: pa.Table) -> pa.Table:
        for name in ("ratio", "part"):
            number = found.column_names.index(name)
            found = found.set_column(number, found.field(name), zero.cast(found.field(name).type))
        return found

    shop.edit("signs", unsigned)
    shop.execute("UPDATE signs SET v = 9 WHERE id = 3")
    shop.merge_until("signs", lambda found: 9 in found.column("v").to_pylist())
    found = shop.verify("--against", "both", code=1)
    assert (found["signs/log"]["verdict"], found["signs/tables"]["different"]) == ("equal", 3)
    shop.said("repair", code=0)
    shop.verify("--against", "both", code=0)


def test_zero_s_sign_is_kept_and_repaired_in_postgres(one_shop: ComparedShop) -> None:
    """The live view changed the log's -0.0 into 0.0, so `verify` blamed the log, and `repair` never ended it."""
    zeros_kept(one_shop)


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_zero_s_sign_is_kept_and_repaired_in_mysql_and_mariadb(mysql_shop: ComparedShop) -> None:
    """The same."""
    zeros_kept(mysql_shop)


def test_duplicate_row_in_a_table_is_not_called_repaired(one_shop: ComparedShop) -> None:
    """A merge changes both of them, so reading it again cannot help. What is printed does."""
    shop = one_shop
    make(shop)
    shop.edit("items", lambda rows: pa.concat_tables([rows, rows.slice(4, 1)]))
    shop.execute("UPDATE items SET name = 'published' WHERE id = 1")
    shop.merge_until("items", lambda rows: "published" in rows.column("name").to_pylist())
    [found] = shop.verify(code=1)["items/tables"]["differences"]
    assert (found["what"], found["times"]) == ("doubled", [1, 2])
    said = shop.said("repair", code=1)
    assert "move the table's folder away" in said
    assert "run `cdcflow backfill public.items`" in said
    shop.verify(code=1)
    shop.move_away("items")
    shop.said("backfill", "public.items")
    shop.merge_until("items", lambda rows: rows.num_rows == ROWS)
    shop.verify(code=0)


@pytest.mark.spread(1)
@pytest.mark.parametrize("mode", ["soft_delete", "history"])
def test_rows_of_other_modes_are_compared(one_shop: ComparedShop, mode: str) -> None:
    """The source's current rows: without soft-deleted rows, and only the open versions."""
    shop = one_shop
    shop.settings["merge"]["tables"] = {"mode": mode}
    shop.write()
    make(shop)
    shop.execute("DELETE FROM items WHERE id = 3", "UPDATE items SET name = 'newer' WHERE id = 5")
    shop.merge_until("items", lambda rows: "newer" in rows.column("name").to_pylist())
    found = shop.verify(code=0)["items/tables"]
    assert (found["verdict"], found["rows"]) == ("equal", ROWS - 1)


def test_table_of_changes_is_not_compared_and_the_log_is(one_shop: ComparedShop) -> None:
    """The reason names the way that works."""
    shop = one_shop
    shop.settings["merge"]["tables"] = {"mode": "append"}
    shop.write()
    make(shop)
    found = shop.verify(code=1)["items/tables"]
    assert found["verdict"] == "not compared"
    assert "--against log" in found["reason"]
    shop.verify("--against", "log", code=0)


def test_repair_without_a_daemon_is_refused(one_shop: ComparedShop) -> None:
    """Only a daemon writes the log."""
    shop = one_shop
    make(shop)
    shop.stop()
    assert "start `cdcflow run`, then repair again" in shop.said_error("repair")
