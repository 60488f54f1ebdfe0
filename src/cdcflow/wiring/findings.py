"""The findings of doctor, status and checks about a source and a log."""

from __future__ import annotations

import contextlib

from cdcflow.capture.ports.findings import Finding
from cdcflow.capture.ports.source import Source
from cdcflow.config import Config, KafkaLog
from cdcflow.errors import CdcflowError, ConfigurationError, RightMissing, SinkUnavailable, SourceUnavailable
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.check import Fault
from cdcflow.wiring.captures import control_table, open_source
from cdcflow.wiring.leases import lease_holder
from cdcflow.wiring.logs import (
    client_library,
    history_bucket,
    history_layout,
    log_id,
    log_reader,
    opened_store,
    peer_findings,
    peer_status,
    topics,
)
from cdcflow.wiring.plugged import part_findings
from cdcflow.wiring.source_load import reading_findings


def doctor(config: Config) -> list[Finding]:
    """Return the problems that prevent a capture, each with its remedy."""
    of_log = _log_findings(config)
    source = open_source(config)
    try:
        found = list(source.doctor())
        found = _without_first_start(found, _continuing(config, source))
        # If the only finding is that the brokers did not respond, do not wait for them a second time.
        if not (isinstance(config.log, KafkaLog) and [f.level for f in of_log] == ["error"]):
            with contextlib.suppress(CdcflowError):  # an unreachable server already has its own finding
                found += source.left_behind(log_id(config))
                found += control_findings(config)
                found += reading_findings(config)
    finally:
        source.close()
    return [*found, *of_log, *_lease_findings(config), *part_findings(config)]


def continues(config: Config) -> list[Finding]:
    """Return findings about whether the source still has the log that the change log continues from; [] if there is
    no change log, or if source or log does not answer, which other findings report."""
    source = open_source(config)
    try:
        return _continuing(config, source)
    finally:
        source.close()


def _continuing(config: Config, source: Source) -> list[Finding]:
    try:
        reader = log_reader(config)
        return list(source.continues(reader.newest_checkpoint, log_id(config))) if reader.exists() else []
    except (SourceUnavailable, SinkUnavailable):
        return []
    except CdcflowError as error:
        return [Finding("error", "log", str(error).split("\n")[0], error.remedy)]


def _without_first_start(found: list[Finding], of_position: list[Finding]) -> list[Finding]:
    """Return `found`; if the log has begun, so that there are findings about its position, these are added, and the
    findings about objects that the first start would create are dropped."""
    if not of_position:
        return found
    return [f for f in found if not f.at_first_start] + of_position


def control_findings(config: Config) -> list[Finding]:
    """Return a finding about whether the control table can be used; nothing if none is configured."""
    table = control_table(config)
    if table is None:
        return []
    try:
        table.check()
    except (ConfigurationError, RightMissing) as error:
        return [Finding("error", "source.control_table", str(error).split("\n")[0], error.remedy)]
    finally:
        table.close()
    name = getattr(config.database, "control_table", None)
    return [Finding("ok", "source.control_table", f"{name} can be read and updated")]


def _log_findings(config: Config) -> list[Finding]:
    """Return the findings about the log itself."""
    if isinstance(config.log, KafkaLog):
        from cdcflow.sinks.kafka.doctor import doctor as log_doctor

        found = log_doctor(topics(config.log.kafka), config.log.folder, history_layout(config.log))
        return [*found, *_history_findings(config.log)]
    if config.log.objects is None:
        return []
    with client_library():
        from cdcflow.sinks.objects.doctor import doctor as store_doctor
        from cdcflow.stores.bucket import Bucket
    copy = opened_store(config.log, config.log.objects).copy
    found = list(store_doctor(Bucket(config.log.objects), Layout(config.log.path), copy))
    return [*found, *peer_findings(config.log)]


def _history_findings(log: KafkaLog) -> list[Finding]:
    """Return the findings about the store of a history, if it is in a store."""
    if log.history_url is None:
        return []
    bucket = history_bucket(log)
    from cdcflow.sinks.objects.doctor import doctor as store_doctor

    return store_doctor(bucket, Layout(log.history), lambda segment, file: None)


def _lease_findings(config: Config) -> list[Finding]:
    """Whether the lease answers, and whether this machine has the log that a standby continues."""
    settings = config.service.lease
    if settings is None:
        return []
    subject = "service.lease"
    try:
        holder = lease_holder(config)
        has_log = log_reader(config).exists()
    except CdcflowError as error:
        return [Finding("error", subject, str(error).split("\n")[0], error.remedy)]
    if holder is None:
        return [Finding("ok", subject, f"the lease ({settings.kind}) answers, and no daemon holds it")]
    if not has_log:
        return [
            Finding(
                "error",
                subject,
                f"{holder.name} holds the lease, and this machine has no log at the place that the settings name",
                "give both machines the same log: a folder that both mount, or a topic",
            )
        ]
    return [Finding("ok", subject, f"the lease ({settings.kind}) answers, and {holder.name} holds it")]


def store_faults(config: Config) -> list[Fault]:
    """Return the parts of the log that the object store has lost and this machine still has; [] if there is no
    store."""
    if isinstance(config.log, KafkaLog) or config.log.objects is None or not Layout(config.log.path).log_json.exists():
        return []
    with client_library():
        from cdcflow.sinks.objects.doctor import faults
        from cdcflow.stores.bucket import Bucket
    copy = opened_store(config.log, config.log.objects).copy
    return faults(Bucket(config.log.objects), Layout(config.log.path), copy)


def upload_status(config: Config) -> dict[str, object]:
    """Return how much has yet to be uploaded to the store, and how far the peers are; {} if there is no store."""
    if isinstance(config.log, KafkaLog) or config.log.objects is None:
        return {}
    layout = Layout(config.log.path)
    if not layout.log_json.exists():
        return {}
    from cdcflow.sinks.objects.uploaded import status

    return {**status(layout, config.log.objects.url), **peer_status(config.log)}


def log_problem(config: Config) -> str | None:
    """Return why a daemon would not start on the configured log in Kafka; `None` if no problem is known or the log is
    in files."""
    if not isinstance(config.log, KafkaLog):
        return None
    from cdcflow.sinks.kafka import loss

    return loss.problem(topics(config.log.kafka), config.log.folder, history_layout(config.log))
