"""Creates sources, captures and the publisher of their logs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import structlog

from cdcflow.capture.attempt import LoopIntervals, Orders
from cdcflow.capture.capture import Capture
from cdcflow.capture.freshness import Freshness
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.observations import OnEvent
from cdcflow.capture.offline_audit import LateTraces
from cdcflow.capture.ports.control import ControlTable
from cdcflow.capture.ports.part_readers import Readers
from cdcflow.capture.ports.source import Source
from cdcflow.capture.settings import CaptureSettings, OwnedLog
from cdcflow.capture.shadow import Shadow
from cdcflow.capture.spans import OnSpan
from cdcflow.config import Config, FileLog, KafkaLog, MySQL, Postgres
from cdcflow.errors import ConfigurationError
from cdcflow.log.files import notes
from cdcflow.log.maintenance import state_files
from cdcflow.model.position import SourceIdentity
from cdcflow.sources.engine.passwords import secret_of
from cdcflow.sources.postgres.connection import Address
from cdcflow.sources.postgres.source import PostgresSource
from cdcflow.sources.privacy.key_file import KeyFile
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.sources.privacy.source import private_source
from cdcflow.sources.privacy.transform_counts import COUNTS
from cdcflow.wiring.leases import leadership, replaces_writer
from cdcflow.wiring.logs import log_layout, log_reader, newest_checkpoint, open_log, topics
from cdcflow.wiring.plugged import lacking, plugin_of
from cdcflow.wiring.source_load import governor, open_probe, reading_limits

if TYPE_CHECKING:
    from cdcflow.publish.publisher import Publisher
    from cdcflow.publish.tail import GrowingLog


READERS_TIME = 5
"""How many times as long as this process other processes may read at one chunk."""


def open_source(config: Config, readers: Readers | None = None) -> Source:
    """Return the configured source, whose chunks `readers` read, under the policies of `tables`. Connects at the first
    query.

    Raises:
        ConfigurationError: a policy's key does not exist, or is too short.
    """
    return private_source(_open_bare(config, readers), policy_rules(config))


def load_modules(config: Config) -> None:
    """Import what a capture with these settings imports at its first attempt.

    A standby does this while it waits: on a busy machine it takes longer than the rest of a takeover.
    """
    with contextlib.suppress(ImportError):  # the attempt explains what is not installed
        if isinstance(config.database, MySQL):
            from cdcflow.sources.mysql import source  # noqa: F401
        if isinstance(config.log, KafkaLog):
            from cdcflow.sinks.kafka import log, tier  # noqa: F401


def policy_rules(config: Config) -> PolicyRules:
    """Return the rules of `tables` for the configured source."""
    is_numbered = isinstance(config.database, Postgres)  # its attnum survives a rename
    return PolicyRules(config.tables, KeyFile(config.person_keys_file), follows_numbers=is_numbered)


def transform_counts() -> Mapping[str, Mapping[str, object]]:
    """Return what each stage of `tables` did to rows since this process was started: counts, by the stage's name."""
    return COUNTS.to_status()


def _open_bare(config: Config, readers: Readers | None) -> Source:
    settings = config.database
    if not isinstance(settings, Postgres | MySQL):
        return plugin_of(settings).open(settings)

    password = secret_of(settings.password)
    if isinstance(settings, Postgres):
        return PostgresSource(settings, password, readers=readers, replaces_reader=replaces_writer(config))
    # Imported here, so that a capture from one database does not load the library of the other.
    from cdcflow.sources.mysql.source import MySQLSource

    return MySQLSource(settings, password, readers=readers)


def control_table(config: Config) -> ControlTable | None:
    """Return the configured control table in the source, or None. Connects at the first query."""
    settings = config.database
    if not isinstance(settings, Postgres | MySQL) or settings.control_table is None:
        return None
    if isinstance(settings, Postgres):
        from cdcflow.sources.postgres import control as in_postgres

        return in_postgres.control_table(settings, secret_of(settings.password))
    from cdcflow.sources.mysql import control as in_mysql

    return in_mysql.control_table(settings, secret_of(settings.password))


def capture(
    config: Config,
    *,
    accept_history_loss: bool = False,
    keep_rows: bool = False,
    backfill: Sequence[str] | None = None,
    once: bool = False,
    wait: bool = True,
    asked_by: str = "this program",
    on_event: OnEvent | None = None,
    on_span: OnSpan | None = None,
    readers: Readers | None = None,
) -> Capture:
    """Return a capture of the configured source into the configured log.

    `backfill` names tables to read again (empty: all of them); None reads only tables that the log does not have yet.
    `once` ends the capture when they are read. `asked_by` is recorded as the issuer of the command.
    `accept_history_loss`: if the source has discarded log that cdcflow still needs, take a new position in its log and
    read all tables again; with `keep_rows` tables with a key are kept unchanged, as unverified until a comparison.
    `wait` False: fail if the source or the log is not reachable at the first attempt. `on_span` gets the duration of
    each cut and window. `readers` read chunks instead of this process.
    """
    settings = capture_settings(config, backfill_new=backfill is None, keep_rows=keep_rows, readers=readers)
    folder = config.log.folder
    return Capture(
        open_source=settings.open_source,
        open_log=settings.open_log,
        limits=settings.limits,
        orders=Orders(
            backfill=None if backfill is None else tuple(backfill),
            once=once,
            accept_history_loss=accept_history_loss,
            keep_rows=keep_rows,
            asked_by=asked_by,
        ),
        pace=settings.pace,
        releases=settings.releases,
        on_event=on_event or log_event,
        wait=wait,
        freshness=Freshness(config.service.freshness_every),
        shadow=Shadow(config.service.shadow_every, on_event or log_event),
        on_span=on_span,
        newest_checkpoint=lambda: newest_checkpoint(config),
        late=LateTraces(partial(state_files.of_late, folder), partial(state_files.write_late, folder)),
        governor=governor(config, on_event or log_event),
        leadership=leadership(config, on_event or log_event),
        prepare_takeover=partial(load_modules, config),
    )


def capture_settings(
    config: Config,
    *,
    backfill_new: bool = True,
    reopened: bool = False,
    keep_rows: bool = False,
    readers: Readers | None = None,
) -> CaptureSettings:
    """Return the settings that a capture uses. `reopened`: this process had the log open before. `keep_rows`: if the
    loss of history is accepted, the loss of the log's own rows is not."""
    opened = int(reopened)

    def open_again(identity: SourceIdentity, accepted: bool) -> OwnedLog:
        nonlocal opened
        log = open_log(
            config,
            identity,
            accept_history_loss=accepted,
            accept_rows_lost=accepted and not keep_rows,
            reopened=opened > 0,
            replaces=replaces_writer(config),
        )
        opened += 1
        return log

    return CaptureSettings(
        open_source=lambda: open_source(config, readers),
        open_log=open_again,
        limits=limits(config, backfill_new=backfill_new, readers=readers),
        pace=LoopIntervals(heartbeat_s=config.database.heartbeat),
        releases=releases(config),
        reading=reading_limits(config),
        open_probe=open_probe(config),
    )


def releases(config: Config) -> bool:
    """Whether the capture continues by itself after a gap in the source's log (`source.log_budget_then`)."""
    return isinstance(config.database, Postgres | MySQL) and config.database.releases


def addresses(config: Config) -> dict[str, str]:
    """Return the addresses that cdcflow connects to, for messages: the source, a log in Kafka, published topics. Never
    a secret."""
    found = {"source": _address_of(config)}
    if isinstance(config.log, KafkaLog):
        kafka = config.log.kafka
        user = f", user {kafka.username}" if kafka.username else ""
        found["log"] = f"brokers {kafka.brokers}, topic {kafka.topic}{user}"
    if config.publish is not None:
        topics = config.publish.kafka
        user = f", user {topics.username}" if topics.username else ""
        found["publish"] = f"brokers {topics.brokers}, topics {topics.topic_prefix}.*{user}"
    return found


def _address_of(config: Config, other_url: str = "") -> str:
    """Return the source's address, or that of another server that the source's settings name."""
    settings = config.database
    if not isinstance(settings, Postgres | MySQL):
        return plugin_of(settings).address(settings)
    through = "" if settings.ssh is None else f", through the SSH server {settings.ssh}"
    if isinstance(settings, Postgres):
        return f"{Address.parse(other_url or settings.url).parts}{through}"
    from cdcflow.sources.mysql.connection import Address as MySQLAddress

    return f"{MySQLAddress.parse(other_url or settings.url).parts}{through}"


def rows_address(config: Config) -> str:
    """Return the server that existing rows are read from, for messages; "" if it is that of `source.url`."""
    settings = config.database
    url = settings.backfill.url
    return "" if url is None else _address_of(config, url)


def publisher(config: Config, on_event: OnEvent | None = None) -> Publisher:
    """Return the publisher of the configured log to the topics of `publish.kafka`.

    Raises:
        ConfigurationError: `publish` is not set, or Debezium has no connector for the source.
    """
    if config.publish is None:
        raise ConfigurationError(
            "publishing: the settings name no target", remedy="set publish.kafka (see docs/debezium.md)"
        )
    if not isinstance(config.database, Postgres | MySQL):
        raise lacking(
            config.database,
            "has no connector of Debezium, so there are no messages to publish",
            "remove publish from the settings; programs read the log with `cdcflow consumer`",
        )
    from cdcflow.publish.assembly import publisher_of

    tell = _noting(config, config.publish.kafka.topic_prefix, on_event or log_event)
    return publisher_of(config.publish.kafka, lambda: _tail(config), config.database.kind, tell)


def _noting(config: Config, prefix: str, on_event: OnEvent) -> OnEvent:
    """Return an event handler for a publisher that also records its progress in a note for the log's retention."""
    if not isinstance(config.log, FileLog):
        return on_event
    layout = log_layout(config.log)

    def tell(event: str, fields: Mapping[str, object]) -> None:
        if event in ("published", "publishing begun") and layout.is_home:
            offset = int(str(fields["offset"])) - (event == "publishing begun")
            with contextlib.suppress(OSError):  # without a note nothing expires, and retention reports that
                notes.write(layout, notes.Note("publish", prefix, offset))
        on_event(event, fields)

    return tell


def _tail(config: Config) -> GrowingLog | None:
    """Return the configured log as a publisher reads it; `None` if there is no log yet."""
    from cdcflow.publish.file_tail import FileTail
    from cdcflow.publish.kafka_tail import KafkaTail

    if not log_reader(config).exists():
        return None
    match config.log:
        case FileLog() as log:
            return FileTail(log_layout(log))
        case KafkaLog(kafka=kafka):
            return KafkaTail(topics(kafka))


def limits(config: Config, *, backfill_new: bool, readers: Readers | None = None) -> Limits:
    """Return the settings as limits of the interleave machine. If `readers` read the chunks, a window costs this
    process the same however many rows they read, and none of its time. Chunks are larger then, and each reader holds as
    many rows in memory as this process otherwise would. Changes committed to other tables during such a window become
    durable later."""
    backfill = config.database.backfill
    at_once, longer = (1, 1) if readers is None else (readers.count, READERS_TIME)
    return Limits(
        backfill_new=backfill_new,
        chunk_time_target_s=backfill.chunk_time_target_ms * longer / 1000,
        chunk_time_live_s=(backfill.chunk_time_live_ms if readers is None else backfill.chunk_time_target_ms) / 1000,
        chunk_time_busy_s=backfill.chunk_time_busy_ms / 1000,
        chunk_rows_max=backfill.chunk_rows_max * at_once,
        rows_per_second_max=backfill.rows_per_second_max or 0,
        held_bytes_max=backfill.held_bytes_max,
    )


def log_event(event: str, fields: Mapping[str, object]) -> None:
    """Log one line for each event."""
    structlog.get_logger("cdcflow").info(event, **{key: value for key, value in fields.items() if value is not None})
