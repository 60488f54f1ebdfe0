"""However the merge of one table by the local engine ends: the others are merged, and the printed message helps."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.tables.damages import DAMAGES, damage

from cdcflow import local
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.tables.formats.iceberg import CATALOG
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.failures import TableFailed
from cdcflow.tables.job.maintenance import UpkeepPolicy, upkeep
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local.delta import DeltaTable
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.iceberg import IcebergTable
from cdcflow.tables.local.tables import FileTable
from cdcflow.tables.paths import CUTS

Merge = Callable[..., MergeReport]

ORDERS = make_table("orders", id="int64", v="int32")
FINE = make_table("fine", id="int64", v="int32")
WIDER = make_table("orders", id="int64", v="int32", added="string")
TABLES: Mapping[str, type[FileTable[Any]]] = {"delta": DeltaTable, "iceberg": IcebergTable}

STEPS = ("snapshot", "standing", "fold", "follow", "rows_that_miss", "pin")


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A path that other programs read, too."""
    return tmp_path / "warehouse"


@pytest.fixture
def shop(hand_log: HandLog, warehouse: Path, merge: Merge) -> HandLog:
    """Two tables, merged twice."""
    for table in (ORDERS, FINE):
        hand_log.state(table)
    hand_log.segment([(t, "c", {"id": n, "v": n}) for t in (ORDERS, FINE) for n in range(20)])
    merge(hand_log.root, warehouse)
    hand_log.segment([(t, "u", {"id": 1, "v": 100}) for t in (ORDERS, FINE)])
    merge(hand_log.root, warehouse)
    return hand_log


def rows(warehouse: Path, table: Any) -> dict[int, int]:
    found = local.read_cut(warehouse, tables=[str(table.id)])[str(table.id)]
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def left_out(report: MergeReport) -> dict[str, str]:
    return {t.name: t.left_out for t in report.tables if t.left_out is not None}


def backfill(log: HandLog, table: Any) -> dict[int, int]:
    """What `cdcflow backfill` writes into the log. Returns the rows that the source has."""
    since = log.next_offset
    log.state(table, generation=2, since=since)
    log.segment([(table, "r", {"id": n, "v": 7}) for n in range(10)])
    return dict.fromkeys(range(10), 7)


@pytest.mark.spread(2)
@pytest.mark.parametrize("what", sorted({"oldest commit is no JSON", *DAMAGES["delta"], *DAMAGES["iceberg"]}))
def test_damaged_table_is_skipped_with_its_name_and_the_printed_remedy_helps(
    shop: HandLog, warehouse: Path, merge: Merge, format_name: str, what: str
) -> None:
    """One damaged file ended the merge of all tables with an internal error, which named neither table nor file."""
    if what not in (*DAMAGES[format_name], *(["oldest commit is no JSON"] if format_name == "delta" else [])):
        return
    folder = warehouse / "public" / "orders"
    name = damage(folder, what)
    shop.segment([(ORDERS, "u", {"id": 5, "v": -1}), (FINE, "u", {"id": 1, "v": -1})])
    report = merge(shop.root, warehouse)
    assert report.published
    (why,) = left_out(report).values()
    assert left_out(report).keys() == {"public.orders"}
    if what.startswith("oldest"):
        assert "the commit of version 0 of table public/orders is torn" in why
    else:
        assert name in why or "public/orders" in why, why
        assert "cdcflow explain-error table-failed" in why
    assert "move the table's folder away" in why
    assert rows(warehouse, FINE)[1] == -1
    assert "public.orders" not in local.read_cut(warehouse)

    folder.rename(warehouse.parent / "moved away")
    expected = backfill(shop, ORDERS)
    assert not left_out(merge(shop.root, warehouse))
    assert rows(warehouse, ORDERS) == expected


def test_table_whose_name_makes_no_folder_is_skipped_with_what_helps(
    hand_log: HandLog, warehouse: Path, merge: Merge
) -> None:
    """A name of MySQL may have 64 characters, and each one that is not ASCII takes nine bytes of a folder's 255."""
    long = make_table("表" * 40, id="int64", v="int32")
    for table in (long, FINE):
        hand_log.state(table)
    hand_log.segment([(table, "c", {"id": 1, "v": 1}) for table in (long, FINE)])
    (why,) = left_out(merge(hand_log.root, warehouse)).values()
    assert "is too long for the file system (ENAMETOOLONG)" in why
    assert "rename the table at the source" in why
    assert rows(warehouse, FINE) == {1: 1}


@pytest.mark.spread(2)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "error",
    [RuntimeError("a row's value"), OSError(errno.ENOSPC, "No space left on device", "/d/f")],
    ids=["fault", "full disk"],
)
def test_an_error_in_any_step_is_of_that_table_alone(
    shop: HandLog,
    warehouse: Path,
    merge: Merge,
    format_name: str,
    step: str,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unforeseen exception stopped the cut of all tables. Only its kind is reported: its text may contain a row's
    values.
    """
    kind = TABLES[format_name]
    right = getattr(kind, step)

    def fails(self: Any, *given: Any, **more: Any) -> Any:
        if "orders" in str(self.name):
            raise error
        return right(self, *given, **more)

    moved = {"id": 30, "_unchanged": ["v"], "_before": {"id": 2}}
    shop.segment([(FINE, "u", {"id": 1, "v": 5}), (WIDER, "u", {"id": 1, "v": 5})])
    shop.segment([(WIDER, "d", {"id": 2}), (WIDER, "c", moved)])
    with monkeypatch.context() as patch:
        patch.setattr(kind, step, fails)
        report = merge(shop.root, warehouse)
    assert report.published
    (why,) = left_out(report).values()
    assert why.startswith("table public.orders cannot be merged")
    assert "a row's value" not in why
    assert ("no room at /d (ENOSPC)" in why) == isinstance(error, OSError)
    assert local.published_cut(warehouse).left_out == {"public.orders": why}
    assert rows(warehouse, FINE)[1] == 5
    assert not left_out(merge(shop.root, warehouse)), "merged again without any remedy"
    found = rows(warehouse, ORDERS)
    assert (found[1], found[30], 2 in found) == (5, 2, False)


def test_an_error_at_every_table_is_raised(
    shop: HandLog, warehouse: Path, merge: Merge, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut without a table helps no reader, and `--debug` shows the cause."""
    shop.segment([(ORDERS, "u", {"id": 1, "v": 5}), (FINE, "u", {"id": 1, "v": 5})])

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(TABLES[format_name], "fold", fails)
    with pytest.raises(TableFailed, match="the local engine failed") as caught:
        merge(shop.root, warehouse)
    assert str(caught.value.__cause__) == "planted"
    assert isinstance(caught.value, CdcflowError)


@pytest.mark.spread(2)
@pytest.mark.parametrize("times", [1, 2])
def test_rows_that_another_program_removed_return_by_a_backfill(
    shop: HandLog, warehouse: Path, merge: Merge, format_name: str, times: int
) -> None:
    """A change of some columns of such a row made the whole merge contradict itself, for all tables and permanently."""
    remove(warehouse, format_name, "public.orders", 3)
    for _ in range(times):  # nor is anything else said of it later
        shop.segment([(ORDERS, "u", {"id": 3, "_unchanged": ["v"]}), (FINE, "u", {"id": 3, "v": 9})])
        report = merge(shop.root, warehouse)
        assert report.published
        assert left_out(report).keys() == {"public.orders"}
    (why,) = left_out(report).values()
    assert "1 rows miss columns" in why
    assert "run `cdcflow backfill public.orders`, then `cdcflow merge`" in why
    assert rows(warehouse, FINE)[3] == 9
    assert "public.orders" not in local.read_cut(warehouse)
    expected = backfill(shop, ORDERS)
    assert not left_out(merge(shop.root, warehouse))
    assert rows(warehouse, ORDERS) == expected


def remove(warehouse: Path, format_name: str, table: str, key: int) -> None:
    """Delete a row as another program does."""
    if format_name == "delta":
        from deltalake import DeltaTable as Foreign

        Foreign(warehouse.joinpath(*table.split("."))).delete(f"id = {key}")
    else:
        from cdcflow.tables.local.iceberg_catalogs import embedded_catalog as catalog

        with closing(catalog(warehouse)) as found, warnings.catch_warnings(action="ignore"):
            found.load_table(table).delete(f"id == {key}")


def test_what_all_tables_have_in_common_is_named_and_what_is_printed_helps(
    shop: HandLog, warehouse: Path, merge: Merge, format_name: str
) -> None:
    """The table of cuts belongs to all tables: without it there is no cut, and the next merge creates a new one."""
    folder = warehouse / CUTS
    name = damage(folder, {"delta": "oldest commit is no JSON", "iceberg": "metadata is no JSON"}[format_name])
    shop.segment([(ORDERS, "u", {"id": 1, "v": 5}), (FINE, "u", {"id": 1, "v": 5})])
    with pytest.raises(ConfigurationError, match=f"{CUTS}.* is damaged or gone") as caught:
        merge(shop.root, warehouse)
    assert format_name == "delta" or name in str(caught.value) or "metadata" in str(caught.value)
    assert f"or move {folder} away" in str(caught.value)
    assert "cdcflow explain-error warehouse-damaged" in caught.value.with_section
    folder.rename(warehouse.parent / "moved away")
    assert merge(shop.root, warehouse).published
    assert (rows(warehouse, ORDERS)[1], rows(warehouse, FINE)[1]) == (5, 5)


def test_a_damaged_catalog_is_named(shop: HandLog, warehouse: Path, format_name: str, merge: Merge) -> None:
    """It contains the position of each table."""
    if format_name != "iceberg":
        return
    (warehouse / CATALOG).write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigurationError, match=f"{CATALOG} is damaged or gone") as caught:
        merge(shop.root, warehouse)
    assert "move the whole warehouse away, and run `cdcflow backfill` for its tables" in str(caught.value)
    warehouse.rename(warehouse.parent / "moved away")
    for table in (ORDERS, FINE):
        backfill(shop, table)
    assert not left_out(merge(shop.root, warehouse))
    assert rows(warehouse, ORDERS) == rows(warehouse, FINE) == dict.fromkeys(range(10), 7)


def test_damaged_file_of_the_log_is_distinguished_from_one_of_the_table(
    shop: HandLog, warehouse: Path, merge: Merge
) -> None:
    """A backfill would not help: the log's own check names the damaged file, and a copy of that file repairs it."""
    shop.segment([(ORDERS, "u", {"id": 1, "v": 5}), (FINE, "u", {"id": 1, "v": 5})])
    (file,) = (f for f in max(shop.root.rglob("segment.json")).parent.glob("*.parquet") if "orders" in f.name)
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    report = merge(shop.root, warehouse)
    assert left_out(report).keys() == {"public.orders"}
    (why,) = left_out(report).values()
    assert f"{file.resolve()}, a file of the log, is damaged" in why
    assert "`cdcflow log check --deep`" in why
    assert "backfill" not in why
    file.write_bytes(whole)
    assert not left_out(merge(shop.root, warehouse))
    assert rows(warehouse, ORDERS)[1] == 5


def test_damaged_table_does_not_keep_others_from_their_maintenance(
    shop: HandLog, warehouse: Path, merge: Merge, format_name: str
) -> None:
    """It ended the maintenance of all tables after it, each time."""
    what = {"delta": "oldest commit is no JSON", "iceberg": "metadata is no JSON"}[format_name]
    name = damage(warehouse / "public" / "fine", what)
    with closing(LocalEngine(warehouse, format_name)) as engine:
        report = upkeep(Engines(engine), UpkeepPolicy(keep_s=0.0))
    tables = {table.name: table for table in report.tables}
    assert tables.keys() == {"public.orders", "public.fine"}
    assert not tables["public.orders"].skipped
    why = tables["public.fine"].skipped
    assert "public/fine" in why, f"{name} is damaged"
