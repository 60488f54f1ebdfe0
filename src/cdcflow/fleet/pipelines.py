"""The rows of a fleet's page: one for each pipeline, with its daemon, its standby and its merges. Pure.

Rows that need an operator come first. A member that has become silent is never shown as one that works: its numbers
stay, and the row's state is `silent`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cdcflow.fleet.members import Member
from cdcflow.fleet.report import LEVELS, MemberFinding, MemberReport

STATES = (
    *("silent", "unknown", "halted", "waiting", "paused", "stopped", "standby", "capturing"),
    *("merges only", "other"),
)
"""The states of a pipeline: those of a capture, and `silent`, `unknown` (nothing can be read of it), `stopped` (its
daemon was stopped), `merges only` (no daemon of it is in the fleet), `other` (a newer version's)."""
FORGOTTEN_AFTER_S = 86_400.0
"""A silent daemon is no longer mentioned after this time, if the pipeline has a different one that captures."""
_ORDER = {"error": 0, "warning": 1, "note": 2, "good": 3}
_PUBLISHES = "check that its process runs, and that it can write into the fleet's register"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The row of a pipeline. `level`: that of its worst finding (findings are sorted, the worst first); `good` without
    one."""

    name: str
    state: str
    level: str
    findings: Sequence[MemberFinding]
    capture: Member | None
    merge: Member | None
    others: Sequence[Member] = field(default=())

    @property
    def numbers(self) -> Mapping[str, float]:
        """The daemon's numbers. For a number that merges on other machines also report, the later report counts."""
        found = {} if self.capture is None or self.capture.report is None else dict(self.capture.report.numbers)
        if self.merge is not None and self.merge.report is not None:
            elsewhere = self.merge.report.numbers
            if elsewhere.get("merge_ended_at", 0) >= found.get("merge_ended_at", 0):
                found = {name: value for name, value in found.items() if not name.startswith("merge_")}
                found |= {name: value for name, value in elsewhere.items() if name.startswith("merge_")}
        if "merge_offset" in found and "durable_offset" in found:
            found["merge_behind_rows"] = max(0, found["durable_offset"] - found["merge_offset"])
        return found

    def row(self) -> dict[str, Any]:
        """Return the values that the page's table shows, as JSON-able values; unknown ones are omitted."""
        main = self.capture or self.merge
        report = None if main is None else main.report
        merge = None if self.merge is None else self.merge.report
        found: dict[str, Any] = {"name": self.name, "state": self.state, "level": self.level}
        if main is not None:
            found["reported_at"] = round(main.reported_at, 1)
        if report is not None:
            found |= {"place": report.place, "page": report.page, "source": report.texts.get("source")}
            found |= {"merge_state": report.texts.get("merge_state")}
        if merge is not None:
            found |= {"merge_place": merge.place, "merge_state": merge.state}
        if self.findings:
            worst = self.findings[0]
            found |= {"text": worst.text, "remedy": worst.remedy, "more": len(self.findings) - 1}
        found |= self.numbers
        return {name: value for name, value in found.items() if value is not None}

    def details(self) -> dict[str, Any]:
        """Return the row with all findings and all members."""
        members = [one for one in (self.capture, self.merge, *self.others) if one is not None]
        findings = [{"level": one.level, "text": one.text, "remedy": one.remedy} for one in self.findings]
        return {**self.row(), "findings": findings, "members": [_member_json(one) for one in members]}


def _member_json(member: Member) -> dict[str, Any]:
    report = member.report
    found: dict[str, Any] = {"reported_at": round(member.reported_at, 1), "silent": member.is_silent}
    if report is None:
        return {**found, "problem": member.problem}
    found |= {"kind": report.kind, "place": report.place, "state": report.state, "ended": report.ended}
    return {**found, "version": report.version, "every_seconds": report.every_s, "page": report.page}


def pipelines(members: Iterable[Member], now: float) -> list[Pipeline]:
    """Return the rows of these members, those that need an operator first. `now`: seconds since 1970."""
    by_name: dict[str, list[Member]] = {}
    for one in members:
        by_name.setdefault(one.name, []).append(one)
    return sorted((_pipeline(name, found, now) for name, found in by_name.items()), key=_rank)


def counts(found: Iterable[Pipeline]) -> dict[str, int]:
    """Return how many pipelines have each state, for all states."""
    known = Counter(one.state for one in found)
    return {state: known[state] for state in STATES}


def _rank(one: Pipeline) -> tuple[int, bool, float, str]:
    lag_s = one.numbers.get("lag_seconds", 0.0)
    return _ORDER[one.level], one.state not in ("silent", "unknown"), -lag_s, one.name


def _pipeline(name: str, members: Sequence[Member], now: float) -> Pipeline:
    captures = sorted((one for one in members if one.report is None or one.report.kind == "capture"), key=_preference)
    merges = sorted((one for one in members if one.report is not None and one.report.kind == "merge"), key=_preference)
    capture, merge = (found[0] if found else None for found in (captures, merges))
    findings = [*_of_capture(capture), *_of_other_daemons(captures, now), *_of_merges(merge)]
    findings.sort(key=lambda one: LEVELS.index(one.level))
    level = findings[0].level if findings else "good"
    return Pipeline(name, _state(capture), level, findings, capture, merge, (*captures[1:], *merges[1:]))


def _preference(member: Member) -> tuple[bool, bool, float]:
    is_standby = member.report is not None and member.report.state == "standby"
    return not member.reports, is_standby, -member.reported_at


def _state(capture: Member | None) -> str:
    if capture is None:
        return "merges only"
    report = capture.report
    if report is None:
        return "unknown"
    if report.ended:
        return "halted" if report.state == "halted" else "stopped"
    if capture.is_silent:
        return "silent"
    return report.state if report.state in STATES else "other"


def _of_capture(capture: Member | None) -> Iterator[MemberFinding]:
    if capture is None:
        yield MemberFinding("warning", "No daemon of this pipeline is in the fleet: only its merges are.", _SET_FLEET)
        return
    report = capture.report
    if report is None:
        yield MemberFinding("error", f"Nothing is known of it: {capture.problem}.")
        return
    if report.ended and report.state != "halted":
        text = f"The daemon on {report.place} was stopped at {utc(capture.reported_at)}."
        yield MemberFinding("warning", text, "Start it.")
    elif capture.is_silent and not report.ended:
        yield _silence("The daemon", report, capture)
    if report.state == "standby" and capture.reports:
        yield MemberFinding("warning", "No daemon of this pipeline reports that it captures.")
    yield from _of_clock(report, capture)
    if (different := report.numbers.get("rows_different", 0)) > 0:
        yield MemberFinding("error", f"A comparison found {different:,.0f} rows that differ.", "Run `cdcflow verify`.")
    yield from report.findings


def _silence(what: str, report: MemberReport, member: Member) -> MemberFinding:
    if member.clock_ahead_s > 0:
        text = (
            f"{what} on {report.place} may be silent: its clock is {member.clock_ahead_s:,.0f} s ahead, so its report"
            " does not show when it was written."
        )
        return MemberFinding("error", text, f"Set its clock; {_PUBLISHES}.")
    text = f"{what} on {report.place} has been silent since {utc(member.reported_at)}; what is shown is from then."
    return MemberFinding("error", text, f"{_PUBLISHES[0].upper()}{_PUBLISHES[1:]}.")


def _of_clock(report: MemberReport, member: Member) -> Iterator[MemberFinding]:
    if member.clock_ahead_s and member.reports:
        how = "ahead" if member.clock_ahead_s > 0 else "slow"
        text = f"The clock of {report.place} is {abs(member.clock_ahead_s):,.0f} s {how}, compared with this machine's."
        yield MemberFinding("warning", text, "Have both follow a time server.")


def _of_other_daemons(captures: Sequence[Member], now: float) -> Iterator[MemberFinding]:
    running = [one.report for one in captures if one.reports and one.report is not None]
    active = [one for one in running if one.state != "standby"]
    if len(active) > 1:
        places = " and ".join(one.place for one in active[:2])
        yield MemberFinding(
            "error",
            f"{len(active)} daemons publish under this name: {places}.",
            "Give each pipeline its own service.fleet.name; a standby needs service.lease.",
        )
    for one in captures[1:] if running else ():
        report, is_recent = one.report, now - one.reported_at < FORGOTTEN_AFTER_S
        if report is not None and one.is_silent and not report.ended and is_recent:
            text = f"A second daemon of this pipeline, on {report.place}, is silent since {utc(one.reported_at)}."
            yield MemberFinding("warning", text, "Start it, or remove its report from the register.")


def _of_merges(merge: Member | None) -> Iterator[MemberFinding]:
    if merge is None or merge.report is None:
        return
    report = merge.report
    if report.ended:
        if "merge_every_s" in report.numbers:  # a single merge, such as a cron job's, has ended because it is done
            text = f"Merges on {report.place} were stopped at {utc(merge.reported_at)}."
            yield MemberFinding("warning", text, "Start them.")
    elif merge.is_silent:
        yield _silence("The process that merges", report, merge)
    yield from report.findings


_SET_FLEET = "Set service.fleet in the settings of its daemon."


def utc(at: float) -> str:
    """Return the text of a time for operators."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z"
