"""Queries of docs/log.md run as printed: each block, one after another, over a log that is created here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.docs.pages import python_of
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

PAGE = Path(__file__).parents[3] / "docs" / "log.md"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
def test_each_block_of_the_page_runs_and_shows_the_promised_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With this page alone an operator finds what a row was, who changed it, and what else was in that transaction."""
    monkeypatch.chdir(tmp_path)
    log = HandLog(tmp_path / "cdcflow-log", has_transactions=True)
    orders, products = make_table("orders", id="int64", note="string"), make_table("products", id="int64")
    log.state(orders)
    log.state(products)
    log.segment([(orders, "r", {"id": n, "note": f"n{n}"}) for n in range(1, 5)])
    log.segment([(orders, "u", {"id": 2, "note": "new"})])
    log.segment([(orders, "d", {"id": 3, "_txn": 6}), (products, "c", {"id": 1, "_txn": 6})])
    names: dict[str, Any] = {}
    found = python_of(PAGE, spark=False, section="Query it")
    assert len(found) == 6
    for block in found:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102  our own page
    assert (names["found"].values, names["found"].state) == ({"id": 2, "note": "new"}, "there")
    assert [c.offset for c in names["log"].history("public.orders", 2).changes] == [5, 2]
    assert sorted(names["orders"].column("id").to_pylist()) == [1, 2, 4]
    assert sorted(names["before"].column("id").to_pylist()) == [1, 2, 3, 4]
    assert names["some"].column("id").to_pylist() == [2, 4]
    assert names["in_duckdb"] == [(3,)]
    assert names["in_polars"].height == len(names["in_pandas"]) == 3
    assert names["changes"].num_rows == 6
    assert names["feed"].column("_change_type").to_pylist() == [*["insert"] * 4, "update_postimage", "delete"]
