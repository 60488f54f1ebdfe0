"""The findings about a capture that is not well: each as a sentence with a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdcflow.daemon.interfaces import facts
from cdcflow.daemon.interfaces.findings import Remark, remarks

WELL: dict[str, Any] = {
    "state": "capturing",
    "lag_bytes": 10,
    "lag_seconds": 1.0,
    "heartbeat_age_seconds": 1,
    "heartbeat_age_seconds_max": 30,
    "tables": {"public.orders": {"state": "done"}},
}
ROOM = {"folder": "/log", "free_bytes": 50 << 30, "total_bytes": 100 << 30}


def said(disk: dict[str, Any] = ROOM, merges: object = None, **status: Any) -> list[Remark]:
    whole = {**WELL, **status}
    return remarks(whole, facts.headroom(whole), disk, merges)


def table(state: str, **fields: str) -> dict[str, Any]:
    return {"tables": {"public.a": {"state": state, **fields}}}


def full(**details: str) -> dict[str, Any]:
    return {"retained_bytes": 900, "source": details}


def test_healthy_capture_has_no_findings() -> None:
    """A page that always warns is not read."""
    assert said() == []
    assert said(source={"safe_wal_bytes": "unlimited", "kept_seconds": "unlimited"}, retained_bytes=1 << 40) == []


@pytest.mark.parametrize(
    ("level", "text", "remedy", "status"),
    [
        ("error", "is waiting: asking db.", "start", {"state": "waiting", "reason": "asking db\n  start it"}),
        ("note", "is starting", None, {"state": "waiting", "reason": "starting"}),
        ("note", "is paused", "Resume it", {"state": "paused", "heartbeat_age_seconds": 90}),
        ("error", "will not try again: gone", "backfill", {"state": "halted", "reason": "gone\n  run backfill"}),
        ("warning", "did not answer", "doctor", {"source_error": "asking db: refused"}),
        ("error", "The source has sent nothing for 90 s", "doctor", {"heartbeat_age_seconds": 90}),
        ("warning", "by 20 minutes", "backlog", {"lag_seconds": 1200}),
        ("warning", "cannot be captured: public.bare", "doctor", {"left_out": ["public.bare"]}),
        ("warning", "Foreign keys", "doctor", {"source": {"cascades_not_logged": "shop.items"}}),
        ("warning", "breaks a contract: v is int.", "rows are captured", {"broken_contracts": {"a": "v is int"}}),
        ("error", "have stopped: files.a: 1.csv", "doctor", {"source": {"stopped": "files.a: 1.csv: no number"}}),
        ("error", "discarded log", "--accept-history-loss", {"log_lost": True}),
        ("warning", "keeps 90 %", "max_slot_wal_keep_size", full(safe_wal_bytes="100")),
        ("warning", "keeps 90 %", "max_binlog_total_size", full(kept_bytes_max="1000")),
        ("error", "Slot x is gone.", "start", {"problems": [{"text": "Slot x is gone", "remedy": "start again"}]}),
        ("error", "Uploads: no such bucket", "log check", {"upload_problem": "no such bucket"}),
        ("error", "Reading public.a failed: too large", "read it again", table("failed", reason="too large")),
        ("warning", "was cancelled", "Read it again", table("cancelled")),
        ("note", "public.a is paused", "Resume", table("paused")),
        ("error", "In public.a a row differs.", "Run `verify public.a`.",
         table("done", shadow_difference="a row differs; run `verify public.a`")),
        ("warning", "not proven", "doctor", table("done", freshness="not proven")),
    ],
)  # fmt: skip
def test_finding_is_a_sentence_with_its_remedy(
    level: str, text: str, remedy: str | None, status: dict[str, Any]
) -> None:
    """An operator who reads it at night must not have to search for anything first."""
    (one,) = said(**status)
    assert one.level == level
    assert text in one.text
    assert one.text[0].isupper()
    assert one.text.endswith(".")
    assert remedy is None or remedy in str(one.remedy)


def test_an_outage_is_one_finding_whatever_tables_there_are() -> None:
    """A source that did not answer was twelve findings, which hid the thirteenth, of another kind."""
    away = {"state": "done", "freshness": "not proven", "freshness_reason": "no answer from db:5432"}
    tables = {f"shop.t{n:02}": {**away, "fresh_as_of": 1_700_000_000 + n} for n in range(12)}
    other = {**away, "freshness_reason": "it is not in publication shop", "fresh_as_of": None}
    found = said(tables={**tables, "shop.other": other})
    assert {one.text for one in found} == {
        "12 tables are not proven fresh since 2023-11-14 22:13:20Z (shop.t00, shop.t01, shop.t02, …):"
        " no answer from db:5432.",
        "Table shop.other is not proven fresh yet: it is not in publication shop.",
    }


def test_full_disk_is_reported_before_it_is_full() -> None:
    """A log that cannot be written stops the capture, and the source keeps its own log until then."""
    assert [one.level for one in said({**ROOM, "free_bytes": 5 << 30})] == ["warning"]
    assert [one.level for one in said({**ROOM, "free_bytes": 1 << 20})] == ["error"]
    assert said({}) == []


def test_worst_comes_first() -> None:
    """On a phone only the first one is seen."""
    tables = {"a.a": {"state": "paused"}, "a.b": {"state": "cancelled"}, "a.c": {"state": "failed"}}
    assert [one.level for one in said(tables=tables)] == ["error", "warning", "note"]
    assert [one.operation for one in said(tables=tables)] == ["backfill", "backfill", "resume"]


def test_table_that_a_merge_skipped_is_named() -> None:
    """The cut of the other tables advances, so it would go unnoticed."""
    (one,) = said(merges=[{"left_out": {"public.a": "its type is unknown"}}, {"left_out": {"public.b": "long ago"}}])
    assert one.text == "The latest merge skipped public.a: its type is unknown."
    # Tables in a bucket: the cuts are not on this machine, and the merge has left its reasons in the log's folder.
    assert said(merge={"excluded": {"public.a": "its type is unknown"}}) == [one]


def test_merges_that_fail_are_reported_with_their_reason() -> None:
    """The capture is well, so no other part of the page shows that tables are out of date."""
    remedy = "raise merge.memory_max"
    failing = {"cause": "memory", "reason": "it had 3 GB", "remedy": remedy, "since": 1_700_000_000.0}
    (one,) = said(merge={"process": {"state": "restarting", "failing": failing}})
    assert one == Remark("warning", "Merges have failed since 2023-11-14 22:13:20Z: it had 3 GB.", remedy)
    assert said(merge={"process": {"state": "idle", "failing": None}}) == []


def test_room_of_the_disk_is_reported(tmp_path: Path) -> None:
    """A folder that does not exist yet is not an error."""
    found = facts.disk(tmp_path)
    assert 0 < found["free_bytes"] <= found["total_bytes"]
    assert facts.disk(tmp_path / "none") == {}


def test_reading_that_is_held_or_slowed_is_reported_with_the_reason() -> None:
    """An operator who waits for a backfill must not have to guess what it waits for, and until when."""
    held = {
        "state": "held",
        "share": 0.0,
        "until": "2026-06-01T20:00+00:00",
        "unmeasured": 0,
        "reasons": [{"limit": "hours", "text": "outside of source.backfill.hours"}],
    }
    (found,) = said(reading=held)
    assert found.level == "note"
    assert found.text == (
        "Reading existing rows is held until 2026-06-01T20:00+00:00: outside of source.backfill.hours."
    )
    (found,) = said(reading={**held, "until": None, "unmeasured": 1})
    assert found.level == "warning"
    (found,) = said(reading={**held, "state": "slowed", "share": 0.25, "until": None})
    assert found.text.startswith("Reading existing rows takes 25 % of the time: ")
    assert said(reading={**held, "state": "free", "reasons": []}) == []


def test_used_budget_of_the_log_is_reported_with_what_follows() -> None:
    """The page shows what will happen by itself, and what will not."""
    used = {"percent": 80, "used": 0.83, "then": "release"}
    (found,) = said(log_budget=used)
    assert (found.level, found.text) == ("warning", "83 % of the budget for the source's log is used.")
    assert "releases the log" in (found.remedy or "")
    (found,) = said(log_budget={**used, "percent": 95, "used": 0.96, "then": "stop"})
    assert (found.level, "why the capture lags" in (found.remedy or "")) == ("error", True)
    assert said(log_budget={**used, "percent": 0, "used": 0.2}) == []
    assert facts.headroom({"retained_bytes": 5, "log_budget": {"budget_bytes": 7}})["limit_bytes"] == 7
