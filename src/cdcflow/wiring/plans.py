"""Plan what a settings file will do, according to the log, the source and the warehouse, without changing any
of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.plan import Plan, Rates, Refusal, plan
from cdcflow.capture.ports.source import Preview
from cdcflow.config import Config, FileLog
from cdcflow.config.changes import changes, settings_as_text
from cdcflow.errors import CdcflowError, ConfigurationError, SinkUnavailable
from cdcflow.log.files.layout import UPLOADS, Layout
from cdcflow.log.maintenance.retention import is_here
from cdcflow.model.log_budget import LogLimit
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import TableId
from cdcflow.wiring.captures import open_source, rows_address
from cdcflow.wiring.logs import log_id, newest_checkpoint
from cdcflow.wiring.source_load import reading_calendar
from cdcflow.wiring.warehouses import is_merged_here, policies, warehouse


def plan_capture(
    config: Config,
    in_use: Mapping[str, str] | None = None,
    rates: Rates | None = None,
    limits: tuple[LogLimit, ...] | None = None,
) -> Plan:
    """Return the effects of this file. `in_use`: the settings that a daemon runs with, as `config.changes.shown`
    returns them; `None` if no daemon runs. `limits`: on the log that the source keeps; `None` if they are unknown.

    Raises:
        SourceUnavailable: the source cannot be queried.
    """
    settings = () if in_use is None else changes(in_use, settings_as_text(config))
    checkpoint = newest_checkpoint(config)
    progress = Progress.from_json(checkpoint.progress)
    preview: Preview | None = None
    refused: tuple[Refusal, ...] = _of_another_store(config)
    if not refused and not any(change.taken == "refused" for change in settings):
        preview, refused = _preview(config, checkpoint)
    tables = {*progress.tables, *(t.id for t in preview.tables)} if preview else progress.tables.keys()
    limit = config.database.backfill.rows_per_second_max or 0
    return plan(
        preview,
        progress,
        settings,
        refused,
        is_running=in_use is not None,
        rates=replace(rates or Rates(), rows_per_second_max=limit, calendar=reading_calendar(config)),
        merged=merged_tables(config, tables),
        limits=limits,
        rows_from=rows_address(config),
    )


def _of_another_store(config: Config) -> tuple[Refusal, ...]:
    """Return a refusal if sealed segments are in a different store than these settings name."""
    if not isinstance(config.log, FileLog) or not config.log.has_directory:
        return ()
    from cdcflow.sinks.objects.uploaded import Uploaded

    layout = Layout(config.log.path)
    objects, known = config.log.objects, Uploaded.read(layout)
    if known is None or (objects is not None and objects.url == known.url):
        return ()
    if objects is None and all(is_here(layout, bounds) for bounds in layout.segment_offsets()):
        return ()
    place = layout.segments if objects is None else objects.url
    what = f"{known.url}/segments" if objects is None else f"everything below {known.url}"
    return (
        Refusal(
            f"log.objects.url cannot become {'unset' if objects is None else objects.url}: sealed segments of this log"
            f" are in {known.url}, and a log whose segments are elsewhere cannot be read",
            f"set it back, or run `cdcflow ctl stop`, copy {what} to {place}, remove {layout.root / UPLOADS}, and start"
            " `cdcflow run`",
        ),
    )


def _preview(config: Config, checkpoint: Checkpoint) -> tuple[Preview | None, tuple[Refusal, ...]]:
    try:
        source = open_source(config)
    except ConfigurationError as error:
        return None, (_refusal(error),)
    try:
        return source.preview(checkpoint, log_id(config)), ()
    except ConfigurationError as error:
        return None, (_refusal(error),)
    finally:
        source.close()


def _refusal(error: ConfigurationError) -> Refusal:
    return Refusal(str(error).split("\n")[0], error.remedy or "")


def merged_tables(config: Config, tables: Iterable[TableId]) -> frozenset[TableId] | None:
    """Return those of these tables that have a current-state table; `None` if that is unknown: the warehouse is in a
    place that only Spark reaches, or its store does not answer."""
    from cdcflow.tables.local.warehouse_folder import open_folder
    from cdcflow.tables.paths import table_path

    place = warehouse(config)
    if not is_merged_here(config, place):
        return None
    try:
        folder = open_folder(place)
        routes = policies(config).routes
        return frozenset(t for t in tables if folder.folder(*table_path(routes.destination(t).table)).exists())
    except (ConfigurationError, SinkUnavailable):
        return None


def log_growth(config: Config, *, over_s: float = 1.0) -> float | None:
    """Return the current growth of the source's log in bytes per second; `None` if it cannot be queried, or has no
    position yet."""
    position = newest_checkpoint(config).position
    if position is None:
        return None
    try:
        source = open_source(config)
        try:
            began, first = time.monotonic(), source.status(position).lag_bytes
            time.sleep(over_s)
            seconds, last = time.monotonic() - began, source.status(position).lag_bytes
        finally:
            source.close()
    except CdcflowError:
        return None
    return None if first is None or last is None else max(last - first, 0) / seconds
