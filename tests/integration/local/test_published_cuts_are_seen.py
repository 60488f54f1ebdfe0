"""Cuts that merges published, as the daemon's page reads them without any engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.support.log.hand_log import HandLog

from cdcflow.daemon.interfaces import facts
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.paths import CUTS
from cdcflow.testing.sinks import ORDERS


def test_latest_merges_are_listed_latest_first(
    merge: Callable[..., MergeReport], hand_log: HandLog, warehouse: Path
) -> None:
    """Both formats, from the words of the commits alone: a page must not need what merges."""
    assert facts.merges(warehouse / CUTS) == []
    published: list[int] = []
    for number in range(facts.MERGES_MAX + 2):
        hand_log.state(ORDERS)
        published.insert(0, hand_log.segment([(ORDERS, "c", {"id": number, "note": "n"})]))
        assert merge(hand_log.root, warehouse).published
    found = facts.merges(warehouse / CUTS)
    assert [one["cut"] for one in found] == published[: facts.MERGES_MAX]
    assert all(abs(one["published"] / 1e6 - time.time()) < 600 for one in found)
    assert {(one["tables"], tuple(one["incomplete"]), tuple(one["left_out"])) for one in found} == {(1, (), ())}


def test_warehouse_that_cannot_be_read_shows_nothing(tmp_path: Path) -> None:
    """A commit that is being written: no merge is shown, and the page still works."""
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "00000000000000000000.json").write_text('{"commitInfo": {"userMetadata": "{')
    assert facts.merges(tmp_path) == []
