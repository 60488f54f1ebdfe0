"""Files are rewritten while merges run: what merges delete in the meantime does not return, and nothing is lost. Cuts
are listed during merges, too, and expire between two of them."""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local
from cdcflow.errors import HistoryLost
from cdcflow.log.thread_priority import has_lower_priority
from cdcflow.model.file_layout import PartitionField, SortColumn
from cdcflow.tables.formats import delta
from cdcflow.tables.job import job
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.maintenance import Compaction, UpkeepPolicy, UpkeepWhenDue
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import checkpoints, compaction, deltalog, file_keys, file_rewrites, position_deletes, scan
from cdcflow.tables.local.delta import DeltaTable
from cdcflow.tables.local.engine import LocalCuts, LocalEngine
from cdcflow.tables.local.iceberg_catalogs import embedded_catalog
from cdcflow.tables.merge.policy import Policies, TablePolicy

ORDERS = make_table("orders", id="int64", v="int32")
PATH = "public", "orders"

Merge = Callable[..., MergeReport]


@pytest.fixture(autouse=True)
def marked_rows(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """No file is too small to have its rows marked, and few of them are rewritten by a merge. In every other test,
    Iceberg's files have delete files as large ones have them, which no merge replaces."""
    if zlib.crc32(request.node.name.encode()) % 2:
        monkeypatch.setattr(position_deletes, "SHARING_BYTES", 0)
        monkeypatch.setattr(position_deletes, "OWN_TIMES", 0)
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    monkeypatch.setattr(file_rewrites, "DEAD_SHARE_MAX", 0.9)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"  # delta-rs does not read a folder whose name has a percent sign


class Orders:
    """A table, and the rows that it should have."""

    def __init__(self, log: HandLog, merge: Merge, warehouse: Path, *partitions: str) -> None:
        self.log = log
        self.warehouse = warehouse
        self.rows: dict[int, int] = {}
        fields = tuple(PartitionField.parse(text) for text in partitions)
        policies = Policies(each={"public.orders": TablePolicy(partition_by=fields)} if fields else {})
        self._merge = partial(merge, log.root, warehouse, policies=policies)
        log.state(ORDERS)

    def merge_by(self, merge: Callable[[], MergeReport]) -> None:
        """Merge by this function from now on."""
        self._merge = partial(merge)

    def change(self, ids: Sequence[int], v: int, gone: Sequence[int] = ()) -> MergeReport:
        """Insert or update rows, delete others, and merge."""
        steps: list[Any] = [(ORDERS, "u" if n in self.rows else "c", {"id": n, "v": v}) for n in ids]
        steps += [(ORDERS, "d", {"id": n}) for n in gone]
        self.rows |= dict.fromkeys(ids, v)
        for n in gone:
            del self.rows[n]
        self.log.segment(steps)
        return self._merge()

    def check(self, format_name: str) -> None:
        """The latest version, as another library reads it, and the latest cut have these rows."""
        others = foreign_rows(self.warehouse, format_name)
        published = local.read_cut(self.warehouse)["public.orders"].select(["id", "v"]).to_pylist()
        for rows in (others, published):
            assert sorted((row["id"], row["v"]) for row in rows) == sorted(self.rows.items())


def foreign_rows(warehouse: Path, format_name: str) -> list[dict[str, Any]]:
    """The rows of the latest version, without cdcflow's reader."""
    if format_name == "iceberg":
        (table,) = (t for t in tables_of(warehouse) if t.name()[-1] == "orders")
        return list(table.scan(selected_fields=("id", "v")).to_arrow().to_pylist())
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    table = DeltaTable(str(warehouse / "public" / "orders"))
    return list(pa.table(QueryBuilder().register("t", table).execute("SELECT id, v FROM t").read_all()).to_pylist())


def tables_of(warehouse: Path) -> Iterator[Any]:
    catalog = embedded_catalog(warehouse)
    for name in catalog.list_tables("public"):
        yield catalog.load_table(name)


@pytest.fixture
def orders(hand_log: HandLog, merge: Merge, warehouse: Path) -> Orders:
    return fill(Orders(hand_log, merge, warehouse))


def fill(orders: Orders) -> Orders:
    orders.change(range(60), 0)
    for number in range(1, 5):
        orders.change([*range(number * 7, number * 7 + 4), 100 - number], number, gone=[number])
    return orders


@pytest.mark.spread(2)
@pytest.mark.parametrize("order", ["", "v", "id desc"])
@pytest.mark.parametrize("way", ["small files", "worn files"])
def test_rows_that_merges_change_while_files_are_rewritten_do_not_return(
    orders: Orders, format_name: str, order: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewrite of a large file takes seconds, and merges mark rows in it all the time."""
    if way == "worn files":
        monkeypatch.setattr(file_rewrites, "JOINED_BYTES", 0)
    by = [SortColumn.parse(order)] if order else []
    with closing(LocalEngine(orders.warehouse, format_name)) as engine:
        with closing(engine.table(PATH)) as there:
            there.snapshot()
            before = len(there.files())
            rewritten = there.rewrite_portion(by)
        orders.change([*range(5, 30, 3), 59, 99, 200], 50, gone=[0, 58, 8, 9])
        orders.change([13, 97, 201], 51, gone=[200, 96])
        with closing(engine.table(PATH)) as there, engine.upkeep_lease():
            there.snapshot()
            assert rewritten is not None
            done = there.finish_portion(rewritten)
            marked = sum(there.deletions(file).dead for file in there.files())
            assert done is not None
            assert (done.files, done.made) == ((before, 1) if way == "small files" else (1, 1))
            assert way == "worn files" or not done.has_more, "those merges left two small files, which can wait"
    assert marked > 5
    orders.check(format_name)
    orders.change([4, 14, 57, 202], 60, gone=[20])
    orders.check(format_name)


def test_rows_of_several_partitions_keep_their_marks(
    hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewritten rows of files with another layout go into several files, in another order."""

    def merge(*given: Any, **more: Any) -> MergeReport:
        return local.merge(*given, **more, table_format="iceberg")

    fill(Orders(hand_log, merge, warehouse))
    orders = Orders(hand_log, merge, warehouse, "bucket(3, id)")
    orders.rows = {row["id"]: row["v"] for row in foreign_rows(warehouse, "iceberg")}
    orders.change([300], 5)
    monkeypatch.setattr(file_rewrites, "JOINED_BYTES", 0)
    with closing(LocalEngine(warehouse, "iceberg")) as engine:
        with closing(engine.table(PATH)) as there:
            there.snapshot()
            rewritten = there.rewrite_portion([SortColumn("v")])
        orders.change([*range(5, 40, 3), 301], 50, gone=[0, 58, 41])
        with closing(engine.table(PATH)) as there, engine.upkeep_lease():
            there.snapshot()
            assert rewritten is not None
            done = there.finish_portion(rewritten)
    assert done is not None
    assert done.made == 3
    orders.check("iceberg")


def test_a_rewritten_file_has_an_index_before_a_merge_needs_it(
    hand_log: HandLog, merge: Merge, warehouse: Path, format_name: str
) -> None:
    """Otherwise the first merge after the rewrite of a large file would read all of its keys."""
    partitions = ["bucket(3, id)"] if format_name == "iceberg" else []  # a file for each, so rows move
    orders = fill(Orders(hand_log, merge, warehouse, *partitions))
    with closing(LocalEngine(warehouse, format_name)) as engine:
        with closing(engine.table(PATH)) as there:
            there.snapshot()
            before = {there.path_of(file) for file in there.files()}
            rewritten = there.rewrite_portion([SortColumn("v", descending=True)])
        with closing(engine.table(PATH)) as there, engine.upkeep_lease():
            there.snapshot()
            assert rewritten is not None
            assert there.finish_portion(rewritten) is not None
            new = [file for file in there.files() if there.path_of(file) not in before]
            assert new
            for file in new:
                index = file_keys.KNOWN.get(there.content_of(file, "id"))
                assert index is not None
                with there.open_file(file) as rows:
                    ids = rows.read(rows.groups, ["id"]).column("id").to_numpy()
                found = index.find(np.sort(ids), scan.NONE)
                assert ids[found.numbers].tolist() == found.keys.tolist()
                assert len(found.numbers) == len(ids)
    orders.change([4, 14, 57, 202], 60, gone=[20])
    orders.check(format_name)


def test_files_are_rewritten_with_a_lower_priority(
    orders: Orders, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merges should not wait for a processor because of it."""
    lower: list[bool] = []
    rewrite = compaction.rewrite

    def watched(*given: Any) -> Any:
        lower.append(has_lower_priority())
        return rewrite(*given)

    monkeypatch.setattr(compaction, "rewrite", watched)
    with closing(LocalEngine(orders.warehouse, format_name)) as engine:
        background = Compaction(Engines(engine), UpkeepPolicy())
        background.add("public.orders", "/".join(PATH))
        while not background.is_idle:
            background.proceed()
            background.join()
    assert lower
    assert all(lower)
    assert not has_lower_priority()
    orders.check(format_name)


def test_files_that_a_merge_has_replaced_are_not_replaced_again(
    orders: Orders, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise their rows would exist twice."""
    with closing(LocalEngine(orders.warehouse, format_name)) as engine:
        with closing(engine.table(PATH)) as there:
            there.snapshot()
            rewritten = there.rewrite_portion()
        with monkeypatch.context() as patch:
            patch.setattr(file_rewrites, "TINY_BYTES", 1 << 20)
            orders.change([30], 50)
        with closing(engine.table(PATH)) as there, engine.upkeep_lease():
            there.snapshot()
            assert rewritten is not None
            assert there.finish_portion(rewritten) is None
    orders.check(format_name)


def merge_by(engine: LocalEngine, orders: Orders) -> None:
    """Merges of this log by this engine, as in a process that merges again and again."""
    orders.merge_by(lambda: job.merge(Engines(engine), orders.log.root, orders.warehouse))


@pytest.mark.spread(2)
@pytest.mark.parametrize("tiny", [0, 1 << 20], ids=["many deleted rows", "tiny files"])
def test_a_merge_rewrites_no_file_that_its_process_compacts(
    orders: Orders, format_name: str, tiny: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What compaction has written would be in vain, and compacting again at once takes the next merge's time."""
    monkeypatch.setattr(file_rewrites, "DEAD_SHARE_MAX", 0.0)
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", tiny)
    monkeypatch.setattr(file_rewrites, "SMALL_FILES_MAX", 2)
    with closing(LocalEngine(orders.warehouse, format_name)) as engine:
        merge_by(engine, orders)
        with closing(engine.table(PATH)) as there:
            there.snapshot()
            rewritten = there.rewrite_portion()
        for number in range(4):
            orders.change([5, 30, 99, 200 + number], 50 + number, gone=[40 + number])
        with closing(engine.table(PATH)) as there, engine.upkeep_lease():
            there.snapshot()
            assert rewritten is not None
            assert there.finish_portion(rewritten) is not None
        orders.check(format_name)
        orders.change([10], 60)
        assert not has_marks(engine), "merges rewrite files again"
    orders.check(format_name)


def test_a_merge_rewrites_files_whose_compaction_failed(
    orders: Orders, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_rewrites, "DEAD_SHARE_MAX", 0.0)
    with closing(LocalEngine(orders.warehouse, format_name)) as engine:
        merge_by(engine, orders)
        with monkeypatch.context() as patch, closing(engine.table(PATH)) as there:
            patch.setattr(compaction, "rewrite", _full_disk)
            there.snapshot()
            with pytest.raises(OSError, match="full"):
                there.rewrite_portion()
        orders.change([12], 50)
        assert not has_marks(engine)
    orders.check(format_name)


def has_marks(engine: LocalEngine) -> bool:
    """Whether the file that most rows are in has deleted rows."""
    with closing(engine.table(PATH)) as there:
        there.snapshot()
        return bool(there.deletions(max(there.files(), key=there.row_count)).dead)


def _full_disk(*_: Any) -> None:
    raise OSError("full")


@pytest.mark.spread(1)
@pytest.mark.parametrize("seed", range(6))
def test_a_table_is_compacted_by_a_process_that_merges_all_the_time(
    hand_log: HandLog, merge: Merge, warehouse: Path, format_name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction gets its turn, in portions, whatever merges change between its two steps; sometimes they replace its
    files."""
    chance = random.Random(seed)
    orders = fill(Orders(hand_log, merge, warehouse))
    compactions: list[Compaction] = []

    def make(*given: Any) -> Compaction:
        compactions.append(Compaction(*given))
        return compactions[0]

    monkeypatch.setattr("cdcflow.tables.job.maintenance.Compaction", make)
    monkeypatch.setattr(file_rewrites, "AGAIN_BYTES_MAX", 12_000)
    finished = 0
    with closing(LocalEngine(warehouse, format_name)) as engine:
        due = UpkeepWhenDue(Engines(engine), UpkeepPolicy(after_merges=2, cluster=bool(seed % 2)), repeats=True)
        (compaction,) = compactions
        for number in range(14):
            gone = chance.sample(sorted(orders.rows), 2)
            ids = [n for n in chance.sample(range(80), 6) if n not in gone]
            with monkeypatch.context() as patch:
                patch.setattr(file_rewrites, "TINY_BYTES", 1 << 20 if chance.random() < 0.2 else 0)
                report = orders.change([*ids, 300 + number], number, gone)
            if chance.random() < 0.5:
                compaction.join()
            was_idle = compaction.is_idle
            due.after(report.tables)
            finished += not was_idle and compaction.is_idle
            orders.check(format_name)
        compaction.join()
        compaction.proceed()
    assert finished
    orders.check(format_name)


@pytest.mark.parametrize("format_name", ["delta"])
def test_no_merge_waits_for_a_checkpoint(
    orders: Orders, format_name: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that are merged together reach their intervals with the same merge, and a checkpoint names each file that
    was removed in a week."""
    may_write, by = threading.Event(), list[str]()
    write = checkpoints.write_checkpoint

    def written_later(*given: Any) -> None:
        by.append(threading.current_thread().name)
        assert may_write.wait(60)
        write(*given)

    monkeypatch.setattr(deltalog, "checkpoint_every", lambda _: 3)
    monkeypatch.setattr(deltalog, "write_checkpoint", written_later)
    with closing(LocalEngine(warehouse, format_name)) as engine:
        due = UpkeepWhenDue(Engines(engine), UpkeepPolicy(compact=False), repeats=True)
        merge_by(engine, orders)
        for number in range(7):
            with due.merging():
                report = orders.change([1, 2, 300 + number], 70 + number)
            due.after(report.tables)
            orders.check(format_name)
        assert by == ["later"]
        may_write.set()
        due.join()
        while due._later is not None and due._later.is_due:
            due.after(())
            due.join()
        assert set(by) == {"later"}
        assert list((warehouse / "public" / "orders").glob("_delta_log/*.checkpoint.parquet"))
        orders.change([1, 2], 80)
    orders.check(format_name)


@pytest.mark.parametrize("format_name", ["delta"])
def test_a_merge_may_run_while_maintenance_lists_the_files_of_a_table(
    orders: Orders, format_name: str, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small merges leave millions of files a week. What a merge that comes in between needs is not removed."""
    monkeypatch.setattr(delta, "REMOVED_KEPT_S", 0.0)
    held, list_files = [], DeltaTable._written_before

    def merged_later(there: DeltaTable, at: float) -> list[str]:
        found = list_files(there, at)
        if there.name.endswith("orders"):
            held.append(due._turn.locked())
            if not held[-1]:
                orders.change([5, 30, 99], 80, gone=[40])
        return found

    with closing(LocalEngine(warehouse, format_name)) as engine:
        clock = time.time() + 3600.0
        policy = UpkeepPolicy(keep_s=0.0, every_s=0.0, compact=False)
        due = UpkeepWhenDue(Engines(engine), policy, lambda: clock, repeats=True)
        merge_by(engine, orders)
        report = orders.change([1, 2], 70)
        before = set((warehouse / "public" / "orders").rglob("*"))
        monkeypatch.setattr(DeltaTable, "_written_before", merged_later)
        due.after(report.tables)
        due.join()
        assert held == [False]
        assert before - set((warehouse / "public" / "orders").rglob("*")), "some are removed"
    orders.check(format_name)


def cuts_of(engine: LocalEngine) -> list[int]:
    return [one.cut for one in engine.cuts().list_cuts()]


@pytest.mark.spread(1)
def test_a_merge_waits_only_for_the_steps_of_maintenance_that_change_something(
    orders: Orders, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing cuts and tables takes seconds in a warehouse with many cuts; readers got nothing new in that time."""
    listing, may_list = threading.Event(), threading.Event()
    list_cuts = LocalCuts.list_cuts

    def listed_later(cuts: LocalCuts) -> list[Any]:
        if threading.current_thread().name == "upkeep":
            listing.set()
            assert may_list.wait(60)
        return list_cuts(cuts)

    monkeypatch.setattr(LocalCuts, "list_cuts", listed_later)
    with closing(LocalEngine(orders.warehouse, format_name)) as engine:
        policy = UpkeepPolicy(keep_s=0.0, after_merges=1, compact=True)
        due = UpkeepWhenDue(Engines(engine), policy, repeats=True)
        due.after(())
        with due.merging():
            report = orders.change([1, 2], 70)
        due.after(report.tables)
        assert listing.wait(60)
        with due.merging():
            orders.change([3], 71)
            before = cuts_of(engine)
            may_list.set()
            due._running.join(0.5)  # type: ignore[union-attr]
            assert cuts_of(engine) == before
            assert due._running is not None
            assert due._running.is_alive(), "it changes nothing during a merge"
        due.join()
        # Of the cuts that it listed only the latest is kept.
        assert cuts_of(engine) == before[-1:]
        assert [table.name for table in due.after(()).tables] == ["public.orders"]
        due.join()
    orders.check(format_name)


@pytest.mark.spread(1)
@pytest.mark.parametrize("seed", range(4))
def test_cuts_expire_during_merges_and_the_kept_ones_read_the_same(
    hand_log: HandLog, merge: Merge, warehouse: Path, format_name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is merged while maintenance chooses what to remove, each cut shows its own rows or has expired."""
    monkeypatch.setattr(delta, "REMOVED_KEPT_S", 0.0)
    chance = random.Random(seed)
    orders = fill(Orders(hand_log, merge, warehouse))
    shown: dict[int, list[tuple[int, int]]] = {}
    with closing(LocalEngine(warehouse, format_name)) as engine:
        # Without compaction: with a retention of 0, files that it has written would be removed before their commit.
        policy = UpkeepPolicy(keep_s=0.2, every_s=0.0, compact=False)
        due = UpkeepWhenDue(Engines(engine), policy, lambda: time.time() + 0.1, repeats=True)
        for number in range(12):
            gone = chance.sample(sorted(orders.rows), 2)
            ids = [n for n in chance.sample(range(80), 6) if n not in gone]
            with due.merging():
                report = orders.change([*ids, 300 + number], number, gone)
            shown[report.cut] = sorted(orders.rows.items())
            if chance.random() < 0.3:
                due.join()
            due.after(report.tables)
        due.join()
        kept = cuts_of(engine)
        assert kept[-1] == report.cut
        assert set(shown) - set(kept), "some have expired"
        for cut, rows in shown.items():
            try:
                found = local.read_cut(warehouse, cut)["public.orders"].select(["id", "v"]).to_pylist()
            except HistoryLost:
                assert cut not in kept
            else:
                assert sorted((row["id"], row["v"]) for row in found) == rows
        due.after(())
        due.join()
    orders.check(format_name)
