"""The example of docs/derived.md runs as printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.docs.pages import python_of
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

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
