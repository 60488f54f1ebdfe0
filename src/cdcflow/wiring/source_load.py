"""Measure the load of the configured source, and keep its reading within the limits of `source.backfill`."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from cdcflow.capture.governor import Governor, OpenProbe
from cdcflow.capture.observations import OnEvent
from cdcflow.capture.ports.budgeted_log import BudgetedLog
from cdcflow.capture.ports.findings import Finding
from cdcflow.capture.ports.source_probe import SourceProbe
from cdcflow.capture.reading_calendar import ReadingCalendar
from cdcflow.config import Config, MySQL, Postgres
from cdcflow.log.maintenance.day_ledger import FileLedger
from cdcflow.model.log_budget import LogBudget
from cdcflow.model.source_load import Gauge, LoadLimits, ReadingLimits, SourceLoad
from cdcflow.sources.engine.passwords import secret_of
from cdcflow.wiring.log_budget import budget, budgeted_log
from cdcflow.wiring.logs import log_id

BUDGET_EVERY_S = 5.0
"""How often the log that the source keeps is measured: not more often, because a server lists files for that."""
SECOND_LOAD_S = 0.2


def governor(config: Config, tell: OnEvent) -> Governor:
    """Return the governor that keeps the reading of the configured source within its limits."""
    return Governor(reading_limits(config), open_probe(config), FileLedger(config.log.folder), tell)


def reading_limits(config: Config) -> ReadingLimits:
    """Return the limits on when and how existing rows of the configured source may be read."""
    reading = config.database.backfill.reading
    if not isinstance(config.database, Postgres | MySQL):
        return replace(reading, load=LoadLimits())
    if not budget(config):
        return replace(reading, load=replace(reading.load, log_budget_used=None))
    return reading


def reading_calendar(config: Config) -> ReadingCalendar | None:
    """Return the times when rows of the configured source may be read, beginning now; `None`: at any time."""
    limits = reading_limits(config)
    return ReadingCalendar(limits, datetime.now(UTC)) if limits.day or limits.hours is not None else None


def open_probe(config: Config) -> OpenProbe | None:
    """Return a function that opens the probe which measures the configured source; `None`: sources of this kind are not
    measured."""
    return partial(_probe, config) if isinstance(config.database, Postgres | MySQL) else None


def _probe(config: Config) -> SourceProbe:
    limits = reading_limits(config).load
    if limits.log_budget_used is None or (kept := budgeted_log(config)) is None:
        return _server_probe(config, limits)
    return BudgetProbe(_server_probe(config, limits), kept, budget(config))


def _server_probe(config: Config, limits: LoadLimits) -> SourceProbe:
    settings = config.database
    if isinstance(settings, Postgres):
        from cdcflow.sources.postgres import load as in_postgres

        return in_postgres.source_probe(settings, secret_of(settings.password), limits)
    assert isinstance(settings, MySQL)  # noqa: S101 - see `open_probe`
    # Imported here, so that a capture from one database does not load the library of the other.
    from cdcflow.sources.mysql import load as in_mysql
    from cdcflow.sources.mysql.source import slot_of

    return in_mysql.source_probe(settings, secret_of(settings.password), limits, slot_of(log_id(config)))


def reading_findings(config: Config) -> list[Finding]:
    """Return findings about whether everything with a limit in `source.backfill.limits` can be measured: a limit on
    something that cannot be measured holds every reading."""
    limits = reading_limits(config).load
    opens = open_probe(config)
    if opens is None or not limits.gauges:
        return []
    probe = opens()
    try:
        probe.load()  # some gauges need a second measurement
        time.sleep(SECOND_LOAD_S)
        found = probe.load()
    finally:
        probe.close()
    return [_finding(gauge, limits, found) for gauge in limits.gauges]


def _finding(gauge: Gauge, limits: LoadLimits, found: SourceLoad) -> Finding:
    subject, limit = f"source.backfill.limits.{gauge}", limits.of(gauge)
    if gauge not in found.values:
        why = found.unknown.get(gauge, "the server does not tell it")
        return Finding("error", subject, "cannot be measured, so no existing row would be read", why)
    return Finding("ok", subject, f"{found.values[gauge]:,.4g} now, the limit is {limit:,.4g}")


class BudgetProbe:
    """Implements `SourceProbe`: the server's load, and the used part of the budget for its log."""

    def __init__(self, server: SourceProbe, kept: BudgetedLog, limits: LogBudget) -> None:
        self._server = server
        self._kept = kept
        self._budget = limits
        self._used = 0.0
        self._due_at = 0.0

    def load(self) -> SourceLoad:
        if time.monotonic() >= self._due_at:
            kept = self._kept.measure()
            self._used = self._budget.tightest(kept.limit).share(kept)
            self._due_at = time.monotonic() + BUDGET_EVERY_S
        return self._server.load() | SourceLoad({"log_budget_used": self._used})

    def commit(self) -> float:
        return self._server.commit()

    def close(self) -> None:
        self._kept.close()
        self._server.close()
