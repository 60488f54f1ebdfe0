"""The location of the change log: a folder, optionally with an object store, or a Kafka topic."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from cdcflow.config.access import is_loopback
from cdcflow.config.base import URL, Settings, is_host_and_port
from cdcflow.config.references import SecretReference, is_reference, secret
from cdcflow.config.units import BYTES, Bytes, Seconds, SecondsOrNone, with_unit
from cdcflow.model.stores import StoreAddress

TOPIC_EXPIRES = "set the topic's retention.ms or retention.bytes: the brokers remove what is older"


class Seal(Settings):
    bytes_max: Bytes = 32 << 20
    """The journal becomes a Parquet segment at this size."""
    age_max: Seconds = 10.0
    """The journal becomes a segment at this age, so a merge waits no longer than this for captured changes. The merge
    process of `cdcflow run` does not wait for it ([merge.md](merge.md#with-the-capture))."""


class Retention(Settings):
    """When the daemon expires sealed segments: the old ones by `age`, and the oldest while the log exceeds `bytes`.
    `keep_for` None: merge, publish if it is set, and consumers."""

    age: Seconds | None = None
    """The daemon expires sealed segments that end this long ago (`7d`), here and in the object store; without
    `log.retention` nothing expires automatically ([object-store.md](object-store.md#retention-by-policy))."""
    bytes: Bytes | None = None
    """The daemon expires the oldest segments while all together are larger (`100GiB`)."""
    state: bool = False
    """Every table's rows are stored before segments expire, so that no row is lost with them
    ([log.md](log-reference.md#keep-all-rows-cheaply))."""
    keep_for: tuple[Literal["merge", "publish", "consumer"], ...] | None = None
    """The readers for which expiry waits: what they have not read is kept; `consumer`: the
    [consumers](log-reference.md#lag-and-expiry) that are stored in the log's folder; `[]` waits for no reader.
    Default: `[merge, consumer]`, and `publish` where it is set."""
    every: Seconds = 600.0
    """How often the daemon checks what expires."""

    @model_validator(mode="after")
    def _says_when(self) -> Retention:
        if self.age is None and self.bytes is None:
            raise ValueError("does not determine when segments expire: set age (7d) or bytes (100GiB)")
        return self


class StoreAccess(Settings):
    """How an S3-compatible store is reached."""

    endpoint: str | None = None
    """The store's address, such as `https://minio.internal:9000`; `http://` too. Default: Amazon S3."""
    region: str = "us-east-1"
    """The region of the bucket."""
    access_key: SecretReference = None
    """A reference to the access key. Without it: `AWS_*` of the environment, then the machine's role; a merge by Spark
    uses Spark's own search."""
    secret_key: SecretReference = None
    """A reference to the secret key."""

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
        """Return how another client reaches a bucket in this store, with the current keys."""
        return StoreAddress(bucket, self.endpoint, self.region, secret(self.access_key), secret(self.secret_key))


class Objects(StoreAccess):
    """An S3-compatible store for sealed segments.

    Files remain on the local disk for `keep_local`, so that readers that have begun to read them there can finish.
    """

    url: str
    """`s3://bucket/prefix`: sealed segments go to an S3-compatible store ([object-store.md](object-store.md)). With it
    you may omit `log.path` where the log is only read."""
    keep_local: SecondsOrNone = 600.0
    """How long a segment's files stay on the local disk after the upload; `0s`: no longer than needed."""
    cache: Path | None = None
    """The cache of files that are read back; without `log.path`: a separate folder in `~/.cache/cdcflow/objects`.
    Default: `cache` in the log's folder."""
    cache_bytes_max: Bytes = 1 << 30
    """The maximum size of `cache`; a merge that must fetch more proceeds in steps."""

    @field_validator("url")
    @classmethod
    def _bucket(cls, url: str) -> str:
        if _BUCKET.fullmatch(url) is None:
            raise ValueError("must look like s3://bucket/prefix")
        return url.rstrip("/")


_BUCKET = re.compile(r"s3://[^/@:?#\s]+(/[^?#]*)?")
_NOWHERE = Path("/dev/null/no log.path")


def _elsewhere(objects: Objects) -> Path:
    """Return the folder in which a log without a directory on this machine caches what it reads."""
    if objects.cache is not None:
        return objects.cache
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "cdcflow" / "objects" / _digest(objects.endpoint, objects.url)


def _digest(endpoint: str | None, url: str) -> str:
    return hashlib.sha256(f"{endpoint} {url}".encode()).hexdigest()[:16]


class ReplicaTls(Settings):
    """TLS between the daemon and the peers of its log. Both sides need a certificate of the same authority."""

    cert: Path
    """This side's certificate and the chain below it, in PEM."""
    key: Path | None = None
    """The private key of `cert`, without a passphrase; only the daemon's user may read it. Default: the key is in
    `cert`."""
    ca: Path
    """The certificates of the authority that signed the other side's certificate, in PEM."""


class Replicate(Settings):
    """Where else the latest part of the log is stored, so that it survives the machine."""

    quorum: tuple[str, ...]
    """`host:port` of each [peer](replicated-log.md): 3, 5 or 7. A change is acknowledged to the source once a majority
    has it on disk."""
    tls: ReplicaTls | None = None
    timeout: Seconds = 10.0
    """How long a write waits for a majority before the capture ends and tries again."""

    @field_validator("quorum")
    @classmethod
    def _peers(cls, quorum: tuple[str, ...]) -> tuple[str, ...]:
        if not all(is_host_and_port(peer) for peer in quorum):
            raise ValueError("must be host:port of each peer, such as [a:9470, b:9470, c:9470]")
        if len(set(quorum)) != len(quorum):
            raise ValueError("names a peer twice")
        if len(quorum) not in (3, 5, 7):
            raise ValueError("must name 3, 5 or 7 peers: a majority of them has each change")
        return quorum

    @model_validator(mode="after")
    def _tls_to_other_machines(self) -> Replicate:
        away = [peer for peer in self.quorum if not is_loopback(peer)]
        if away and self.tls is None:
            raise ValueError(f"names {away[0]}, which is another machine, without tls: rows would cross it unencrypted")
        return self


class FileLog(Settings):
    """A log in a directory; with `objects` its sealed segments are uploaded to an object store.

    Without `path` the log is only read, from the store: then `has_directory` is false, and `path` is the cache of what
    was read.
    """

    path: Path
    """The folder of the change log. It also stores position and progress: it is the only state."""
    seal: Seal = Seal()
    index: bool = True
    """The daemon indexes the keys of segments as it seals them, so that `cdcflow get TABLE KEY` finds a row without
    reading the log ([log.md](log-reference.md#the-index))."""
    compact: bool = True
    """The daemon joins small sealed segments, here and in the object store
    ([object-store.md](object-store.md#by-the-daemon))."""
    objects: Objects | None = None
    replicate: Replicate | None = None
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
    def _segments_survive_too(self) -> FileLog:
        if self.replicate is not None and self.objects is None:
            raise ValueError(
                "has replicate without objects: peers store what is not sealed yet, and sealed segments must be in an "
                "object store to survive this machine"
            )
        return self

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
    """A log in Kafka: its topic, and `<topic>.checkpoint`. `objects`: the store of a `history` in a bucket."""

    brokers: str
    """`host:port` of some brokers, with commas between."""
    topic: str
    """The log's topic; `<topic>.checkpoint` stores position and progress. Both are created if they do not exist."""
    username: str | None = None
    """The user, if the brokers require a login; `options` then has `sasl.mechanism`."""
    password: SecretReference = None
    """A reference to the password ([secrets](settings.md#secrets))."""
    options: dict[str, str] = Field(default_factory=dict)
    """Options of the client library (librdkafka), passed through unchanged: `{security.protocol: SASL_SSL,
    sasl.mechanism: SCRAM-SHA-512, ssl.ca.location: ca.pem}`; secrets among them are references. Options on which the
    log's promises depend are refused."""
    message_bytes: Annotated[int, with_unit(BYTES, "900kB"), Field(ge=1000, le=512 << 20)] = 900_000
    """The maximum size of a record; larger content, such as a value of 100 MB, is split. Must be less than the topic's
    `max.message.bytes`."""
    replicas: int | None = Field(None, gt=0)
    """The replication factor with which the topics are created. Default: the brokers'."""
    work: Path | None = None
    """A local folder for the control socket, and for large transactions while they arrive; you need not keep anything
    in it. Default: `.cdcflow` next to the settings."""
    history: Path | str | None = None
    """Where sealed segments go when the log is merged ([kafka.md](kafka.md#history)): a folder, or `s3://bucket/prefix`
    in an S3-compatible store. Do not delete them. On a cluster whose machines share no folder, the history must be in a
    store. Default: `history` in the topic's folder in `work`."""
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
