"""One point in time over all tables: by number, position and time, with cdcflow and without it, while merges run."""

from __future__ import annotations

import json
import os
import random
import re
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from typer.testing import CliRunner

from cdcflow import local
from cdcflow.cli.app import app
from cdcflow.errors import ConfigurationError, HistoryLost
from cdcflow.model.table import TableId
from cdcflow.tables.job import live
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local.iceberg_catalogs import embedded_catalog as catalog
from cdcflow.tables.segments import sealed_range

SEED = int(os.environ.get("CDCFLOW_CUTS_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
ORDERS = make_table("orders", id="int64", product="int64")
PRODUCTS = make_table("products", id="int64", name="string")
READS, MERGES = {"delta": 140, "iceberg": 60}, 8
VIEW = re.compile(r"CREATE OR REPLACE TEMPORARY VIEW `([^`]+)` AS SELECT \* FROM (.*) VERSION AS OF (.*);")

Merge = Callable[..., MergeReport]


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"  # delta-rs takes a path with a percent sign for a URL


class Shop:
    """Products and their orders: each order arrives in the cut of its product or later. The table that must not be
    ahead has the name that is merged first.
    """

    def __init__(self, log: HandLog) -> None:
        self.log = log
        self.products = 0
        for table in (ORDERS, PRODUCTS):
            log.state(table)

    def sells(self) -> int:
        """One cut more."""
        self.products += 1
        n = self.products
        rows: list[tuple[Any, str, dict[str, Any]]] = [
            (PRODUCTS, "c", {"id": n, "name": f"p{n}"}),
            (ORDERS, "c", {"id": 2 * n, "product": n}),
            (ORDERS, "c", {"id": 2 * n + 1, "product": random.Random(n).randint(1, n)}),
        ]
        return self.log.segment([*rows, (ORDERS, "u", {"id": 2, "product": n})])


def check_moment(tables: Mapping[str, pa.Table], told: str) -> None:
    """Every order's product exists, and nothing of a later cut is visible."""
    products = tables["public.products"].column("id").to_pylist()
    orders = tables["public.orders"].column("product").to_pylist()
    assert set(orders) <= set(products), told
    assert len(orders) == 2 * len(products), told


def at_versions(warehouse: Path, sql: str) -> dict[str, pa.Table]:
    """What the views of such a file read, without cdcflow and without Spark."""
    found = {}
    for line in sql.splitlines():
        view = re.fullmatch(
            r"CREATE OR REPLACE TEMPORARY VIEW `([^`]+)` AS SELECT \* FROM (.*) VERSION AS OF (.*);", line
        )
        if view is None:
            assert line.startswith(("--", "SET ")), line
        elif view[2].startswith("delta."):
            there = DeltaTable(view[2].removeprefix("delta.").strip("`"), version=int(view[3]))
            query = QueryBuilder().register("t", there).execute("SELECT * FROM t")
            found[view[1]] = pa.table(query)
        else:
            there_too = catalog(warehouse).load_table(view[2].replace("`", ""))
            tagged = there_too.refs()[view[3].strip("'")].snapshot_id
            found[view[1]] = there_too.scan(snapshot_id=tagged).to_arrow()
    return found


def latest_sql(warehouse: Path) -> str:
    return (warehouse / "_cdcflow_views" / "latest.sql").read_text()


@pytest.mark.spread(1)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_no_order_is_seen_before_its_product_during_merges(
    merge: Merge, hand_log: HandLog, warehouse: Path, format_name: str
) -> None:
    """200 reads at random cuts, through `read_cut`, `read_live` and the SQL for readers without cdcflow: each shows one
    point in time over both tables, also of rows that a merge is replacing. `CDCFLOW_CUTS_SEED` replays the choices.
    """
    shop, chance = Shop(hand_log), random.Random(SEED)
    shop.sells()
    published = [merge(hand_log.root, warehouse).cut]
    failed: list[BaseException] = []
    looked: list[tuple[int, int]] = []

    def merges() -> None:
        try:
            for _ in range(MERGES):
                shop.sells()
                published.append(merge(hand_log.root, warehouse).cut)
        except BaseException as error:  # noqa: BLE001  for the thread that waits
            failed.append(error)

    merging = threading.Thread(target=merges)
    merging.start()
    try:
        for read in range(READS[format_name]):
            told = f"seed {SEED}, read {read}"
            way = chance.random()
            if way < 0.2:
                check_moment(at_versions(warehouse, latest_sql(warehouse)), told)
            elif way < 0.5:
                shown = local.read_live(hand_log.root, warehouse)
                check_moment(shown, told)
                assert shown["public.products"].num_rows == shown.cut, told
                looked.append((shown.published, shown.cut))
            else:
                cut = chance.choice(published)
                tables = local.read_cut(warehouse, cut)
                check_moment(tables, told)
                assert tables["public.products"].num_rows == cut, told
    finally:
        merging.join()
    assert not failed, failed
    assert local.published_cut(warehouse).cut == MERGES + 1
    assert looked == sorted(looked), "an older cut was shown after a newer one"
    assert any(published < cut for published, cut in looked), "no live view was ahead of its cut"


def test_tables_read_without_a_cut_show_orders_without_products(
    merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """This is why cuts exist, and proof that the check above can fail: between the merges of two tables their latest
    rows are of two points in time, and the cut is of one.
    """
    shop = Shop(hand_log)
    shop.sells()
    merge(hand_log.root, warehouse)
    shop.sells()
    merge(hand_log.root, warehouse, ["public.orders"])
    before = latest_sql(warehouse)
    newest = re.sub(r"VERSION AS OF \d+", lambda v: f"VERSION AS OF {int(v[0].split()[-1]) + 1}", before, count=1)
    newest = newest.replace("'cdcflow_cut_1'", "'cdcflow_cut_2'", 1)
    with pytest.raises(AssertionError):
        check_moment(at_versions(warehouse, newest), "orders are a cut ahead")
    check_moment(at_versions(warehouse, before), "the cut")
    check_moment(local.read_cut(warehouse), "the cut")


def test_a_cut_is_read_when_the_table_has_forgotten_its_metadata_of_then(
    merge: Merge, hand_log: HandLog, warehouse: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg keeps a hundred metadata files: in a table that is merged every minute a cut of this morning has none,
    but its snapshot still exists. Also after columns were added and renamed, and of a cut without a row.
    """
    log, first = hand_log, make_table("orders", id="int64", product="int64")
    log.state(first)
    log.progress["public.orders"] |= {"schema": "public", "name": "orders", "shape": first.to_text()}
    log.segment([(PRODUCTS, "c", {"id": 1, "name": "p"})])
    merge(log.root, warehouse)
    log.segment([(first, "c", {"id": 1, "product": 5})])
    merge(log.root, warehouse)
    log.segment([(make_table("orders", id="int64", article="int64", n="int32"), "c", {"id": 2, "article": 6, "n": 7})])
    merge(log.root, warehouse)
    monkeypatch.setattr("cdcflow.tables.local.iceberg._metadata_back", lambda table: iter([table.metadata]))
    found = [local.read_cut(warehouse, cut)["public.orders"] for cut in (1, 2, 3)]
    assert [rows.num_rows for rows in found] == [0, 1, 2]
    assert found[1].column_names == ["id", "product", "_offset", "_missing"]
    assert found[1].column("product").to_pylist() == [5]
    assert "article" in found[2].column_names


def test_live_view_that_reads_the_log_separately_for_each_table_shows_orders_without_products(
    merge: Merge, hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of live views can fail, too: here the orders are read with a segment that came after the products."""
    shop = Shop(hand_log)
    shop.sells()
    merge(hand_log.root, warehouse)
    shop.sells()
    right = live._View._part

    def looks_again(view: Any, there: Any, table: TableId) -> Any:
        before = view._log
        if table == ORDERS.id:
            shop.sells()
            view._log = sealed_range(before.layout, 0)
        try:
            return right(view, there, table)
        finally:
            view._log = before

    with monkeypatch.context() as patch:
        patch.setattr(live._View, "_part", looks_again)
        with pytest.raises(AssertionError):
            check_moment(local.read_live(hand_log.root, warehouse), "orders are a segment ahead")
    check_moment(local.read_live(hand_log.root, warehouse), "one look")


@pytest.fixture
def sold(merge: Merge, hand_log: HandLog, warehouse: Path) -> Shop:
    """Three cuts, with offsets for positions and commit clocks."""
    shop = Shop(hand_log)
    for _ in range(3):
        shop.sells()
        merge(hand_log.root, warehouse)
    return shop


@pytest.mark.spread(1)
def test_each_kind_of_position_finds_its_cut(sold: Shop, warehouse: Path) -> None:
    """Users know a position or a commit time of the source; cut numbers are cdcflow's."""
    found = [local.published_cut(warehouse, n) for n in (1, 2, 3)]
    for number, cut in enumerate(found, 1):
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=cut.commit_clock)
        for as_of in (number, str(number), cut.position, at, at.isoformat(), at.replace(tzinfo=None)):
            assert local.read_cut(warehouse, as_of=as_of)["public.products"].num_rows == number
    assert local.published_cut(warehouse, as_of=99) == local.published_cut(warehouse) == found[2]
    with pytest.raises(ConfigurationError, match="oldest cut that is kept is 1"):
        local.read_cut(warehouse, as_of="1969-07-20T20:17:40Z")
    with pytest.raises(ConfigurationError, match="no cut 7"):
        local.read_cut(warehouse, 7)


def test_cut_that_was_published_again_shows_its_latest_state(merge: Merge, hand_log: HandLog, warehouse: Path) -> None:
    """A backfill that was found to be done later, with no row between: the older row of the same cut no longer
    counts.
    """
    hand_log.state(ORDERS, "reading", since=1)
    hand_log.segment([(ORDERS, "r", {"id": 1, "product": 1})])
    merge(hand_log.root, warehouse)
    assert local.read_cut(warehouse) == {}
    assert "`public.orders` is" not in latest_sql(warehouse)
    assert "public.orders is not here: not all of its rows were read" in latest_sql(warehouse)
    assert list(local.read_cut(warehouse, incomplete=True)) == ["public.orders"]
    hand_log.state(ORDERS)
    hand_log.segment([])
    merge(hand_log.root, warehouse)
    assert local.read_cut(warehouse)["public.orders"].num_rows == 1
    assert at_versions(warehouse, latest_sql(warehouse))["public.orders"].num_rows == 1


def test_sql_that_a_dead_merge_did_not_write_is_written_by_the_next(merge: Merge, sold: Shop, warehouse: Path) -> None:
    """Otherwise readers without cdcflow would read an older point in time until something changes."""
    right = latest_sql(warehouse)
    for left in ("-- cut 2: of before", None):
        path = warehouse / "_cdcflow_views" / "latest.sql"
        path.unlink()
        if left is not None:
            path.write_text(left)
        assert not merge(sold.log.root, warehouse).published
        assert latest_sql(warehouse) == right


def test_a_cut_whose_files_are_gone_is_named(sold: Shop, warehouse: Path, format_name: str) -> None:
    """Reading only some rows of a cut would be worse than an error; the message's remedy reads the other table."""
    for file in (warehouse / "public" / "orders").rglob("*.parquet"):
        if "checkpoint" not in file.name:
            file.unlink()
    with pytest.raises(HistoryLost, match=r"table public\.orders(?s:.*)read a newer cut, or the other tables"):
        local.read_cut(warehouse, 2)
    assert local.read_cut(warehouse, 2, tables=["public.products"])["public.products"].num_rows == 2


def test_the_command_lists_cuts_and_prints_sql(sold: Shop, warehouse: Path, format_name: str, tmp_path: Path) -> None:
    """Users of plain Spark get the SQL for a cut other than the latest here; no Spark is started for it."""
    settings = tmp_path / "cdcflow.yaml"
    settings.write_text(
        "source: {kind: postgres, url: 'postgresql://nobody@127.0.0.1/shop'}\n"
        f"log: {{path: {sold.log.root}}}\nmerge: {{format: {format_name}, warehouse: '{warehouse}', engine: spark}}\n"
    )

    def asked(*words: str) -> str:
        found = CliRunner().invoke(app, ["cuts", *words, "--config", str(settings)])
        assert found.exit_code == 0, found.output
        return found.stdout

    listed = json.loads(asked("--json"))
    assert [(one["cut"], one["tables"]) for one in listed] == [(1, 2), (2, 2), (3, 2)]
    assert json.loads(asked("--as-of", listed[1]["commit_clock"], "--json")) == listed[1:2]
    assert listed[2]["commit_clock"] in asked()
    whole = json.loads(asked("--tables", "--as-of", "2", "--json"))
    assert (whole["cut"], whole["commit_clock"], whole["left_out"]) == (2, listed[1]["commit_clock"], {})
    assert set(whole["tables"]) == {"public.orders", "public.products"}
    assert all(table["complete"] and table["path"] for table in whole["tables"].values())
    assert "public.products" in asked("--tables")
    assert asked("--sql") == latest_sql(warehouse)
    check_moment(then := at_versions(warehouse, asked("--sql", "--as-of", "2")), "cut 2")
    assert then["public.products"].num_rows == 2
