"""Tables compared by digests that the server adds up: equal ones are not read, and of others a few rows are."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.support.verify.compared_shop import ComparedShop

from cdcflow.model.digest import FOLDS
from cdcflow.sources.engine import key_chunks
from cdcflow.sources.postgres import chunks as postgres_chunks
from cdcflow.tables.local.comparison import DuckComparer, LocalCopy
from cdcflow.tables.verify import buckets, source_rows

ROWS = 5000
BUCKETS = 256
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def small_chunks_and_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small table has many of both."""
    monkeypatch.setattr(buckets, "BUCKET_ROWS", ROWS // BUCKETS)
    monkeypatch.setattr(source_rows, "CHUNK_S", 0.001)
    monkeypatch.setattr(postgres_chunks, "FIRST_PAGES", 8)
    monkeypatch.setattr(key_chunks, "FIRST_ROWS", 700)
    monkeypatch.setattr(key_chunks, "ROWS_MIN", 300)


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of the source came here, each time."""
    found: list[int] = []
    converted = DuckComparer.convert_rows

    def counted(self: DuckComparer, columns: Any, shape: Any, rows: pa.Table) -> pa.Table:
        if "_offset" not in rows.column_names:
            found.append(rows.num_rows)
        return converted(self, columns, shape, rows)

    monkeypatch.setattr(DuckComparer, "convert_rows", counted)
    return found


def bucket(key: int, count: int) -> int:
    """The bucket of a key that is a whole number: written again, in Python's words."""
    mask = count - 1
    return ((key & mask) + sum(key >> bits & mask for bits in FOLDS)) & mask


def made(shop: ComparedShop, text: str, key: str = "id bigint PRIMARY KEY") -> None:
    rows = [
        f"({n}, 'name {n}', {'NULL' if n % 7 == 0 else n}, {n}.25, '2026-05-0{n % 9 + 1} 12:00:0{n % 10}')"
        for n in range(1, ROWS + 1)
    ]
    shop.execute(
        f"CREATE TABLE items ({key}, name {text} NOT NULL, note {text}, price decimal(10,2), at timestamp(6) NULL)",
        *(f"INSERT INTO items VALUES {', '.join(rows[at : at + 1000])}" for at in range(0, ROWS, 1000)),
    )


def merged(shop: ComparedShop) -> None:
    shop.start("items")
    shop.merge_until("items", lambda rows: rows.num_rows == ROWS)


def plant(shop: ComparedShop, edit: Callable[[Rows], None]) -> None:
    def edited(rows: pa.Table) -> pa.Table:
        wrong = rows.to_pylist()
        edit(wrong)
        return pa.Table.from_pylist(wrong, schema=rows.schema)

    shop.edit("items", edited)
    shop.execute("UPDATE items SET name = 'published' WHERE id = 1")
    shop.merge_until("items", lambda rows: "published" in rows.column("name").to_pylist())


def wrong(rows: Rows) -> None:
    """Faults that count, sum or end of a range could hide."""
    by_key = {row["id"]: row for row in rows}
    rows.remove(by_key[ROWS])  # the last key
    rows.append({**by_key[14]})  # doubled
    rows += [{**by_key[15], "id": 9001}] * 2  # an exclusive or of these two is nothing
    by_key[20]["id"], by_key[21]["id"] = 21, 20  # swapped
    same = next(n for n in range(101, ROWS) if bucket(n, BUCKETS) == bucket(100, BUCKETS))
    for n in (100, same):  # the same error twice, in one bucket
        by_key[n]["price"] += Decimal("0.01")
    by_key[30]["note"] = None
    by_key[31]["at"] += dt.timedelta(microseconds=1)


def compare(shop: ComparedShop, rows_read: list[int]) -> None:
    merged(shop)
    found = shop.verify(code=0)["items/tables"]
    assert (found["verdict"], found["by"], found["rows"], rows_read) == ("equal", "digests", ROWS, [])
    log = shop.verify("--against", "log", code=0)["items/log"]
    assert (log["verdict"], log["by"], rows_read) == ("equal", "digests", [])

    plant(shop, wrong)
    found = shop.verify("--keys", "100", code=1)["items/tables"]
    assert (found["by"], found["rows"]) == ("digests", ROWS)
    same = next(n for n in range(101, ROWS) if bucket(n, BUCKETS) == bucket(100, BUCKETS))
    assert {d["key"]["id"]: (d["what"], tuple(d["columns"])) for d in found["differences"]} == {
        ROWS: ("missing", ()),
        14: ("doubled", ()),
        9001: ("extra", ()),
        20: ("different", ("name", "note", "price", "at")),
        21: ("different", ("name", "note", "price", "at")),
        100: ("different", ("price",)),
        same: ("different", ("price",)),
        30: ("different", ("note",)),
        31: ("different", ("at",)),
    }
    assert 0 < sum(rows_read) < ROWS // 10, "rows of buckets that agree stay where they are"


@pytest.mark.spread(1)
@pytest.mark.postgres
def test_tables_of_postgres_are_compared_by_digests(postgres_shop: ComparedShop, rows_read: list[int]) -> None:
    made(postgres_shop, "text")
    compare(postgres_shop, rows_read)


@pytest.mark.spread(1)
@pytest.mark.mysql
def test_tables_of_mysql_and_mariadb_are_compared_by_digests(mysql_shop: ComparedShop, rows_read: list[int]) -> None:
    made(mysql_shop, "varchar(100)")
    compare(mysql_shop, rows_read)


@pytest.mark.postgres
def test_a_key_of_text_has_buckets_too(one_shop: ComparedShop, rows_read: list[int]) -> None:
    made(one_shop, "text", "id bigint, PRIMARY KEY (name, id)")
    merged(one_shop)
    assert one_shop.verify(code=0)["items/tables"]["by"] == "digests"
    plant(one_shop, lambda rows: rows[77].update(price=None))
    # The row that was published with it has another key now.
    found = one_shop.verify(code=1)["items/tables"]
    assert (found["different"], found["differences"][0]["columns"], found["by"]) == (1, ["price"], "digests")
    assert 0 < sum(rows_read) < ROWS // 10


@pytest.mark.spread(1)
@pytest.mark.postgres
@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("ALTER TABLE items ADD f float8", "column f: double"),
        ("ALTER TABLE items DROP CONSTRAINT items_pkey; ALTER TABLE items REPLICA IDENTITY FULL", "no key"),
        ("ALTER TABLE items ADD a int[]", "column a: array<int>"),
    ],
)
def test_what_the_server_cannot_digest_is_read(one_shop: ComparedShop, statement: str, why: str) -> None:
    """And the report records it."""
    made(one_shop, "text")
    one_shop.execute(*statement.split("; "))
    merged(one_shop)
    found = one_shop.verify(code=0)["items/tables"]
    assert (found["verdict"], found["by"], found["rows"]) == ("equal", "rows", ROWS)
    assert why in found["read_why"]
    assert "all rows were read" in one_shop.said("verify")


@pytest.mark.postgres
def test_what_a_setting_changes_is_read(one_shop: ComparedShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server does not know the setting. The copy is not queried before that is known."""
    shop = one_shop
    shop.file.write_text(shop.file.read_text().replace("source:", "source:\n  special_values: 'null'", 1))
    made(shop, "text")
    merged(shop)
    monkeypatch.setattr(LocalCopy, "buckets", None)
    found = shop.verify(code=0)["items/tables"]
    assert (found["verdict"], found["by"], found["rows"]) == ("equal", "rows", ROWS)
    assert "column at: special_values is null" in found["read_why"]


@pytest.mark.postgres
def test_nothing_is_reported_about_rows_that_change_between_the_passes(
    one_shop: ComparedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass has its own snapshots: concurrent writes make buckets differ, and no row."""
    made(one_shop, "text")
    merged(one_shop)
    rows = buckets.Pass.rows

    def changed(self: buckets.Pass, fences: Any) -> Any:
        one_shop.execute("UPDATE items SET name = 'later' WHERE id % 100 = 2", "DELETE FROM items WHERE id = 7")
        return rows(self, fences)

    monkeypatch.setattr(buckets.Pass, "rows", changed)
    one_shop.execute("UPDATE items SET name = 'now' WHERE id % 500 = 1")
    found = one_shop.verify(code=0)["items/tables"]
    assert (found["verdict"], found["by"], found["rows"]) == ("equal", "digests", ROWS)


@pytest.mark.postgres
def test_a_table_that_differs_all_over_is_read(one_shop: ComparedShop) -> None:
    """A second pass would read all of it as well."""
    made(one_shop, "text")
    merged(one_shop)

    def everywhere(rows: Rows) -> None:
        for row in rows:
            row["price"] = None

    plant(one_shop, everywhere)
    found = one_shop.verify("--keys", "2", code=1)["items/tables"]
    assert (found["different"], found["by"], found["read_why"]) == (ROWS - 1, "rows", buckets.MOST_DIFFER), (
        "all but the published row"
    )
