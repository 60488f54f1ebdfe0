"""Merging a log whose segments are in a bucket, or were compacted: the same tables as from files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.servers.objects import ACCESS_VARIABLE, SECRET_VARIABLE
from tests.support.objects.logs import IDENTITY, ObjectLog, settings_file

from cdcflow import local
from cdcflow.config import Objects
from cdcflow.errors import HistoryLost
from cdcflow.log.files.layout import Layout
from cdcflow.log.maintenance.retention import LogRetention
from cdcflow.log.read.reader import read_rows
from cdcflow.model.table import UNCHANGED, TableId
from cdcflow.sinks.files.log import FileLog
from cdcflow.spark import job, read_cut, read_live, read_log, register
from cdcflow.spark.cuts import CutsTable
from cdcflow.tables import segments
from cdcflow.testing.sinks import ORDERS, Writer, changes, orders, transactions
from cdcflow.wiring import sealed_layout_of

_HIDDEN = TableId("_shop", "orders")


def sealed(log: FileLog, number: int) -> None:
    """A segment with inserts, a partial update, a delete, in two tables, one of them of a name that Spark hides."""
    from dataclasses import replace

    hidden = replace(ORDERS, id=_HIDDEN)
    rows: list[dict[str, object]] = [{"id": number, "note": f"n{number}"}, {"id": number + 100, "note": None}]
    if number > 1:
        rows += [{"id": number - 1, "_op": "u", UNCHANGED: ["note"]}, {"id": number + 99, "_op": "d"}]
    writer = Writer.of(log)
    state = {"state": "done", "generation": 1, "since": 1}
    progress = {"version": 1, "tables": {str(ORDERS.id): state, str(_HIDDEN): state}}
    writer.checkpoint = replace(writer.checkpoint, progress=progress)
    writer.put(
        transactions([number], [len(rows)], changes(ORDERS, rows)),
        transactions([number + 50], [1], changes(hidden, [{"id": number, "note": "h"}])),
    )
    assert log.roll()
    log.seal_pending()


def rows_of(spark: SparkSession, warehouse: Path, table: TableId) -> list[tuple[Any, ...]]:
    found = read_cut(spark, warehouse, incomplete=True)[str(table)].select("id", "note").collect()
    return sorted((row.id, row.note) for row in found)


def expected(last: int) -> list[tuple[int, str | None]]:
    return [*((n, f"n{n}") for n in range(1, last + 1)), (last + 100, None)]


@pytest.fixture
def log(objects: Objects, tmp_path: Path) -> ObjectLog:
    return ObjectLog(tmp_path / "log", objects)


def put(log: ObjectLog, *numbers: int) -> None:
    opened = log.open()
    for number in numbers:
        sealed(opened, number)
    log.settled()
    opened.close()


def cuts_of(spark: SparkSession, warehouse: Path) -> list[int]:
    cuts = CutsTable(spark, "delta", warehouse)
    return [cut for cut in range(9) if cuts.cut_by_number(cut) is not None]


@pytest.mark.long
def test_merge_from_the_bucket_produces_the_same_tables_as_from_files(
    spark: SparkSession, log: ObjectLog, tmp_path: Path
) -> None:
    """From the bucket alone, then with the log's directory: it is one log, wherever its files are."""
    put(log, 1, 2)
    report = job.merge(spark, log.alone, tmp_path / "warehouse")
    assert (report.published, report.offset) == (True, 8)
    assert rows_of(spark, tmp_path / "warehouse", ORDERS.id) == expected(2)
    put(log, 3)
    report = job.merge(spark, log.layout, tmp_path / "warehouse")
    assert {t.name: t.changes for t in report.tables} == {"shop.orders": 4, "_shop.orders": 1}
    assert rows_of(spark, tmp_path / "warehouse", ORDERS.id) == expected(3)
    assert rows_of(spark, tmp_path / "warehouse", _HIDDEN) == [(n, "h") for n in (1, 2, 3)]
    for place in (log.alone, log.layout):
        assert place.store is not None
        assert list(place.store.room.iterdir()) == [], "files that were fetched for a merge remain"


@pytest.mark.long
def test_more_than_the_disk_may_hold_is_merged_cut_by_cut(spark: SparkSession, log: ObjectLog, tmp_path: Path) -> None:
    """The first merge of a log of terabytes must not need a disk of terabytes where files are fetched; and no cut may
    be published that a table is beyond, as after a merge that died."""
    warehouse = tmp_path / "warehouse"
    put(log, 1, 2)
    assert not local.merge(log.alone, warehouse, ["shop.orders"]).published
    place = log.alone
    assert place.store is not None
    place.store._bytes_max = 1  # type: ignore[attr-defined]  # each step takes one segment
    assert local.merge(place, warehouse).published
    assert cuts_of(spark, warehouse) == [2]
    put(log, 3, 4)
    report = local.merge(place, warehouse)
    assert (report.published, report.cut) == (True, 4)
    assert {t.name: t.changes for t in report.tables} == {"shop.orders": 8, "_shop.orders": 2}
    assert rows_of(spark, warehouse, ORDERS.id) == expected(4)
    assert cuts_of(spark, warehouse) == [2, 3, 4]


@pytest.mark.long
def test_merge_resumes_at_a_cut_inside_a_compacted_segment(spark: SparkSession, log: ObjectLog, tmp_path: Path) -> None:
    """Compaction does not depend on merges: a merge's position may be in the middle of a segment afterwards."""
    warehouse = tmp_path / "warehouse"
    put(log, 1, 2)
    job.merge(spark, log.layout, warehouse)
    put(log, 3, 4, 5)
    assert [count for _, count in log.retention().compact()] == [4]
    assert job.merge(spark, log.layout, warehouse).published
    assert rows_of(spark, warehouse, ORDERS.id) == expected(5)
    assert rows_of(spark, warehouse, _HIDDEN) == [(n, "h") for n in range(1, 6)]


def test_file_that_is_missing_locally_and_in_the_bucket_is_named(log: ObjectLog, tmp_path: Path) -> None:
    """An operator deleted objects in the bucket, or the segment expired a moment ago: the message names the file and
    the remedy.
    """
    put(log, 1)
    place = log.alone
    files = segments.sealed_range(place).files(ORDERS.id, 0)
    gone = [name for name in log.bucket.list_objects("") if name.endswith(Path(files[0].path).name)]
    log.bucket.delete(gone)
    with pytest.raises(HistoryLost, match=r"shop\.orders: file .* of segment 1-3 is neither (?s:.*)cdcflow log check"):
        segments.present(place, files, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("place", ["alone", "layout"])
def test_live_view_reads_a_small_tail_from_copies(
    spark: SparkSession, log: ObjectLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Where Spark runs in this process, the rows of a stored log after the merged part are copied here in parallel;
    they are the rows that Spark would read from the store, and a plan stays the same when the view is opened again.
    """
    warehouse = tmp_path / "warehouse"
    put(log, 1, 2)
    job.merge(spark, log.layout, warehouse)
    put(log, 3, 4)
    layout = log.alone if place == "alone" else log.layout
    shown = read_live(spark, layout, warehouse, incomplete=True)
    assert shown.keys() == {"shop.orders", "_shop.orders"}
    assert not any(name.startswith("s3a:") for table in shown.values() for name in table.inputFiles())
    put(log, 5)
    with monkeypatch.context() as patched:
        patched.setattr("cdcflow.spark.live.COPIED_BYTES_MAX", 0)
        stored = read_live(spark, log.alone, warehouse, ["shop.orders"], incomplete=True)["shop.orders"]
        assert any(name.startswith("s3a:") for name in stored.inputFiles())
    again = read_live(spark, layout, warehouse, incomplete=True)
    for tables, last in ((shown, 4), (again, 5), ({"shop.orders": stored}, 5)):
        assert sorted(map(tuple, tables["shop.orders"].select("id", "note").collect())) == expected(last)
    assert sorted(map(tuple, again["_shop.orders"].select("id", "note").collect())) == [(n, "h") for n in range(1, 6)]


def test_copy_that_cannot_be_read_is_lost_history(log: ObjectLog) -> None:
    """As where a merge looks for the file."""
    put(log, 1)
    files = segments.sealed_range(log.alone).files(ORDERS.id, 0)
    log.bucket.delete([name for name in log.bucket.list_objects("") if name.endswith(Path(files[0].path).name)])
    with pytest.raises(HistoryLost, match=r"shop\.orders: file .* of segment 1-3 is neither"):
        segments.local_copies(log.alone, files)


def test_truncate_that_was_merged_before_empties_nothing_again(spark: SparkSession, tmp_path: Path) -> None:
    """A compacted segment has a truncate that was merged long ago, and rows that came since; on files alone."""
    opened = FileLog.open(tmp_path / "log", IDENTITY)
    writer = Writer.of(opened)
    for number, run in enumerate((orders(1), orders(0, op="t"), orders(2), orders(3), orders(4))):
        writer.put(run)
        opened.roll()
        opened.seal_pending()
        if number == 2:
            job.merge(spark, tmp_path / "log", tmp_path / "warehouse")
    opened.close()
    assert len(LogRetention(Layout(tmp_path / "log"), grace_s=0).compact()) == 1
    job.merge(spark, tmp_path / "log", tmp_path / "warehouse")
    assert [row[0] for row in rows_of(spark, tmp_path / "warehouse", ORDERS.id)] == [2, 3, 4]


def test_log_in_the_bucket_is_read_by_a_settings_file_and_by_its_layout(
    spark: SparkSession, log: ObjectLog, tmp_path: Path
) -> None:
    """The data source opens the log on every machine by the same settings; the plan names the bucket's files."""
    put(log, 1, 2)
    settings = settings_file(tmp_path, log)
    text = settings.read_text()
    for variable in (ACCESS_VARIABLE, SECRET_VARIABLE):  # Spark's processes have the environment of its start
        secret = tmp_path / variable
        secret.touch(0o600)
        secret.write_text(os.environ[variable])
        text = text.replace(f"${{env:{variable}}}", f"${{file:{secret}}}")
    settings.write_text(text)
    register(spark, sealed_layout_of)
    reader = spark.read.format("cdcflow").options(config=str(settings), table="shop.orders", fromOffset="3")
    shown = reader.load().select("_offset", "_op", "id", "note", "_unchanged").collect()
    parts = [rows.to_pylist() for _, _, rows in read_rows(log.layout, 3, tables=[ORDERS.id])]
    plain = [(r["_offset"], r["_op"], r["id"], r["note"], r["_unchanged"]) for rows in parts for r in rows]
    assert sorted(map(tuple, shown)) == plain
    planned = read_log(spark, log.alone, "shop.orders", from_offset=3)
    assert sorted(map(tuple, planned.select("_offset", "_op", "id", "note", "_unchanged").collect())) == plain
    hidden = spark.read.format("cdcflow").options(config=str(settings), table="_shop.orders").load()
    assert sorted(row["id"] for row in hidden.collect()) == [1, 2]
    register(spark)
    with pytest.raises(Exception, match=r"cdcflow\.spark\.register\(spark, cdcflow\.wiring\.sealed_layout_of\)"):
        spark.read.format("cdcflow").options(config=str(settings), table="shop.orders").load()
