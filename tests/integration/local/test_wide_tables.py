"""Tables that every reader opens (`merge.tables.readable: wide`), read by readers that open no others."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import World, assert_as_folded, make_table, make_world, write_round

from cdcflow import local
from cdcflow.model.table import Table
from cdcflow.tables.formats import iceberg
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local import file_rewrites
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.iceberg_catalogs import embedded_catalog as catalog
from cdcflow.tables.merge.policy import Policies, TablePolicy
from cdcflow.tables.paths import table_path

Merge = Callable[..., MergeReport]
STRANGE: dict[str, Any] = {"id": "int64", "a b": "string"}
LATER: dict[str, Any] = {"id": "int64", "c=d": "string"}
WIDE = Policies(TablePolicy(readable="wide"))


@pytest.fixture(autouse=True)
def no_file_is_too_small_to_be_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"  # delta-rs 1.6 takes a path for a URL's, and finds none that has a % in it


def delta_rs(folder: Path) -> Any:
    return deltalake.DeltaTable(folder).to_pyarrow_table().to_pylist()


def by_polars(folder: Path) -> Any:
    return polars.scan_delta(str(folder)).collect().to_dicts()


def by_duckdb(folder: Path) -> Any:
    """Of its files alone, as a reader without the extension for Delta has them."""
    files = [uri.removeprefix("file://") for uri in deltalake.DeltaTable(folder).file_uris()]
    found = duckdb.read_parquet(files)
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def files_alone(folder: Path, warehouse: Path) -> Any:
    """The rows of an Iceberg table's files, as seen by a reader that does not support deletes."""
    with closing(catalog(warehouse)) as there:
        tasks = list(there.load_table(iceberg.identifier(folder.parts[-2:])).scan().plan_files())
        assert not any(task.delete_files for task in tasks)
        files = [task.file.file_path.removeprefix("file://") for task in tasks]
    found = duckdb.read_parquet(files)
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


def written(log: HandLog, warehouse: Path, merge: Merge, policies: Policies) -> Table:
    """A table with enough rows that a change of one would be marked."""
    orders = make_table("orders", id="int64", v="string")
    log.state(orders)
    log.segment([(orders, "c", {"id": n, "v": os.urandom(50).hex()}) for n in range(100)])
    merge(log.root, warehouse, policies=policies)
    log.segment([(orders, "u", {"id": 1, "v": "one"}), (orders, "d", {"id": 2})])
    merge(log.root, warehouse, policies=policies)
    return orders


def test_readers_that_know_neither_marks_nor_mapped_names_read_a_wide_table(
    format_name: str, hand_log: HandLog, warehouse: Path, merge: Merge, commits: Counter[str]
) -> None:
    """They refuse any other table, or show deleted rows: the second half proves that the test can fail."""
    folder = warehouse.joinpath(*table_path(written(hand_log, warehouse, merge, WIDE).id))
    readers: list[Callable[[Path], Any]] = [delta_rs, by_polars, by_duckdb]
    if format_name == "iceberg":
        readers = [lambda at: files_alone(at, warehouse)]
    for read in readers:
        rows = {row["id"]: row["v"] for row in read(folder)}
        assert len(rows) == 99
        assert rows[1] == "one"
    assert commits["marked"] == 0

    other = warehouse.parent / "other"
    folder = other.joinpath(*table_path(written(HandLog(other.parent / "log2"), other, merge, Policies()).id))
    readers = readers if format_name == "delta" else [lambda at: files_alone(at, other)]
    for read in readers:
        with pytest.raises(Exception, match=r"columnMapping|deletionVectors|KeyError|assert|'id'"):
            assert {row["id"] for row in read(folder)} == {*range(100)} - {2}
    assert commits["marked"] > 0


def protocol(folder: Path) -> dict[str, Any]:
    """The latest protocol of a Delta table."""
    found: dict[str, Any] = {}
    for path in sorted((folder / "_delta_log").glob("*.json")):
        for line in path.read_text().splitlines():
            found = json.loads(line).get("protocol", found)
    return found


def test_wide_delta_table_is_mapped_at_a_rename_and_not_before(hand_log: HandLog, warehouse: Path) -> None:
    """Its old files keep their names, and columns that were added before it are still told apart."""
    orders = written(hand_log, warehouse, local.merge, WIDE)
    folder = warehouse.joinpath(*table_path(orders.id))
    assert protocol(folder) == {"minReaderVersion": 1, "minWriterVersion": 2}
    added = make_table("orders", id="int64", v="string", w="int32")
    hand_log.segment([(added, "u", {"id": 1, "v": "one", "w": 1})])
    local.merge(hand_log.root, warehouse, policies=WIDE)
    assert protocol(folder) == {"minReaderVersion": 1, "minWriterVersion": 2}
    assert {row["w"] for row in delta_rs(folder)} == {None, 1}

    swapped = make_table("orders", id="int64", numbers={"id": 1, "w": 2, "v": 3}, w="string", v="int32")
    hand_log.segment([(swapped, "u", {"id": 3, "w": "three", "v": 3})])
    local.merge(hand_log.root, warehouse, policies=WIDE)
    assert protocol(folder)["readerFeatures"] == ["columnMapping"]
    with closing(LocalEngine(warehouse, "delta")) as engine:
        there = engine.table(table_path(orders.id))
        assert there.snapshot() is not None
        rows = {row["id"]: (row["w"], row["v"]) for row in there.rows().to_pylist()}
    assert (rows[1], rows[3]) == (("one", 1), ("three", 3))


def test_name_that_plain_delta_refuses_creates_a_mapped_table(hand_log: HandLog, warehouse: Path) -> None:
    """Delta refuses it otherwise; the rows are the same."""
    strange = make_table("strange", **STRANGE)
    plain = make_table("plain", id="int64")
    hand_log.segment([(strange, "c", {"id": 1, "a b": "x"}), (plain, "c", {"id": 1})])
    local.merge(hand_log.root, warehouse, policies=WIDE)
    assert protocol(warehouse.joinpath(*table_path(strange.id)))["readerFeatures"] == ["columnMapping"]
    later = make_table("plain", **LATER)
    hand_log.segment([(later, "u", {"id": 1, "c=d": "y"})])
    local.merge(hand_log.root, warehouse, policies=WIDE)
    assert protocol(warehouse.joinpath(*table_path(plain.id)))["readerFeatures"] == ["columnMapping"]
    with closing(LocalEngine(warehouse, "delta")) as engine:
        there = engine.table(table_path(plain.id))
        assert there.snapshot() is not None
        assert there.rows().drop_columns(["_offset", "_missing"]).to_pylist() == [{"id": 1, "c=d": "y"}]


@pytest.mark.spread(1)
def test_random_merges_into_wide_tables_give_what_the_fold_gives(
    format_name: str, hand_log: HandLog, warehouse: Path, merge: Merge, commits: Counter[str]
) -> None:
    """Whole files are written again where a row changed."""
    world: World = make_world(7, 20)
    for round_ in range(3):
        write_round(world, hand_log, round_)
        merge(hand_log.root, warehouse, policies=WIDE)

        def actual(table: Table) -> list[Any]:
            with closing(LocalEngine(warehouse, format_name)) as engine:
                there = engine.table(table_path(table.id))
                assert there.snapshot() is not None
                found: list[Any] = there.rows().to_pylist()
                return found

        assert_as_folded(world, actual, "seed 7")
    assert commits["marked"] == 0
