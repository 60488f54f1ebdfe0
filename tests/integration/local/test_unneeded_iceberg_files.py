"""Files of Iceberg tables that no snapshot needs any longer are deleted by maintenance without Spark, and no others."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.maintenance import UpkeepPolicy, UpkeepReport, upkeep
from cdcflow.tables.local import file_rewrites, unneeded_files
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.iceberg_catalogs import embedded_catalog
from cdcflow.tables.local.iceberg_files import TableIO

ORDERS = make_table("orders", id="int64", v="int32")
LATER_S = 10.0
DAY_S = 86_400.0


@pytest.fixture
def cuts(hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, list[tuple[int, int]]]:
    """Five cuts of a table: two files, then rows marked in both by one commit, and in the first one by later commits.
    So manifests are replaced by others that still name some of their files."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    hand_log.state(ORDERS)
    found: dict[int, list[tuple[int, int]]] = {}
    rows: dict[int, int] = {}
    for cut, ids in enumerate(
        [range(100), range(100, 200), range(0, 200, 20), range(1, 100, 20), range(2, 100, 20)], 1
    ):
        hand_log.segment([(ORDERS, "u" if n in rows else "c", {"id": n, "v": cut}) for n in ids])
        rows |= dict.fromkeys(ids, cut)
        local.merge(hand_log.root, warehouse, table_format="iceberg")
        found[cut] = sorted(rows.items())
    return found


def rows(warehouse: Path, cut: int) -> list[tuple[int, int]]:
    shown = local.read_cut(warehouse, cut)["public.orders"].select(["id", "v"]).to_pylist()
    return sorted((row["id"], row["v"]) for row in shown)


def maintained(warehouse: Path, keep_s: float = 0.0) -> UpkeepReport:
    with closing(LocalEngine(warehouse, "iceberg")) as engine:
        policy = UpkeepPolicy(keep_s=keep_s, compact=False)
        return upkeep(Engines(engine), policy, lambda: time.time() + LATER_S)


def named(warehouse: Path, table: str) -> set[str]:
    """The files that a table's snapshots and its metadata name."""
    with closing(embedded_catalog(warehouse)) as catalog:
        found = catalog.load_table(table)
        manifests = [m for s in found.snapshots() for m in s.manifests(found.io)]
        files = {e.data_file.file_path for m in manifests for e in m.fetch_manifest_entry(found.io)}
        lists = {s.manifest_list for s in found.snapshots()}
        metadata = {found.metadata_location, *(entry.metadata_file for entry in found.metadata.metadata_log)}
        return {*files, *lists, *metadata, *(m.manifest_path for m in manifests)}


def on_disk(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


def test_files_of_expired_snapshots_are_deleted(warehouse: Path, cuts: dict[int, list[tuple[int, int]]]) -> None:
    """Otherwise a table that is merged every second grows by some files a second, indefinitely."""
    folder = warehouse / "public/orders"
    before = on_disk(folder)
    assert [table.name for table in maintained(warehouse).tables] == ["public.orders"]
    left = on_disk(folder)
    assert len(left) < len(before)
    assert left == named(warehouse, "public.orders") & left
    assert left >= named(warehouse, "public.orders")
    assert rows(warehouse, 5) == cuts[5]


def test_cut_that_is_kept_stays_whole(
    warehouse: Path, hand_log: HandLog, cuts: dict[int, list[tuple[int, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots share files: what an expired one had may be what a kept one shows."""
    with closing(LocalEngine(warehouse, "iceberg")) as engine:
        published = {cut.cut: cut.published / 1e6 for cut in engine.cuts().list_cuts()}
        since = (published[3] + published[4]) / 2  # cuts 4 and 5 are younger
        upkeep(Engines(engine), UpkeepPolicy(keep_s=1000.0, compact=False), lambda: since + 1000.0)
    assert {cut: rows(warehouse, cut) for cut in (4, 5)} == {cut: cuts[cut] for cut in (4, 5)}
    hand_log.segment([(ORDERS, "d", {"id": 0})])
    assert local.merge(hand_log.root, warehouse, table_format="iceberg").published
    assert rows(warehouse, 6) == cuts[5][1:]


def test_table_whose_files_other_programs_manage_keeps_them(
    warehouse: Path, cuts: dict[int, list[tuple[int, int]]]
) -> None:
    """`gc.enabled=false` is Iceberg's property for files that are shared with another table."""
    with closing(embedded_catalog(warehouse)) as catalog, catalog.load_table("public.orders").transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    before = on_disk(warehouse / "public/orders/data")
    maintained(warehouse)
    assert on_disk(warehouse / "public/orders/data") == before


def test_files_that_no_commit_named_are_deleted_when_they_are_old(
    warehouse: Path, cuts: dict[int, list[tuple[int, int]]]
) -> None:
    """A merge that was killed leaves them. A younger one may belong to a commit that another process is making."""
    data = warehouse / "public/orders/data"
    planted = {name: data / name for name in ("old.parquet", "young.parquet", "old.txt")}
    for name, path in planted.items():
        path.write_bytes(b"x")
        age = 2 * DAY_S if name.startswith("young") else 4 * DAY_S
        os.utime(path, (time.time() - age,) * 2)
    assert unneeded_files.ABANDONED_S == 3 * DAY_S
    maintained(warehouse)
    assert {name for name, path in planted.items() if path.exists()} == {"young.parquet", "old.txt"}
    assert rows(warehouse, 5) == cuts[5]


def test_needed_files_under_other_names_are_not_taken_for_abandoned(
    warehouse: Path, cuts: dict[int, list[tuple[int, int]]], tmp_path: Path
) -> None:
    """Two paths may lead to a folder. Then no file has the name that a snapshot has for it, and all are needed."""
    link = tmp_path / "link"
    link.symlink_to(warehouse / "public/orders")
    with closing(embedded_catalog(warehouse)) as catalog:
        found = catalog.load_table("public.orders")
        assert isinstance(found.io, TableIO)
        moved = found.metadata.model_copy(update={"location": f"file://{link}"})
        later = time.time() + LATER_S
        assert not unneeded_files.abandoned_files(moved, found.metadata_location, found.io, later)


def test_table_of_cuts_does_not_grow_with_each_publication(
    warehouse: Path, cuts: dict[int, list[tuple[int, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old versions expire with each commit; their files are deleted after an hour."""
    monkeypatch.setattr("cdcflow.tables.local.engine.KEPT", 2)
    monkeypatch.setattr("cdcflow.tables.local.engine.VERSIONS_KEPT_S", -LATER_S)
    maintained(warehouse)
    folder = warehouse / "_cdcflow_cuts"
    assert on_disk(folder) == named(warehouse, "_cdcflow._cdcflow_cuts") & on_disk(folder)
