"""Sources, captures and what publishes their logs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from cdcflow.changelog import notes
from cdcflow.config import Config, FileLog, KafkaLog, Postgres, secret
from cdcflow.errors import ConfigurationError
from cdcflow.interleave.machine import Limits
from cdcflow.model.position import SourceIdentity
from cdcflow.pipeline import Capture
from cdcflow.pipeline.attempt import OnEvent, Orders, Pace
from cdcflow.pipeline.capture import OpenedLog
from cdcflow.ports import Source
from cdcflow.sources.postgres.source import PostgresSource
from cdcflow.wiring.logs import log_layout, log_reader, open_log, topics

if TYPE_CHECKING:
    from cdcflow.sinks.kafka.tables.publisher import Publisher
    from cdcflow.sinks.kafka.tables.tail import Tail


def open_source(config: Config) -> Source:
    """The configured source. Nothing is connected before it is asked something."""
    settings = config.source

    def password() -> str | None:
        return secret(settings.password)

    if isinstance(settings, Postgres):
        return PostgresSource(settings, password)
    # Here, so that who captures the one need not load the library of the other.
    from cdcflow.sources.mysql.source import MySQLSource

    return MySQLSource(settings, password)


def capture(
    config: Config,
    *,
    accept_history_loss: bool = False,
    backfill: Sequence[str] | None = None,
    once: bool = False,
    on_event: OnEvent | None = None,
) -> Capture:
    """A capture of the configured source into the configured log.

    `backfill` names tables to read anew (an empty one: all of them); None reads only tables that the log does not
    know yet. `once` ends when they are read. `accept_history_loss`: the source has discarded log that
    cdcflow still needs; take a new position in its log and read all tables anew.
    """
    opened = 0

    def open_again(identity: SourceIdentity, accepted: bool) -> OpenedLog:
        nonlocal opened
        log = open_log(config, identity, accept_history_loss=accepted, reopened=opened > 0)
        opened += 1
        return log

    return Capture(
        open_source=lambda: open_source(config),
        open_log=open_again,
        limits=limits(config, backfill_new=backfill is None),
        orders=Orders(
            backfill=None if backfill is None else tuple(backfill), once=once, accept_history_loss=accept_history_loss
        ),
        pace=Pace(heartbeat_s=config.source.heartbeat),
        on_event=on_event or log_event,
    )


def publisher(config: Config, on_event: OnEvent | None = None) -> Publisher:
    """What publishes the configured log to the topics of `publish.kafka`.

    Raises:
        ConfigurationError: `publish` is not set.
    """
    if config.publish is None:
        raise ConfigurationError(
            "publishing: the settings do not say where to", remedy="set publish.kafka (see docs/debezium.md)"
        )
    from cdcflow.sinks.kafka.tables.assembly import publisher_of

    tell = _noting(config, config.publish.kafka.topic_prefix, on_event or log_event)
    return publisher_of(config.publish.kafka, lambda: _tail(config), config.source.kind, tell)


def _noting(config: Config, prefix: str, on_event: OnEvent) -> OnEvent:
    """Events of a publisher, which also leave a note for the log's retention of how far it has come."""
    if not isinstance(config.log, FileLog):
        return on_event
    layout = log_layout(config.log)

    def tell(event: str, fields: Mapping[str, object]) -> None:
        if event in ("published", "publishing begun") and layout.is_home:
            offset = int(str(fields["offset"])) - (event == "publishing begun")
            with contextlib.suppress(OSError):  # without a note nothing expires, and retention says so
                notes.write(layout, notes.Note("publish", prefix, offset))
        on_event(event, fields)

    return tell


def _tail(config: Config) -> Tail | None:
    """The configured log as a publisher reads it, None while there is none."""
    from cdcflow.sinks.kafka.tables.file_tail import FileTail
    from cdcflow.sinks.kafka.tables.kafka_tail import KafkaTail

    if not log_reader(config).exists():
        return None
    match config.log:
        case FileLog() as log:
            return FileTail(log_layout(log))
        case KafkaLog(kafka=kafka):
            return KafkaTail(topics(kafka))


def limits(config: Config, *, backfill_new: bool) -> Limits:
    """The settings as the interleave machine takes them."""
    backfill = config.source.backfill
    return Limits(
        backfill_new=backfill_new,
        chunk_time_target_s=backfill.chunk_time_target_ms / 1000,
        chunk_time_live_s=backfill.chunk_time_live_ms / 1000,
        chunk_time_busy_s=backfill.chunk_time_busy_ms / 1000,
        chunk_rows_max=backfill.chunk_rows_max,
        rows_per_second_max=backfill.rows_per_second_max or 0,
        held_bytes_max=backfill.held_bytes_max,
    )


def log_event(event: str, fields: Mapping[str, object]) -> None:
    """One line of log for each thing that happened."""
    structlog.get_logger("cdcflow").info(event, **fields)
