"""Which tables the daemon repairs by itself after a gap."""

from __future__ import annotations

from typing import Any

from cdcflow.daemon.gap_repair import gaps_to_prove

GAP: dict[str, Any] = {"offset": 7, "before": "0/1", "proven": None}


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
