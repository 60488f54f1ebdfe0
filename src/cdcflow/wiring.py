"""Where concrete sources, sinks and the pipeline meet: the only place that knows all of them.

The commands, the demo and a program that embeds cdcflow begin here with a `Config`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from cdcflow.changelog.checking import Fault
from cdcflow.changelog.folder import FolderReader
from cdcflow.changelog.layout import Layout
from cdcflow.config import Config, FileLog, Kafka, KafkaLog, Objects, Postgres, StoreAccess, is_reference, secret
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.interleave.machine import Limits
from cdcflow.model.position import SourceIdentity
from cdcflow.pipeline import Capture
from cdcflow.pipeline.attempt import OnEvent, Orders, Pace
from cdcflow.pipeline.capture import OpenedLog
from cdcflow.ports import Finding, LogReader, Source, Tier
from cdcflow.sinks import files
from cdcflow.sinks.retention import Retention
from cdcflow.sources.postgres.source import PostgresSource

if TYPE_CHECKING:  # who only captures need not load Kafka's library
    from cdcflow.sinks.kafka.copying import Copied
    from cdcflow.sinks.kafka.tables.publisher import Publisher
    from cdcflow.sinks.kafka.tables.tail import Tail
    from cdcflow.sinks.kafka.topics import Topics
    from cdcflow.sinks.objects.bucket import Bucket
    from cdcflow.sinks.objects.store import BucketStore
    from cdcflow.warehouse.job import Engines
    from cdcflow.warehouse.paths import Warehouse


HISTORY_CACHE_BYTES_MAX = 1 << 30
"""So much of what was read from a history in a store is kept on this machine."""


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


def open_log(
    config: Config, identity: SourceIdentity, *, accept_history_loss: bool = False, reopened: bool = False
) -> OpenedLog:
    """The configured log, opened for writing. `reopened`: not for the first time by this process."""
    # A slot that failovers carry over comes to a new timeline with them. Whether it did, and whether the old timeline
    # was left behind our position, is looked at where the server can be asked: in the source's `prepare`.
    accept_timeline = accept_history_loss or (isinstance(config.source, Postgres) and config.source.failover)
    match config.log:
        case FileLog() as log:
            return files.FileLog.open(
                log_layout(log), identity, log.seal, accept_timeline=accept_timeline, uploads=_uploads(log)
            )
        case KafkaLog():
            # Here, so that who writes files need not load the client library.
            from cdcflow.sinks.kafka.log import KafkaLog as Opened

            scratch = config.log.folder / "spool"
            return Opened.open(
                topics(config.log.kafka),
                identity,
                accept_timeline=accept_timeline,
                accept_loss=accept_history_loss,
                reopened=reopened,
                scratch=scratch,
                folder=config.log.folder,
                history=history_layout(config.log),
            )


def log_reader(config: Config) -> LogReader:
    """The configured log, for whoever only reads it. It need not be there yet."""
    match config.log:
        case FileLog() as log:
            return FolderReader(log_layout(log))
        case KafkaLog():
            from cdcflow.sinks.kafka.tiering import TieredReader

            return TieredReader(topics(config.log.kafka), history_layout(config.log))


def engines(config: Config, spark: Any = None) -> Engines:
    """What merges into the configured warehouse. Spark is started when it is first needed, if `spark` is not a session
    that is there already.

    Raises:
        ConfigurationError: the warehouse has tables of another format, or what the engine needs is not installed.
    """
    # Here, so that who captures need not load what merges.
    from cdcflow import local
    from cdcflow.spark.engine import SparkEngine
    from cdcflow.spark.session import session_for
    from cdcflow.warehouse.formats import format_for
    from cdcflow.warehouse.job import Engines

    settings, place = config.merge, warehouse(config)
    chosen = format_for(place, settings.format)

    def begin() -> SparkEngine:
        return SparkEngine(spark or session_for(config), place, chosen)

    if settings.engine == "local":
        return Engines(local.local_engine(place.folder, chosen), remedy=local.NEEDS_SPARK)
    is_folder = place.is_local and settings.catalog is None
    if settings.engine == "auto" and is_folder and local.is_installed(chosen):
        return Engines(local.local_engine(place.folder, chosen, bounded=True), begin)
    return Engines(begin())


def warehouse(config: Config) -> Warehouse:
    """The configured warehouse, with what it takes to reach it."""
    from cdcflow.warehouse.paths import Metastore, Warehouse

    settings = config.merge
    found = Warehouse.of(settings.warehouse)
    catalog = None
    if settings.catalog is not None and settings.format == "iceberg":
        catalog = {k: secret(v) or "" if is_reference(v) else v for k, v in settings.catalog.items()}
    bucket = found.bucket
    store = None if settings.objects is None or bucket is None else settings.objects.address(bucket)
    return replace(found, store=store, catalog=catalog, metastore=Metastore.configured(settings))


def merge_layout(log: FileLog, master: str | None) -> Layout:
    """A log in files, as a merge by this Spark master reads it. Executors on other machines have nothing of this one's
    disk: for them a log with an object store is what the store has of it."""
    layout = log_layout(log)
    if layout.store is None or master is None or master.startswith("local"):
        return layout
    return replace(layout, root=layout.store.room)


def log_layout(log: FileLog) -> Layout:
    """Where a log in files is: its directory, and the object store its segments go to."""
    return Layout(log.path) if log.objects is None else Layout(log.path, _store(log, log.objects))


def history_layout(log: KafkaLog) -> Layout:
    """Where the history of a log in Kafka is: its folder, or an object store."""
    if log.history_url is None:
        return Layout(log.history)
    bucket = _history_bucket(log)
    from cdcflow.sinks.objects.store import BucketStore

    return Layout(log.history, BucketStore(bucket, log.history, HISTORY_CACHE_BYTES_MAX))


def _history_bucket(log: KafkaLog) -> Bucket:
    with _client_library("log.kafka.history"):
        from cdcflow.sinks.objects.bucket import Bucket
        from cdcflow.sinks.objects.sealing import NAMES
    access = log.kafka.objects or StoreAccess()
    return Bucket.at(str(log.history_url), access.address, NAMES)


def _store(log: FileLog, objects: Objects) -> BucketStore:
    with _client_library():
        from cdcflow.sinks.objects.bucket import Bucket
        from cdcflow.sinks.objects.store import BucketStore
    cache = objects.cache or (log.path / "cache" if log.has_directory else log.path)
    return BucketStore(Bucket(objects), cache, objects.cache_bytes_max)


def retention(config: Config, *, grace_s: float) -> Retention:
    """Who compacts and expires the configured log's segments."""
    log = config.log
    if isinstance(log, KafkaLog):
        raise ConfigurationError(
            f"the log is in Kafka (topic {log.kafka.topic}), and only a log in files is compacted or expired",
            remedy="set the topic's retention.ms or retention.bytes: the brokers remove what is older",
        )
    layout = log_layout(log)
    if log.objects is None:
        return Retention(layout, grace_s=grace_s)
    with _client_library():
        from cdcflow.sinks.objects.bucket import Bucket
        from cdcflow.sinks.objects.remote import RemoteBucket
    return Retention(layout, RemoteBucket(Bucket(log.objects)), grace_s=grace_s)


def upload_status(config: Config) -> dict[str, object]:
    """What waits to be put into the store; {} where there is none."""
    if isinstance(config.log, KafkaLog) or config.log.objects is None:
        return {}
    layout = Layout(config.log.path)
    if not layout.log_json.exists():
        return {}
    from cdcflow.sinks.objects.uploaded import status

    return dict(status(layout, config.log.objects.url))


def log_problem(config: Config) -> str | None:
    """Why a daemon would not start on the configured log in Kafka; None: nothing is known, or the log is in files."""
    if not isinstance(config.log, KafkaLog):
        return None
    from cdcflow.sinks.kafka import loss

    return loss.problem(topics(config.log.kafka), config.log.folder, history_layout(config.log))


def _uploads(log: FileLog) -> files.Uploading | None:
    if log.objects is None:
        return None
    if not log.has_directory:
        raise ConfigurationError(
            "capturing into an object store: log.path is missing, a directory on a local disk for the log's hot end",
            remedy="set log.path beside log.objects",
        )
    with _client_library():
        from cdcflow.sinks.objects.bucket import Bucket
        from cdcflow.sinks.objects.uploads import Uploads
    bucket = Bucket(log.objects)
    return Uploads(Layout(log.path), bucket, keep_local_s=log.objects.keep_local, cached=_store(log, log.objects).copy)


@contextlib.contextmanager
def _client_library(setting: str = "log.objects") -> Iterator[None]:
    """Who needs no object store need not have its client library."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "obstore":
            raise
        raise ConfigurationError(
            f"opening the object store of {setting}: the package obstore is not installed",
            remedy="pip install 'cdcflow[objects]'",
        ) from None


def tier(config: Config) -> Tier:
    """The configured log in Kafka with its history, for the merge.

    Raises:
        ConfigurationError: the log is not in Kafka.
    """
    if not isinstance(config.log, KafkaLog):
        raise ConfigurationError("the log is not in Kafka", remedy="merge the folder that log.path names")
    from cdcflow.sinks.kafka.tiering import KafkaTier

    layout = history_layout(config.log)
    if layout.store is None:
        return KafkaTier(topics(config.log.kafka), layout)
    from cdcflow.sinks.objects.history import StoredHistory

    opening = partial(StoredHistory.open, layout, _history_bucket(config.log))
    return KafkaTier(topics(config.log.kafka), layout, open_history=opening)


def copy_log(config: Config, target: Config, on_segment: Callable[[int, int], None]) -> Copied:
    """Copy the one's log into the other's, from a folder into a topic or back. Only the logs of the settings count.

    Raises:
        ConfigurationError: both are of one kind.
    """
    from cdcflow.sinks.kafka import copying

    match config.log, target.log:
        case FileLog() as original, KafkaLog() as log:
            layout = log_layout(original)
            if not layout.exists():
                raise ConfigurationError(f"there is no change log at {layout.name}", remedy="mend log in the settings")
            return copying.to_topic(layout, topics(log.kafka), on_segment, scratch=log.folder / "spool")
        case KafkaLog() as log, FileLog(objects=None, path=path):
            return copying.to_folder(topics(log.kafka), path, on_segment)
        case KafkaLog(), FileLog():
            raise ConfigurationError(
                "the copy's settings name an object store, and a log is copied into a directory",
                remedy="remove log.objects for the copy; a daemon that goes on with it puts its segments there",
            )
        case FileLog(), FileLog():
            raise ConfigurationError(
                "both logs are in files", remedy="stop the daemon, and copy the directory with the system's own means"
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

    return publisher_of(config.publish.kafka, lambda: _tail(config), config.source.kind, on_event or log_event)


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


def doctor(config: Config) -> list[Finding]:
    """What stands in the way of a capture, with the remedy of each finding."""
    of_log = _log_findings(config)
    source = open_source(config)
    try:
        found = list(source.doctor())
        # Brokers that did not answer, of which that is all there is to say, are not waited for a second time.
        if not (isinstance(config.log, KafkaLog) and [f.level for f in of_log] == ["error"]):
            with contextlib.suppress(CdcflowError):  # what cannot be reached has a finding of its own by now
                found += source.left_behind(_log_id(config))
    finally:
        source.close()
    return [*found, *of_log]


def _log_findings(config: Config) -> list[Finding]:
    """What stands in the log's own way."""
    if isinstance(config.log, KafkaLog):
        from cdcflow.sinks.kafka.doctor import doctor as log_doctor

        found = log_doctor(topics(config.log.kafka), config.log.folder, history_layout(config.log))
        return [*found, *_history_findings(config.log)]
    if config.log.objects is None:
        return []
    with _client_library():
        from cdcflow.sinks.objects.bucket import Bucket
        from cdcflow.sinks.objects.doctor import doctor as store_doctor
    copy = _store(config.log, config.log.objects).copy
    return list(store_doctor(Bucket(config.log.objects), Layout(config.log.path), copy))


def _history_findings(log: KafkaLog) -> list[Finding]:
    """What the store of a history says, if it is in one."""
    if log.history_url is None:
        return []
    bucket = _history_bucket(log)
    from cdcflow.sinks.objects.doctor import doctor as store_doctor

    return store_doctor(bucket, Layout(log.history), lambda segment, file: None)


def store_faults(config: Config) -> list[Fault]:
    """What the object store has lost of the log and this machine still has; [] where there is none."""
    if isinstance(config.log, KafkaLog) or config.log.objects is None or not Layout(config.log.path).log_json.exists():
        return []
    with _client_library():
        from cdcflow.sinks.objects.bucket import Bucket
        from cdcflow.sinks.objects.doctor import faults
    copy = _store(config.log, config.log.objects).copy
    return faults(Bucket(config.log.objects), Layout(config.log.path), copy)


def _log_id(config: Config) -> str:
    """The id of the log that the settings name; "" where there is none yet."""
    if isinstance(config.log, KafkaLog):
        from cdcflow.sinks.kafka.frames import read_state

        return read_state(topics(config.log.kafka)).log_id
    layout = Layout(config.log.path)
    return layout.log_file().log_id if layout.log_json.exists() else ""


def log_event(event: str, fields: Mapping[str, object]) -> None:
    """One line of log for each thing that happened."""
    structlog.get_logger("cdcflow").info(event, **fields)
