"""A table's changes in several logs by Spark, in the order in which Python gives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.log.several_logs import START, Branch, go_on, in_order

import cdcflow
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.retention import ExpiryRule, LogRetention
from cdcflow.log.read.moments import time_text
from cdcflow.spark import read_logs
from cdcflow.testing.sinks import ORDERS, PRODUCTS

pytestmark = pytest.mark.spark

NAME = str(ORDERS.id)


@pytest.fixture
def branches(tmp_path: Path) -> Iterator[tuple[Branch, Branch]]:
    crm, shop = (Branch(tmp_path / name, name) for name in ("crm", "shop"))
    yield crm, shop
    for branch in (crm, shop):
        branch.log.close()


def told(frame: Any) -> list[tuple[str, int, int]]:
    """Log, commit clock and offset of each row, in the one order."""
    rows = frame.orderBy("_commit_clock", "_log", "_offset").selectExpr("_log", "unix_micros(_commit_clock)", "_offset")
    return [tuple(row) for row in rows.collect()]


def sealed(*branches: Branch) -> dict[str, Path]:
    for branch in branches:
        branch.seal()
    return {branch.name: branch.root for branch in branches}


def test_changes_are_returned_in_one_order_up_to_the_common_clock(spark: Any, branches: tuple[Branch, Branch]) -> None:
    """G34: random logs with clocks that go back and forth; what Python gives is what Spark gives, and what was
    written. One of them is idle, and its heartbeats are not sealed yet."""
    rng = Random(5)
    crm, shop = branches
    go_on(crm, rng, 30, 300)
    go_on(shop, rng, 30, 300)
    roots = sealed(crm, shop)
    crm.beat(200_000)
    shop.beat(100_000)
    want = [(t.log, t.clock, o) for t in in_order([crm, shop]) for table, _, o in t.rows if table == NAME]
    assert told(read_logs(spark, roots, NAME)) == want
    python = cdcflow.open_logs(roots).changes(tables=[NAME])
    assert [(b.log, o) for b in python for o in b.rows.column("_offset").to_pylist()] == [
        (one, o) for one, _, o in want
    ]
    to = want[len(want) // 2][1]
    assert told(read_logs(spark, roots, NAME, to=to)) == [row for row in want if row[1] <= to]
    assert told(read_logs(spark, roots, f"shop:{NAME}", to=time_text(to))) == [
        row for row in want if row[1] <= to and row[0] == "shop"
    ]
    offset = want[3][2]
    assert told(read_logs(spark, roots, NAME, start={want[3][0]: offset})) == [
        row for row in want if row[0] != want[3][0] or row[2] >= offset
    ]


def test_what_is_not_sealed_holds_the_common_clock_back(spark: Any, branches: tuple[Branch, Branch]) -> None:
    """A row after the sealed part may belong before the clock that the later heartbeats have reached."""
    crm, shop = branches
    crm.insert(10)
    shop.insert(50)
    roots = sealed(crm, shop)
    crm.insert(20)
    crm.beat(60)
    assert told(read_logs(spark, roots, NAME)) == [("crm", START + 10, 1)]
    crm.seal()
    assert told(read_logs(spark, roots, NAME)) == [
        ("crm", START + 10, 1),
        ("crm", START + 20, 2),
        ("shop", START + 50, 1),
    ]
    with pytest.raises(
        ConfigurationError, match=r"log shop is sealed up to .* and more changes from before that time may arrive"
    ):
        read_logs(spark, roots, NAME, to=START + 55)


@pytest.mark.long
def test_tables_of_several_logs_are_combined_by_the_names_of_their_columns(
    spark: Any, branches: tuple[Branch, Branch]
) -> None:
    """A table that one log lacks is not missed; what no log has is refused, and so is what has expired."""
    crm, shop = branches
    crm.insert(1)
    crm.seal()
    crm.insert(2)
    shop.commit(1, (shop.products, {"id": 7}))
    shop.cut()
    roots = sealed(crm, shop)
    for branch in branches:
        branch.beat(5)
    assert told(read_logs(spark, roots, str(PRODUCTS.id))) == [("shop", START + 1, 1)]
    with pytest.raises(
        ConfigurationError, match=r"the sealed part of none of crm, shop has a row of a table public\.x"
    ):
        read_logs(spark, roots, "public.x")
    with pytest.raises(ConfigurationError, match="that is no time"):
        read_logs(spark, roots, NAME, to="soon")
    LogRetention(Layout(crm.root)).expire(ExpiryRule(before_cut=3))
    with pytest.raises(HistoryLost, match=f"reading {crm.root}"):
        read_logs(spark, roots, NAME, start={"crm": 1})
    assert told(read_logs(spark, roots, NAME)) == [("crm", START + 2, 2)]
    empty = crm.root.with_name("empty")
    Branch(empty, "empty").log.close()
    with pytest.raises(ConfigurationError, match="nothing of log new is sealed yet"):
        read_logs(spark, {"crm": crm.root, "new": empty}, NAME)
