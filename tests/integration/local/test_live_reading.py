"""What a live view reports about itself, and what it does where it cannot show a table or the log changes while it is
read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.local import read_live
from cdcflow.log.files.layout import Layout
from cdcflow.tables import segments
from cdcflow.tables.job import live
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.merge.policy import Policies, TablePolicy

Merge = Callable[..., MergeReport]

ORDERS = make_table("orders", id="int64", note="string")
ITEMS = make_table("items", id="int64", note="string")


def notes(shown: Any) -> dict[int, str]:
    return {row["id"]: row["note"] for row in shown.to_pylist()}


@pytest.fixture
def behind(hand_log: HandLog, warehouse: Path, merge: Merge) -> HandLog:
    """A log of two tables that are merged, with two segments in its tail."""
    for table in (ORDERS, ITEMS):
        hand_log.state(table)
    hand_log.segment([(ORDERS, "c", {"id": 1, "note": "a"}), (ITEMS, "c", {"id": 7, "note": "x"})])
    merge(hand_log.root, warehouse)
    hand_log.segment([(ORDERS, "u", {"id": 1, "note": "b"}), (ITEMS, "d", {"id": 7})])
    hand_log.segment([(ORDERS, "c", {"id": 2, "note": "c"})])
    return hand_log


def test_live_view_shows_one_point_in_time_and_names_it(behind: HandLog, warehouse: Path) -> None:
    """A reader of two tables must know that both are as of one point in time, and which."""
    shown = read_live(behind.root, warehouse)
    assert (shown.cut, shown.published, shown.offset) == (3, 1, 5)
    assert shown.position
    assert shown.commit_clock
    assert {name: notes(rows) for name, rows in shown.items()} == {
        "public.orders": {1: "b", 2: "c"},
        "public.items": {},
    }
    assert (shown.left_out, shown.incomplete) == ({}, {})


def test_only_requested_tables_are_read(behind: HandLog, warehouse: Path) -> None:
    """A warehouse may have hundreds; an unknown name is a mistake, and not an empty answer."""
    assert list(read_live(behind.root, warehouse, ["public.items"])) == ["public.items"]
    with pytest.raises(
        ConfigurationError, match=r"a table public\.order\n  did you mean public\.orders\? name one of: public\.items"
    ):
        read_live(behind.root, warehouse, ["public.order"])


def test_table_that_is_still_read_is_shown_on_request(behind: HandLog, warehouse: Path) -> None:
    """As in `read_cut`: rows that have not been read yet do not count as missing unless the caller requests them."""
    late = make_table("late", id="int64", note="string")
    behind.state(late, "reading", since=6)
    behind.segment([(late, "r", {"id": 1, "note": "n"})])
    shown = read_live(behind.root, warehouse)
    assert "public.late" not in shown
    assert shown.incomplete == {"public.late": "reading"}
    assert notes(read_live(behind.root, warehouse, incomplete=True)["public.late"]) == {1: "n"}


def test_table_that_cannot_follow_is_skipped_with_an_error_that_names_it(behind: HandLog, warehouse: Path) -> None:
    """The others are shown at the latest cut; the reason names the remedy."""
    behind.segment([(make_table("items", id="int64", note="int64"), "c", {"id": 9, "note": 9})])
    shown = read_live(behind.root, warehouse)
    assert list(shown) == ["public.orders"]
    assert "column note was string and is bigint now" in shown.left_out["public.items"]
    assert shown.cut == 4


def test_table_is_shown_in_its_mode_and_skipped_where_the_settings_have_a_different_one(
    behind: HandLog, warehouse: Path
) -> None:
    """Rows of another mode would mean something else under the same name. A table that no merge has created yet has the
    mode of the settings.
    """
    late = make_table("late", id="int64", note="string")
    behind.state(late, since=6)
    behind.segment([(late, "r", {"id": 1, "note": "n"})])
    policies = Policies(each={name: TablePolicy("append") for name in ("public.late", "public.orders")})
    shown = read_live(behind.root, warehouse, policies=policies, incomplete=True)
    assert shown["public.late"].column("_op").to_pylist() == ["r"]
    assert "mode append: it was created with mode current" in shown.left_out["public.orders"]


def test_table_whose_folder_is_gone_is_back_after_a_merge(behind: HandLog, warehouse: Path, merge: Merge) -> None:
    """The printed remedy is to merge and to read again."""
    orders = warehouse / "public" / "orders"
    orders.rename(orders.with_name("moved"))
    shown = read_live(behind.root, warehouse)
    assert list(shown) == ["public.items"]
    assert "its folder is gone\n  run `cdcflow merge`, then read again" in shown.left_out["public.orders"]
    merge(behind.root, warehouse)
    assert notes(read_live(behind.root, warehouse)["public.orders"]) == {1: "b", 2: "c"}


def test_another_log_is_refused(behind: HandLog, warehouse: Path, tmp_path: Path) -> None:
    """Rows of one database over the tables of another would look like rows."""
    other = HandLog(tmp_path / "other", log_id="log-b")
    for _ in range(3):
        other.segment([(ORDERS, "c", {"id": 1, "note": "z"})])
    with pytest.raises(ConfigurationError, match="they belong to another log"):
        read_live(other.root, warehouse)


def test_older_copy_of_the_log_is_refused(behind: HandLog, warehouse: Path, merge: Merge, tmp_path: Path) -> None:
    """It would show an older point in time as the latest one."""
    merge(behind.root, warehouse)
    copy = HandLog(tmp_path / "copy")
    copy.segment([(ORDERS, "c", {"id": 1, "note": "a"}), (ITEMS, "c", {"id": 7, "note": "x"})])
    with pytest.raises(ConfigurationError, match="the log ends at cut 1, the tables have cut 3 already"):
        read_live(copy.root, warehouse)


def test_log_without_segments_shows_nothing(hand_log: HandLog, warehouse: Path) -> None:
    """A capture that has just begun has sealed nothing yet."""
    shown = read_live(hand_log.root, warehouse)
    assert (dict(shown), shown.cut) == ({}, 0)
    assert not warehouse.exists()


def test_log_that_is_compacted_under_the_reader_is_read_again(
    behind: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction and retention do not wait for readers, and readers need not know of them."""
    behind.segment([(ORDERS, "c", {"id": 3, "note": "d"})])
    listed = compacting(behind, monkeypatch, times=1)
    assert notes(read_live(behind.root, warehouse)["public.orders"]) == {1: "b", 2: "c", 3: "d"}
    assert listed == [1, 2]


def test_log_that_is_compacted_again_and_again_is_an_error_whose_remedy_works(
    behind: HandLog, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After three tries the error reports what failed, with the remedy; the remedy is sufficient."""
    behind.segment([(ORDERS, "c", {"id": 3, "note": "d"})])
    with monkeypatch.context() as patch:
        compacting(behind, patch, times=live.TRIES_MAX)
        with pytest.raises(SinkUnavailable, match=r"3 times\n  call read_live again"):
            read_live(behind.root, warehouse)
    assert notes(read_live(behind.root, warehouse)["public.orders"])[3] == "d"


def compacting(log: HandLog, patch: pytest.MonkeyPatch, *, times: int) -> list[int]:
    """Between the listing of a log's segments and the reading of their files two of them become one, this many times.
    Returns the numbers of the listings, as they occur.
    """
    right, listed = segments.sealed_range, list[int]()

    def sealed(*given: Any, **more: Any) -> Any:
        found = right(*given, **more)
        listed.append(len(listed) + 1)
        if len(listed) <= times:
            log.segment([(ITEMS, "c", {"id": 100 + len(listed), "note": "n"})])
            log.compact(len(Layout(log.root).segment_offsets()) - 1)
        return found

    patch.setattr("cdcflow.tables.job.live.sealed_range", sealed)
    return listed
