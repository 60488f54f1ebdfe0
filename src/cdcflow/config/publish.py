"""Where changes are published in addition to the log: topics in Debezium's envelope."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from cdcflow.config.base import Settings
from cdcflow.config.references import SecretReference, without_password

FormatName = Literal["json", "json-schema", "avro", "protobuf"]
DecimalMode = Literal["precise", "string", "double"]
TimeMode = Literal["adaptive", "adaptive_time_microseconds", "connect"]
BinaryMode = Literal["bytes", "base64", "base64-url-safe", "hex"]
IntervalMode = Literal["numeric", "string"]
UnsignedMode = Literal["long", "precise"]

_OWN_OPTIONS = frozenset(
    (
        *("bootstrap.servers", "metadata.broker.list", "transactional.id", "transaction.timeout.ms"),
        *("enable.idempotence", "enable.gapless.guarantee", "partitioner", "group.id", "isolation.level"),
        *("sasl.username", "sasl.password", "enable.auto.commit", "enable.partition.eof"),
    )
)
_OPTION_HOLDS_SECRET = re.compile(r"password|secret|ssl\.key\.pem", re.IGNORECASE)


class Registry(Settings):
    """A schema registry with Confluent's API."""

    url: str
    """A schema registry with Confluent's interface; for `avro` and `protobuf`."""
    username: str | None = None
    """The user for HTTP basic authentication."""
    password: SecretReference = None
    """A reference to the password ([secrets](settings.md#secrets))."""

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        if not re.match(r"https?://", url):
            raise ValueError("must look like http://host:8081")
        return without_password(url)


class PublishKafka(Settings):
    """Publishes to Kafka: one topic per table, with messages in Debezium's envelope. Settings with a Debezium name
    mean the same as in Debezium."""

    brokers: str
    """Some brokers as `host:port`, with commas between."""
    topic_prefix: str
    """The first part of every topic's name (`topic.prefix`)."""
    username: str | None = None
    """The user for SASL; the mechanism is one of `options`."""
    password: SecretReference = None
    """A reference to the password ([secrets](settings.md#secrets))."""
    options: dict[str, str] = Field(default_factory=dict)
    """Further settings of the client library, such as `{security.protocol: SASL_SSL}`; those that cdcflow sets itself
    are refused."""
    format: FormatName = "json"
    """The format of messages; `json-schema`: each message has its schema."""
    registry: Registry | None = None
    partitions: int = Field(1, gt=0)
    """The partitions of new topics."""
    replicas: int = Field(1, gt=0)
    """The replication factor of new topics."""
    topic_options: dict[str, str] = Field(default_factory=dict)
    """Settings of new topics of tables, such as `{cleanup.policy: compact}`."""
    group_rows_max: int = Field(50_000, gt=0)
    """How many rows a Kafka transaction has before it ends; it ends after a whole transaction of the source."""
    tombstones_on_delete: bool = True
    """Whether a message without a value follows each deletion."""
    skipped_operations: tuple[Literal["c", "u", "d", "t", "r"], ...] = ("t",)
    """Operations that are not published."""
    provide_transaction_metadata: bool = False
    """Whether each event has a `transaction`, and the topic `<prefix>.transaction` BEGIN and END."""
    decimal_handling_mode: DecimalMode = "precise"
    """How decimals are published, as in Debezium."""
    time_precision_mode: TimeMode | None = None
    """How times are published, as in Debezium. Default: `adaptive`; `adaptive_time_microseconds` for MySQL."""
    binary_handling_mode: BinaryMode = "bytes"
    """How binary values are published, as in Debezium."""
    interval_handling_mode: IntervalMode = "numeric"
    """How intervals are published: `numeric` (microseconds) or `string` (ISO 8601)."""
    bigint_unsigned_handling_mode: UnsignedMode = "long"
    """How `bigint unsigned` is published, as in Debezium. `long`: a value beyond int64 stops with an error."""
    unavailable_value_placeholder: str = "__debezium_unavailable_value"
    """The placeholder for a value that the source did not send."""

    @field_validator("topic_prefix")
    @classmethod
    def _topic(cls, prefix: str) -> str:
        if re.fullmatch(r"[A-Za-z0-9._-]{1,100}", prefix) is None:
            raise ValueError("must consist of letters, digits, dots, hyphens and underscores, 100 at most")
        return prefix

    @field_validator("options")
    @classmethod
    def _not_ours(cls, options: dict[str, str]) -> dict[str, str]:
        for name in options:
            if name in _OWN_OPTIONS:
                raise ValueError(
                    f"sets {name}, which cdcflow sets itself (brokers, username and password have settings)"
                )
            if _OPTION_HOLDS_SECRET.search(name):
                raise ValueError(
                    f"holds a secret ({name}); use a file of the library's own (ssl.key.location), or password"
                )
        return options

    @model_validator(mode="after")
    def _has_registry(self) -> PublishKafka:
        if (self.format in ("avro", "protobuf")) != (self.registry is not None):
            raise ValueError("registry belongs to the formats avro and protobuf, and they need it")
        return self


class Publish(Settings):
    """Where changes are published in addition to the log."""

    kafka: PublishKafka
