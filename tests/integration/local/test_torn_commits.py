"""A commit that a power cut left torn counts as no commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.kill.torn_commits import TORN, delta_logs, tear_newest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow import local
from cdcflow.errors import ConfigurationError
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.local.deltalog import DeltaLog

ORDERS = make_table("orders", id="int64", v="int32")
ITEMS = make_table("items", id="int64", v="int32")
Merge = Callable[..., MergeReport]


@pytest.fixture
def format_name() -> str:
    return "delta"


def rows(warehouse: Path, name: str = "public.orders", cut: int | None = None) -> dict[int, int]:
    found = local.read_cut(warehouse, cut)[name]
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


@pytest.mark.spread(4)
@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("of", ["table", "cuts", "both"])
def test_a_range_whose_commit_was_torn_is_merged_again(
    merge: Merge, hand_log: HandLog, warehouse: Path, torn: str, of: str
) -> None:
    """The published cut showed that version: it passed for the range's end, and the range's rows were never merged."""
    hand_log.state(ORDERS)
    hand_log.segment([(ORDERS, "c", {"id": n, "v": 0}) for n in range(4)])
    merge(hand_log.root, warehouse)
    hand_log.segment([(ORDERS, "u", {"id": 1, "v": 1}), (ORDERS, "d", {"id": 2})])
    merge(hand_log.root, warehouse)
    for log in delta_logs(warehouse, of):
        tear_newest(log, torn)
    merge(hand_log.root, warehouse)
    assert rows(warehouse) == {0: 0, 1: 1, 3: 0}
    hand_log.segment([(ORDERS, "c", {"id": 9, "v": 9})])
    assert merge(hand_log.root, warehouse).published
    assert rows(warehouse) == {0: 0, 1: 1, 3: 0, 9: 9}
    assert local.published_cut(warehouse).cut == 3


def test_reader_ignores_a_torn_commit_and_does_not_touch_it(merge: Merge, hand_log: HandLog, warehouse: Path) -> None:
    """A reader has no lease: only the merge sets such a file aside."""
    hand_log.state(ORDERS)
    for n in range(2):
        hand_log.segment([(ORDERS, "c", {"id": n, "v": 0})])
        merge(hand_log.root, warehouse)
    (log,) = delta_logs(warehouse, "cuts")
    file = tear_newest(log, "empty")
    assert local.published_cut(warehouse).cut == 1
    assert rows(warehouse) == {0: 0}
    assert file.read_bytes() == b""


def test_table_with_a_torn_commit_under_later_ones_is_skipped_and_its_remedy_works(
    merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """An earlier cdcflow merged on top of it: later commits were computed without the range."""
    for table in (ORDERS, ITEMS):
        hand_log.state(table)
    for n in range(3):
        hand_log.segment([(ORDERS, "c", {"id": n, "v": 0}), (ITEMS, "c", {"id": n, "v": 0})])
        merge(hand_log.root, warehouse)
    (log,) = delta_logs(warehouse, "table")
    tear_newest(log, "empty", back=1)
    hand_log.segment([(ITEMS, "c", {"id": 7, "v": 0})])
    (left_out,) = (t for t in merge(hand_log.root, warehouse).tables if t.left_out)
    assert "later versions were committed after it" in (left_out.left_out or "")
    assert "move the table's folder away" in (left_out.left_out or "")
    assert rows(warehouse, "public.items") == {0: 0, 1: 0, 2: 0, 7: 0}
    # The remedy, to the letter.
    (warehouse / "public" / "orders").rename(warehouse.parent / "away")
    hand_log.state(ORDERS, generation=2, since=hand_log.next_offset)
    hand_log.segment([(ORDERS, "r", {"id": n, "v": 0}) for n in range(3)])
    assert not [t for t in merge(hand_log.root, warehouse).tables if t.left_out]
    assert rows(warehouse) == {0: 0, 1: 0, 2: 0}


def test_lines_are_those_of_json_whatever_their_texts_hold(tmp_path: Path) -> None:
    """Other writers do not escape U+2028, which Python takes for the end of a line."""
    place = tmp_path / "_delta_log"
    place.mkdir()
    action = {"commitInfo": {"operation": "WRITE\u2028\x85"}}
    (place / f"{0:020d}.json").write_text(json.dumps(action, ensure_ascii=False) + "\n")
    assert DeltaLog(tmp_path).actions(0) == [action]


@pytest.mark.parametrize("left", [b"", b'{"format-version": 2, "table-u'])
def test_torn_metadata_of_an_iceberg_table_is_never_committed(hand_log: HandLog, warehouse: Path, left: bytes) -> None:
    """SQLite was durable, and the file that it names was not: nothing could read table or cuts."""
    hand_log.state(ORDERS)
    for n in range(2):
        hand_log.segment([(ORDERS, "c", {"id": n, "v": n})])
        local.merge(hand_log.root, warehouse, table_format="iceberg")
    for folder in (warehouse / "public" / "orders", warehouse / "_cdcflow_cuts"):
        sorted((folder / "metadata").glob("*.metadata.json"))[-1].write_bytes(left)
    local.merge(hand_log.root, warehouse)
    assert rows(warehouse) == {0: 0, 1: 1}
    assert rows(warehouse, cut=1) == {0: 0}


@pytest.mark.parametrize("version", [0, 1])
def test_a_commit_that_is_missing_is_named_and_its_remedy_works(
    merge: Merge, hand_log: HandLog, warehouse: Path, version: int
) -> None:
    """The error called it a checkpoint that only Spark reads, and Spark failed at it."""
    hand_log.state(ORDERS)
    hand_log.state(ITEMS)
    for n in range(3):
        hand_log.segment([(table, "c", {"id": n, "v": n}) for table in (ORDERS, ITEMS)])
        merge(hand_log.root, warehouse)
    (log,) = delta_logs(warehouse, "table")
    (log / f"{version:020d}.json").unlink()
    hand_log.segment([(table, "c", {"id": 3, "v": 3}) for table in (ORDERS, ITEMS)])
    left_out = {report.name: report.left_out for report in merge(hand_log.root, warehouse).tables}
    assert left_out["public.items"] is None
    assert f"version {version} of table public/orders is missing" in str(left_out["public.orders"])
    assert rows(warehouse, "public.items") == {0: 0, 1: 1, 2: 2, 3: 3}
    (warehouse / "public" / "orders").rename(warehouse / "away")
    hand_log.state(ORDERS, generation=2, since=hand_log.next_offset)
    hand_log.segment([(ORDERS, "r", {"id": n, "v": n}) for n in range(4)])
    merge(hand_log.root, warehouse)
    assert rows(warehouse) == {0: 0, 1: 1, 2: 2, 3: 3}


def test_table_of_cuts_that_lacks_a_commit_is_reported_and_its_remedy_works(
    merge: Merge, hand_log: HandLog, warehouse: Path
) -> None:
    """No table is read again for it: each table records its own position."""
    hand_log.state(ORDERS)
    for n in range(3):
        hand_log.segment([(ORDERS, "c", {"id": n, "v": n})])
        merge(hand_log.root, warehouse)
    (log,) = delta_logs(warehouse, "cuts")
    (log / f"{1:020d}.json").unlink()
    with pytest.raises(
        ConfigurationError, match=r"(?s)_cdcflow_cuts is damaged or gone .*missing.*move .* away"
    ) as found:
        merge(hand_log.root, warehouse)
    assert "backfill" not in str(found.value)
    log.parent.rename(warehouse / "away")
    assert merge(hand_log.root, warehouse).published
    assert rows(warehouse) == {0: 0, 1: 1, 2: 2}
