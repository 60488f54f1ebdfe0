"""docs/reading.md runs as printed: each block, one after another, over a log and two warehouses created here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.docs.pages import python_of
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local

PAGE = Path(__file__).parents[3] / "docs" / "reading.md"
SETTINGS = "source: {kind: postgres, url: 'postgresql://nobody@127.0.0.1/shop'}\nlog: {path: cdcflow-log}\n"
NOW = [(1, "n1"), (2, "new"), (4, "n4")]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four rows, one updated and one deleted in a second cut that both warehouses have."""
    log, orders = HandLog(tmp_path / "cdcflow-log"), make_table("orders", id="int64", note="string")
    products = make_table("products", id="int64", name="string")
    log.state(orders)
    log.state(products)
    log.segment([(products, "r", {"id": n, "name": f"p{n}"}) for n in range(1, 3)])
    read: list[tuple[str, dict[str, Any]]] = [("r", {"id": n, "note": f"n{n}"}) for n in range(1, 5)]
    changed: list[tuple[str, dict[str, Any]]] = [("u", {"id": 2, "note": "new"}), ("d", {"id": 3})]
    for rows in (read, changed):
        log.segment([(orders, op, values) for op, values in rows])
        local.merge(log.root, tmp_path / "warehouse", table_format="delta")
        local.merge(log.root, tmp_path / "lake", table_format="iceberg")
    (tmp_path / "cdcflow.yaml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
def test_each_block_of_the_page_runs_and_shows_the_promised_result(shop: Path) -> None:
    """A page for newcomers that fails at its first block costs more trust than no page."""
    names: dict[str, Any] = {}
    found = python_of(PAGE, spark=False)
    assert len(found) == 10
    for block in found:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102  our own page
    assert names["newest"] == [(1, "n1", "r"), (2, "new", "u"), (3, None, "d"), (4, "n4", "r")]
    assert names["by_kind"].rows() == [("d", 1), ("r", 4), ("u", 1)]
    assert list(names["history"]["note"]) == ["n2", "new"]
    assert names["rows"] == 6
    assert names["in_arrow"].to_pylist() == [{"id": 1, "name": "p1"}, {"id": 2, "name": "p2"}]
    assert (names["answer_in_polars"].height, names["cut"]) == (2, 3)
    assert names["joined"] == [(1, "p1"), (2, "p2")]
    assert names["joined_in_polars"].height == len(names["lake_products"]) == 2
    assert names["in_duckdb"] == NOW
    assert names["in_polars"].rows() == NOW
    assert list(zip(names["in_pandas"]["id"], names["in_pandas"]["note"], strict=True)) == NOW
    assert sorted(zip(*names["at_cut"].select(["id", "note"]).to_pydict().values(), strict=True)) == NOW
    newest = names["lake_orders"].scan()
    for scanned in (newest.to_pandas().shape[0], newest.to_polars().height):
        assert scanned == len(NOW)
    assert newest.to_duckdb("orders").sql("SELECT count(*) FROM orders").fetchall() == [(len(NOW),)]


@pytest.mark.spark
def test_sql_of_the_warehouse_is_read_by_plain_spark(
    shop: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """One point in time of all tables for readers without cdcflow."""
    _, block = python_of(PAGE, spark=True)
    exec(compile(block, str(PAGE), "exec"), {"spark": spark})  # noqa: S102
    assert "|  2| new|  p2|" in capsys.readouterr().out


@pytest.mark.spark
def test_the_block_for_spark_runs_too(shop: Path, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """In the tests' session: a second one would start another JVM."""
    block, _ = python_of(PAGE, spark=True)
    exec(compile(block.replace("session()  ", "running  "), str(PAGE), "exec"), {"running": spark})  # noqa: S102
    assert capsys.readouterr().out.count("|  2| new|") == 2  # as of a cut, and live
