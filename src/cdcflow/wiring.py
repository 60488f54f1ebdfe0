"""Where concrete sources, sinks and the pipeline meet: the only place that knows all of them.

The commands, the demo and a program that embeds cdcflow begin here with a `Config`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import structlog

from cdcflow.changelog.layout import Layout
from cdcflow.config import Config, Postgres, secret
from cdcflow.config import FileLog as FileLogSettings
from cdcflow.errors import ConfigurationError
from cdcflow.interleave.machine import Limits
from cdcflow.model.position import SourceIdentity
from cdcflow.pipeline import Capture
from cdcflow.pipeline.attempt import OnEvent, Orders, Pace
from cdcflow.ports import Finding, Source
from cdcflow.sinks.files import FileLog, Uploading
from cdcflow.sinks.keeping import Keeper
from cdcflow.sources.postgres.source import PostgresSource


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
    know yet. `once` ends when they are read. `accept_history_loss` is an operator's word that the source's log may
    have a hole; all tables are read anew then.
    """

    def open_log(identity: SourceIdentity, accept_timeline: bool) -> FileLog:
        return FileLog.open(
            log_layout(config),
            identity,
            config.log.seal,
            accept_timeline=accept_timeline,
            uploads=_uploads(config.log),
        )

    return Capture(
        open_source=lambda: open_source(config),
        open_log=open_log,
        limits=limits(config, backfill_new=backfill is None),
        orders=Orders(
            backfill=None if backfill is None else tuple(backfill), once=once, accept_history_loss=accept_history_loss
        ),
        pace=Pace(heartbeat_s=config.source.heartbeat),
        on_event=on_event or log_event,
    )


def log_layout(config: Config) -> Layout:
    """Where the configured log is: what everything that reads it takes."""
    settings = config.log
    if settings.objects is None:
        return Layout(settings.path)
    with _client_library():
        from cdcflow.sinks.objects.bucket import Bucket
        from cdcflow.sinks.objects.store import BucketStore
    cache = settings.objects.cache or (settings.path / "cache" if settings.has_directory else settings.path)
    return Layout(settings.path, BucketStore(Bucket(settings.objects), cache, settings.objects.cache_bytes_max))


def keeper(config: Config, *, grace_s: float) -> Keeper:
    """Who compacts and expires the configured log's segments."""
    layout, objects = log_layout(config), config.log.objects
    if objects is None:
        return Keeper(layout, grace_s=grace_s)
    with _client_library():
        from cdcflow.sinks.objects.bucket import Bucket
        from cdcflow.sinks.objects.shelf import BucketShelf
    return Keeper(layout, BucketShelf(Bucket(objects)), grace_s=grace_s)


def upload_status(config: Config) -> dict[str, object]:
    """What waits to be put into the store; {} where there is none."""
    layout = Layout(config.log.path)
    if config.log.objects is None or not layout.log_json.exists():
        return {}
    from cdcflow.sinks.objects.uploaded import status

    return dict(status(layout))


def _uploads(settings: FileLogSettings) -> Uploading | None:
    if settings.objects is None:
        return None
    if not settings.has_directory:
        raise ConfigurationError(
            "capturing into an object store: log.path is missing, a directory on a local disk for the log's hot end",
            remedy="set log.path beside log.objects",
        )
    with _client_library():
        from cdcflow.sinks.objects.bucket import Bucket
        from cdcflow.sinks.objects.uploads import Uploads
    return Uploads(Layout(settings.path), Bucket(settings.objects), keep_local_s=settings.objects.keep_local)


@contextmanager
def _client_library() -> Iterator[None]:
    """Who needs no object store need not have its client library."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "obstore":
            raise
        raise ConfigurationError(
            "opening the object store of log.objects: the package obstore is not installed",
            remedy="pip install 'cdcflow[objects]'",
        ) from None


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
        return list(source.doctor())
    finally:
        source.close()


def log_event(event: str, fields: Mapping[str, object]) -> None:
    """One line of log for each thing that happened."""
    structlog.get_logger("cdcflow").info(event, **fields)
