"""Create a publisher from its settings."""

from __future__ import annotations

from collections.abc import Callable

from cdcflow.config import PublishKafka, secret
from cdcflow.publish.columns import Modes
from cdcflow.publish.events import Rules
from cdcflow.publish.formats import MessageFormat, format_of
from cdcflow.publish.producer import Cluster
from cdcflow.publish.publisher import GroupLimits, OnEvent, Publisher
from cdcflow.publish.tail import GrowingLog


def publisher_of(
    settings: PublishKafka, open_tail: Callable[[], GrowingLog | None], kind: str, on_event: OnEvent
) -> Publisher:
    """Return a publisher. `kind` is the source's kind: it selects Debezium's defaults for its connector."""
    return Publisher(
        open_tail,
        lambda: _cluster(settings),
        lambda: _format(settings),
        rules_of(settings, kind),
        on_event,
        GroupLimits(group_rows_max=settings.group_rows_max),
    )


def rules_of(settings: PublishKafka, kind: str) -> Rules:
    time = settings.time_precision_mode or ("adaptive" if kind == "postgres" else "adaptive_time_microseconds")
    return Rules(
        Modes(
            decimal=settings.decimal_handling_mode,
            time=time,
            binary=settings.binary_handling_mode,
            interval=settings.interval_handling_mode,
            bigint_unsigned=settings.bigint_unsigned_handling_mode,
            unavailable=settings.unavailable_value_placeholder,
        ),
        tombstones=settings.tombstones_on_delete,
        skipped=frozenset(settings.skipped_operations),
        transactions=settings.provide_transaction_metadata,
    )


def _cluster(settings: PublishKafka) -> Cluster:
    options = dict(settings.options)
    if settings.username is not None:
        options["sasl.username"] = settings.username
    if (password := secret(settings.password)) is not None:
        options["sasl.password"] = password
    return Cluster(
        settings.brokers,
        settings.topic_prefix,
        options,
        settings.partitions,
        settings.replicas,
        settings.topic_options,
    )


def _format(settings: PublishKafka) -> MessageFormat:
    if settings.registry is None:
        return format_of(settings.format)
    from cdcflow.publish.registry import registrar

    return format_of(settings.format, registrar(settings.registry))
