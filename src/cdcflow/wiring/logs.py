"""Creates change logs: in a folder, in an object store, in Kafka."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

from cdcflow.capture.ports.findings import Finding
from cdcflow.capture.settings import OwnedLog
from cdcflow.config import Config, FileLog, Kafka, KafkaLog, Objects, Postgres, StoreAccess, is_reference, load, secret
from cdcflow.config.logs import TOPIC_EXPIRES
from cdcflow.errors import ConfigurationError
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.notes import warehouse_name
from cdcflow.log.maintenance.background import OnEvent
from cdcflow.log.maintenance.background_compaction import BackgroundCompaction
from cdcflow.log.maintenance.expiry import Expiring, ExpiryPolicy
from cdcflow.log.maintenance.index import BackgroundIndexing
from cdcflow.log.maintenance.retention import LogRetention
from cdcflow.log.read.folder import FolderReader
from cdcflow.log.read.log_reader import LogReader
from cdcflow.log.workers import HERE, Workers
from cdcflow.model.position import Checkpoint, SourceIdentity
from cdcflow.sinks.files import log as files
from cdcflow.sinks.files.uploader import Uploading

if TYPE_CHECKING:  # a process that only captures does not load Kafka's library
    from cdcflow.log.maintenance.snapshots_before_expiry import Keeping
    from cdcflow.log.query.log import ChangeLog
    from cdcflow.sinks.kafka.copies import Copied
    from cdcflow.sinks.kafka.topics import Topics
    from cdcflow.sinks.objects.remote import RemoteBucket
    from cdcflow.sinks.objects.store import BucketStore
    from cdcflow.sinks.quorum.takeover import ReplicatedJournals
    from cdcflow.stores.bucket import Bucket


HISTORY_CACHE_BYTES_MAX = 1 << 30
"""How many bytes read from a history in a store are cached on this machine."""


def open_log(
    config: Config,
    identity: SourceIdentity,
    *,
    accept_history_loss: bool = False,
    accept_rows_lost: bool | None = None,
    accept_moved: bool = False,
    reopened: bool = False,
    replaces: bool = False,
) -> OwnedLog:
    """Return the configured log, opened for writing. `accept_rows_lost`: also if rows of the log itself are missing
    (`None`: as `accept_history_loss`). `accept_moved`: the log was moved to the source of this identity, and records
    that now. `reopened`: this process had the log open before. `replaces`: take it from a process that still has it
    open; a log in Kafka always is."""
    # A slot that follows failovers, or is on a standby, moves to a new timeline. The source's `prepare`, which can
    # query the server, checks if the old timeline ended after cdcflow's position, and if a renamed database fits.
    accept_renamed = isinstance(config.source, Postgres)
    accept_timeline = accept_history_loss or accept_renamed
    match config.log:
        case FileLog() as log:
            return files.FileLog.open(
                log_layout(log),
                identity,
                log.seal,
                accept_timeline=accept_timeline,
                accept_renamed=accept_renamed,
                accept_replaced=accept_history_loss,
                accept_moved=accept_moved,
                uploads=_uploads(log),
                replication=_replication(log, was_open=reopened and not replaces),
                replaces=replaces,
            )
        case KafkaLog():
            # Imported here, so that a process that writes files does not load the client library.
            from cdcflow.sinks.kafka.log import KafkaLog as Opened

            scratch = config.log.folder / "spool"
            return Opened.open(
                topics(config.log.kafka),
                identity,
                accept_timeline=accept_timeline,
                accept_renamed=accept_renamed,
                accept_replaced=accept_history_loss,
                accept_moved=accept_moved,
                accept_loss=accept_history_loss if accept_rows_lost is None else accept_rows_lost,
                reopened=reopened,
                scratch=scratch,
                folder=config.log.folder,
                history=history_layout(config.log),
            )


START_FIRST = "start `cdcflow run` first, or correct `log` in the settings"


def log_reader(config: Config) -> LogReader:
    """Return the configured log, for reading only. It need not exist yet."""
    match config.log:
        case FileLog() as log:
            return FolderReader(log_layout(log))
        case KafkaLog():
            from cdcflow.sinks.kafka.tier import TieredReader

            return TieredReader(topics(config.log.kafka), history_layout(config.log))


def existing_log(config: Config, remedy: str = START_FIRST) -> LogReader:
    """Return the configured log, for reading only.

    Raises:
        ConfigurationError: there is no log.
    """
    log = log_reader(config)
    if not log.exists():
        raise ConfigurationError(f"there is no change log at {log.name}", remedy=remedy, runbook="no-log")
    return log


def newest_checkpoint(config: Config) -> Checkpoint:
    """Return the latest checkpoint of the configured log, or that of a new log if it does not exist."""
    if isinstance(config.log, KafkaLog):
        from cdcflow.sinks.kafka.reader import KafkaReader

        state = KafkaReader(topics(config.log.kafka)).find_state()  # one query: a takeover waits for it
        return Checkpoint() if state is None else state.checkpoint
    reader = log_reader(config)
    return reader.newest_checkpoint() if reader.exists() else Checkpoint()


def log_layout(log: FileLog) -> Layout:
    """Return the location of a log in files: its directory, and the object store for its segments."""
    return Layout(log.path) if log.objects is None else Layout(log.path, opened_store(log, log.objects))


def history_layout(log: KafkaLog) -> Layout:
    """Return the location of the history of a log in Kafka: its folder, or an object store."""
    if log.history_url is None:
        return Layout(log.history)
    bucket = history_bucket(log)
    from cdcflow.sinks.objects.store import BucketStore

    return Layout(log.history, BucketStore(bucket, log.history, HISTORY_CACHE_BYTES_MAX))


def sealed_bounds(config: Config) -> list[tuple[int, int]]:
    """Return the first and last offsets of the configured log's sealed segments, oldest first."""
    return list(sealed_layout(config).segment_offsets())


def sealed_layout(config: Config) -> Layout:
    """Return the location of the configured log's sealed segments."""
    return log_layout(config.log) if isinstance(config.log, FileLog) else history_layout(config.log)


def sealed_layout_of(settings: str) -> Layout:
    """Return the location of the sealed segments of the log that a settings file names."""
    return sealed_layout(load(settings))


def history_bucket(log: KafkaLog) -> Bucket:
    with client_library("log.kafka.history"):
        from cdcflow.sinks.objects.remote_sealer import NAMES
        from cdcflow.stores.bucket import Bucket
    access = log.kafka.objects or StoreAccess()
    return Bucket.of_url(str(log.history_url), access.address, NAMES)


def opened_store(log: FileLog, objects: Objects) -> BucketStore:
    with client_library():
        from cdcflow.sinks.objects.store import BucketStore
        from cdcflow.stores.bucket import Bucket
    cache = objects.cache or (log.path / "cache" if log.has_directory else log.path)
    return BucketStore(Bucket(objects), cache, objects.cache_bytes_max)


def retention(config: Config, *, grace_s: float) -> LogRetention:
    """Return the object that compacts and expires the configured log's segments."""
    log = config.log
    if isinstance(log, KafkaLog):
        raise ConfigurationError(
            f"the log is in Kafka (topic {log.kafka.topic}), and only a log in files is compacted or expired",
            remedy=TOPIC_EXPIRES,
        )
    layout = log_layout(log)
    return LogRetention(layout, _remote(log), grace_s=grace_s)


def _remote(log: FileLog) -> RemoteBucket | None:
    """Return access to the log's segments in its object store, for changing them; `None` without a store."""
    if log.objects is None:
        return None
    with client_library():
        from cdcflow.sinks.objects.remote import RemoteBucket
        from cdcflow.stores.bucket import Bucket
    journals = _replication(log)
    if journals is None:
        return RemoteBucket(Bucket(log.objects))
    return RemoteBucket(Bucket(log.objects), partial(journals.check_last_writer, Layout(log.path)))


def expiring(config: Config, on_event: OnEvent) -> Expiring | None:
    """Return the background task that applies the configured log's retention during a capture, or None without a
    policy."""
    log = config.log
    if isinstance(log, KafkaLog) or log.retention is None:
        return None
    policy = log.retention
    kinds = policy.keep_for if policy.keep_for is not None else ("merge", *(("publish",) if config.publish else ()))
    names = {"merge": warehouse_name(config.merge.warehouse)}
    if config.publish is not None:
        names["publish"] = config.publish.kafka.topic_prefix
    keep_for = [(kind, names[kind]) for kind in kinds if kind in names]
    consumers = policy.keep_for is None or "consumer" in policy.keep_for
    kept = ExpiryPolicy(policy.age, policy.bytes, keep_for, consumers)
    keeper = partial(keeping, config) if policy.state else None
    return Expiring(log_layout(log), kept, on_event, every_s=policy.every, remote=_remote(log), keeping=keeper)


@contextlib.contextmanager
def workers(config: Config, master: str | None, name: str) -> Iterator[Workers]:
    """Yield the processes that work on the configured log's sealed segments for a command (`name`): this process, or
    (`master`, as spark.master) the executors of a Spark cluster. Spark's settings are those of merge.spark.

    Raises:
        ConfigurationError: see `spark.runtime.context.context`.
    """
    layout = sealed_layout(config).absolute
    if master is None or not layout.exists():  # a log in Kafka may have nothing sealed yet
        yield HERE
        return
    from cdcflow.spark.executors import workers as of_spark

    away = None
    if layout.store is not None:
        from cdcflow.sinks.objects.remote_access import StoredLog

        away = StoredLog(layout.store.name, layout.store.address)
    with of_spark.workers(master, layout.root, config.merge.spark, name, away) as found:
        yield found


def log_at(layout: Layout) -> ChangeLog:
    """Return a log in files, opened in a process that has no settings."""
    from cdcflow import local
    from cdcflow.log.query.log import ChangeLog

    return ChangeLog(FolderReader(layout), layout, local.current_rows)


def peer_findings(log: FileLog) -> list[Finding]:
    """Return doctor's findings about the log's peers; [] if it has none."""
    journals = _replication(log)
    if journals is None or log.replicate is None:
        return []
    found = journals.doctor()
    level: Literal["error", "warning"] = (
        "error" if sum(not why for why in found.values()) <= len(found) // 2 else "warning"
    )
    remedy = (
        f"start `cdcflow journal-peer` there, and see that this machine reaches it; {len(found) // 2 + 1} are needed"
    )
    return [
        Finding(level, f"peer {peer}", why, remedy) if why else Finding("ok", f"peer {peer}", "it answers")
        for peer, why in found.items()
    ]


def peer_status(log: FileLog) -> dict[str, object]:
    """Return the progress of each peer of the log, as the log's daemon last recorded it; {} if it has none."""
    if log.replicate is None:
        return {}
    from cdcflow.sinks.quorum.takeover import status

    return status(Layout(log.path), log.replicate.quorum)


def keeping(config: Config, workers: Workers = HERE) -> Keeping:
    """Return the object that stores the rows of the configured log's tables before its segments expire; `workers` fold
    them.

    Raises:
        ConfigurationError: a package that it needs is not installed.
    """
    from cdcflow import local
    from cdcflow.log.maintenance.snapshots_before_expiry import Keeping
    from cdcflow.log.query.log import ChangeLog

    layout = sealed_layout(config)
    asked = ChangeLog(log_reader(config), layout, local.current_rows)
    return Keeping(asked, layout, workers=workers, reopened=None if workers is HERE else log_at)


def indexing(config: Config, on_event: OnEvent) -> BackgroundIndexing | None:
    """Return the background task that indexes the configured log's keys during a capture; `None` if it is
    turned off."""
    log = config.log
    return BackgroundIndexing(log_layout(log), on_event) if isinstance(log, FileLog) and log.index else None


def compacting(config: Config, on_event: OnEvent) -> BackgroundCompaction | None:
    """Return the background task that joins the configured log's small segments during a capture; `None` if it is
    turned off."""
    log = config.log
    if isinstance(log, KafkaLog) or not log.compact:
        return None
    return BackgroundCompaction(log_layout(log), on_event, remote=_remote(log))


def copy_log(config: Config, target: Config, on_segment: Callable[[int, int], None]) -> Copied:
    """Copy the log of `config` into that of `target`, from a folder into a topic or back. Only the log settings matter.

    Raises:
        ConfigurationError: both are of one kind.
    """
    from cdcflow.sinks.kafka import copies

    match config.log, target.log:
        case FileLog() as original, KafkaLog() as log:
            layout = log_layout(original)
            if not layout.exists():
                raise ConfigurationError(
                    f"there is no change log at {layout.name}", remedy="correct `log` in the settings", runbook="no-log"
                )
            return copies.to_topic(layout, topics(log.kafka), on_segment, scratch=log.folder / "spool")
        case KafkaLog() as log, FileLog(objects=None, path=path):
            return copies.to_folder(topics(log.kafka), path, on_segment)
        case KafkaLog(), FileLog():
            raise ConfigurationError(
                "the copy's settings name an object store, and a log is copied into a directory",
                remedy="remove log.objects for the copy; a daemon that continues with it uploads its segments there",
            )
        case FileLog(), FileLog():
            raise ConfigurationError(
                "both logs are in files", remedy="stop the daemon, and copy the directory itself (cp -a, rsync)"
            )
        case _:
            raise ConfigurationError(
                "both logs are in Kafka, and offsets of one topic mean nothing in another",
                remedy="copy into a folder, then from there into the other topic",
            )


def topics(settings: Kafka) -> Topics:
    """Return how the configured log in Kafka is reached, with its current secrets."""
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


def _uploads(log: FileLog) -> Uploading | None:
    if log.objects is None:
        return None
    if not log.has_directory:
        raise ConfigurationError(
            "capturing into an object store: log.path is missing, a directory on a local disk for the latest part "
            "of the log",
            remedy="set log.path together with log.objects",
        )
    with client_library():
        from cdcflow.sinks.objects.uploads import Uploads
        from cdcflow.stores.bucket import Bucket
    bucket = Bucket(log.objects)
    return Uploads(
        Layout(log.path), bucket, keep_local_s=log.objects.keep_local, cached=opened_store(log, log.objects).copy
    )


def _replication(log: FileLog, *, was_open: bool = False) -> ReplicatedJournals | None:
    if log.replicate is None or log.objects is None:
        return None
    from cdcflow.sinks.objects.uploaded import UploadedPart
    from cdcflow.sinks.quorum.links import PeerTls
    from cdcflow.sinks.quorum.takeover import ReplicatedJournals

    settings, tls = log.replicate, log.replicate.tls
    return ReplicatedJournals(
        settings.quorum,
        None if tls is None else PeerTls(tls.cert, tls.key, tls.ca),
        timeout_s=settings.timeout,
        was_open=was_open,
        stored=UploadedPart(Layout(log.path), opened_store(log, log.objects).name),
    )


@contextlib.contextmanager
def client_library(setting: str = "log.objects") -> Iterator[None]:
    """Turn the error of a missing client library of object stores into a ConfigurationError."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "obstore":
            raise
        raise ConfigurationError(
            f"opening the object store of {setting}: the package obstore is not installed",
            remedy="pip install 'cdcflow[objects]'",
            runbook="package-missing",
        ) from None


def log_id(config: Config) -> str:
    """Return the id of the log that the settings name, or "" if there is no log yet."""
    if isinstance(config.log, KafkaLog):
        from cdcflow.sinks.kafka.frames import read_state

        return read_state(topics(config.log.kafka)).log_id
    layout = Layout(config.log.path)
    return layout.log_file().log_id if layout.log_json.exists() else ""


def log_identity(config: Config) -> SourceIdentity:
    """Return the source that the configured log belongs to.

    Raises:
        ConfigurationError: there is no log.
    """
    if isinstance(config.log, KafkaLog):
        from cdcflow.sinks.kafka.frames import read_state

        found = read_state(topics(config.log.kafka)).identity
    else:
        layout = log_layout(config.log)
        found = layout.log_file().source if layout.log_json.exists() else None
    if found is None:
        raise ConfigurationError(
            f"there is no change log at {log_reader(config).name}",
            remedy="correct `log` in the settings",
            runbook="no-log",
        )
    return found
