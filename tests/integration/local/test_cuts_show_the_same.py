"""What the number of a cut shows never changes."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local
from cdcflow.errors import HistoryLost
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local.deltalog import DeltaLog
from cdcflow.tables.local.iceberg_catalogs import embedded_catalog as catalog

ORDERS = make_table("orders", id="int64", v="int32")
NAME = "public.orders"
Merge = Callable[..., MergeReport]


@pytest.fixture
def merged(merge: Merge, hand_log: HandLog, warehouse: Path) -> Callable[[int], MergeReport]:
    """merged(7): row 7 comes, and a cut of it."""
    hand_log.state(ORDERS)

    def done(n: int) -> MergeReport:
        hand_log.segment([(ORDERS, "c", {"id": n, "v": n})])
        return merge(hand_log.root, warehouse)

    return done


def shown(warehouse: Path, cut: int | None = None) -> list[int] | str:
    """The rows of a cut; "refused" where these are gone."""
    try:
        return sorted(local.read_cut(warehouse, cut)[NAME]["id"].to_pylist())
    except HistoryLost:
        return "refused"


class Copy:
    """A copy of a table's current state, which is restored later: its folder, and for Iceberg what its catalog points
    to.
    """

    def __init__(self, warehouse: Path, format_name: str, away: Path) -> None:
        self._warehouse, self._format, self._away = warehouse, format_name, away
        self._folder = warehouse / "public" / "orders"
        shutil.copytree(self._folder, away)
        if format_name == "iceberg":
            with closing(catalog(warehouse)) as known:
                self._metadata = known.load_table("public.orders").metadata_location

    def put_back(self) -> None:
        shutil.rmtree(self._folder)
        shutil.copytree(self._away, self._folder)
        if self._format == "iceberg":
            with closing(catalog(self._warehouse)) as known:
                known.drop_table("public.orders")
                known.register_table("public.orders", self._metadata)


@pytest.mark.spread(1)
def test_table_restored_from_a_copy_shows_no_other_cut(
    merged: Callable[[int], MergeReport], warehouse: Path, format_name: str, tmp_path: Path
) -> None:
    """Merged again from the copy, its next version has all of the log: an older cut showed that version's number."""
    merged(1)
    merged(2)
    copy = Copy(warehouse, format_name, tmp_path / "away")
    for n in (3, 4, 5):
        merged(n)
    copy.put_back()
    for n in (6, 7, 8, 9):
        assert merged(n).published
        expected = {cut: list(range(1, cut + 1)) for cut in range(1, n + 1)}
        found = {cut: shown(warehouse, cut) for cut in expected}
        assert {c: rows for c, rows in found.items() if rows not in (expected[c], "refused")} == {}
        assert {c: found[c] for c in (1, 2, n)} == {c: expected[c] for c in (1, 2, n)}
        assert {found[c] for c in (3, 4, 5)} == {"refused"}
        assert local.read_live(warehouse.parent / "log", warehouse)[NAME].num_rows == n


def test_a_copy_with_as_many_versions_as_the_cut_is_no_cut(
    merged: Callable[[int], MergeReport], warehouse: Path, format_name: str, tmp_path: Path
) -> None:
    """Its number alone would pass for the published one's, and the range between them would be lost."""
    merged(1)
    copy = Copy(warehouse, format_name, tmp_path / "away")
    merged(2)
    copy.put_back()
    strange(warehouse, format_name, "none")
    assert shown(warehouse) == "refused"
    live = local.read_live(warehouse.parent / "log", warehouse)
    assert NAME not in live
    assert NAME in live.left_out
    assert merged(3).published
    assert shown(warehouse) == [1, 2, 3]
    assert shown(warehouse, 2) == "refused"


def strange(warehouse: Path, format_name: str, what: str) -> None:
    """A commit by another program: "delete" removes row 1, "restore" goes back by a version, "none" changes no row."""
    folder = warehouse / "public" / "orders"
    if format_name == "delta":
        log = DeltaLog(folder)
        log.update()
        said = {"timestamp": time.time_ns() // 1_000_000, "operation": what.upper()}
        now = log.files()
        before = DeltaLog(folder)
        before.update(log.version - 1)
        gone = {"delete": now[:1], "restore": now, "none": []}[what]
        come = before.files() if what == "restore" else []
        log.commit([{"commitInfo": said}, *(f.remove_action(0) for f in gone), *(f.add_action() for f in come)])
        return
    with closing(catalog(warehouse)) as known:
        table = known.load_table("public.orders")
        if what == "none":
            table.append(table.scan().to_arrow().slice(0, 0))
        elif what == "delete":
            with warnings.catch_warnings(action="ignore"):  # it writes whole files again
                table.delete("id == 1")
        else:
            snapshots = sorted(table.snapshots(), key=lambda s: s.sequence_number or 0)
            with table.manage_snapshots() as manage:
                manage.rollback_to_snapshot(snapshots[-2].snapshot_id)


@pytest.mark.spread(2)
@pytest.mark.parametrize("what", ["delete", "restore"])
def test_edits_by_another_program_are_in_the_next_cut_and_in_none_before(
    merge: Merge, merged: Callable[[int], MergeReport], hand_log: HandLog, warehouse: Path, format_name: str, what: str
) -> None:
    """The published cut was published again, with that program's rows."""
    for n in (1, 2, 3):
        merged(n)
    strange(warehouse, format_name, what)
    again = merge(hand_log.root, warehouse)
    assert not again.published
    assert {cut: shown(warehouse, cut) for cut in (1, 2, 3)} == {1: [1], 2: [1, 2], 3: [1, 2, 3]}
    merged(4)
    assert {cut: shown(warehouse, cut) for cut in (1, 2, 3)} == {1: [1], 2: [1, 2], 3: [1, 2, 3]}
    assert shown(warehouse, 4) != [1, 2, 3, 4] or what == "restore"
