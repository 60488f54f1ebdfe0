"""Purges that a real server logs: an archive job does not empty the copy, and a comparison knows its rows."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.support.docs.pages import ROOT, blocks
from tests.support.verify.compared_shop import ComparedShop

from cdcflow.tables.merge.modes import DELETED, PURGED

pytestmark = pytest.mark.long

ROWS = 3000
STREAMED = 800
"""Rows of a purge that the server streams, or that does not fit into memory."""
Marks = dict[int, tuple[bool, bool]]
"""By id: whether the row is marked as deleted, and as purged."""


def statements(part: str) -> list[str]:
    """The statements of the page's block about purges that has this text."""
    page = blocks(ROOT / "docs" / "tables.md")
    (block,) = [one.text for one in page if part in one.text and one.language == "sql"]
    return [block] if "$$" in block else [line for line in block.splitlines() if line]


def make(shop: ComparedShop) -> None:
    shop.settings["merge"]["tables"] = {"mode": "soft_delete", "purges": {"archive": "keep", "erasure": "remove"}}
    shop.settings["source"]["spool_bytes_max"] = "16kB"
    shop.write()
    shop.execute("CREATE TABLE orders (id int PRIMARY KEY, placed timestamp NULL, note varchar(200))")
    rows = [f"({n}, NULL, '{'note ' * 20}{n}')" for n in range(1, ROWS + 1)]
    shop.execute(f"INSERT INTO orders VALUES {', '.join(rows)}")
    shop.execute("UPDATE orders SET placed = '2001-01-01' WHERE id <= 20")
    shop.start("orders")
    shop.merge_until("orders", lambda found: found.num_rows == ROWS)


def marks_of(shop: ComparedShop, expected: Mapping[int, tuple[bool, bool]], removed: set[int]) -> None:
    """Merge until the rows are marked as expected, and the others not at all."""
    wanted: Marks = {id_: (False, False) for id_ in range(1, ROWS + 1) if id_ not in removed} | dict(expected)

    def shown(found: object) -> bool:
        rows = found.select(["id", DELETED, PURGED, "note"]).to_pylist()  # type: ignore[attr-defined]
        assert all(row["note"] for row in rows)
        return {row["id"]: (row[DELETED], row[PURGED]) for row in rows} == wanted

    shop.merge_until("orders", shown)


def assert_equal(shop: ComparedShop) -> None:
    report = shop.verify("--against", "log", code=0) | shop.verify("--against", "tables", code=0)
    found = {name: table["verdict"] for name, table in report.items()}
    assert found == {"orders/log": "equal", "orders/tables": "equal"}


def assert_purges_stay(shop: ComparedShop, begin: str, mark: list[str], erase: list[str], page: list[str]) -> None:
    expected: Marks = {}
    shop.execute(*page)
    expected |= dict.fromkeys(range(1, 21), (False, True))
    shop.execute("DELETE FROM orders WHERE id BETWEEN 21 AND 30")
    expected |= dict.fromkeys(range(21, 31), (True, False))
    shop.execute(begin, "DELETE FROM orders WHERE id BETWEEN 31 AND 35", *erase, "COMMIT")
    removed = set(range(31, 36))
    shop.execute("INSERT INTO orders VALUES (1, NULL, 'again')")
    expected[1] = False, False
    # Large, with a mark that is taken back, and one that is not.
    shop.execute(
        begin, *mark, f"DELETE FROM orders WHERE id BETWEEN 101 AND {100 + STREAMED}", "SAVEPOINT a", *erase,
        "DELETE FROM orders WHERE id = 40", "ROLLBACK TO SAVEPOINT a", "DELETE FROM orders WHERE id = 41", "COMMIT",
    )  # fmt: skip
    expected |= dict.fromkeys([41, *range(101, 101 + STREAMED)], (False, True))
    shop.execute(begin, *mark, "DELETE FROM orders WHERE id = 50", "ROLLBACK", "DELETE FROM orders WHERE id = 51")
    expected[51] = True, False
    marks_of(shop, expected, removed)
    assert_equal(shop)
    shop.kill()
    shop.start("orders")
    shop.said("backfill", f"{shop.schema}.orders")
    shop.execute("UPDATE orders SET note = 'changed' WHERE id = 60")
    shop.wait_until_done("orders")
    marks_of(shop, expected, removed)
    shop.merge_until("orders", lambda found: "changed" in found["note"].to_pylist())
    marks_of(shop, expected, removed)
    assert_equal(shop)


def test_purges_of_a_postgres_server(postgres_shop: ComparedShop) -> None:
    """By a message, by a role and by a variable of the session: the page's statements, as printed."""
    shop = postgres_shop
    ((name,),) = shop.execute("SELECT current_database()")
    shop.execute(f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")
    make(shop)

    def mark(purge: str) -> list[str]:
        return [f"SELECT pg_logical_emit_message(true, 'cdcflow.purge', '{purge}')"]

    page = statements("emit_message(true, 'cdcflow.purge', 'archive')")
    assert_purges_stay(shop, "BEGIN", mark("archive"), mark("erasure"), page)
    shop.execute(*statements("CREATE FUNCTION mark_purge()"))
    shop.execute("DELETE FROM orders WHERE id = 61")
    shop.execute("SET cdcflow.purge = 'archive'", "DELETE FROM orders WHERE id = 62")
    with_role = ["SET ROLE archiver", "DELETE FROM orders WHERE id = 63", "RESET ROLE"]
    shop.execute("CREATE ROLE archiver", "GRANT SELECT, DELETE ON orders TO archiver", *with_role)
    try:
        found = shop.merge_until("orders", lambda rows: ends_of(rows, 61, 62, 63) == EXPECTED)
        assert found.num_rows == ROWS - 5
    finally:
        shop.execute("DROP OWNED BY archiver", "DROP ROLE archiver")


EXPECTED = [(True, False), (False, True), (False, True)]


def ends_of(rows: object, *ids: int) -> list[tuple[bool, bool]]:
    listed = {row["id"]: (row[DELETED], row[PURGED]) for row in rows.to_pylist()}  # type: ignore[attr-defined]
    return [listed[id_] for id_ in ids]


def test_purges_of_mysql_and_mariadb(mysql_shop: ComparedShop) -> None:
    """By a row in the table of marks, and by tags of GTIDs where there are some."""
    shop = mysql_shop
    make(shop)

    def mark(purge: str) -> list[str]:
        slot = f"cdcflow.purge {purge}/test"
        return [
            f"INSERT INTO cdcflow.cdcflow_marks (slot, token) VALUES ('{slot}', '')",
            f"DELETE FROM cdcflow.cdcflow_marks WHERE slot = '{slot}'",
        ]

    page = statements("INSERT INTO cdcflow.cdcflow_marks")
    assert_purges_stay(shop, "START TRANSACTION", mark("archive"), mark("erasure"), page)
    minimal = ["SET binlog_row_image = 'MINIMAL'", "START TRANSACTION"]
    shop.execute(*minimal, *mark("archive"), "DELETE FROM orders WHERE id = 62", "COMMIT")
    shop.execute("DELETE FROM orders WHERE id = 61")
    (((version),),) = shop.execute("SELECT version()")
    if shop.settings["source"]["kind"] == "mysql" and tuple(map(int, version.split(".")[:2])) >= (8, 3):
        shop.execute("SET gtid_next = 'AUTOMATIC:archive'", "DELETE FROM orders WHERE id = 63")
    else:
        shop.execute("START TRANSACTION", *mark("archive"), "DELETE FROM orders WHERE id = 63", "COMMIT")
    shop.merge_until("orders", lambda rows: ends_of(rows, 61, 62, 63) == EXPECTED)
    assert_equal(shop)
