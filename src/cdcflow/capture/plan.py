"""Predicts what changed settings will do, before they are applied: tables, settings, cost. Pure.

settings in use ─┐                       ┌─ tables: added, captured again, read again, excluded, unchanged
settings file ───┼─▶ settings.changes ──▶│  settings: how each is applied, or why it is refused
log's progress ──┤                       │  cost: rows and bytes to read, time, log that the source retains until then
source's preview ┘                       └─ warnings: where more is done than was requested
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from cdcflow.capture.interleave.progress import Progress, TableProgress
from cdcflow.capture.ports.source import Preview, TablePreview
from cdcflow.capture.reading_calendar import ReadingCalendar
from cdcflow.capture.reread import is_read_again
from cdcflow.config.changes import SettingChange
from cdcflow.model.log_budget import LogLimit
from cdcflow.model.table import TableId, word

Action = Literal["added", "captured again", "read again", "left out", "unchanged"]
POLICIES = "other policies for its columns"
SLOW_ROWS_PER_S = 10_000
"""A first backfill, whose speed is unknown, reads this many rows per second on a small machine."""
READS: tuple[Action, ...] = ("added", "captured again", "read again")


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What will happen to one table, and why. `rows`, `bytes`: estimates of how much of it is read (None: unknown).

    `merged`: it has a current-state table in the warehouse (None: unknown without Spark).
    """

    name: str
    action: Action
    why: str = ""
    rows: int | None = None
    bytes: int | None = None
    merged: bool | None = None

    @property
    def is_read(self) -> bool:
        return self.action in READS


@dataclass(frozen=True, slots=True)
class Refusal:
    """A setting that this log cannot continue with, and what to do about it."""

    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Rates:
    """Known rates, for estimates. None: unknown.

    `rows_per_second`: how fast backfills read recently. `rows_per_second_max`: the limit on that per table (0: no
    limit). `log_bytes_per_second`: how fast the source's log grows. `calendar`: when rows may be read (None: at any
    time).
    """

    rows_per_second: float | None = None
    rows_per_second_max: int = 0
    log_bytes_per_second: float | None = None
    calendar: ReadingCalendar | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimates of the cost of reading tables. None: unknown. `rows_at_least` and `bytes_at_least` are the known part
    of an unknown total."""

    rows: int | None
    bytes: int | None
    seconds: float | None
    log_bytes: int | None
    rows_at_least: int = 0
    bytes_at_least: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a settings file will do.

    `is_running`: a daemon applies it; otherwise the next `cdcflow run` does. `limits`: the limits on the log that the
    source keeps, if tables are read (None: unknown).
    """

    is_running: bool
    tables: tuple[TablePlan, ...]
    settings: tuple[SettingChange, ...]
    refused: tuple[Refusal, ...]
    warnings: tuple[str, ...]
    cost: Cost
    limits: tuple[LogLimit, ...] | None = None

    @property
    def has_changes(self) -> bool:
        return bool(self.settings or self.refused or any(t.action != "unchanged" for t in self.tables))

    @property
    def reads(self) -> tuple[TablePlan, ...]:
        """The tables that are read."""
        return tuple(t for t in self.tables if t.is_read)

    @property
    def ends_attempt(self) -> bool:
        """Whether the changes need a new attempt: the running one then ends at a cut, and the new one continues after
        it. Otherwise the running one applies all changes."""
        return any(c.taken == "next cut" for c in self.settings)

    def to_json(self) -> dict[str, object]:
        return {"changes": self.has_changes, **asdict(self)}


def plan(
    preview: Preview | None,
    progress: Progress,
    settings: Sequence[SettingChange],
    refused: Sequence[Refusal] = (),
    *,
    is_running: bool,
    rates: Rates | None = None,
    merged: Collection[TableId] | None = None,
    limits: tuple[LogLimit, ...] | None = None,
    rows_from: str = "",
) -> Plan:
    """Compute what will happen.

    `preview`: None if the source refuses the settings. `merged`: the tables with a current-state table; None: unknown.
    `rows_from`: the server that rows are read from, if changes are captured elsewhere.
    """
    rates = rates or Rates()
    tables = () if preview is None else tuple(_tables(preview, progress, merged))
    costs = cost([t for t in tables if t.is_read], rates)
    return Plan(
        is_running,
        tables,
        tuple(settings),
        (*refused, *(Refusal(_refusal_text(c), c.remedy) for c in settings if c.taken == "refused")),
        (
            *_warnings(tables, settings, is_running=is_running),
            *_hours_warnings(tables, rates.calendar),
            *_rows_from(tables, rows_from),
            *_lacking(preview, progress, tables),
            *_left_out(preview),
            *_outlasting(costs, limits or ()),
        ),
        costs,
        limits,
    )


def cost(tables: Sequence[TablePlan], rates: Rates) -> Cost:
    """Estimate the cost of reading these tables."""
    rows, size = _total([t.rows for t in tables]), _total([t.bytes for t in tables])
    at_least = sum(t.rows or 0 for t in tables), sum(t.bytes or 0 for t in tables)
    seconds = None if rows is None else _seconds(rows, [t.rows or 0 for t in tables], rates)
    if seconds and rates.calendar is not None:
        seconds = rates.calendar.elapsed_s(seconds, rows or 0, size)
    growth = rates.log_bytes_per_second
    kept = None if seconds is None or growth is None else int(seconds * growth)
    return Cost(rows, size, seconds, kept, *at_least)


def _seconds(rows: int, each: Sequence[int], rates: Rates) -> float | None:
    if not rows:
        return 0.0
    limit = rates.rows_per_second_max
    # Tables are read concurrently, and the limit is per table, so the largest table bounds the time from below.
    at_least = max(each) / limit if limit else 0.0
    if rates.rows_per_second:
        return max(rows / rates.rows_per_second, at_least)
    return None


def _total(counts: Sequence[int | None]) -> int | None:
    known = [c for c in counts if c is not None]
    return sum(known) if len(known) == len(counts) else None


def _tables(preview: Preview, progress: Progress, merged: Collection[TableId] | None) -> list[TablePlan]:
    found = [_plan_of_captured(table, progress.tables.get(table.id), merged) for table in preview.tables]
    there = {table.id for table in preview.tables}
    for table, known in progress.tables.items():
        if table not in there and known.state != "forgotten":
            why = "can no longer be captured" if table in preview.left_out else "no longer selected, or no longer there"
            found.append(TablePlan(str(table), "left out", why, merged=_is_merged(table, merged)))
    return sorted(found, key=lambda t: t.name)


def _plan_of_captured(
    table: TablePreview, known: TableProgress | None, merged: Collection[TableId] | None
) -> TablePlan:
    action, why = _action(table, known)
    size = (table.rows, table.bytes) if action in READS else (None, None)
    return TablePlan(str(table.id), action, why, *size, merged=_is_merged(table.id, merged))


def _action(table: TablePreview, known: TableProgress | None) -> tuple[Action, str]:
    if known is None:
        return "added", "the log has no rows of it"
    if known.state == "forgotten":
        return "captured again", "changes made while it was not captured are not in the log"
    if known.incarnation != table.incarnation:
        return "read again", "it is now another table with the same name"
    if table.reread and is_read_again(known):
        return "read again", table.reread
    if table.policies and is_read_again(known):
        return "read again", f"{POLICIES} ({table.policies})"
    if table.retried and known.state == "failed":
        return "read again", f"its reading failed with other settings ({table.retried})"
    return "unchanged", ""


def _is_merged(table: TableId, merged: Collection[TableId] | None) -> bool | None:
    return None if merged is None else table in merged


def _refusal_text(change: SettingChange) -> str:
    return f"{change.name} cannot become {change.now or 'unset'}: {change.why}"


def _warnings(tables: Sequence[TablePlan], settings: Sequence[SettingChange], *, is_running: bool) -> list[str]:
    found = []
    for table in tables:
        if table.action == "read again":
            found.append(f"{table.name}: the whole table is read again, with all columns")
            if table.why.startswith(POLICIES):
                found.append(
                    f"{table.name}: rows that are in the log already keep their values until the log expires them "
                    "(log.retention); a dropped column keeps its values in the current-state table, and one "
                    "whose type changes makes that table stop: docs/columns.md"
                )
            if " as " in f" {table.why} " and table.merged is not False:
                found.append(
                    f"{table.name}: the type of a column changes, and a current-state table cannot follow that: "
                    f"move the table's folder away in the warehouse when it is read, then run `cdcflow merge`"
                )
        if table.action == "left out":
            found.append(f"{table.name}: its rows in the log stay; if you select it again later, it is read again")
            if table.merged is not False:
                found.append(f"{table.name}: its current-state table remains, and gets no more changes")
    if any(c.name == "source.url" for c in settings):
        found.append("source.url: the server is compared with the log before the capture continues there")
    for waiting in (c for c in settings if c.taken == "restart" and is_running):
        why = f" ({waiting.why})" if waiting.why else ""
        remedy = f"; {waiting.remedy}" if waiting.remedy else ""
        found.append(f"{waiting.name}: in effect only when the daemon is started again{why}{remedy}")
    return found


def _hours_warnings(tables: Sequence[TablePlan], calendar: ReadingCalendar | None) -> Iterator[str]:
    if calendar is not None and calendar.begins_at is not None and any(t.is_read for t in tables):
        yield f"rows are not read before {calendar.begins_at.isoformat(timespec='minutes')}: source.backfill.hours"


def _rows_from(tables: Sequence[TablePlan], server: str) -> Iterator[str]:
    if server and any(t.is_read for t in tables):
        yield f"rows are read from {server}: source.backfill.url"


def _lacking(preview: Preview | None, progress: Progress, tables: Sequence[TablePlan]) -> Iterator[str]:
    """Return warnings about tables that the plan does not read: those that lack changes already, and those that will
    lack changes because the settings do not fit them."""
    read = {table.name for table in tables if table.is_read}
    for table, known in progress.tables.items():
        if known.lacks_changes and known.gap is not None and str(table) not in read:
            since = known.gap.before.partition(";")[0]
            until = f"you run `cdcflow backfill {word(table)}`"
            if known.is_refused:
                until = f"it can be captured again: {known.reason}"
            yield f"{table}: its changes are missing since {since}, until {until}"
    for found in () if preview is None else preview.tables:
        known_now = progress.tables.get(found.id)
        if found.refused and not (known_now is not None and known_now.is_refused):
            yield f"{found.id}: it fails, because it cannot be captured now: {found.refused}"
        if found.misfit and str(found.id) not in read:
            yield f"{found.id}: the settings do not fit it, and it fails with its next changes: {found.misfit}"


def _outlasting(costs: Cost, limits: Sequence[LogLimit]) -> Iterator[str]:
    """Return warnings about limits on the source's log that are shorter, or may be, than reading the tables takes."""
    for limit in limits:
        if limit.age_s and costs.seconds is not None and costs.seconds > limit.age_s:
            yield _too_short(limit, f"reading the tables takes about {_hours(costs.seconds)}", _hours(limit.age_s))
        elif limit.bytes and costs.log_bytes is not None and costs.log_bytes > limit.bytes:
            what = f"the source writes about {_gigabytes(costs.log_bytes)} of log while the tables are read"
            yield _too_short(limit, what, _gigabytes(limit.bytes))
        elif limit.age_s and costs.seconds is None and costs.rows_at_least > SLOW_ROWS_PER_S * limit.age_s:
            rate = f"{costs.rows_at_least / limit.age_s:,.0f} rows a second"
            yield _too_short(limit, f"reading the tables takes longer than that below {rate}", _hours(limit.age_s))


def _too_short(limit: LogLimit, what: str, kept: str) -> str:
    return (
        f"{what}, and the source keeps its log for {kept} at most ({limit.name}): if the capture is stopped or falls "
        f"behind by that much in the meantime, changes are lost and the tables are read again; raise {limit.name} first"
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _left_out(preview: Preview | None) -> list[str]:
    names = () if preview is None else preview.left_out
    return [f"{t}: selected, but it cannot be captured (`cdcflow doctor` shows why)" for t in names]
