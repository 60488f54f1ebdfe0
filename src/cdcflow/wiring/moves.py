"""Moves the configured log to the source at another address: a plan without changes, and the move itself.

    log opened, as its old source's ──▶ target: publication, slot ──▶ cut ──▶ log opened, as the target's
         no other process writes it                                    └ afterwards it is the target's

The cut is the only step that counts: before it the log continues at the old address, after it at the new one. A process
that was killed may have left a slot at the target; the same move replaces it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from cdcflow.capture import reread
from cdcflow.capture.interleave.progress import Progress
from cdcflow.capture.observations import OnEvent
from cdcflow.capture.ports.moves import Movable, MovePlan
from cdcflow.capture.ports.source import ShapeAsking, Source, TablePreview
from cdcflow.capture.start_position import move_position
from cdcflow.config import Config, MySQL, Postgres
from cdcflow.config.addresses import mysql_url, postgres_url
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table, TableId
from cdcflow.wiring.captures import open_source
from cdcflow.wiring.findings import control_findings
from cdcflow.wiring.logs import log_id, log_identity, log_reader, open_log
from cdcflow.wiring.plugged import lacking

Outcome = Literal["continues", "compared", "read", "added"]
"""What happens to a table. continues: nothing is missing; compared: it keeps its rows, and those that differ are
corrected; read: all of its rows are read again; added: it was not captured so far."""


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A plan of a move, with what happens to each table."""

    plan: MovePlan
    tables: tuple[tuple[TablePreview, Outcome], ...]


def settings_at(config: Config, url: str | None) -> Config:
    """Return the settings with this `source.url`, which is checked as if it were in the settings file. `url` `None`:
    return them unchanged."""
    settings = config.database
    if url is None:
        return config
    if not isinstance(settings, Postgres | MySQL):
        raise lacking(settings, "has no address that a log could move to", "set source.kind to a database's")
    try:
        address = (postgres_url if isinstance(settings, Postgres) else mysql_url)(url)
    except ValueError as error:
        raise ConfigurationError(f"--to: {error}", remedy="write it as source.url", runbook="settings") from None
    return config.model_copy(update={"source": settings.model_copy(update={"url": address})})


def plan_move(config: Config, *, compares: bool = False) -> PlannedMove:
    """Return the effects of moving the configured log to the configured source. Nothing is changed.

    Raises:
        ConfigurationError: the log can never continue there, or this kind of source cannot move.
    """
    reader, checkpoint = log_reader(config), _checkpoint(config)
    shapes = {table: list(found.values())[-1] for table, found in reader.table_shapes().items() if found}
    source = open_source(config)
    try:
        if isinstance(source, ShapeAsking):
            source.use_shapes(shapes.get)
        plan = _movable(source, config).plan_move(checkpoint, log_id(config), compares=compares)
        problems = [found for found in source.doctor() if found.level != "ok" and not found.at_first_start]
        plan = replace(plan, findings=(*plan.findings, *problems, *control_findings(config)))
    finally:
        source.close()
    return PlannedMove(plan, tuple((t, _outcome(plan, checkpoint, t, shapes.get)) for t in plan.tables))


def move(config: Config, on_event: OnEvent, *, compares: bool = False) -> Checkpoint:
    """Move the configured log to the configured source, and return its checkpoint there. Durable on return.

    Raises:
        ConfigurationError, SourceUnavailable: the log was not moved, and continues where it did before.
    """
    _checkpoint(config)
    source = open_source(config)
    try:
        _movable(source, config)
        log = open_log(config, log_identity(config))
        try:
            checkpoint = move_position(source, log, log.log_id, log.epoch, on_event, compares=compares)
        finally:
            log.close()
        # A kill before this leaves a log that no server fits, until the same move is run again.
        open_log(config, source.identity(), accept_moved=True, reopened=True).close()
        return checkpoint
    finally:
        source.close()


def _checkpoint(config: Config) -> Checkpoint:
    reader = log_reader(config)
    if not reader.exists():
        log_identity(config)
    return reader.newest_checkpoint()


def _movable(source: Source, config: Config) -> Movable:
    if not isinstance(source, Movable):
        kind = config.database.kind
        raise ConfigurationError(
            f"cdcflow cannot move a log of source.kind: {kind} to another server yet",
            remedy="set source.url together with another log.path: a new log reads all tables",
            runbook="move",
        )
    return source


def _outcome(
    plan: MovePlan, checkpoint: Checkpoint, table: TablePreview, logged: Callable[[TableId], Table | None]
) -> Outcome:
    known = Progress.from_json(checkpoint.progress).tables.get(table.id)
    if known is None or known.state == "forgotten":
        return "added"
    if plan.is_whole:
        return "continues"
    shape = table.shape
    if shape is None or not shape.key or not reread.is_whole(known):
        return "read"
    return "compared" if reread.is_comparable(known, shape, logged(table.id)) else "read"
