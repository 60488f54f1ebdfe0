"""Where concrete sources, sinks and the pipeline meet: the only place that knows all of them.

The commands, the demo and a program that embeds cdcflow begin here with a `Config`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from cdcflow.changelog.folder import FolderReader
from cdcflow.changelog.layout import Layout
from cdcflow.config import Config, FileLog, Kafka, KafkaLog, Postgres, is_reference, secret
from cdcflow.errors import ConfigurationError
from cdcflow.interleave.machine import Limits
from cdcflow.model.position import SourceIdentity
from cdcflow.pipeline import Capture
from cdcflow.pipeline.attempt import OnEvent, Orders, Pace
from cdcflow.pipeline.capture import OpenedLog
from cdcflow.ports import Finding, LogReader, Source, Tier
from cdcflow.sinks import files
from cdcflow.sources.postgres.source import PostgresSource

if TYPE_CHECKING:
    from cdcflow.sinks.kafka.copying import Copied
    from cdcflow.sinks.kafka.topics import Topics


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


def open_log(config: Config, identity: SourceIdentity, *, accept_timeline: bool = False) -> OpenedLog:
    """The configured log, opened for writing."""
    match config.log:
        case FileLog(path=path, seal=seal):
            return files.FileLog.open(path, identity, seal, accept_timeline=accept_timeline)
        case KafkaLog():
            # Here, so that who writes files need not load the client library.
            from cdcflow.sinks.kafka.log import KafkaLog as Opened

            scratch = config.log.folder / "spool"
            return Opened.open(topics(config.log.kafka), identity, accept_timeline=accept_timeline, scratch=scratch)


def log_reader(config: Config) -> LogReader:
    """The configured log, for whoever only reads it. It need not be there yet."""
    match config.log:
        case FileLog(path=path):
            return FolderReader(path)
        case KafkaLog():
            from cdcflow.sinks.kafka.reading import KafkaReader
            from cdcflow.sinks.kafka.tiering import TieredReader

            if Layout(config.log.history).log_json.exists():
                return TieredReader(topics(config.log.kafka), config.log.history)
            return KafkaReader(topics(config.log.kafka))


def tier(config: Config) -> Tier:
    """The configured log in Kafka with the folder of its history, for the merge.

    Raises:
        ConfigurationError: the log is not in Kafka.
    """
    if not isinstance(config.log, KafkaLog):
        raise ConfigurationError("the log is not in Kafka", remedy="merge the folder that log.path names")
    from cdcflow.sinks.kafka.tiering import KafkaTier

    return KafkaTier(topics(config.log.kafka), config.log.history)


def copy_log(config: Config, target: Config, on_segment: Callable[[int, int], None]) -> Copied:
    """Copy the one's log into the other's, from a folder into a topic or back. Only the logs of the settings count.

    Raises:
        ConfigurationError: both are of one kind.
    """
    from cdcflow.sinks.kafka import copying

    match config.log, target.log:
        case FileLog(path=path), KafkaLog() as log:
            if not Layout(path).log_json.exists():
                raise ConfigurationError(f"there is no change log at {path}", remedy="mend log.path in the settings")
            return copying.to_topic(path, topics(log.kafka), on_segment, scratch=log.folder / "spool")
        case KafkaLog() as log, FileLog(path=path):
            return copying.to_folder(topics(log.kafka), path, on_segment)
        case FileLog(), FileLog():
            raise ConfigurationError(
                "both logs are folders", remedy="stop the daemon, and copy the folder with the system's own means"
            )
        case _:
            raise ConfigurationError(
                "both logs are in Kafka, and places in one topic mean nothing in another",
                remedy="copy into a folder, then from there into the other topic",
            )


def topics(settings: Kafka) -> Topics:
    """Where the configured log in Kafka is, with its secrets as they are now."""
    from cdcflow.sinks.kafka.topics import Topics

    options = {k: secret(v) or "" if is_reference(v) else v for k, v in settings.options.items()}
    if settings.username is not None:
        options |= {"sasl.username": settings.username, "sasl.password": secret(settings.password) or ""}
    return Topics(
        settings.brokers,
        settings.topic,
        options,
        message_bytes=settings.message_bytes,
        replicas=settings.replicas,
    )


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
    know yet. `once` ends when they are read. `accept_history_loss` is an operator's word that the source's log may
    have a hole; all tables are read anew then.
    """

    return Capture(
        open_source=lambda: open_source(config),
        open_log=lambda identity, accept_timeline: open_log(config, identity, accept_timeline=accept_timeline),
        limits=limits(config, backfill_new=backfill is None),
        orders=Orders(
            backfill=None if backfill is None else tuple(backfill), once=once, accept_history_loss=accept_history_loss
        ),
        pace=Pace(heartbeat_s=config.source.heartbeat),
        on_event=on_event or log_event,
    )


def limits(config: Config, *, backfill_new: bool) -> Limits:
    """The settings as the interleave machine takes them."""
    backfill = config.source.backfill
    return Limits(
        backfill_new=backfill_new,
        chunk_time_target_s=backfill.chunk_time_target_ms / 1000,
        chunk_time_busy_s=backfill.chunk_time_busy_ms / 1000,
        chunk_rows_max=backfill.chunk_rows_max,
        rows_per_second_max=backfill.rows_per_second_max or 0,
        held_bytes_max=backfill.held_bytes_max,
    )


def doctor(config: Config) -> list[Finding]:
    """What stands in the way of a capture, with the remedy of each finding."""
    source = open_source(config)
    try:
        found = list(source.doctor())
    finally:
        source.close()
    if isinstance(config.log, KafkaLog):
        from cdcflow.sinks.kafka.doctor import doctor as log_doctor

        found += log_doctor(topics(config.log.kafka))
    return found


def log_event(event: str, fields: Mapping[str, object]) -> None:
    """One line of log for each thing that happened."""
    structlog.get_logger("cdcflow").info(event, **fields)
