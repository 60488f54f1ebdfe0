"""Schema changes on real tables: the job killed between commits, the remedy of one that cannot be followed, and what is
left of older cuts after it. What else may pass while a merge works."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdcflow.errors import CdcflowError, HistoryLost
from cdcflow.log.files.layout import Layout
from cdcflow.model.table import Table
from cdcflow.spark import read_cut
from cdcflow.spark.cuts import published_cut
from cdcflow.spark.formats import table_format
from cdcflow.spark.formats.delta import DeltaTable
from cdcflow.spark.formats.iceberg import IcebergTable
from cdcflow.spark.job import MergeReport
from cdcflow.tables.job import job as warehouse_job
from cdcflow.tables.local.delta import DeltaTable as LocalDeltaTable
from cdcflow.tables.local.deltalog import DeltaLog
from cdcflow.tables.local.iceberg import IcebergTable as LocalTable
from cdcflow.tables.merge import removed_and_added, statement
from cdcflow.tables.merge.statement import TARGET_PROPERTY
from cdcflow.tables.paths import CUTS, table_path

pytestmark = pytest.mark.spark

Merge = Callable[..., MergeReport]


COMMITS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "delta by spark": (DeltaTable, ("_committing",)),
    "iceberg by spark": (IcebergTable, ("commit",)),
    "delta by local": (DeltaLog, ("commit",)),
    "iceberg by local": (LocalTable, ("create", "_changing")),
}
"""What every commit goes through."""


STAGES = {"delta by spark": (11, 5), "delta by local": (8, 2), "iceberg by spark": (10, 4), "iceberg by local": (8, 2)}
"""Of a swap: describe, then up to three commits for each rename (a and c step aside first). The second run ends after
the last of them, the third after ADD. The local engine makes no commit for a change that affects no row."""


@contextmanager
def killed_before_commit(merged_by: str, number: int) -> Iterator[None]:
    """The job dies before its next commit but this many."""
    done = 0
    of, methods = COMMITS[merged_by]

    def counted(right: Any) -> Any:
        def commits(*given: Any, **more: Any) -> Any:
            nonlocal done
            done += 1
            if done > number:
                raise KeyboardInterrupt
            return right(*given, **more)

        return commits

    with pytest.MonkeyPatch.context() as patch:
        for method in methods:
            patch.setattr(of, method, counted(getattr(of, method)))
        with pytest.raises(KeyboardInterrupt):
            yield


KILLED_BEFORE_A_COMMIT = """
import os, signal, sys
from cdcflow import local
from cdcflow.spark import job
from cdcflow.spark.formats.delta import DeltaTable
from cdcflow.spark.formats.iceberg import IcebergTable
from cdcflow.tables.local.deltalog import DeltaLog
from cdcflow.tables.local.iceberg import IcebergTable as LocalTable

engine, left = sys.argv.pop(1), int(sys.argv.pop(1))
table, methods = {
    "delta by spark": (DeltaTable, ["_committing"]),
    "delta by local": (DeltaLog, ["commit"]),
    "iceberg by spark": (IcebergTable, ["commit"]),
    "iceberg by local": (LocalTable, ["create", "_changing"]),
}[engine]

def counted(right):
    def commit(*given):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return right(*given)
    return commit

for method in methods:
    setattr(table, method, counted(getattr(table, method)))
sys.exit(local.merge(sys.argv[2], sys.argv[4]) if engine.endswith("local") else job.main())
"""


@pytest.mark.long
def test_a_swap_of_names_that_was_cut_off_keeps_every_value_in_its_column(
    spark: Any,
    make_table: Callable[..., Table],
    hand_log: Any,
    warehouse: Path,
    sql_of: Callable[[Table], str],
    merge: Merge,
    format_name: str,
    merged_by: str,
) -> None:
    """G10, G25: killed three times on its way, in a table that an older cdcflow described."""
    before = make_table("orders", id="int64", a="string", b="string", c="int32")
    hand_log.state(before, "reading")
    hand_log.segment(
        [
            (before, "c", {"id": 1, "a": "a1", "b": "b1", "c": 1}),
            (before, "u", {"id": 2, "b": "b2", "c": 2, "_unchanged": ["a"]}),
        ]
    )
    merge(hand_log.root, warehouse)
    older = json.dumps(
        {
            "version": 1,
            "incarnation": 1,
            "key": ["id"],
            "columns": [["id", 1, "bigint"], ["a", 2, "string"], ["b", 3, "string"], ["c", 4, "int"]],
        }
    )
    sql = sql_of(before)
    spark.sql(f"ALTER TABLE {sql} SET TBLPROPERTIES ('{TARGET_PROPERTY}' = '{older}')")

    numbers = {"id": 1, "b": 2, "a": 3, "C": 4, "d": 5}
    columns = {"id": "int64", "b": "string", "a": "string", "C": "int64", "d": "int32"}
    after = make_table("orders", numbers=numbers, missing={"d": "7"}, **columns)
    hand_log.segment([(after, "c", {"id": 3, "b": "a3", "a": "b3", "C": 2**40, "d": None})])
    # The first is killed as a process, the others in this one.
    killed = subprocess.run(
        [
            *(sys.executable, "-c", KILLED_BEFORE_A_COMMIT, merged_by, "6"),
            *("--log", hand_log.root, "--warehouse", warehouse, "--format", format_name),
        ],
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for number in STAGES[merged_by]:
        with killed_before_commit(merged_by, number):
            merge(hand_log.root, warehouse)
    found = table_format(format_name).table(spark, warehouse, table_path(before.id)).snapshot()
    assert found is not None
    assert json.loads(found.properties[TARGET_PROPERTY])["open"]
    merge(hand_log.root, warehouse)
    rows = read_cut(spark, warehouse, incomplete=True)["public.orders"].drop("_offset").collect()
    assert sorted(tuple(row) for row in rows if row["_missing"] is None) == [
        (1, "a1", "b1", 1, None, 7),
        (3, "a3", "b3", 2**40, None, None),
    ]
    (partial,) = (row.asDict() for row in rows if row["_missing"] is not None)
    assert partial == {"id": 2, "b": None, "a": "b2", "C": 2, "d": 7, "_missing": ["b"]}


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.drop("_offset", "_missing").collect())


@pytest.mark.spread(1)
def test_retyped_column_s_remedy_works_to_the_letter_and_the_other_tables_continue(
    spark: Any,
    make_table: Callable[..., Table],
    hand_log: Any,
    warehouse: Path,
    sql_of: Callable[[Table], str],
    merge: Merge,
    format_name: str,
) -> None:
    """G24, G36: a table that cannot follow is skipped with an error that names it. With its folder moved away, the
    table read again by a backfill and merged, it returns; and no older cut shows the new table's versions as the old
    one's, or a table whose files VACUUM removed. A whole table stays readable while it is read again or is no longer
    captured, and its status reports that.
    """
    orders = make_table("orders", id="int64", v="int32")
    products = make_table("products", id="int64", name="string")
    hand_log.state(orders)
    hand_log.state(products)
    hand_log.segment([(orders, "c", {"id": 1, "v": 1}), (products, "c", {"id": 1, "name": "pen"})])
    merge(hand_log.root, warehouse)
    if format_name == "delta":
        as_an_older_cdcflow_wrote_them(spark, warehouse / CUTS)
    assert rows_of(read_cut(spark, warehouse)["public.orders"]) == [(1, 1)]

    retyped = make_table("orders", id="int64", v="string")
    hand_log.segment([(retyped, "u", {"id": 1, "v": "one"}), (products, "c", {"id": 2, "name": "ink"})])
    report = merge(hand_log.root, warehouse)
    assert report.published
    (left_out,) = published_cut(spark, warehouse).left_out.items()
    assert left_out == ("public.orders", report.tables[0].left_out)
    assert "column v was int and is string now" in left_out[1]
    assert "move the table's folder away" in left_out[1]
    found = read_cut(spark, warehouse)
    assert {name: rows_of(frame) for name, frame in found.items()} == {"public.products": [(1, "pen"), (2, "ink")]}
    assert rows_of(read_cut(spark, warehouse, 1)["public.orders"]) == [(1, 1)]
    with pytest.raises(CdcflowError, match="column v was int"):
        merge(hand_log.root, warehouse, ["public.orders"])

    warehouse.joinpath(*table_path(orders.id)).rename(warehouse / "moved away")
    hand_log.state(orders, "done", 2, since=hand_log.next_offset, whole_since=hand_log.next_offset)
    hand_log.segment([(retyped, "r", {"id": 1, "v": "one"}), (retyped, "r", {"id": 2, "v": "two"})])
    report = merge(hand_log.root, warehouse)
    assert report.tables[0].left_out is None
    assert rows_of(read_cut(spark, warehouse)["public.orders"]) == [(1, "one"), (2, "two")]
    assert not published_cut(spark, warehouse).left_out
    with pytest.raises(HistoryLost, match=r"cut 1 .*public\.orders .*another table(?s:.*)tables="):
        read_cut(spark, warehouse, 1)
    assert rows_of(read_cut(spark, warehouse, 1, tables=["public.products"])["public.products"]) == [(1, "pen")]

    hand_log.state(orders, "forgotten", 2, since=5, whole_since=5)
    hand_log.state(products, "cancelled", 2, since=7, whole_since=1)
    hand_log.segment([(products, "u", {"id": 2, "name": "red ink"})])
    merge(hand_log.root, warehouse)
    found = read_cut(spark, warehouse)
    assert rows_of(found["public.orders"]) == [(1, "one"), (2, "two")]
    assert rows_of(found["public.products"]) == [(1, "pen"), (2, "red ink")]
    states = {name: table.state for name, table in published_cut(spark, warehouse).tables.items()}
    assert states == {"public.orders": "forgotten", "public.products": "cancelled"}

    compact(spark, sql_of(products))
    remove_old_files(spark, sql_of(products))
    for cut in (2, 4):
        if format_name == "delta":
            with pytest.raises(HistoryLost, match=r"public\.products .*VACUUM"):
                read_cut(spark, warehouse, cut, tables=["public.products"])
        else:  # kept by a tag for each cut
            kept = read_cut(spark, warehouse, cut, tables=["public.products"])["public.products"]
            assert rows_of(kept) == [(1, "pen"), (2, "ink" if cut == 2 else "red ink")]


def compact(spark: Any, table: str) -> list[Any]:
    """As users compact during a merge; returns what was done."""
    if table.startswith("delta."):
        return list(spark.sql(f"OPTIMIZE {table}").collect())
    catalog, name = table.split(".", 1)
    options = "map('rewrite-all', 'true', 'delete-file-threshold', '1')"
    return list(
        spark.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{name}', options => {options})").collect()
    )


def remove_old_files(spark: Any, table: str) -> None:
    if table.startswith("delta."):
        spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        spark.sql(f"VACUUM {table} RETAIN 0 HOURS")
        return
    catalog, name = table.split(".", 1)
    now = "now() + INTERVAL 1 HOUR"
    (older,) = spark.sql(f"SELECT CAST({now} AS STRING)").first()
    expired = f"table => '{name}', older_than => TIMESTAMP '{older}', retain_last => 1"
    spark.sql(f"CALL {catalog}.system.expire_snapshots({expired})").collect()


@pytest.mark.spread(1)
def test_remedy_of_a_log_that_expired_past_a_table_works_to_the_letter(
    spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path, merge: Merge
) -> None:
    """The changes in between are unknown; a backfill in the log lists what exists, and the sweep removes rows that were
    deleted in the gap.
    """
    table = make_table("orders", id="int64", v="string")
    hand_log.state(table)
    hand_log.segment([(table, "c", {"id": n, "v": "old"}) for n in (1, 2, 3)])
    merge(hand_log.root, warehouse)
    hand_log.segment([(table, "d", {"id": 1}), (table, "u", {"id": 2, "v": "missed"})])
    hand_log.segment([(table, "u", {"id": 3, "v": "new"})])
    layout = Layout(hand_log.root)
    for segment in layout.segment_offsets()[:2]:
        shutil.rmtree(layout.segment(*segment))
    with pytest.raises(
        HistoryLost, match=r"public\.orders from cut 1: .*begins at cut 3(?s:.*)cdcflow backfill public"
    ):
        merge(hand_log.root, warehouse)

    hand_log.state(table, "done", 2, since=hand_log.next_offset, whole_since=hand_log.next_offset)
    hand_log.segment([(table, "r", {"id": 2, "v": "missed"}), (table, "r", {"id": 3, "v": "new"})])
    assert merge(hand_log.root, warehouse).published
    assert rows_of(read_cut(spark, warehouse)["public.orders"]) == [(2, "missed"), (3, "new")]


@pytest.mark.spread(1)
def test_a_delete_after_a_dropped_column_finds_its_row_in_a_table_without_a_key(
    spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path, merge: Merge
) -> None:
    """P08, G18: the delete has the current columns. Rows that it does not find would stay indefinitely. In addition,
    rows that a backfill did not find: another backfill had begun before a merge saw that the first was done.
    """
    bag = make_table("bag", key=(), a="int64", b="string")
    orders = make_table("orders", id="int64")
    hand_log.state(bag)
    hand_log.state(orders)
    hand_log.segment(
        [
            *((bag, "c", {"a": a, "b": b}) for a, b in ((1, "x"), (1, "y"), (2, "x"))),
            *((orders, "c", {"id": n}) for n in (1, 2)),
        ]
    )
    merge(hand_log.root, warehouse)
    narrow = make_table("bag", key=(), a="int64")
    since = hand_log.next_offset + 2
    hand_log.state(orders, "waiting", 3, since=since + 1, whole_since=since)
    hand_log.segment([(narrow, "d", {"a": 1}), (narrow, "d", {"a": 2}), (orders, "r", {"id": 2})])
    merge(hand_log.root, warehouse)
    found = read_cut(spark, warehouse)
    assert rows_of(found["public.bag"]) == [(1, None)]
    assert rows_of(found["public.orders"]) == [(2,)]
    assert published_cut(spark, warehouse).tables["public.orders"].complete


def as_an_older_cdcflow_wrote_them(spark: Any, cuts: Path) -> None:
    """Published cuts without what an older cdcflow did not keep."""
    plain = spark.createDataFrame(
        spark.read.format("delta").load(str(cuts)).drop("ids", "states", "left_out", "logs").collect()
    )
    plain.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(cuts))


@contextmanager
def optimized_in_a_commit(optimize: Callable[[], list[Any]], patch: Any, merged_by: str) -> Iterator[list[Any]]:
    """The rows have been read, and the files that replace them are about to be committed."""
    asked: list[Any] = []
    of = LocalTable if merged_by.startswith("iceberg") else LocalDeltaTable
    right = of.replace

    def replace(table: Any, *given: Any) -> None:
        if table.name.endswith("orders") and not asked:
            asked.extend(optimize())
        right(table, *given)

    patch.setattr(of, "replace", replace)
    yield asked


@contextmanager
def optimized_in_a_statement(optimize: Callable[[], list[Any]], patch: Any, merged_by: str) -> Iterator[list[Any]]:
    """The MERGE, or the statement in its place, cannot end before the test has had its turn."""
    asked: list[Any] = []
    of, (method,) = COMMITS[merged_by]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def optimize_once() -> None:
            while True:
                connection, _ = server.accept()
                with connection:
                    if connection.recv(1) == b"q":
                        return
                    if not asked:
                        asked.extend(optimize())
                    connection.sendall(b".")

        def held(offset: int) -> int:
            with socket.create_connection(("127.0.0.1", port)) as waiting:
                waiting.sendall(b"?")
                waiting.recv(1)
            return offset

        right_commit = getattr(of, method)

        def with_hold(right: Any) -> Any:
            def writes(*given: Any, **more: Any) -> Any:
                *before, reduced = given
                return right(*before, f"(SELECT * FROM {reduced} WHERE held(o) > 0)", **more)

            return writes

        def commit(table: Any, *given: Any) -> Any:
            table._spark.udf.register("held", held, "bigint")
            return right_commit(table, *given)

        patch.setattr(statement, "merge", with_hold(statement.merge))
        patch.setattr(removed_and_added, "going", with_hold(removed_and_added.going))
        patch.setattr(of, method, commit)
        answering = threading.Thread(target=optimize_once)
        answering.start()
        try:
            yield asked
        finally:
            with socket.create_connection(("127.0.0.1", port)) as over:
                over.sendall(b"q")
            answering.join()


@pytest.mark.spread(1)
def test_a_merge_that_meets_an_optimize_is_repeated(
    spark: Any,
    make_table: Callable[..., Table],
    hand_log: Any,
    warehouse: Path,
    sql_of: Callable[[Table], str],
    monkeypatch: pytest.MonkeyPatch,
    merge: Merge,
    format_name: str,
    merged_by: str,
) -> None:
    """The docs allow OPTIMIZE at any time: also after the MERGE has read the files that OPTIMIZE removes.

    In the same merge: a table without a key has a sweep, and a delete of a row of NULLs that does not exist.
    """
    table, bag = make_table("orders", id="int64", v="int32"), make_table("bag", key=(), a="int64", b="string")
    hand_log.state(bag)
    hand_log.segment([(bag, "c", {"a": 1, "b": "x"})])
    sql = sql_of(table)
    hand_log.state(table)
    for number in (1, 2):
        hand_log.segment([(table, "c", {"id": number, "v": 0})])
        merge(hand_log.root, warehouse)
    hand_log.state(bag, "done", 2, since=hand_log.next_offset)
    hand_log.segment(
        [
            (bag, "r", {"a": None, "b": "y"}),
            (bag, "d", {"a": None, "b": None}),
            (bag, "d", {"a": 7, "b": "z"}),
            (table, "u", {"id": 1, "v": 1}),
        ]
    )

    other = spark.newSession()
    table_format(format_name).table(other, warehouse, table_path(table.id))  # makes the catalog known to it
    meanwhile = optimized_in_a_commit if merged_by.endswith("local") else optimized_in_a_statement
    with meanwhile(lambda: compact(other, sql), monkeypatch, merged_by) as asked, pytest.MonkeyPatch.context() as patch:
        patch.setattr(warehouse_job, "CONFLICTS_MAX", 3)
        report = merge(hand_log.root, warehouse)
    assert asked, "no merge ran at the same time as an OPTIMIZE"
    assert report.published
    found = read_cut(spark, warehouse)
    assert rows_of(found["public.orders"]) == [(1, 1), (2, 0)]
    assert rows_of(found["public.bag"]) == [(None, "y")]
