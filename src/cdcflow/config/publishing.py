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
    username: str | None = None
    password: SecretReference = None

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        if not re.match(r"https?://", url):
            raise ValueError("must look like http://host:8081")
        return without_password(url)


class PublishKafka(Settings):
    """One topic per table in Debezium's envelope. Settings with a Debezium name mean the same as in Debezium."""

    brokers: str
    topic_prefix: str
    username: str | None = None
    password: SecretReference = None
    options: dict[str, str] = Field(default_factory=dict)
    format: FormatName = "json"
    registry: Registry | None = None
    partitions: int = Field(1, gt=0)
    replicas: int = Field(1, gt=0)
    topic_options: dict[str, str] = Field(default_factory=dict)
    group_rows_max: int = Field(50_000, gt=0)
    tombstones_on_delete: bool = True
    skipped_operations: tuple[Literal["c", "u", "d", "t", "r"], ...] = ("t",)
    provide_transaction_metadata: bool = False
    decimal_handling_mode: DecimalMode = "precise"
    time_precision_mode: TimeMode | None = None
    binary_handling_mode: BinaryMode = "bytes"
    interval_handling_mode: IntervalMode = "numeric"
    bigint_unsigned_handling_mode: UnsignedMode = "long"
    unavailable_value_placeholder: str = "__debezium_unavailable_value"

    @field_validator("topic_prefix")
    @classmethod
    def _topic(cls, prefix: str) -> str:
        if re.fullmatch(r"[A-Za-z0-9._-]{1,100}", prefix) is None:
            raise ValueError("must be made of letters, digits, dots, hyphens and underscores, 100 at most")
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


__all__ = [
    "BinaryMode",
    "DecimalMode",
    "FormatName",
    "IntervalMode",
    "Publish",
    "PublishKafka",
    "Registry",
    "TimeMode",
    "UnsignedMode",
]
