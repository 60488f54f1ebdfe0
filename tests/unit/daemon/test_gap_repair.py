"""Which tables the daemon repairs by itself after a gap."""

from __future__ import annotations

from typing import Any

import pytest

from cdcflow.capture.interleave.progress import Gap, TableProgress
from cdcflow.config import Config
from cdcflow.daemon.gap_repair import GapRepairComponent, gaps_to_prove
from cdcflow.model.position import Epoch, Offset

GAP: dict[str, Any] = Gap(Offset(7), 1, Epoch(1), "0/1", "0/3").to_json()


def test_only_unverified_tables_of_a_running_capture_are_repaired() -> None:
    """One that is read again proves itself, an attached one is an operator's, and a paused capture cannot repair."""
    tables = {
        "public.lost": {"state": "done", "gap": GAP},
        "public.read_again": {"state": "reading", "gap": GAP},
        "public.proven": {"state": "done", "gap": {**GAP, "proven": "0/2"}},
        "public.attached": {"state": "done", "gap": {**GAP, "base": "folder"}},
        "public.whole": {"state": "done"},
    }
    assert gaps_to_prove({"state": "capturing", "tables": tables}) == {"public.lost": 7}
    assert gaps_to_prove({"state": "waiting", "tables": tables}) == {}


def test_gap_of_a_move_is_repaired_whatever_the_settings_are() -> None:
    """An operator ordered the move, and nothing of the tables is proven before that."""
    tables = {
        "public.moved": {"state": "done", "gap": {**GAP, "by": "move"}},
        "public.accepted": {"state": "done", "gap": GAP},
    }
    assert gaps_to_prove({"state": "capturing", "tables": tables}, only_moves=True) == {"public.moved": 7}


def test_repair_that_waits_begins_again_with_other_limits() -> None:
    """Its process read the limits when it began: hours that an operator lifts must not hold it until the night."""
    no_capture: Any = None
    component = GapRepairComponent(no_capture, None, lambda *_: None)

    def made_of(backfill: dict[str, object]) -> object:
        source = {"kind": "postgres", "url": "postgresql://cdc@db/shop", "log_budget": "1GiB", "backfill": backfill}
        return component.made_of(Config.model_validate({"source": source, "log": {"path": "log"}}))

    assert made_of({}) == made_of({"chunk_rows_max": 1_000})
    assert made_of({}) != made_of({"hours": "22:00-06:00 UTC"})
    assert made_of({"limits": {"lock_waits": 1}}) != made_of({"limits": {"lock_waits": 2}})


@pytest.mark.parametrize(
    ("gap", "always", "after_a_release"),
    [
        (Gap(Offset(5), 1, Epoch(1), "a", "b"), False, True),
        (Gap(Offset(5), 1, Epoch(1), "a", "b", by="move"), True, True),
        (Gap(Offset(5), 1, Epoch(1), "a", "b", proven="c"), False, False),
        (Gap(Offset(5), 1, Epoch(1), "", "b", base="x"), False, False),
        (None, False, False),
    ],
)
def test_limits_on_reading_are_shown_while_the_daemon_repairs(
    gap: Gap | None, always: bool, after_a_release: bool
) -> None:
    """The repair is another process: without this nothing would show why it waits."""
    table = TableProgress("done", 1, Offset(1), gap=gap)
    assert table.is_repaired_by_daemon(after_any_gap=False) is always
    assert table.is_repaired_by_daemon(after_any_gap=True) is after_a_release
