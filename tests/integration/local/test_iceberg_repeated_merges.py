"""A process that merges into Iceberg tables again and again reads little of them again, and misses nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local
from cdcflow.tables.formats import iceberg_catalog
from cdcflow.tables.job import job
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.local import file_rewrites, iceberg_avro, iceberg_manifests, iceberg_metadata
from cdcflow.tables.local.iceberg_catalogs import TableCatalog, embedded_catalog

ORDERS = make_table("orders", id="int64", v="int32")
WIDER = make_table("orders", id="int64", v="int32", note="string")
TABLES = ("public.orders", "_cdcflow._cdcflow_cuts")
Process = Callable[[], None]
"""Merges once in one of two processes, each with its engine."""


@pytest.fixture
def start(hand_log: HandLog, warehouse: Path) -> Iterator[Callable[[], Process]]:
    """Start a process: what it remembers is that of its engine."""
    hand_log.state(ORDERS)
    with ExitStack() as stack:

        def started() -> Process:
            engine = stack.enter_context(closing(local.local_engine(warehouse, "iceberg")))

            def merge() -> None:
                assert job.merge(Engines(engine), hand_log.root, warehouse).published

            return merge

        yield started


def change(log: HandLog, rows: dict[int, int], value: int) -> None:
    """Change a part of 40 rows, and insert one."""
    new = {*range(value % 3, 40, 3), 40 + value}
    log.segment([(ORDERS, "u" if n in rows else "c", {"id": n, "v": value}) for n in sorted(new)])
    rows |= dict.fromkeys(new, value)


def shown(warehouse: Path) -> dict[int, int]:
    found = local.read_cut(warehouse)["public.orders"]
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Table]:
    """Every table that a merge loads."""
    found: list[Table] = []
    load = TableCatalog.load

    def remembered(catalog: TableCatalog, name: Any) -> Any:
        table = load(catalog, name)
        found.extend([] if table is None else [table])
        return table

    monkeypatch.setattr(TableCatalog, "load", remembered)
    return found


def test_metadata_of_its_own_commits_is_not_read_again_and_equals_its_file(
    start: Callable[[], Process],
    hand_log: HandLog,
    warehouse: Path,
    loaded: list[Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Metadata names every snapshot that a table keeps: parsing it cost more with each commit."""
    merge, rows = start(), dict[int, int]()
    for value in range(3):
        change(hand_log, rows, value)
        merge()
    hand_log.segment([(WIDER, "u", {"id": 0, "v": 7, "note": "new"})])
    rows[0] = 7
    merge()
    loaded.clear()
    read = Counter[str]()
    parse = FromInputFile.table_metadata

    def counted(file: Any, *given: Any) -> Any:
        read[file.location] += 1
        return parse(file, *given)

    def checked(location: str) -> bool:
        read[location] += 1
        return True

    monkeypatch.setattr(FromInputFile, "table_metadata", counted)
    monkeypatch.setattr(iceberg_catalog, "is_whole", checked)
    change(hand_log, rows, 8)
    merge()
    assert not read
    assert {table.name() for table in loaded} == {tuple(name.split(".")) for name in TABLES}
    with closing(embedded_catalog(warehouse)) as catalog:
        last = {table.metadata_location: table for table in loaded}
        for name in TABLES:
            there = catalog.load_table(name)
            assert last[there.metadata_location].metadata == there.metadata
            assert "commit.retry.num-retries" not in there.properties
    assert shown(warehouse) == rows


def test_a_manifest_is_read_at_most_once(
    start: Callable[[], Process], hand_log: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyIceberg decodes each of them, in Python, four times per commit."""
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    read = Counter[str]()
    fetch = iceberg_avro.read_living

    def counted(manifest: ManifestFile, *given: Any) -> Any:
        read[manifest.manifest_path] += 1
        return fetch(manifest, *given)

    merge, rows = start(), dict[int, int]()
    for value in range(9):
        change(hand_log, rows, value)
        with monkeypatch.context() as context:
            context.setattr(iceberg_avro, "read_living", counted)
            merge()
        assert shown(warehouse) == rows, value
    assert set(read.values()) == {1}
    assert len(read) > 9, "those of data files and those of delete files"


@pytest.mark.parametrize("most", [1, 10_000])
def test_two_processes_that_merge_in_turn_see_each_others_commits(
    most: int,
    start: Callable[[], Process],
    hand_log: HandLog,
    warehouse: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one of them remembers is outdated then. With little memory nothing is remembered."""
    monkeypatch.setattr(iceberg_metadata, "SNAPSHOTS_MAX", most)
    monkeypatch.setattr(iceberg_manifests, "BYTES_MAX", 1000 * most)
    monkeypatch.setattr(file_rewrites, "TINY_BYTES", 0)
    processes, rows = (start(), start()), dict[int, int]()
    for value in range(9):
        change(hand_log, rows, value)
        processes[value % 2 if value < 6 else 0]()
        assert shown(warehouse) == rows, value
