"""Warehouses of an earlier version: read, and brought further by this version's merges."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.stored.archives import Stored, printed
from tests.stored.pipelines import FIXED, Pipeline
from tests.stored.test_stored_logs import PROGRAM, append

from cdcflow import local
from cdcflow.log.files import notes
from cdcflow.log.files.layout import Layout

FORMATS = ("delta", "iceberg")


@pytest.fixture(params=["local", "spark"])
def stored(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    """A log and its warehouses, of one engine."""
    with unpacked(f"warehouses-{request.param}", request.param, monkeypatch) as made:
        yield made


@pytest.fixture
def recreated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    """A log and its warehouses. `shop.doomed` was recreated before their latest cut, and again after it."""
    with unpacked("spools", "spools", monkeypatch) as made:
        yield made


@contextlib.contextmanager
def unpacked(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stored]:
    """An archive in the folder where it was written: Iceberg stores whole paths."""
    folder = FIXED / name
    FIXED.mkdir(parents=True, exist_ok=True)
    with (FIXED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            made = Stored(kind, folder)
            monkeypatch.chdir(made.folder)
            yield made
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def rows(warehouse: Path) -> dict[str, list[Any]]:
    """Each table's rows at the published cut, in any order."""
    read = local.read_cut(warehouse)
    text = json.dumps({name: table.to_pylist() for name, table in read.items()}, default=str)
    return {name: _sorted(listed) for name, listed in json.loads(text).items()}


def _sorted(listed: list[Any]) -> list[Any]:
    return sorted(listed, key=lambda row: json.dumps(row, sort_keys=True))


def use(engine: str, name: str) -> list[str]:
    """The options of a command that works in a stored warehouse with this engine."""
    settings = yaml.safe_load(Path(f"{name}.yaml").read_text())
    settings["merge"]["engine"] = engine
    Path("now.yaml").write_text(yaml.safe_dump(settings))
    return ["--config", "now.yaml"]


def rebuilt(name: str) -> dict[str, list[Any]]:
    """The tables as this version's local engine builds them from the whole log, in the modes of a stored warehouse."""
    settings = yaml.safe_load(Path(f"{name}.yaml").read_text())
    settings["merge"] |= {"engine": "local", "warehouse": f"{name}-rebuilt"}
    Path("rebuilt.yaml").write_text(yaml.safe_dump(settings))
    printed("merge", "--config", "rebuilt.yaml")
    return rows(Path(f"{name}-rebuilt"))


def test_cuts_and_rows_are_the_same(stored: Stored) -> None:
    """The list of cuts, and each table at the latest one, without a merge."""
    assert stored.differences() == []
    known = {asked["warehouse"]: asked["rows"] for asked in stored.answers if "warehouse" in asked}
    assert sorted(known) == sorted(FORMATS)
    for name, tables in known.items():
        assert rows(Path(name)) == {table: _sorted(listed) for table, listed in tables.items()}
        assert {table for table, listed in tables.items() if listed} >= {"shop.orders", "shop.items", "shop.bare"}


def test_live_view_starts_from_the_stored_cut(stored: Stored) -> None:
    """Rows of the log after the cut are folded over the stored tables."""
    append(stored.folder / "log", 9001)
    for name in FORMATS:
        live = local.read_live("log", name, ["shop.orders"])
        orders = live["shop.orders"].to_pylist()
        assert {9001, 4, 2000} <= {row["id"] for row in orders}
        assert next(row for row in orders if row["id"] == 4)["amount"] == 1


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", FORMATS)
def test_merge_continues_from_the_stored_tables(stored: Stored, name: str) -> None:
    """Positions, modes, column versions and deletion marks of then: afterwards the tables equal those that are built
    from the whole log."""
    append(stored.folder / "log", 9001, 9002)
    printed("merge", *use("local", name))
    assert rows(Path(name)) == rebuilt(name)


def test_merge_continues_across_a_recreated_table(recreated: Stored) -> None:
    """Its rows at the cut, those in the live view, and the rows after a merge, which are those of the whole log."""
    assert recreated.differences("cuts") == []
    append(recreated.folder / "log", 9001)
    for asked in recreated.answers:
        if "warehouse" not in asked:
            continue
        name, known = asked["warehouse"], asked["rows"]["shop.doomed"]
        assert rows(Path(name))["shop.doomed"] == _sorted(known)
        assert [row["w"] for row in _sorted(known)] == [11, 22]
        assert _values(local.read_live("log", name, ["shop.doomed"])["shop.doomed"].to_pylist()) == DOOMED
        printed("merge", *use("local", name))
        now, whole = rows(Path(name)), rebuilt(name)
        assert _values(now.pop("shop.doomed")) == _values(whole.pop("shop.doomed")) == DOOMED
        assert now == whole


DOOMED = [(2, "twice"), (7, "seven")]
"""The rows of its last incarnation. A stored table has the columns of the earlier ones, too."""


def _values(listed: list[Any]) -> list[Any]:
    return sorted((row["id"], row["x"]) for row in listed if not row.get("_is_deleted"))


def test_notes_of_merges_hold_what_they_still_need(recreated: Stored) -> None:
    """Retention with `keep_for: [merge]` keeps what no stored warehouse has, and nothing else."""
    layout = Layout(recreated.folder / "log")
    noted = {Path(note.name).name: note.offset for note in notes.all_of(layout, "merge")}
    cuts = {name: json.loads(printed("cuts", "--json", "--config", f"{name}.yaml"))[-1]["offset"] for name in FORMATS}
    assert noted == cuts


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("name", FORMATS)
def test_spark_continues_from_the_stored_tables(stored: Stored, name: str) -> None:
    """The same by the other engine, in a separate process."""
    append(stored.folder / "log", 9001, 9002)
    Pipeline(stored.folder, PROGRAM, {}).run_alone("merge", *use("spark", name))
    assert rows(Path(name)) == rebuilt(name)
