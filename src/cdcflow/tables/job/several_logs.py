"""The merge of several logs into one warehouse, published as one cut.

    shop   ──cut 41 @ 10:00:05──cut 42 @ 10:00:15──cut 43 @ 10:00:25──▶ sealed up to 10:00:25
    crm    ──cut 7 @ 09:59:58──────────cut 8 @ 10:00:18─────▶ 10:00:21   the common clock
    published                                   cut 3: shop as of its cut 42, crm as of its cut 8

Each log is merged as in `job`, up to its latest sealed cut at or before the common commit clock, which all of the logs
have reached. So no table is ahead of that clock, and none lags it by more than the length of a segment. Then one row
records the versions of all tables, and the position of each log. Readers of a cut need not know that there are several
logs.

A derived table may read tables of any of the logs. It is computed from their versions in the cut, before that is
published, as in `job`.

A log whose clock does not advance holds the cut back, because the merge waits for it. A log in `without` is not waited
for: its tables stay unchanged in the cut.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from cdcflow.errors import ConfigurationError
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.moments import time_text
from cdcflow.model.position import Checkpoint
from cdcflow.model.routes import Routes
from cdcflow.tables.cut import Cut, CutTable, LogPart, joined_tables
from cdcflow.tables.formats import tag_of
from cdcflow.tables.job import clashes
from cdcflow.tables.job.common_clock import sealed_clock
from cdcflow.tables.job.derived_tables import Derivation, without_derived
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.failures import of_all_tables
from cdcflow.tables.job.job import MergeRequest, MergeRun, OnEdit, note, show_views
from cdcflow.tables.job.reports import SeveralReport, TableMergeReport, Watch, ignore_progress
from cdcflow.tables.merge.policy import DEFAULTS, DerivedQuery, Policies
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.segments import Range, backfills, sealed_range, without_rows

_log = structlog.get_logger()

POSITION = "several logs"
"""The position of a cut of several logs: a text that cannot be mistaken for a source position."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A log to be merged: its configured name, its location, and the settings of its tables. If `layout` is the history
    of a log in Kafka, `newest` and `origin` are as in `job.merge`."""

    name: str
    layout: Layout
    policies: Policies = DEFAULTS
    newest: Checkpoint | None = None
    origin: Mapping[str, object] = field(default_factory=dict)


def merge_logs(
    engines: Engines,
    logs: Sequence[Merged],
    warehouse: Warehouse,
    *,
    without: Collection[str] = (),
    on_edit: OnEdit = "warn",
    watch: Watch = ignore_progress,
) -> SeveralReport:
    """Bring the tables of every log to a sealed cut at or before the common commit clock, then publish one cut.

    `without`: names of logs that the merge does not wait for; their tables stay unchanged in the cut.

    Raises:
        ConfigurationError: two logs have a table with the same name, or different queries for a derived table; the
            warehouse has tables of a log that is not in `logs`; or as `job.merge`.
        SinkUnavailable, HistoryLost, InvariantViolated: as `job.merge`.
    """
    began = time.monotonic()
    _check(logs, without)
    queries = derived_queries({log.name: log.policies for log in logs})
    with engines.first.lease():
        with of_all_tables(engines.first, warehouse):
            cuts = engines.first.cuts()
            cuts.drop_torn()
            shown = cuts.newest()
        before = without_derived(shown)
        work = _Work(engines, warehouse, on_edit, watch, before)
        work.check_logs(logs)
        clocks = {log.name: sealed_clock(log.layout, log.newest) for log in logs}
        waited = {name: clock for name, clock in clocks.items() if name not in without}
        slowest = min(waited, key=lambda name: (waited[name], name))
        reports: list[TableMergeReport] = []
        if waited[slowest]:
            reports = work.merge([log for log in logs if log.name in waited], waited[slowest])
        new = work.cut(logs, waited) if waited[slowest] else None
        new = None if new is None else work.pin(new)
        if (now := new or before) is not None and (queries or shown is not before):
            derived, more = Derivation(engines, warehouse, queries, shown, watch).derive(now)
            new = None if derived == shown else derived
            reports += more
        if new is not None:
            with of_all_tables(engines.first, warehouse):
                cuts.publish(new)
            _log.info("cut published", cut=new.cut, tables=len(new.tables), logs=len(new.logs))
        now = new or shown
        if now is not None:
            show_views(engines.first, warehouse, now)
            for log in logs:
                if log.layout.is_home and (part := now.part_of(log.layout.log_file().log_id)) is not None:
                    note(log.layout, warehouse, part)
    seconds = time.monotonic() - began
    parts = {} if now is None else {part.name: part for part in now.logs.values()}
    about = tuple(reports), clocks, slowest, parts, tuple(sorted(without))
    return SeveralReport(0 if now is None else now.cut, new is not None, seconds, *about)


def _check(logs: Sequence[Merged], without: Collection[str]) -> None:
    names = [log.name for log in logs]
    attempted = f"merging {', '.join(names)}"
    if len(set(names)) < len(names) or len({log.layout.log_file().log_id for log in logs}) < len(logs):
        raise ConfigurationError(
            f"{attempted}: two of them are the same log, or have the same name",
            remedy="name each log once, each with a different name",
            runbook="settings",
        )
    if unknown := sorted(set(without) - set(names)):
        raise ConfigurationError(
            f"{attempted} without {', '.join(unknown)}: that is not one of them",
            remedy=f"name some of {', '.join(names)}",
            runbook="settings",
        )
    if not set(names) - set(without):
        raise ConfigurationError(f"{attempted}: no log is left", remedy="exclude fewer", runbook="settings")


def derived_queries(policies: Mapping[str, Policies]) -> dict[str, DerivedQuery]:
    """Return the derived tables of all logs. `policies`: the settings of each log, by its name.

    Raises:
        ConfigurationError: two logs have different queries for a table.
    """
    found: dict[str, DerivedQuery] = {}
    first: dict[str, str] = {}
    for log, one in policies.items():
        for name, query in one.derived.items():
            if found.setdefault(name, query) != query:
                raise ConfigurationError(
                    f"merging {', '.join(policies)}: {first[name]} and {log} have different queries for table {name}",
                    remedy="remove it from merge.derive of one of them: its query reads the tables of all logs",
                    runbook="settings",
                )
            first.setdefault(name, log)
    return found


class _Work:
    """One merge of several logs."""

    def __init__(
        self, engines: Engines, warehouse: Warehouse, on_edit: OnEdit, watch: Watch, before: Cut | None
    ) -> None:
        self._engines = engines
        self._warehouse = warehouse
        self._on_edit = on_edit
        self._watch = watch
        self._before = before
        self._parts: dict[str, Cut] = {}
        self._runs: dict[str, MergeRun] = {}
        self._routes: Mapping[str, Routes] = {}

    def check_logs(self, logs: Sequence[Merged]) -> None:
        """Check that `logs` contains every log of the latest published cut.

        Raises:
            ConfigurationError: that cut has tables of another log.
        """
        before = self._before
        ids = {log.layout.log_file().log_id for log in logs}
        known: Mapping[str, LogPart | None] = {}
        if before is not None:
            known = before.logs or {before.log_id: None}
        for log_id, part in known.items():
            if log_id not in ids:
                named = log_id if part is None else f"{part.name} ({log_id})"
                raise ConfigurationError(
                    f"merging into {self._warehouse}: it has tables of log {named}, which is not among"
                    f" {', '.join(log.name for log in logs)}",
                    remedy="name the settings of that log too (-c), or merge into another warehouse",
                    runbook="other-log",
                )
        for log in logs:
            if (part_before := self._part_before(log)) is not None:
                self._parts[log.name] = part_before

    def _part_before(self, log: Merged) -> Cut | None:
        return None if self._before is None else self._before.part_of(log.layout.log_file().log_id)

    def merge(self, logs: Sequence[Merged], clock: int) -> list[TableMergeReport]:
        """Merge the part of these logs up to a commit clock."""
        found = {log.name: known for log in logs if (known := self._range(log, clock)) is not None}
        self._routes = {log.name: log.policies.routes for log in logs}
        self._check_names({name: range_ for name, (range_, _) in found.items()})
        reports: list[TableMergeReport] = []
        for log in logs:
            if log.name in found:
                reports += self._merge(log, *found[log.name])
        return reports

    def _range(self, log: Merged, clock: int) -> tuple[Range, int] | None:
        """Return a log's range up to its latest segment at or before a clock, and the clock up to which that range is
        complete. For an idle log this clock is later than the segment's own. `None` if there is no such segment, or if
        it has nothing newer than the published cut."""
        before = self._parts.get(log.name)
        found = sealed_range(log.layout, 0 if before is None else before.offset)
        count = len(found.segments)
        while count and found.segments[count - 1].last_checkpoint().commit_clock > clock:
            count -= 1
        upto = replace(found, segments=found.segments[:count])
        # A log that an earlier merge did not wait for may have less than was published in the meantime.
        is_older = upto.newest is None or (before is not None and upto.checkpoint.cut < before.cut)
        if is_older:
            return None
        return upto, clock if count == len(found.segments) else upto.checkpoint.commit_clock

    def _check_names(self, ranges: Mapping[str, Range]) -> None:
        placed: dict[str, dict[str, list[Mapping[str, str]]]] = {}
        for log, part in self._parts.items():
            for name, table in part.tables.items():
                placed.setdefault(name, {})[log] = [one.key for one in table.members.values()] or [{}]
            for name in part.left_out:
                if not any(route.may_lead_to(name) for route in self._routes[log].listed):
                    placed.setdefault(name, {})[log] = [{}]
        for log, found in ranges.items():
            before = self._parts.get(log)
            tables = {*found.tables(None if before is None else before.by_source()).values()}
            tables |= without_rows(backfills(found)).keys()
            goes = [self._routes[log].destination(table) for table in sorted(tables)]
            for name in {str(there.table) for there in goes}:
                placed.setdefault(name, {})[log] = [there.key for there in goes if str(there.table) == name]
        for name, by_log in sorted(placed.items()):
            if (why := clashes.between_logs(by_log)) is not None:
                raise ConfigurationError(
                    f"merging {', '.join(ranges)} into {self._warehouse}: logs {' and '.join(sorted(by_log))} both have"
                    f" a table {name}, and {why}",
                    remedy="give each log a different value of the same column (merge.tables.constants), or merge one"
                    " of these logs into a separate warehouse (merge.warehouse)",
                    runbook="other-log",
                )

    def _merge(self, log: Merged, upto: Range, clock: int) -> tuple[TableMergeReport, ...]:
        before = self._parts.get(log.name)
        work = self._engines, log.layout, self._warehouse, self._on_edit, self._watch
        run = MergeRun(MergeRequest(*work, log.policies, log.newest, log.origin), upto, upto, before)
        reports = run.tables(None)
        self._runs[log.name] = run
        now = run.cut(reports) or before
        reports = run.final(reports)
        if now is not None:
            is_whole = now.cut == upto.checkpoint.cut
            self._parts[log.name] = replace(now, commit_clock=clock) if is_whole else now
        return reports

    def cut(self, logs: Sequence[Merged], waited: Collection[str]) -> Cut | None:
        """Return the cut to publish; `None` if it contains nothing new, or if a log that the merge waits for has no
        part in it yet."""
        before = self._before
        if any(name not in self._parts for name in waited):
            return None
        number = 1 if before is None else before.cut + 1
        left_out: dict[str, str] = {}
        parts: dict[str, LogPart] = {}
        known = [(log.name, part.log_id, part) for log in logs if (part := self._parts.get(log.name)) is not None]
        joined = joined_tables(known)
        for log, _, part in known:
            left_out |= part.left_out
            told = log, part.cut, part.offset, part.position, part.commit_clock, _names(part)
            parts[part.log_id] = LogPart(*told)
        tables = {n: self._with_tag(n, table, number) for n, table in joined.items() if n not in left_out}
        new = Cut(
            number,
            "+".join(sorted(parts)),
            sum(part.offset for part in parts.values()),
            POSITION,
            min(self._parts[name].commit_clock for name in waited),
            tables,
            left_out,
            parts,
        )
        return None if before is not None and _content(before) == _content(new) else new

    def _with_tag(self, name: str, table: CutTable, number: int) -> CutTable:
        """Return the table's entry with the tag of the first cut that showed its version."""
        known = None if self._before is None else self._before.tables.get(name)
        if known is not None and (known.id, known.version, known.commit) == (table.id, table.version, table.commit):
            return replace(table, tag=known.tag)
        return replace(table, tag=tag_of(self._engines.first.rules.name, number) if table.version else "")

    def pin(self, new: Cut) -> Cut:
        """Make the formats keep the versions that the cut shows, and return the cut without the tables for which that
        failed."""
        left_out, pinned = dict(new.left_out), set[str]()
        for name, run in self._runs.items():
            # As the cut shows them: of a table with rows of several logs only the latest version.
            own = {n: new.tables[n] for n in self._parts[name].tables if n in new.tables and n not in pinned}
            left_out |= run.pin(replace(self._parts[name], cut=new.cut, tables=own)).left_out
            pinned |= own.keys()
        return replace(new, tables={n: t for n, t in new.tables.items() if n not in left_out}, left_out=left_out)


def _content(cut: Cut) -> object:
    """Return the part of a cut that readers see. Two cuts with equal parts need not both be published: an idle log
    whose clock has advanced is not a reason to publish."""
    places = {log_id: (part.name, part.cut, part.tables) for log_id, part in cut.logs.items()}
    return places, dict(cut.tables), dict(cut.left_out)


def _names(part: Cut) -> tuple[str, ...]:
    return tuple(sorted({*part.tables, *part.left_out}))


def held_text(report: SeveralReport) -> str:
    """Return a text that names the log that holds the cut back, and since when; "" if no log lags the others."""
    clocks = {name: clock for name, clock in report.clocks.items() if name not in report.without}
    slowest = report.held_back_by
    behind = max(clocks.values()) - clocks[slowest]
    if not clocks[slowest]:
        return f"nothing of log {slowest} is sealed yet, so no cut can show its tables"
    if not behind:
        return ""
    return f"log {slowest} limits the cut: it has reached {time_text(clocks[slowest])}, a lag of {behind / 1e6:.1f} s"
