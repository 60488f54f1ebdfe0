"""The example of docs/derived.md runs as printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.docs.pages import python_of
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.plugins import install

from cdcflow import local, wiring
from cdcflow.config import Config
from cdcflow.config.plugins import TRANSFORMS

PAGE = Path(__file__).parents[3] / "docs" / "derived.md"


def test_example_of_the_page_shows_what_it_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator copies it before reading the rest."""
    monkeypatch.chdir(tmp_path)
    log, orders = (
        HandLog(tmp_path / "cdcflow-log"),
        make_table("orders", id="int64", customer_id="int64", amount="int64"),
    )
    log.state(orders)
    rows = [{"id": 1, "customer_id": 1, "amount": 10}, {"id": 2, "customer_id": 1, "amount": 20}]
    log.segment([(orders, "r", row) for row in [*rows, {"id": 3, "customer_id": 2, "amount": 5}]])
    first, second = python_of(PAGE, spark=False, section="An example")
    names: dict[str, Any] = {}
    exec(compile(first, str(PAGE), "exec"), names)  # noqa: S102  our own page
    assert {row["customer_id"]: int(row["total"]) for row in names["totals"]} == {1: 30, 2: 5}
    log.segment([(orders, "u", {"id": 3, "customer_id": 2, "amount": 7})])
    exec(compile(second, str(PAGE), "exec"), names)  # noqa: S102  our own page
    assert {row["customer_id"]: int(row["total"]) for row in names["totals"]} == {1: 30, 2: 7}
    assert names["computed"] == [1]


def test_function_of_the_page_computes_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of the page name a package that has this function."""
    (code,) = python_of(PAGE, spark=None, section="A function in Python")
    install(tmp_path / "packages", "shop-rows", {}, code, TRANSFORMS)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.setitem(sys.modules, "shop_rows", None)
    monkeypatch.delitem(sys.modules, "shop_rows")
    log, orders = HandLog(tmp_path / "log"), make_table("orders", id="int64", amount="int64")
    log.state(orders)
    log.segment([(orders, "r", {"id": 1, "amount": 10}), (orders, "r", {"id": 2, "amount": -1})])
    text = PAGE.read_text().split("## A function in Python")[1].split("```")[1]
    settings = yaml.safe_load(text.removeprefix("yaml\n"))
    config = Config.model_validate(
        {"source": {"kind": "postgres", "url": "postgresql://localhost/shop"}, "log": {"path": log.root}, **settings}
    )
    local.merge(log.root, tmp_path / "warehouse", policies=wiring.policies(config))
    assert local.read_cut(tmp_path / "warehouse")["derived.orders_clean"].to_pylist() == [{"id": 1, "cents": 1000}]
