"""What a merge promises in addition to the right rows: each change once, from this log, all tables of a cut, or an
error that names the table.
"""

from __future__ import annotations

import fcntl
import gc
import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.capture.ports.log import Numbered
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.model.change import ChangeBatch, Run
from cdcflow.model.position import Checkpoint, Offset, Position, SourceIdentity
from cdcflow.model.table import Table
from cdcflow.sinks.files.log import FileLog
from cdcflow.spark import job, read_cut
from cdcflow.spark.cuts import CutsTable, published_cut
from cdcflow.spark.job import MergeReport
from cdcflow.tables.job.positions import Positions
from cdcflow.tables.local.engine import LocalCuts
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.paths import LEASE

pytestmark = pytest.mark.spark

Merge = Callable[..., MergeReport]


@dataclass
class Shop:
    """Two tables merged up to cut 1, by a run that died before it published."""

    log: Any
    warehouse: Path
    orders: Table
    products: Table


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.drop("_offset", "_missing").collect())


@pytest.fixture(scope="module")
def shop(spark: Any, make_table: Callable[..., Table], hand_log_at: Callable[..., Any], merge: Merge) -> Shop:
    log = hand_log_at("shop")
    orders = make_table("orders", id="int64", item="string")
    products = make_table("products", id="int64", name="string")
    log.state(orders)
    log.state(products)
    log.segment([(products, "c", {"id": 1, "name": "pen"}), (orders, "c", {"id": 10, "item": "pen"})])
    shop = Shop(log, log.root.parent / "warehouse", orders, products)
    with pytest.MonkeyPatch.context() as patch:

        def dies(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(CutsTable, "publish", dies)
        patch.setattr(LocalCuts, "publish", dies)
        with pytest.raises(KeyboardInterrupt):
            merge(log.root, shop.warehouse)
    return shop


@pytest.mark.spread(1)
def test_a_run_that_died_before_it_published_is_finished_and_nothing_is_done_twice(
    spark: Any, shop: Shop, merge: Merge
) -> None:
    """G10, G11: a table's position is in its own commit, so the next run only publishes it."""
    first = merge(shop.log.root, shop.warehouse)
    again = merge(shop.log.root, shop.warehouse)
    assert [t.changes for t in first.tables] == [0, 0], "both tables had the cut already"
    assert not again.published
    assert [t.version for t in first.tables] == [t.version for t in again.tables]
    assert rows_of(read_cut(spark, shop.warehouse)["public.orders"]) == [(10, "pen")]


@pytest.mark.long
def test_a_later_merge_does_not_show_in_an_earlier_cut(
    spark: Any,
    make_table: Callable[..., Table],
    hand_log: Any,
    warehouse: Path,
    sql_of: Callable[[Table], str],
    merge: Merge,
) -> None:
    """A report over two tables must see both at one point in time, however many merges run concurrently.

    G13: while one merge works in a warehouse a second one is refused. G36: rows changed by hand are reported, or stop
    the merge.
    """
    orders = make_table("orders", id="int64", item="string")
    bag = make_table("bag", key=(), a="int64")
    hand_log.state(orders)
    hand_log.state(bag)
    hand_log.segment([(orders, "c", {"id": 1, "item": "pen"}), (bag, "c", {"a": 1}), (bag, "c", {"a": 1})])
    merge(hand_log.root, warehouse)
    early = read_cut(spark, warehouse)
    hand_log.segment([(orders, "u", {"id": 1, "item": "ink"})])
    report = merge(hand_log.root, warehouse)
    assert [t.changes for t in report.tables] == [0, 1]
    assert rows_of(early["public.orders"]) == [(1, "pen")]
    assert rows_of(read_cut(spark, warehouse, 1)["public.orders"]) == [(1, "pen")]
    assert rows_of(read_cut(spark, warehouse)["public.orders"]) == [(1, "ink")]
    assert rows_of(read_cut(spark, warehouse)["public.bag"]) == [(1,), (1,)]
    with pytest.raises(ConfigurationError, match="no cut 7"):
        read_cut(spark, warehouse, 7)

    with (warehouse / LEASE).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(SinkUnavailable, match="another merge"):
            merge(hand_log.root, warehouse)

    spark.sql(f"DELETE FROM {sql_of(orders)} WHERE id = 1")
    with pytest.raises(ConfigurationError, match="another process changed its rows"):
        merge(hand_log.root, warehouse, ["public.orders"], on_edit="stop")

    # A range that is applied twice shows in a table without a key: it would have its rows four times. The cut was
    # published before, and does not change what it shows.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Positions, "position", lambda *_: 0)
        patch.setattr(Positions, "app", lambda _, table: f"cdcflow/planted/{table}")
        merge(hand_log.root, warehouse)
    assert len(rows_of(spark.sql(f"SELECT * FROM {sql_of(bag)}"))) == 4, "the planted bug must show"
    assert rows_of(read_cut(spark, warehouse)["public.bag"]) == [(1,), (1,)]


@pytest.mark.spread(1)
def test_another_log_or_an_older_copy_is_refused(
    spark: Any,
    shop: Shop,
    hand_log_at: Callable[..., Any],
    make_table: Callable[..., Table],
    merge: Merge,
) -> None:
    """O04: offsets of another log mean other rows, and an older copy would undo newer changes."""
    merge(shop.log.root, shop.warehouse)
    other = hand_log_at("other", log_id="log-b")
    other.segment([(shop.orders, "c", {"id": 1, "item": "ink"})])
    with pytest.raises(ConfigurationError, match="belong to another log"):
        merge(other.root, shop.warehouse)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CutsTable, "newest", lambda _: None)
        patch.setattr(LocalCuts, "newest", lambda _: None)
        with pytest.raises(ConfigurationError, match="was not merged from"):
            merge(other.root, shop.warehouse)
    older = hand_log_at("older")
    older.segment([(shop.orders, "c", {"id": 1, "item": "ink"})])
    found = published_cut(spark, shop.warehouse)
    with pytest.MonkeyPatch.context() as patch:
        newer = type(found)(9, found.log_id, found.offset, found.position, found.commit_clock, found.tables)
        patch.setattr(CutsTable, "newest", lambda _: newer)
        patch.setattr(LocalCuts, "newest", lambda _: newer)
        with pytest.raises(ConfigurationError, match="older copy"):
            merge(older.root, shop.warehouse)


@pytest.mark.spread(1)
def test_a_row_that_misses_columns_after_the_backfill_stops_before_the_cut_is_published(
    spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path, merge: Merge
) -> None:
    """A NULL that was never written must not be shown as if it were the source's; the message shows a count only."""
    table = make_table("orders", id="int64", doc="string")
    hand_log.state(table)
    hand_log.segment([(table, "u", {"id": 4711, "_unchanged": ["doc"]})])
    with pytest.raises(CannotFollow, match=r"public\.orders.* 1 rows miss columns") as caught:
        merge(hand_log.root, warehouse)
    assert "4711" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="no cut was published"):
        published_cut(spark, warehouse)


@pytest.mark.spread(1)
def test_names_and_columns_of_every_kind_come_through(
    spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path, merge: Merge
) -> None:
    """S01, S11: a name is a name, in SQL and in paths. P19, G25, G27: a column is its number.

    The second merge renames a column, drops and adds one again, and adds one of a type that needs a table feature.
    """
    name, schema = "x`; DROP TABLE important; --/..", "_../odd\"'schema"
    made: dict[str, Any] = {"schema": schema, "key": ("the id",)}
    first = make_table(name, **made, **{"the id": "int64", "a`b": "string", "note": "string"})
    hand_log.state(first)
    hand_log.segment([(first, "c", {"the id": 1, "a`b": "x", "note": "old"})])
    merge(hand_log.root, warehouse)
    second = make_table(
        name,
        **made,
        numbers={"the id": 1, "renamed": 2, "note": 4, "at": 5},
        **{"the id": "int64", "renamed": "string", "note": "int32", "at": pa.timestamp("us")},
    )
    hand_log.segment([(second, "u", {"the id": 1, "renamed": "y", "note": 7, "at": 0})])
    merge(hand_log.root, warehouse)
    (frame,) = read_cut(spark, warehouse).values()
    (row,) = (r.asDict() for r in frame.drop("_offset", "_missing", "at").collect())
    assert row == {"the id": 1, "renamed": "y", "note__dropped_3": "old", "note": 7}
    logs = [p for p in warehouse.rglob("*") if p.name in ("_delta_log", "metadata")]
    assert len(logs) == 2, "the table and the cuts, nothing outside"
    assert {p.name for p in warehouse.parent.iterdir()} == {"log", "warehouse"}


def sealed_by_the_sink(path: Path, rows: list[tuple[Table, str, dict[str, Any]]]) -> None:
    """One transaction with these rows, written and sealed by the file sink itself."""
    tables = dict.fromkeys(t for t, _, _ in rows)
    batches = []
    for table in tables:
        own = [(n, op, values) for n, (t, op, values) in enumerate(rows) if t == table]
        listed = [{c: v.get(c) for c in table.change_schema.names} | {"_op": op} for _, op, v in own]
        batch = pa.RecordBatch.from_pylist(listed, table.change_schema)
        batches.append(ChangeBatch(table, np.array([n for n, _, _ in own], np.int64), batch))
    run = Run(
        xid=np.array([7], np.uint64),
        position=pa.array(["0/1"], pa.string()),
        commit_ts=np.array([1_700_000_000_000_000], np.int64),
        ends=np.array([len(rows)], np.int64),
        batches=tuple(batches),
    )
    done = {str(t.id): {"state": "done", "generation": 1, "since": 1} for t in tables}
    log = FileLog.open(path, SourceIdentity("postgres", "1", "shop"))
    log.append(Numbered(run, Offset(1), 1, run.commit_ts))
    log.cut(
        Checkpoint(
            position=Position("0/1"),
            next_offset=Offset(len(rows) + 1),
            next_transaction=2,
            cut=1,
            commit_clock=int(run.commit_ts[0]),
            epoch=log.checkpoint.epoch,
            progress={"version": 1, "tables": done},
        )
    )
    log.sync()
    log.close()


def open_files(spark: Any, below: Path) -> int:
    """How many files below a folder this process and its JVM hold open."""
    found = 0
    for pid in (os.getpid(), spark._jvm.java.lang.ProcessHandle.current().pid()):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found += str(link.readlink()).startswith(str(below))
    return found


@pytest.mark.long
def test_a_merge_leaves_no_file_open(
    spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path, merge: Merge
) -> None:
    """A merge that runs for weeks would reach the limit of open files and die: it leaked a catalog connection per table
    and merge.
    """
    tables = [make_table(name, id="int64") for name in ("orders", "products")]
    held = []
    for number in range(3):
        hand_log.segment([(table, "c", {"id": number}) for table in tables])
        merge(hand_log.root, warehouse)
        gc.collect()
        held.append(open_files(spark, warehouse))
    assert held[-1] <= held[0]


def test_reading_iceberg_tables_leaves_no_memory_allocated(
    spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path
) -> None:
    """Iceberg's reader keeps half a kilobyte of each file that it has read, for the lifetime of the session; it is
    freed when no task runs.
    """
    orders = make_table("orders", id="int64", note="string")
    for number in range(3):
        hand_log.segment([(orders, "u", {"id": id_, "note": f"{number}"}) for id_ in range(5)])
        job.merge(spark, hand_log.root, warehouse, table_format="iceberg")
    assert read_cut(spark, warehouse, incomplete=True)["public.orders"].where("note = '2'").count() == 5
    root = spark._jvm.org.apache.iceberg.arrow.ArrowAllocation.rootAllocator()
    assert [str(left) for left in root.getChildAllocators()] == []


@pytest.mark.spread(1)
def test_values_come_through_exactly(
    spark: Any, make_table: Callable[..., Table], tmp_path: Path, warehouse: Path, merge: Merge
) -> None:
    """G19: NaN equals NaN and -0.0 equals 0.0 as keys, as in the source. G20: 'A' and 'a' are two keys.

    A zero's sign is the one sent last. Wide decimals keep every digit, lists their NULLs, intervals their parts. The
    log is the file sink's own.
    """
    wide = Decimal("-12345678901234567890123456789012345678901234567.120")
    interval = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])
    floats = make_table("floats", key=("f",), f="float64", v="int32")
    signs = make_table("signs", key=(), f="float64")
    texts = make_table("texts", key=("k",), k="string", v="int32")
    values = make_table(
        "values",
        id="int64",
        big=pa.decimal256(50, 3),
        tags=pa.list_(pa.string()),
        span=interval,
        at=pa.timestamp("us", "UTC"),
        seen=pa.timestamp("us"),
        day=pa.date32(),
        raw=pa.binary(),
        yes=pa.bool_(),
        price=pa.decimal128(10, 2),
        clock=pa.duration("us"),
        never=pa.duration("us"),
        noon=pa.time64("us"),
        no_time=pa.time64("us"),
    )
    moment = datetime(2024, 2, 29, 23, 59, 59, 999999)
    exact = {
        "id": 1,
        "big": wide,
        "tags": ["x", None],
        "span": {"months": 1, "days": None, "microseconds": -5},
        "at": moment.replace(tzinfo=UTC),
        "seen": moment,
        "day": date(1, 1, 1),
        "raw": b"\x00\xff",
        "yes": True,
        "price": Decimal("-0.01"),
        "clock": -timedelta(hours=838, minutes=59, seconds=58, microseconds=1),
        "never": None,
        "noon": time(12, 0, 0, 1),
        "no_time": None,
    }
    rows: list[tuple[Table, str, dict[str, Any]]] = [
        (floats, "c", {"f": math.nan, "v": 1}),
        (floats, "c", {"f": -0.0, "v": 1}),
        (signs, "c", {"f": -0.0}),
        (signs, "r", {"f": -0.0}),
        (texts, "c", {"k": "a", "v": 1}),
        (texts, "d", {"k": "a"}),
        (texts, "c", {"k": "A", "v": 2, "_before": {"k": "a"}}),
        (texts, "c", {"k": "a ", "v": 3}),
        (values, "c", exact),
        (floats, "u", {"f": math.nan, "v": 2}),
        (floats, "u", {"f": 0.0, "v": 2}),
        (floats, "c", {"f": 1.0, "v": 2}),
        (floats, "u", {"f": -0.0, "v": 2}),
    ]
    sealed_by_the_sink(tmp_path / "log", rows)
    merge(tmp_path / "log", warehouse)
    found = read_cut(spark, warehouse)
    assert sorted((str(f), v) for f, v in rows_of(found["public.floats"])) == [("-0.0", 2), ("1.0", 2), ("nan", 2)]
    assert [str(f) for (f,) in rows_of(found["public.signs"])] == ["-0.0", "-0.0"]
    assert rows_of(found["public.texts"]) == [("A", 2), ("a ", 3)]
    (row,) = found["public.values"].drop("at", "_offset", "_missing").collect()
    wanted = {k: v for k, v in exact.items() if k != "at"} | {"big": str(wide), "clock": "-838:59:58.000001"}
    wanted["noon"] = "12:00:00.000001"
    assert row.asDict(recursive=True) == wanted
    ((at,),) = found["public.values"].selectExpr("CAST(at AS STRING)").collect()
    assert at == "2024-02-29 23:59:59.999999"
