"""The edge values of every type come into tables, and out of questions to the log, bit for bit: -0.0 is not 0.0."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.values.edges import MODES, EdgeTables

from cdcflow import local
from cdcflow.log.files.layout import Layout
from cdcflow.log.query.log import ChangeLog
from cdcflow.log.read.folder import FolderReader
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local.current import LocalCurrent
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.session import DuckSession
from cdcflow.tables.merge.policy import Mode, Policies, TablePolicy
from cdcflow.tables.paths import table_path

TURNS = 4
"""Inserts, changes twice, changes once, and rows that are read again."""


@pytest.mark.spread(1)
def test_each_value_is_the_fold_s_bit_for_bit(
    merge: Callable[..., MergeReport], format_name: str, hand_log: HandLog, warehouse: Path
) -> None:
    """DuckDB's aggregates silently turned -0.0 into 0.0 as soon as a range had two changes of any key, in `current`,
    `soft_delete` and the live view.
    """
    made = EdgeTables(hand_log)
    for turn in range(TURNS):
        made.write(turn)
        live = local.read_live(hand_log.root, warehouse, policies=made.policies) if turn else {}
        report = merge(hand_log.root, warehouse, policies=made.policies)
        assert [t.left_out for t in report.tables] == [None] * len(MODES)
        with closing(LocalEngine(warehouse, format_name)) as engine:
            for mode, table in made.tables.items():
                there = engine.table(table_path(table.id))
                assert there.snapshot() is not None
                rows = there.rows().to_pylist()
                assert not made.differences(mode, rows)[:5], f"{mode}, turn {turn}"
                if turn:
                    assert not made.differences(mode, live[str(table.id)].to_pylist())[:5], f"live {mode}, turn {turn}"
    asked = ChangeLog(FolderReader(hand_log.root), Layout(hand_log.root), LocalCurrent)
    name = str(made.tables["current"].id)
    for found in (asked.current(name), asked.range(name, 0, 10**6)):
        rows = found.append_column("_missing", pa.nulls(len(found), pa.list_(pa.string()))).to_pylist()
        assert not made.differences("current", rows)[:5]


def test_a_zero_that_changed_its_sign_is_a_difference(hand_log: HandLog) -> None:
    """The two are equal and not identical: `diff` missed such a change, and reported one for an unchanged NaN."""
    table = make_table("signs", id="int64", ratio="float64")
    hand_log.has_transactions = True
    hand_log.state(table)
    hand_log.segment([(table, "c", {"id": n, "ratio": ratio}) for n, ratio in enumerate((0.0, float("nan")))])
    hand_log.segment([(table, "u", {"id": n, "ratio": ratio}) for n, ratio in enumerate((-0.0, float("nan")))])
    asked = ChangeLog(FolderReader(hand_log.root), Layout(hand_log.root), LocalCurrent)
    assert [row.key for row in asked.diff("public.signs", 2).found] == [("0",)]


def test_row_whose_key_is_nan_is_found(hand_log: HandLog) -> None:
    """The source has one row with this key, although NaN equals no number: `get` showed none."""
    table = make_table("signs", id="float64", v="int64")
    hand_log.has_transactions = True
    hand_log.state(table)
    hand_log.segment([(table, "c", {"id": float("nan"), "v": 1}), (table, "c", {"id": 1.0, "v": 7})])
    hand_log.segment([(table, "u", {"id": float("nan"), "v": 2})])
    asked = ChangeLog(FolderReader(hand_log.root), Layout(hand_log.root), LocalCurrent)
    found = asked.get("public.signs", "NaN")
    assert found.values is not None
    assert found.values["v"] == 2


def test_a_backfill_that_finds_the_other_zero_begins_a_version(
    merge: Callable[..., MergeReport], hand_log: HandLog, warehouse: Path
) -> None:
    """`IS NOT DISTINCT FROM` takes the two for the same: the wrong one would have stayed. All NaNs are alike."""
    table = make_table("signs", id="int64", ratio="float64", ratios=pa.list_(pa.float32()))
    hand_log.has_transactions = True
    values: list[tuple[float, list[float | None]]]
    values = [(0.0, [0.0]), (1.0, [0.0]), (float("nan"), [None, float("nan")])]
    for op, sign in (("c", 1), ("r", -1)):
        hand_log.state(table, since=hand_log.next_offset)
        rows = [
            {"id": n, "ratio": a * sign, "ratios": [None if b is None else b * sign for b in of]}
            for n, (a, of) in enumerate(values)
        ]
        rows[1]["ratio"] = 1.0
        hand_log.segment([(table, op, row) for row in rows])
        merge(hand_log.root, warehouse, policies=Policies(TablePolicy(mode="history")))
    found = local.read_cut(warehouse)["public.signs"].to_pylist()
    assert sorted(((row["id"], str(row["ratio"]), row["_valid_to"]) for row in found), key=repr) == [
        (0, "-0.0", None),
        (0, "0.0", 4),
        (1, "1.0", 5),
        (1, "1.0", None),
        (2, "nan", None),
    ]


@pytest.mark.parametrize("mode", ["current", "soft_delete"])
def test_backfill_repairs_rows_written_by_earlier_versions(
    mode: Mode,
    merge: Callable[..., MergeReport],
    hand_log: HandLog,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The remedy of docs/fixed.md, to the letter: the rows of a backfill that changes follow."""
    table = make_table("signs", id="int64", ratio="float64", parts=pa.list_(pa.float32()), note="string")
    hand_log.state(table)
    zeros = {"ratio": -0.0, "parts": [-0.0, None]}
    hand_log.segment([(table, "c", {"id": n, "note": "a", **zeros}) for n in (1, 2)])
    hand_log.segment([(table, "u", {"id": 1, "note": note, **zeros}) for note in "bc"])
    policies = Policies(TablePolicy(mode=mode))
    signs = partial(_signs, warehouse)
    with monkeypatch.context() as before:
        before.setattr(DuckSession, "takes_by_offset", False)
        merge(hand_log.root, warehouse, policies=policies)
        assert signs() == [["0.0", "0.0"]] * 2
    hand_log.state(table, generation=2, since=hand_log.next_offset)
    hand_log.segment([(table, "r", {"id": n, "note": "c", **zeros}) for n in (1, 2)])
    hand_log.segment([(table, "u", {"id": 2, "note": "d", "_unchanged": ["ratio", "parts"]})])
    merge(hand_log.root, warehouse, policies=policies)
    assert signs() == [["-0.0", "-0.0"]] * 2


def _signs(warehouse: Path) -> list[list[str]]:
    rows = local.read_cut(warehouse)["public.signs"].to_pylist()
    return [[str(row["ratio"]), str(row["parts"][0])] for row in rows]
