"""Creates the lease of `service.lease`, and finds out who holds it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from cdcflow.capture.leadership import Leadership, boot_clock, this_process
from cdcflow.capture.numbered_lease import NumberedLease
from cdcflow.capture.observations import OnEvent
from cdcflow.capture.ports.lease import DaemonLease, Holder, Register
from cdcflow.config import Config, FileLog, KafkaLog, LeaseSettings, MySQL, Postgres, StoreAccess
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.sinks.files.file_lease import FileLease
from cdcflow.sources.engine.passwords import secret_of
from cdcflow.sources.postgres.connection import Connector as PostgresConnector
from cdcflow.wiring.logs import client_library, topics
from cdcflow.wiring.plugged import lacking

FILE_NAME = "lease"
STORE_WATCHED_EVERY_S = 0.5
"""How often a standby reads the lease in an object store. Each time is a request to the store."""
TOPIC_WATCHED_EVERY_S = 0.2
ANSWERS_WITHIN_S = 15.0
"""How long a command waits for an answer about the lease."""


def leadership(config: Config, on_event: OnEvent) -> Leadership | None:
    """Return the leadership of a daemon with these settings; `None` if they have no lease."""
    if config.service.lease is None:
        return None
    is_replicated = isinstance(config.log, FileLog) and config.log.replicate is not None
    return Leadership(lambda: open_lease(config), on_event, log_is_on_peers=is_replicated)


def replaces_writer(config: Config) -> bool:
    """Return whether a daemon with these settings takes the log from a writer that still has it open. A suspended
    writer has lost the lease, but keeps its locks."""
    return config.service.lease is not None and config.service.lease.kind != "file"


def lease_holder(config: Config, known: Sequence[str] = ()) -> Holder | None:
    """Return the holder of the lease of these settings; `None` if no process holds it, or they have no lease. `known`:
    names of processes, by which a holder is recognized also at a place that stores no names."""
    if config.service.lease is None:
        return None
    lease = open_lease(config, known)
    try:
        return lease.holder()
    finally:
        lease.release()


@contextlib.contextmanager
def held_lease(config: Config, on_event: OnEvent) -> Iterator[None]:
    """Hold the lease of these settings inside the block, if they have one, so that no daemon becomes active.

    Raises:
        ConfigurationError: a daemon is active, perhaps on another machine.
        CdcflowError: the lease does not answer. A lease in the source is an exception: no daemon can take it then, so
            the block is entered.
    """
    found = leadership(config, on_event)
    if found is None:
        yield
        return
    until = boot_clock() + ANSWERS_WITHIN_S
    try:
        if not found.take(lambda: found.waited_for is not None or boot_clock() > until):
            _refuse(config, found)
        yield
    finally:
        found.close()


def _refuse(config: Config, found: Leadership) -> None:
    if (who := found.waited_for) is not None:
        raise ConfigurationError(
            f"{who.name} holds the lease and captures into this log",
            remedy="stop every daemon of this log, also the standby, then run the command again",
            runbook="two-daemons",
        )
    if config.service.lease is not None and config.service.lease.kind != "source":
        why = found.status().get("error", f"it has not answered for {ANSWERS_WITHIN_S:g} s")
        raise SinkUnavailable(f"holding the lease at {config.service.lease.at}: {why}", remedy="run the command again")


def open_lease(config: Config, known: Sequence[str] = ()) -> DaemonLease:
    """Return the lease of these settings, which must have one. It connects when it is used. `known`: see
    `lease_holder`.

    Raises:
        ConfigurationError: the source has no locks, or a package is not installed.
    """
    settings = config.service.lease
    assert settings is not None  # noqa: S101 - as the docstring says
    match settings.kind:
        case "file":
            return FileLease(lease_file(config))
        case "source":
            return _in_source(config, settings, known)
        case "postgres":
            return _in_postgres(PostgresConnector(settings.at, secret_of(settings.password)), settings)
        case "mysql":
            return _in_mysql(_server_of(settings), settings, known)
        case "kafka":
            return _by_time(_topic_of(config, settings), settings, TOPIC_WATCHED_EVERY_S)
        case _:
            return _by_time(_bucket_of(settings), settings, STORE_WATCHED_EVERY_S)


def lease_file(config: Config) -> Path:
    """Return the file of a lease on one machine."""
    return config.log.folder / FILE_NAME


def _in_source(config: Config, settings: LeaseSettings, known: Sequence[str]) -> DaemonLease:
    source = config.database
    if isinstance(source, Postgres):
        return _in_postgres(PostgresConnector.of(source, secret_of(source.password)), settings)
    if isinstance(source, MySQL):
        return _in_mysql(source, settings, known)
    raise lacking(source, "has no locks for a lease", "set service.lease.at to another place")


def _in_postgres(connector: PostgresConnector, settings: LeaseSettings) -> DaemonLease:
    from cdcflow.sources.postgres.lease import PostgresLease

    return PostgresLease(connector, str(settings.name), settings.ttl)


def _server_of(settings: LeaseSettings) -> MySQL:
    """Return the server of a lease, as the settings of a source."""
    kind = settings.at.partition("://")[0]
    given = {"kind": kind, "url": settings.at, "tables": ("*.*",), "tls": settings.tls, "password": settings.password}
    return MySQL.model_validate(given)


def _in_mysql(server: MySQL, settings: LeaseSettings, known: Sequence[str]) -> DaemonLease:
    from cdcflow.sources.mysql.lease import MySQLLease

    secret = secret_of(server.password)
    return MySQLLease(server, secret, str(settings.name), settings.ttl, process=this_process(), known=known)


def _by_time(register: Register, settings: LeaseSettings, watched_every_s: float) -> DaemonLease:
    return NumberedLease(register, this_process(), settings.ttl, watched_every_s=watched_every_s, clock=boot_clock)


def _topic_of(config: Config, settings: LeaseSettings) -> Register:
    if not isinstance(config.log, KafkaLog):
        raise ConfigurationError("service.lease.at is kafka, and the log is not", remedy="set it to another place")
    from cdcflow.sinks.kafka.lease_register import TopicRegister

    return TopicRegister(topics(config.log.kafka), settings.ttl)


def _bucket_of(settings: LeaseSettings) -> Register:
    with client_library("service.lease"):
        from cdcflow.sinks.objects.lease_register import BucketRegister
        from cdcflow.stores.bucket import Bucket
    access = settings.objects or StoreAccess()
    names = {"log.objects.url": "service.lease.at", "log.objects": "service.lease.objects"}
    return BucketRegister(Bucket.of_url(settings.at, access.address, names))
