"""Spark continues where the local engine stopped, and the other way round."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.merge.histories import assert_as_folded, make_table, make_world, write_round
from tests.support.spark.cuts import rows_of_cut

from cdcflow import local
from cdcflow.spark import job, published_cut, read_cut
from cdcflow.spark.formats import table_format as table_format_of
from cdcflow.tables.formats import FORMATS
from cdcflow.tables.formats.delta import CHECKPOINT_EVERY
from cdcflow.tables.local import file_rewrites, position_deletes
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.paths import table_path

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.long
def test_each_engine_resumes_where_the_other_ended(
    spark: Any, hand_log: Any, warehouse: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, positions, descriptions, cuts and tags are the same: nothing records which engine wrote them, and no edit
    is reported.
    """
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)  # rows are marked in small files, too
    seed = random.SystemRandom().randrange(10**6)
    world = make_world(seed, 100)

    cuts = []
    for round_ in range(3):
        for by_spark in (False, True) if round_ % 2 == 0 else (True, False):
            write_round(world, hand_log, round_ if by_spark == bool(round_ % 2) else 3)
            if by_spark:
                report = job.merge(spark, hand_log.root, warehouse, table_format=table_format)
            else:
                report = local.merge(hand_log.root, warehouse, table_format=table_format)
            assert report.published
            cuts.append(report.cut)
            assert {t.engine for t in report.tables} == {"spark" if by_spark else "local"}
            assert not [edit for t in report.tables for edit in t.edits]
            assert_as_folded(world, rows_of_cut(spark, warehouse), f"seed {seed}")
    assert published_cut(spark, warehouse).cut == hand_log.cut
    early = read_cut(spark, warehouse, cuts[1], incomplete=True)
    assert early.keys() == {f"public.{name}" for name in world.tables}
    assert all(frame.count() for frame in early.values())


MAINTENANCE = {
    "delta": ["OPTIMIZE {table}", "VACUUM {table} RETAIN 0 HOURS", "REORG TABLE {table} APPLY (PURGE)"],
    "iceberg": [
        "CALL {catalog}.system.rewrite_position_delete_files('{name}')",
        "CALL {catalog}.system.rewrite_data_files(table => '{name}', options => map('delete-file-threshold', '1'))",
    ],
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("kind", [*FORMATS, "iceberg, large files"])
def test_marks_of_one_engine_are_known_to_the_other(
    spark: Any, hand_log: Any, warehouse: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that either engine marked is deleted for both, also when the other marks more rows of the same file; and
    Spark's clustering takes the marks into account.
    """
    table_format = kind.split(",")[0]
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    if kind != table_format:  # each merge adds a delete file to those that a data file has
        monkeypatch.setattr(position_deletes, "SHARING_BYTES", 0)
        monkeypatch.setattr(position_deletes, "OWN_TIMES", 0)
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")  # as other tests of the session do
    orders = make_table("orders", id="int64", v="int32")
    hand_log.state(orders)
    hand_log.segment([(orders, "c", {"id": n, "v": 0}) for n in range(1000)])
    local.merge(hand_log.root, warehouse, table_format=table_format)
    expected = dict.fromkeys(range(1000), 0)
    kept = table_format_of(table_format).table(spark, warehouse, table_path(orders.id))
    words = {"table": kept.sql, "name": ".".join(kept.sql.split(".")[1:]), "catalog": kept.sql.split(".")[0]}
    steps = [*([None] * 4), *MAINTENANCE[table_format], None]
    for number, step in enumerate(steps):
        if step is None or number % 2:
            gone, ids = number, range(100 + 7 * number, 900, 40)
            hand_log.segment([(orders, "d", {"id": gone}), *((orders, "u", {"id": n, "v": number}) for n in ids)])
            expected |= dict.fromkeys(ids, number)
            del expected[gone]
            if number % 3 == 1:
                job.merge(spark, hand_log.root, warehouse, table_format=table_format)
            else:
                local.merge(hand_log.root, warehouse, table_format=table_format)
        if step is not None:
            spark.sql(step.format(**words)).collect()
        frame = read_cut(spark, warehouse)[str(orders.id)]
        assert {row.id: row.v for row in frame.collect()} == expected, (number, step)
        with closing(LocalEngine(warehouse, table_format).table(table_path(orders.id))) as there:
            assert there.snapshot() is not None
            rows = there.rows()
        assert dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)) == expected, (number, step)


@pytest.mark.long
def test_spark_continues_after_a_checkpoint_of_the_local_engine(spark: Any, hand_log: Any, warehouse: Path) -> None:
    """Delta computes a checkpoint's transactions in Spark, on a thread that the session had not been passed to."""
    orders = make_table("orders", id="int64", v="int32")
    hand_log.state(orders)
    for number in range(CHECKPOINT_EVERY + 2):
        hand_log.segment([(orders, "c", {"id": number, "v": number})])
        local.merge(hand_log.root, warehouse, table_format="delta")
    hand_log.segment([(orders, "u", {"id": 1, "v": -1})])
    assert job.merge(spark, hand_log.root, warehouse, table_format="delta").published
    frame = read_cut(spark, warehouse)[str(orders.id)]
    assert {row.id: row.v for row in frame.collect()} == {n: n for n in range(CHECKPOINT_EVERY + 2)} | {1: -1}
    assert (warehouse / "public/orders/_delta_log" / f"{CHECKPOINT_EVERY:020d}.checkpoint.parquet").exists()
