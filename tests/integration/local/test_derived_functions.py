"""Derived tables that Python functions compute: the same rows as from all batches, and errors that stop them alone."""

from __future__ import annotations

import json
import random
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.local.test_derived_tables import TABLES, Tables
from tests.support.log.hand_log import HandLog
from tests.support.plugins import install

from cdcflow import local, wiring
from cdcflow.config import Config
from cdcflow.config.plugins import TRANSFORMS
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.merge.policy import DerivedQuery, Policies

Merge = Callable[..., MergeReport]

CODE = """
    import pyarrow as pa
    import pyarrow.compute as pc


    def clean(rows):
        rows = rows.filter(pc.is_valid(rows["x"]))
        return pa.record_batch({"id": rows["id"], "twice": pc.multiply(rows["x"], 2), "s": pc.utf8_upper(rows["s"])})


    def several(rows):
        # Rows of a group, as many as x is.
        counts = [max(n or 0, 0) for n in rows["x"].to_pylist()]
        places = pa.array([place for place, count in enumerate(counts) for _ in range(count)], pa.int64())
        numbers = pa.array([n for count in counts for n in range(count)], pa.int64())
        return pa.table({"k": rows["k"].take(places), "id": rows["id"].take(places), "number": numbers})


    def moves(rows):
        return pa.record_batch({"id": pc.add(rows["id"], 1), "x": rows["x"]})


    def fails(rows):
        if len(rows):
            raise ValueError("secret")
        return rows


    def without_key(rows):
        return rows.select(["x"])


    text = "no function"
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The functions above, in an installed package."""
    install(tmp_path / "packages", "shop-rows", {"upper": "shop_rows:clean"}, textwrap.dedent(CODE), TRANSFORMS)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    yield
    sys.modules.pop("shop_rows", None)


def function(name: str, *key: str, version: str = "") -> DerivedQuery:
    return DerivedQuery(key or ("id",), "", "public.a", name, version)


def of(tables: Tables, name: str) -> list[dict[str, Any]]:
    return [dict(row) for row in tables.rows[name].values()]


def in_order(rows: Any) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.spread(1)
@pytest.mark.usefixtures("package")
def test_rows_of_functions_follow_their_input(merge: Merge, hand_log: HandLog, warehouse: Path) -> None:
    """A function that returns no row, one, or several for a row leaves none of an earlier version of it."""
    tables = Tables(hand_log, random.Random(11))
    policies = Policies(
        derived={
            "derived.clean": function("shop_rows:clean"),
            "derived.named": function("upper"),
            "derived.several": function("shop_rows:several", "k", "id", "number"),
            "derived.sums": DerivedQuery(("s",), "SELECT s, sum(twice) AS t FROM derived.clean GROUP BY s"),
        }
    )
    units = []
    for _ in range(6):
        tables.change()
        report = merge(hand_log.root, warehouse, policies=policies)
        units += [table.changes for table in report.tables if table.name == "derived.several"]
        cut = local.read_cut(warehouse)
        rows = [row for row in of(tables, "a") if row["x"] is not None]
        clean = [{"id": r["id"], "twice": r["x"] * 2, "s": None if r["s"] is None else r["s"].upper()} for r in rows]
        assert in_order(cut["derived.clean"].to_pylist()) == in_order(clean)
        assert in_order(cut["derived.named"].to_pylist()) == in_order(clean)
        several = [{"k": r["k"], "id": r["id"], "number": n} for r in rows for n in range(r["x"])]
        assert in_order(cut["derived.several"].to_pylist()) == in_order(several)
        sums = {s: sum(r["twice"] for r in clean if r["s"] == s) for s in {r["s"] for r in clean}}
        assert {row["s"]: int(row["t"]) for row in cut["derived.sums"].to_pylist()} == sums
    assert any(units[1:])


@pytest.mark.usefixtures("package")
def test_function_that_fails_is_excluded_alone(hand_log: HandLog, warehouse: Path) -> None:
    """A package's fault must not keep the captured tables from being published, nor show a row's values."""
    Tables(hand_log, random.Random(1))
    hand_log.segment([(TABLES["a"], "c", {"id": 1, "k": 1, "x": 2, "s": "secret"})])
    functions = {
        "derived.raises": ("shop_rows:fails", "raised ValueError"),
        "derived.moves": ("shop_rows:moves", "whose id no row has that it got"),
        "derived.keyless": ("shop_rows:without_key", "returns no column id"),
        "derived.absent": ("shop_rows:nothing", "cannot be imported: AttributeError"),
        "derived.module": ("shop_nowhere:clean", "cannot be imported: ModuleNotFoundError"),
        "derived.text": ("shop_rows:text", "is not a function"),
        "derived.entry": ("uper", "did you mean upper?"),
    }
    derived = {name: function(text) for name, (text, _) in functions.items()}
    derived["derived.other_key"] = function("shop_rows:clean", "twice")
    report = local.merge(hand_log.root, warehouse, policies=Policies(derived=derived))
    assert report.latest is not None
    excluded = report.latest.left_out
    assert sorted(excluded) == sorted(derived)
    assert {name: text in excluded[name] for name, (_, text) in functions.items()} == dict.fromkeys(functions, True)
    assert "no column of its key (twice)" in excluded["derived.other_key"]
    assert "secret" not in "".join(excluded.values())
    assert sorted(report.latest.tables) == ["public.a", "public.b", "public.c"]


@pytest.mark.usefixtures("package")
def test_other_version_computes_the_table_again(hand_log: HandLog, warehouse: Path) -> None:
    """cdcflow cannot see that the code of a function has changed."""
    Tables(hand_log, random.Random(1))
    seen = []
    for version in ("1", "1", "2"):
        policies = Policies(derived={"derived.clean": function("shop_rows:clean", version=version)})
        report = local.merge(hand_log.root, warehouse, policies=policies)
        assert report.latest is not None
        seen.append(report.latest.tables["derived.clean"].version)
    assert seen[0] == seen[1] < seen[2]


@pytest.mark.usefixtures("package")
def test_plan_and_verify_import_the_function(hand_log: HandLog, warehouse: Path) -> None:
    """`cdcflow plan` names a function that cannot be used before the next merge does."""
    tables = Tables(hand_log, random.Random(2))
    tables.change()
    derive = {
        "clean": {"key": ["id"], "from": "public.a", "transform": "shop_rows:clean"},
        "absent": {"key": ["id"], "from": "public.a", "transform": "shop_rows:nothing"},
        "unknown": {"key": ["id"], "from": "public.d", "transform": "shop_rows:clean"},
    }
    config = Config.model_validate(
        {
            "source": {"kind": "postgres", "url": "postgresql://localhost/shop"},
            "log": {"path": hand_log.root},
            "merge": {"engine": "local", "warehouse": warehouse, "derive": derive},
        }
    )
    assert Config.model_validate(json.loads(config.model_dump_json())) == config
    local.merge(hand_log.root, warehouse, policies=wiring.policies(config))
    found = {one.table: one for one in wiring.report_derived(config, compares=True)}
    assert found["derived.clean"].how == "by id, with shop_rows:clean"
    assert found["derived.clean"].is_equal
    assert "cannot be imported" in found["derived.absent"].why
    assert "neither captured nor derived" in found["derived.unknown"].why
