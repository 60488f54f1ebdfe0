"""Several logs in docs/log.md run as printed: each block, in order, over two logs and a warehouse created here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.docs.pages import python_of
from tests.support.log.several_logs import Branch

PAGE = Path(__file__).parents[3] / "docs" / "log.md"


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Branch, Branch]]:
    """Customers in one log, orders in both of them."""
    crm, shop = Branch(tmp_path / "crm-log", "crm", "public"), Branch(tmp_path / "shop-log", "shop", "public")
    crm.orders, shop.products = crm.renamed(crm.orders, "customers"), shop.renamed(shop.products, "items")
    crm.insert(10, 2)
    for ts in (5, 20):
        shop.insert(ts)
    shop.commit(25, (shop.orders, {"id": 1, "_op": "u", "note": "new"}))
    shop.cut()
    for branch in (crm, shop):
        branch.seal()
    crm.beat(60)
    monkeypatch.chdir(tmp_path)
    yield crm, shop
    for branch in (crm, shop):
        branch.log.close()


def test_each_block_of_the_page_runs_and_shows_the_promised_result(
    logs: tuple[Branch, Branch], capsys: pytest.CaptureFixture[str]
) -> None:
    """A page that fails at its first block costs more trust than no page."""
    names: dict[str, Any] = {}
    found = python_of(PAGE, spark=False, section="Several logs")
    assert len(found) == 5
    for block in found:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102  our own page
    assert names["moved"] == [("shop", 1), ("crm", 2), ("shop", 2)]
    assert (names["customers"].num_rows, names["orders"].num_rows) == (2, 2)
    assert [batch.rows.column("_op").to_pylist() for batch in names["some"]] == [["u"]]
    assert (names["rest"], names["behind"]) == ([], [])
    assert sorted(names["before"]) == ["public.customers", "public.orders"]
    assert "log shop holds the others back" in capsys.readouterr().out


@pytest.mark.spark
def test_the_block_for_spark_runs_too(
    logs: tuple[Branch, Branch], spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the tests' session: a second one would start another JVM."""
    (block,) = python_of(PAGE, spark=True, section="Several logs")
    exec(compile(block.replace("session()", "running"), str(PAGE), "exec"), {"running": spark})  # noqa: S102
    assert capsys.readouterr().out.count("|shop|") == 3
