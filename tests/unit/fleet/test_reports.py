"""Reports of members: what one publishes is what another machine reads, and what is no report is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.fleet.simulated import finding, report

from cdcflow.daemon.interfaces.fleet_report import capture_report, merge_report
from cdcflow.fleet.report import FINDINGS_MAX, REPORT_BYTES_MAX, MemberReport, Unreadable

CANARY = "<img src=x onerror=alert(1)>"


def report_with(**fields: Any) -> bytes:
    given = json.loads(report().to_bytes())
    return json.dumps({**given, **fields}).encode()


def test_report_is_read_as_written() -> None:
    """Two versions of what a daemon does would be one too many."""
    made = report(findings=[finding("error", CANARY, "Fix it."), finding("note", "x")], errors=1)
    assert MemberReport.from_bytes(made.to_bytes()) == made


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not JSON"),
        (b'{"format": 1', "not JSON"),
        (b"[" * 20_000, "not JSON"),
        (b"[]", "not a report"),
        (b"{}", "not a report"),
        (b" " * (REPORT_BYTES_MAX + 1), "more than"),
        (report_with(format=2), "a newer cdcflow wrote it"),
        (report_with(kind="other"), "unknown kind"),
        (report_with(name=None), "its name is not a text"),
        (report_with(state={"a": 1}), "its state is not a text"),
        (report_with(at="now"), "its at is not a number"),
        (report_with(at=True), "its at is not a number"),
        (report_with(every_s=1e9), "its interval"),
        (report_with(every_s=0), "its interval"),
        (report_with(numbers={"lag_seconds": "5"}), "its lag_seconds is not a number"),
        (report_with(texts={"source": 5}), "its source is not a text"),
        (report_with(findings=[{"level": "fine", "text": "x"}]), "no level"),
        (report_with(findings=["x"]), "no level"),
    ],
)
def test_what_is_no_report_is_refused_with_the_reason(content: bytes, why: str) -> None:
    """Any process that can write into the register can write anything there."""
    with pytest.raises(Unreadable, match=why):
        MemberReport.from_bytes(content)


def test_number_that_is_not_finite_is_refused() -> None:
    """JSON for browsers has no NaN: one member's would be an empty page for all."""
    with pytest.raises(Unreadable, match="lag_seconds is not a number"):
        MemberReport.from_bytes(report_with(numbers={"lag_seconds": float("nan")}))


def test_report_is_bounded() -> None:
    """One member must not make the page heavy for all."""
    many = [{"level": "error", "text": "x" * 700} for _ in range(40)]
    found = MemberReport.from_bytes(report_with(findings=many, other="y" * 1_000, numbers={"lag_seconds": 1, "z": 2}))
    assert len(found.findings) == FINDINGS_MAX
    assert all(len(one.text) <= 300 for one in found.findings)
    assert found.numbers == {"lag_seconds": 1}


@pytest.mark.parametrize(
    "page", ["javascript:alert(1)", "https://user:secret@host/", "//host", "ftp://host/", 5, "x" * 400]
)
def test_link_that_is_no_web_page_is_dropped(page: object) -> None:
    """A browser executes `javascript:` when it is clicked."""
    assert MemberReport.from_bytes(report_with(page=page)).page is None


def test_report_of_a_daemon_has_what_its_page_shows() -> None:
    """Lag, log that the source keeps, freshness, merges, comparisons, and the worst findings first."""
    tables = {
        "public.a": {"state": "done", "freshness": "fresh", "fresh_as_of": 100.0},
        "public.b": {"state": "failed", "freshness": "not proven", "fresh_as_of": 90.0},
    }
    status = {
        "state": "capturing",
        "lag_bytes": 5,
        "lag_seconds": 1.5,
        "durable_offset": 70,
        "tables": tables,
        "merge": {"cut": 3, "offset": 60, "ended_at": 50.0, "process": {"every_seconds": 30, "state": "idle"}},
        "verified": {"public.a": {"log": {"at": 40.0}}, "public.b": {"log": {"different": 2}}},
    }
    overview = {
        "source": {"kind": "mysql"},
        "status": status,
        "headroom": {"retained_bytes": 25, "limit_bytes": 100},
        "findings": [{"level": "note", "text": "n"}, {"level": "error", "text": "e", "remedy": "r"}],
    }
    found = capture_report(overview, "shop")
    assert found.numbers == {
        "lag_bytes": 5,
        "lag_seconds": 1.5,
        "durable_offset": 70,
        "kept_bytes": 25,
        "kept_bytes_max": 100,
        "budget_used": 0.25,
        "tables": 2,
        "tables_reading": 0,
        "tables_failed": 1,
        "tables_not_fresh": 1,
        "fresh_as_of": 90.0,
        "tables_verified": 1,
        "verified_at": 40.0,
        "rows_different": 2,
        "merge_cut": 3,
        "merge_offset": 60,
        "merge_ended_at": 50.0,
        "merge_every_s": 30,
    }
    assert (found.findings[0], found.errors) == (finding("error", "e", "r"), 1)
    assert (found.texts["source"], found.texts["merge_state"]) == ("mysql", "idle")
    assert MemberReport.from_bytes(found.to_bytes()) == found


def test_report_of_a_daemon_that_has_just_started_is_a_report() -> None:
    """Its report is almost empty, and must not be taken for a broken one."""
    found = capture_report({"status": {}}, "shop")
    assert MemberReport.from_bytes(found.to_bytes()).state == "starting"


def test_merge_that_fails_is_a_finding() -> None:
    """The capture may be on another machine, and does not notice it."""
    merged = {"failed": True, "reason": "the catalog did not answer", "cut": 3, "ended_at": 5.0, "left_out": 0}
    found = merge_report(merged, "shop", state="idle", every_s=15, merge_every_s=60)
    assert found.state == "failing"
    assert "the catalog did not answer" in found.findings[0].text
    well = merge_report(
        {"cut": 3, "ended_at": 5.0, "left_out": 0}, "shop", state="merging", every_s=15, merge_every_s=60
    )
    assert (well.state, well.findings) == ("merging", [])
