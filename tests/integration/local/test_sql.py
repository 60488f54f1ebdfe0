"""`cdcflow sql` and `cdcflow.sql`: answers over tables that all show one point in time, and refusals of what would lack
something."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from typer.testing import CliRunner

import cdcflow
from cdcflow.cli.app import app
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.tables.job.reports import MergeReport

ORDERS = make_table("orders", id="int64", product="int64", note="string")
PRODUCTS = make_table("products", id="int64", name="string")
JOINED = "SELECT o.id, p.name FROM public.orders AS o JOIN products AS p ON p.id = o.product ORDER BY o.id"

Merge = Callable[..., MergeReport]


REFUSED = {
    "DROP TABLE public.orders": "not one SELECT",
    "SELECT 1; SELECT 2": "2 statements",
    "COPY (SELECT 1) TO 'out.csv'": "not one SELECT",
    "SELECT * FROM read_csv('{file}')": "PermissionException",
    "SELECT * FROM '{file}'": "neither captured",
    "SELECT * FROM other.public.orders": "catalog",
    "SELECT * FROM information_schema.tables": "catalog",
    "SHOW TABLES": "--tables",
    "SELECT nothing FROM orders": "BinderException",
    "SELECT * FROM order": "ParserException|not one SELECT",
    "SELECT * FROM ordres": "neither captured",
    "SELECT note::INTEGER FROM orders": r"ConversionException\n",
}


class Shop:
    """A log with products and orders, its tables, and the settings of both."""

    def __init__(self, log: HandLog, merge: Merge, warehouse: Path, format_name: str, room: Path) -> None:
        self.log = log
        self.settings = room / "cdcflow.yaml"
        self.warehouse = warehouse
        self._merge = merge
        given = {
            "source": {"kind": "postgres", "url": "postgresql://reader@127.0.0.1:1/none", "tables": ["public.*"]},
            "log": {"path": str(log.root)},
            "merge": {"warehouse": str(warehouse), "format": format_name, "engine": "local"},
        }
        self.settings.write_text(yaml.safe_dump(given))
        for table in (ORDERS, PRODUCTS):
            log.state(table)

    def sell(self, number: int) -> None:
        self.log.segment(
            [
                (PRODUCTS, "c", {"id": number, "name": f"p{number}"}),
                (ORDERS, "c", {"id": 10 * number, "product": number, "note": "x" * number}),
            ]
        )

    def merge(self) -> MergeReport:
        return self._merge(self.log.root, self.warehouse)

    def ask(self, sql: str, **more: Any) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = cdcflow.sql(sql, self.settings, **more).rows.to_pylist()
        return rows

    def command(self, *words: str, text: str | None = None) -> Any:
        return CliRunner().invoke(app, ["sql", *words, "--config", str(self.settings)], input=text)


@pytest.fixture
def shop(hand_log: HandLog, merge: Merge, warehouse: Path, format_name: str, tmp_path: Path) -> Shop:
    made = Shop(hand_log, merge, warehouse, format_name, tmp_path)
    made.sell(1)
    made.merge()
    made.sell(2)
    return made


def test_every_table_shows_the_same_state(shop: Shop) -> None:
    assert shop.ask(JOINED) == [{"id": 10, "name": "p1"}], "the published cut"
    assert shop.ask(JOINED, live=True) == [{"id": 10, "name": "p1"}, {"id": 20, "name": "p2"}]
    shop.merge()
    assert [row["id"] for row in shop.ask(JOINED)] == [10, 20]
    assert [row["id"] for row in shop.ask(JOINED, as_of="1")] == [10]
    found = cdcflow.sql("SELECT count(*) AS n FROM orders", shop.settings)
    assert (found.cut, len(found)) == (2, 1)
    assert pa.table(found).to_pylist() == [{"n": 2}]
    assert "<td>2</td>" in found._repr_html_()


def test_a_transaction_is_a_point_in_time(merge: Merge, warehouse: Path, format_name: str, tmp_path: Path) -> None:
    """Its number is in every change of the log: the first cut that shows it, and a refusal where none does."""
    made = Shop(HandLog(tmp_path / "numbered", has_transactions=True), merge, warehouse, format_name, tmp_path)
    numbers = []
    for number in (1, 2, 3):
        made.sell(number)
        numbers.append(made.log.next_offset - 2)  # each change is a transaction with its offset as its number
        if number < 3:
            made.merge()
    for number, ids in zip(numbers[:2], ([10], [10, 20]), strict=True):
        assert [row["id"] for row in made.ask(JOINED, as_of=f"transaction:{number}")] == ids
    with pytest.raises(ConfigurationError, match="no published cut shows it yet"):
        made.ask(JOINED, as_of=f"transaction:{numbers[2]}")
    with pytest.raises(ConfigurationError, match="transaction 99"):
        made.ask(JOINED, as_of="transaction:99")


def test_rows_that_were_changed_or_deleted_are_not_in_the_answer(shop: Shop) -> None:
    shop.log.segment([(ORDERS, "u", {"id": 10, "product": 2, "note": "new"}), (ORDERS, "d", {"id": 20})])
    shop.merge()
    assert shop.ask("SELECT note, product FROM orders") == [{"note": "new", "product": 2}]


def test_an_answer_that_would_lack_something_is_refused(shop: Shop) -> None:
    shop.log.state(ORDERS, "running", units=4, units_done=1)
    shop.log.segment([(PRODUCTS, "c", {"id": 3, "name": "p3"})])
    shop.merge()
    for live in (False, True):
        with pytest.raises(ConfigurationError, match=r"public\.orders lacks rows") as lacking:
            shop.ask(JOINED, live=live)
        assert "--incomplete" in (lacking.value.remedy or "")
        assert len(shop.ask(JOINED, live=live, incomplete=True)) == 2, "the remedy"
        assert shop.ask("SELECT max(id) AS m FROM products", live=live) == [{"m": 3}], "the other table"
    listed = json.loads(shop.command("--tables", "--json").stdout)
    assert listed["public.products"] == "complete"
    assert listed["public.orders"] != "complete"


def test_what_is_not_one_select_over_tables_is_refused(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    for sql, why in REFUSED.items():
        with pytest.raises(ConfigurationError, match=why):
            shop.ask(sql.format(file=tmp_path / "secret.csv"))
    assert not list(Path.cwd().glob("out.csv"))


def test_tables_whose_names_differ_in_case(shop: Shop) -> None:
    for name, number in (("Items", 1), ("items", 2)):
        table = make_table(name, id="int64")
        shop.log.state(table)
        shop.log.segment([(table, "c", {"id": number})])
    shop.merge()
    assert [shop.ask(f"SELECT id FROM {name}") for name in ('"Items"', "items")] == [[{"id": 1}], [{"id": 2}]]
    with pytest.raises(ConfigurationError, match="differ only in case"):
        shop.ask('SELECT * FROM public."Items" AS a, public.items AS b')


def test_a_table_larger_than_the_memory_given(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from cdcflow.wiring import table_queries

    count = 30_000
    wide = [(ORDERS, "c", {"id": 100 + n, "product": 1, "note": f"{n:01000}"}) for n in range(count)]
    shop.log.segment(wide)
    shop.merge()
    monkeypatch.setattr(table_queries, "MEMORY_BYTES", 16 << 20)
    (row,) = shop.ask("SELECT count(DISTINCT note) AS notes, max(id) AS last FROM orders")
    assert row == {"notes": count + 2, "last": 100 + count - 1}


def test_the_command_prints_tables_csv_and_json(shop: Shop) -> None:
    shown = shop.command(JOINED)
    assert "p1" in shown.stdout
    assert "1 rows, cut 1" in shown.stderr
    assert shop.command(JOINED, "--csv", "--live").stdout == "id,name\n10,p1\n20,p2\n"
    assert [json.loads(line) for line in shop.command(JOINED, "--json").stdout.splitlines()] == [
        {"id": 10, "name": "p1"}
    ]
    piped = shop.command("--csv", text="SELECT 1 AS a;\nSELECT id\nFROM orders;\n.quit\nSELECT 3;")
    assert piped.stdout == "a\n1\nid\n10\n"


def test_points_in_time_that_expired_or_contradict_each_other(shop: Shop) -> None:
    shop.merge()
    with pytest.raises(ConfigurationError, match="past point in time"):
        shop.ask("SELECT 1", live=True, as_of="1")
    with pytest.raises((ConfigurationError, HistoryLost), match="the oldest cut"):
        shop.ask("SELECT 1", as_of="0")
