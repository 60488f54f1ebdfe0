"""Find the changes that are worth a notification, comparing one status with the next. Pure.

There is one notice for each change: when the lag passes its limit, and when it is back below it. A condition that holds
already when the daemon starts counts as a change too, except for tables that were read before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdcflow.errors import CdcflowError
from cdcflow.model.log_budget import LEVELS

if TYPE_CHECKING:
    from cdcflow.tables.job.reports import MergeReport, SeveralReport, TableMergeReport

FILES_LAG_S = 3600.0
"""MySQL: the lag at which it is reported that cdcflow reads the oldest binary log file. While cdcflow keeps up, it
may read the oldest one without danger."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice. `event` is one of the words of the settings. `active`: the condition has begun; False: it is over.

    `text` is for operators; `fields` holds numbers and names, and no value of a row.
    """

    event: str
    active: bool
    text: str
    fields: Mapping[str, object] = field(default_factory=dict)


Tables = Mapping[str, Mapping[str, Any]]


class Noticing:
    """Compares a status with the previous ones. `tables`: the tables' entries in the log before the daemon began."""

    def __init__(self, lag_over_s: float, headroom_under: float, tables: Tables) -> None:
        self._lag_over_s = lag_over_s
        self._headroom_under = headroom_under
        self._active = {"lag": False, "headroom": False}
        self._stopped_targets: set[str] = set()
        self._budget_percent = 0
        self._released_at: object = None
        self._states = _states(tables)
        self._broken: Mapping[str, str] = {}

    def of(self, status: Mapping[str, Any]) -> list[Notice]:
        found = (self._lag, self._headroom, self._log_budget, self._backfills, self._contracts, self._targets)
        return [notice for of in found for notice in of(status)]

    def _lag(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        behind = status.get("lag_seconds")
        if isinstance(behind, int | float):
            word = "lags" if behind > self._lag_over_s else "no longer lags"
            text = f"the log {word} its source by more than {self._lag_over_s:g} s: {behind:.0f} s"
            fields = {"lag_seconds": behind, "lag_bytes": status.get("lag_bytes"), "state": status.get("state")}
            yield from self._notice_of_change("lag", behind > self._lag_over_s, text, fields)

    def _headroom(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        source: Mapping[str, Any] = status.get("source") or {}
        safe, retained = str(source.get("safe_wal_bytes", "")), status.get("retained_bytes")
        files = str(source.get("files_until_lost", ""))
        if safe.isdigit() and isinstance(retained, int):
            share = int(safe) / max(1, int(safe) + retained)
            text = (
                f"the source can keep {int(safe)} bytes more of its log before it discards what cdcflow needs "
                f"({share:.0%})"
            )
            fields: dict[str, object] = {"safe_bytes": int(safe), "retained_bytes": retained}
            yield from self._notice_of_change("headroom", share < self._headroom_under, text, fields)
        elif files.isdigit():
            is_last = int(files) == 0 and (status.get("lag_seconds") or 0) > FILES_LAG_S
            text = f"the source can purge {files} files of its log before it reaches the one that cdcflow reads"
            yield from self._notice_of_change("headroom", is_last, text, {"files_until_lost": int(files)})

    def _log_budget(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        """Yield one notice for each level that is reached, one when less than the first level is used again, and one
        for a release."""
        budget: Mapping[str, Any] = status.get("log_budget") or {}
        names = ("kept_bytes", "budget_bytes", "kept_age_seconds", "budget_age_seconds", "percent", "then")
        fields = {name: budget.get(name) for name in names}
        percent = int(budget.get("percent") or 0)
        if percent > self._budget_percent:
            self._budget_percent = percent
            yield Notice("log_budget", True, f"{percent} % of the budget for the source's log is used", fields)
        elif self._budget_percent and not percent:
            self._budget_percent = 0
            yield Notice(
                "log_budget", False, f"less than {LEVELS[0]} % of the budget for the source's log is used", fields
            )
        released_at = budget.get("released_at")
        if released_at is not None and released_at != self._released_at:
            text = "the source's log was released; the tables are unverified until they are compared with the source"
            yield Notice("log_budget", True, text, {"released_at": released_at, "why": budget.get("released_why")})
        self._released_at = released_at

    def _backfills(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        if status.get("state") != "capturing":
            return
        tables: Tables = status.get("tables") or {}
        now = _states(tables)
        before, self._states = self._states, now
        for name, state in now.items():
            if state.startswith("done ") and before.get(name) != state:
                fields = {"table": name, "rows": tables[name].get("rows")}
                yield Notice("backfill_done", True, f"all existing rows of {name} are in the log", fields)

    def _contracts(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        now: Mapping[str, str] = status.get("broken_contracts") or {}
        before, self._broken = self._broken, now
        for table, reason in now.items():
            if before.get(table) != reason:
                yield Notice("contract", True, reason, {"table": table})
        for table in before.keys() - now.keys():
            yield Notice("contract", False, f"the schema of {table} breaks its contract no longer", {"table": table})

    def _targets(self, status: Mapping[str, Any]) -> Iterator[Notice]:
        targets: Mapping[str, Mapping[str, Any]] = status.get("targets") or {}
        stops = {name: why for name, one in targets.items() if (why := stops_of(one))}
        before, self._stopped_targets = self._stopped_targets, set(stops)
        for name in sorted(stops.keys() - before):
            reason, remedy = stops[name][0]
            fields = {"target": name, "reason": reason, "remedy": remedy}
            yield Notice("target", True, f"the target {name} is not delivered: {reason}", fields)
        for name in sorted(before - stops.keys()):
            yield Notice("target", False, f"the target {name} is delivered again", {"target": name})

    def _notice_of_change(self, event: str, active: bool, text: str, fields: Mapping[str, object]) -> Iterator[Notice]:
        if active != self._active[event]:
            self._active[event] = active
            yield Notice(event, active, text, fields)


CUT_PUBLISHED = "cut_published"


def of_the_cut(report: MergeReport | SeveralReport, warehouse: str) -> Notice:
    """Return the notice that a cut is published, with the tables that changed in it. The first merge of a process may
    find a cut that no receiver got; the notice then has all tables, without numbers of rows."""
    whole = [table for table in report.tables if table.left_out is None]
    if report.published:
        tables = [_of_table(one) | {"rows": one.changes} for one in whole if one.changes]
        rows = sum(table.changes for table in whole)
        text = f"cut {report.cut} is published: {rows} changes in {len(tables)} of {len(whole)} tables"
        counts: dict[str, object] = {"rows": rows}
    else:
        tables, counts = [_of_table(one) for one in whole], {}
        text = f"cut {report.cut} is the latest published one: {len(tables)} tables"
    excluded = sorted(table.name for table in report.tables if table.left_out is not None)
    about = {"cut": report.cut, "warehouse": warehouse, "tables": tables, "excluded": excluded}
    return Notice(CUT_PUBLISHED, True, text, {**about, **counts})


def _of_table(one: TableMergeReport) -> dict[str, object]:
    return {"name": one.place or one.name, "version": one.version, "whole": one.complete}


def stops_of(target: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return the reasons why something of a target is not delivered, each with a remedy: those of its process first,
    then those of its tables.

    `target`: its part of a status.
    """
    found: list[tuple[str, str | None]] = []
    if target.get("is_failing"):
        process: Mapping[str, Any] = (target.get("process") or {}).get("failing") or target
        kind = process.get("kind") if process is not target else target.get("error")
        found.append((process.get("reason") or f"{kind}, a fault in cdcflow or in the target", process.get("remedy")))
    stopped: Mapping[str, Mapping[str, str]] = target.get("stopped") or {}
    return found + [(f"{table}: {why['reason']}", why["remedy"] or None) for table, why in sorted(stopped.items())]


def _states(tables: Tables) -> dict[str, str]:
    return {name: f"{t.get('state')} {t.get('generation')}" for name, t in tables.items()}


def of_the_end(error: BaseException | None, *, is_standby: bool = False) -> Notice:
    """Return the notice that the daemon has ended, and why; without `error` it was stopped, or its work was done.
    `is_standby`: another daemon captures."""
    who = "the standby" if is_standby else "the capture"
    if error is None:
        return Notice("stopped", True, f"{who} was stopped by a command", {"reason": None})
    if not isinstance(error, CdcflowError):  # its text may hold a row's values
        return Notice("stopped", True, f"{who} has ended by a fault in cdcflow: {type(error).__name__}", {})
    reason = str(error).split("\n")[0]
    fields = {"kind": type(error).__name__, "reason": reason, "remedy": error.remedy}
    return Notice("stopped", True, f"{who} has ended: {type(error).__name__}: {reason}", fields)
