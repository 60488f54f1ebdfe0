"""Schema changes on real tables, with the job killed between commits, and the remedy of one that cannot be followed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdcflow.merge.statement import TARGET_PROPERTY
from cdcflow.model.table import Table
from cdcflow.spark import delta, job, read_cut
from cdcflow.spark.delta import snapshot
from cdcflow.spark.paths import delta_sql, table_path

pytestmark = pytest.mark.spark


@contextmanager
def killed_before_commit(number: int) -> Iterator[None]:
    """The job dies before its next commit but so many."""
    done = 0
    right = delta.committing

    def commits(*given: Any, **more: Any) -> Any:
        nonlocal done
        done += 1
        if done > number:
            raise KeyboardInterrupt
        return right(*given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "committing", commits)
        with pytest.raises(KeyboardInterrupt):
            yield


def test_a_swap_of_names_that_was_cut_off_keeps_every_value_in_its_column(
    spark: Any, make_table: Callable[..., Table], hand_log: Any, warehouse: Path
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
    job.merge(spark, hand_log.root, warehouse)
    older = json.dumps(
        {
            "version": 1,
            "incarnation": 1,
            "key": ["id"],
            "columns": [["id", 1, "bigint"], ["a", 2, "string"], ["b", 3, "string"], ["c", 4, "int"]],
        }
    )
    sql = delta_sql(warehouse, table_path(before.id))
    spark.sql(f"ALTER TABLE {sql} SET TBLPROPERTIES ('{TARGET_PROPERTY}' = '{older}')")

    numbers = {"id": 1, "b": 2, "a": 3, "C": 4, "d": 5}
    columns = {"id": "int64", "b": "string", "a": "string", "C": "int64", "d": "int32"}
    after = make_table("orders", numbers=numbers, missing={"d": "7"}, **columns)
    hand_log.segment([(after, "c", {"id": 3, "b": "a3", "a": "b3", "C": 2**40, "d": None})])
    # Describe, then three commits for each rename (a, b and c step aside first): the third run ends after the last.
    for number in (6, 11, 8):
        with killed_before_commit(number):
            job.merge(spark, hand_log.root, warehouse)
    found = snapshot(spark, warehouse / table_path(before.id))
    assert found is not None
    assert json.loads(found.properties[TARGET_PROPERTY])["open"]
    job.merge(spark, hand_log.root, warehouse)
    rows = read_cut(spark, warehouse, incomplete=True)["public.orders"].drop("_offset").collect()
    assert sorted(tuple(row) for row in rows if row["_missing"] is None) == [
        (1, "a1", "b1", 1, None, 7),
        (3, "a3", "b3", 2**40, None, None),
    ]
    (partial,) = (row.asDict() for row in rows if row["_missing"] is not None)
    assert partial == {"id": 2, "b": None, "a": "b2", "C": 2, "d": 7, "_missing": ["b"]}
