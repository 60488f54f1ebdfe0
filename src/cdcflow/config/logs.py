"""The location of the change log: a folder, optionally with an object store, or a Kafka topic."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from cdcflow.config.base import URL, Settings, is_host_and_port
from cdcflow.config.references import SecretReference, is_reference, secret
from cdcflow.config.units import BYTES, Bytes, Seconds, SecondsOrNone, with_unit
from cdcflow.model.stores import StoreAddress

TOPIC_EXPIRES = "set the topic's retention.ms or retention.bytes: the brokers remove what is older"


class Seal(Settings):
    bytes_max: Bytes = 32 << 20
    age_max: Seconds = 10.0


class Retention(Settings):
    """When sealed segments expire by themselves: those that ended `age` ago, and the oldest ones while the total
    exceeds `bytes`. `keep_for`: the readers that expiry waits for (None: merge, publish if it is set, and consumers).
    `state`: first store every table's rows as of the end of the last segment that expires."""

    age: Seconds | None = None
    bytes: Bytes | None = None
    state: bool = False
    keep_for: tuple[Literal["merge", "publish", "consumer"], ...] | None = None
    every: Seconds = 600.0

    @model_validator(mode="after")
    def _says_when(self) -> Retention:
        if self.age is None and self.bytes is None:
            raise ValueError("does not say when segments expire: set age (7d) or bytes (100GiB)")
        return self


class StoreAccess(Settings):
    """How an S3-compatible store is reached.

    Without `access_key` the usual credential sources are used: `AWS_*` in the environment, then the machine's role.
    """

    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: SecretReference = None
    secret_key: SecretReference = None

    @field_validator("endpoint")
    @classmethod
    def _http(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and re.fullmatch(r"https?://[^/@\s]+/?", endpoint) is None:
            raise ValueError("must look like https://host:port, without user and path")
        return endpoint

    @model_validator(mode="after")
    def _both_keys(self) -> Self:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("needs access_key and secret_key, or neither")
        return self

    def address(self, bucket: str) -> StoreAddress:
        """How another client reaches a bucket in this store, with the current keys."""
        return StoreAddress(bucket, self.endpoint, self.region, secret(self.access_key), secret(self.secret_key))


class Objects(StoreAccess):
    """An S3-compatible store for sealed segments.

    A segment's files remain on the local disk for `keep_local` after their upload, so that readers that have begun to
    read them there can finish. Files read back from the store are cached in `cache`, up to `cache_bytes_max`.
    """

    url: str
    keep_local: SecondsOrNone = 600.0
    cache: Path | None = None
    cache_bytes_max: Bytes = 1 << 30

    @field_validator("url")
    @classmethod
    def _bucket(cls, url: str) -> str:
        if _BUCKET.fullmatch(url) is None:
            raise ValueError("must look like s3://bucket/prefix")
        return url.rstrip("/")


_BUCKET = re.compile(r"s3://[^/@:?#\s]+(/[^?#]*)?")
_NOWHERE = Path("/dev/null/no log.path")


def _elsewhere(objects: Objects) -> Path:
    """The folder in which a log without a directory on this machine caches what it reads."""
    if objects.cache is not None:
        return objects.cache
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "cdcflow" / "objects" / _digest(objects.endpoint, objects.url)


def _digest(endpoint: str | None, url: str) -> str:
    return hashlib.sha256(f"{endpoint} {url}".encode()).hexdigest()[:16]


class FileLog(Settings):
    """A log in a directory; with `objects` its sealed segments are uploaded to an object store.

    Without `path` the log is only read, from the store: then `has_directory` is false, and `path` is the cache of what
    was read. `index`: the daemon indexes the keys of the segments it seals, so that a row is found without reading the
    log.
    """

    path: Path
    seal: Seal = Seal()
    index: bool = True
    objects: Objects | None = None
    retention: Retention | None = None

    @property
    def has_directory(self) -> bool:
        return "path" in self.model_fields_set

    @model_validator(mode="before")
    @classmethod
    def _only_in_the_store(cls, given: object) -> object:
        if isinstance(given, dict) and "path" not in given and given.get("objects") is not None:
            return {**given, "path": _NOWHERE}
        return given

    @model_validator(mode="after")
    def _place_for_what_is_read(self) -> FileLog:
        if self.path == _NOWHERE and self.objects is not None:
            self.__dict__["path"] = _elsewhere(self.objects)
            self.model_fields_set.discard("path")
        return self

    @property
    def folder(self) -> Path:
        """The local folder of this log's daemon: the log's own."""
        return self.path


class Kafka(Settings):
    """A log in Kafka: its topic, and the topic `<topic>.checkpoint`.

    `options` are passed to the client library unchanged (`security.protocol`, `sasl.mechanism`, `ssl.ca.location`, …),
    with secrets in them as references. `message_bytes`: larger records are split. `replicas`: the replication factor of
    the topics that cdcflow creates (None: the brokers' default). `work`: a local folder for the control socket, and for
    large transactions while they arrive; its content need not be preserved. `history`: the folder for segments that are
    sealed when the log is merged, or `s3://bucket/prefix`, and then `objects` specifies how that store is reached; its
    content must be preserved.
    """

    brokers: str
    topic: str
    username: str | None = None
    password: SecretReference = None
    options: dict[str, str] = Field(default_factory=dict)
    message_bytes: Annotated[int, with_unit(BYTES, "900kB"), Field(ge=1000, le=512 << 20)] = 900_000
    replicas: int | None = Field(None, gt=0)
    work: Path | None = None
    history: Path | str | None = None
    objects: StoreAccess | None = None

    @field_validator("history", mode="before")
    @classmethod
    def _folder_or_bucket(cls, history: object) -> object:
        # A Path would lose one of a URL's slashes and become a folder of that name.
        if isinstance(history, str) and not URL.match(history):
            return Path(history)
        if isinstance(history, str) and _BUCKET.fullmatch(history) is None:
            raise ValueError("must be a folder, or look like s3://bucket/prefix")
        return history.rstrip("/") if isinstance(history, str) else history

    @field_validator("brokers", mode="before")
    @classmethod
    def _hosts(cls, brokers: object) -> object:
        if not isinstance(brokers, str) or not all(is_host_and_port(b.strip()) for b in brokers.split(",")):
            raise ValueError("must be host:port, several with a comma between: kafka1:9092,kafka2:9092")
        return brokers

    @field_validator("topic")
    @classmethod
    def _topic_name(cls, topic: str) -> str:
        if re.fullmatch(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,200}", topic) is None:
            raise ValueError("must be a topic's name: letters, digits, . _ - and at most 200 of them")
        return topic

    @field_validator("options", mode="before")
    @classmethod
    def _texts(cls, options: object) -> object:
        # YAML parses true and 30000 as a boolean and a number; the library takes texts.
        if not isinstance(options, dict):
            return options
        return {
            k: str(v).lower() if isinstance(v, bool) else str(v) if isinstance(v, int) else v
            for k, v in options.items()
        }

    @field_validator("options")
    @classmethod
    def _not_ours(cls, options: dict[str, str]) -> dict[str, str]:
        for name, value in options.items():
            if name in _OURS:
                raise ValueError(f"has {name}, which {_OURS[name]}")
            if _SECRET_OPTION.search(name) and not is_reference(value):
                raise ValueError(f"has {name}: it must be a reference, ${{env:NAME}} or ${{file:path}}")
        return options

    @model_validator(mode="after")
    def _whole_login(self) -> Kafka:
        if (self.username is None) != (self.password is None):
            raise ValueError("has a username without a password, or the other way round")
        if self.username is not None and not self.options.keys() & {"sasl.mechanism", "sasl.mechanisms"}:
            raise ValueError("has a username, but options has no sasl.mechanism (PLAIN, SCRAM-SHA-512 …)")
        return self

    @model_validator(mode="after")
    def _objects_of_a_store(self) -> Kafka:
        if self.objects is not None and not isinstance(self.history, str):
            raise ValueError("has objects, which only a history in a store (s3://bucket/prefix) needs")
        return self


_OF_THE_LOG = "cdcflow sets itself, because the log depends on it"
_OURS = {
    "bootstrap.servers": "is log.kafka.brokers",
    "metadata.broker.list": "is log.kafka.brokers",
    "sasl.username": "is log.kafka.username",
    "sasl.password": "is log.kafka.password",
    "message.max.bytes": "is log.kafka.message_bytes",
    **dict.fromkeys(
        (
            "acks",
            "request.required.acks",
            "auto.offset.reset",
            "enable.auto.commit",
            "enable.auto.offset.store",
            "enable.idempotence",
            "enable.partition.eof",
            "group.id",
            "isolation.level",
            "max.in.flight",
            "max.in.flight.requests.per.connection",
            "transactional.id",
        ),
        _OF_THE_LOG,
    ),
}
_SECRET_OPTION = re.compile(r"password|secret|\.pem$|jaas")


class KafkaLog(Settings):
    kafka: Kafka

    @property
    def folder(self) -> Path:
        """The local folder of this log's daemon."""
        return (self.kafka.work or Path(".cdcflow")) / self.kafka.topic

    @property
    def history_url(self) -> str | None:
        """The location of this log's sealed segments in an object store, or None if they are in a folder."""
        return self.kafka.history if isinstance(self.kafka.history, str) else None

    @property
    def history(self) -> Path:
        """The folder with this log's sealed segments; if they are in a store, the folder that caches what was read of
        them."""
        if isinstance(self.kafka.history, str):
            endpoint = None if self.kafka.objects is None else self.kafka.objects.endpoint
            return self.folder / "objects" / _digest(endpoint, self.kafka.history)
        return self.kafka.history or self.folder / "history"


__all__ = ["FileLog", "Kafka", "KafkaLog", "Objects", "Retention", "Seal", "StoreAccess"]
