"""Settings: one file, `cdcflow.yaml`, parsed once into frozen models. The names here are the names everywhere.

Loading lives here too (`load`), because a wrong setting is answered with its place in the file. Secrets are
references (`${env:NAME}`, `${file:path}`) and are resolved when they are used, so that a rotated one is read anew.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import stat
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qsl

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from cdcflow.errors import ConfigurationError

_UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_TIMES = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _with_unit(units: dict[str, float] | dict[str, int], example: str) -> BeforeValidator:
    def parse(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, str):
            return value
        text = value.strip().lower()
        for unit in sorted(units, key=len, reverse=True):
            if text.endswith(unit):
                try:
                    return float(text[: -len(unit)]) * units[unit]
                except ValueError:
                    break
        raise ValueError(f"must be a number with a unit, such as {example}")

    return BeforeValidator(parse)


Bytes = Annotated[int, _with_unit(_UNITS, "64MiB"), Field(gt=0)]
Seconds = Annotated[float, _with_unit(_TIMES, "10s"), Field(gt=0)]
SecondsOrNone = Annotated[float, _with_unit(_TIMES, "10m"), Field(ge=0)]
Special = Literal["stop", "null", "text", "clamp"]

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
_NAME_PART = r'(?:"(?:[^"]|"")+"|[^".\s]+)'
_PATTERN = re.compile(rf"!?{_NAME_PART}\.{_NAME_PART}")
_COLUMN = re.compile(rf"{_NAME_PART}\.{_NAME_PART}\.{_NAME_PART}")
_LISTEN = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[^:\s]+):\d{1,5}")


def _by_reference(secret: str | None) -> str | None:
    if secret is not None and _REFERENCE.fullmatch(secret) is None:
        raise ValueError("must be a reference, not the secret itself: ${env:NAME} or ${file:path}")
    return secret


SecretReference = Annotated[str | None, AfterValidator(_by_reference)]


class Settings(BaseModel):
    # A ValidationError must not repeat what was given: it may be a secret in the wrong place (hard case S03).
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Backfill(Settings):
    """How existing rows are read."""

    chunk_time_target_ms: int = Field(200, gt=0)
    chunk_time_busy_ms: int = Field(10, gt=0)
    chunk_rows_max: int = Field(400_000, gt=0)
    rows_per_second_max: int | None = Field(None, gt=0)
    ranges_at_once: int = Field(2, gt=0, le=16)
    held_bytes_max: Bytes = 64 << 20


class _Database(Settings):
    """What the settings of every database have."""

    password: SecretReference = None
    columns: dict[str, str] = Field(default_factory=dict)
    heartbeat: Seconds = 10.0
    spool_bytes_max: Bytes = 4 << 20
    backfill: Backfill = Backfill()

    @field_validator("tables", check_fields=False)
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            if _PATTERN.fullmatch(pattern) is None:
                raise ValueError(
                    f'"{pattern}" is no table pattern; write schema.name, with * for any, ! in front to leave out'
                )
        if all(pattern.startswith("!") for pattern in patterns):
            raise ValueError("selects no table; name at least one pattern without !")
        return patterns

    @field_validator("columns")
    @classmethod
    def _full_column_names(cls, columns: dict[str, str]) -> dict[str, str]:
        for name in columns:
            if _COLUMN.fullmatch(name) is None:
                raise ValueError(f'"{name}" is no full column name; write schema.table.column')
        return columns


def _without_password(url: str) -> str:
    authority, _, query = url.partition("?")
    secrets = {n for n, _ in parse_qsl(query) if n.lower() in ("password", "sslpassword", "passwd")}
    if secrets or re.match(r"[^:]+://[^@]*:[^@]*@", authority):
        raise ValueError("holds a password; take it out and set source.password: ${env:NAME} or ${file:path}")
    return url


class Postgres(_Database):
    """A PostgreSQL source.

    `slot` and `publication` are named after the log when left out, so that nobody else's is ever taken.
    `special_values` says what becomes of values that the Arrow type cannot hold (infinity in dates and timestamps, NaN
    in a numeric with precision): stop the capture by name, NULL, keep the whole column as text, or clamp to the
    type's ends. `unconstrained_numeric` is the type of `numeric` without precision: exact text, or `decimal(p,s)`.
    `columns` overrides either for one column, by its full name (`public.orders.due`).
    """

    kind: Literal["postgres"]
    url: str
    tables: tuple[str, ...] = ("public.*",)
    slot: str | None = None
    publication: str | None = None
    failover: bool = False
    special_values: Special = "stop"
    unconstrained_numeric: str = "text"
    streaming: bool = True
    binary: bool = True
    catch_up: Literal["auto", "never"] = "auto"

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        if not re.match(r"postgres(ql)?://", url):
            raise ValueError("must look like postgresql://user@host:5432/database")
        return _without_password(url)

    @field_validator("unconstrained_numeric")
    @classmethod
    def _numeric(cls, policy: str) -> str:
        if policy != "text" and re.fullmatch(r"decimal\(\d{1,2},\d{1,2}\)", policy) is None:
            raise ValueError("must be text or decimal(precision,scale)")
        return policy


def _off(value: object) -> object:
    # YAML reads the plain word `off` as false.
    return "off" if value is False else value


class Tls(Settings):
    """How the link to a MySQL or MariaDB server is secured.

    `verify`: the certificate must be good for the host's name; `ca` names the authority that signed it, else those that
    the system trusts count. `verify-ca`: signed by `ca`, whatever the name. `off`: no encryption.
    """

    mode: Annotated[Literal["verify", "verify-ca", "off"], BeforeValidator(_off)] = "verify"
    ca: Path | None = None

    @model_validator(mode="after")
    def _authority(self) -> Tls:
        if self.mode == "verify-ca" and self.ca is None:
            raise ValueError("needs ca: the file with the authority's certificate")
        return self


class MySQL(_Database):
    """A MySQL or MariaDB source.

    `fence` says how a backfill finds its place in the log: `marks` writes rows to `marks_table`, `read-only` writes
    nothing at all. `server_id` is the number under which we read the binary log, as a replica does (left out: one
    made from the log's id). `server_public_key` is a file with the server's RSA key, for passwords over links without
    TLS. `tables_without_key` refuses them, or reads each whole, in one piece. `zero_dates` and `bad_text` say what
    becomes of values that the column's type cannot hold; `columns` overrides either for one column by its full name.
    """

    kind: Literal["mysql", "mariadb"]
    url: str
    tables: tuple[str, ...]
    server_id: int | None = Field(None, ge=1, lt=1 << 32)
    fence: Literal["marks", "read-only"] = "marks"
    marks_table: str = "cdcflow.cdcflow_marks"
    tls: Tls = Tls()
    server_public_key: Path | None = None
    tables_without_key: Literal["refuse", "whole"] = "refuse"
    zero_dates: Literal["stop", "null", "text"] = "stop"
    bad_text: Literal["stop", "replace"] = "stop"

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        if not re.match(r"(mysql|mariadb)://", url):
            raise ValueError("must look like mysql://user@host:3306/")
        return _without_password(url)

    @field_validator("marks_table")
    @classmethod
    def _table_name(cls, name: str) -> str:
        if re.fullmatch(rf"{_NAME_PART}\.{_NAME_PART}", name) is None or "*" in name or "?" in name:
            raise ValueError("must be the name of one table: schema.table")
        return name


class Seal(Settings):
    bytes_max: Bytes = 32 << 20
    age_max: Seconds = 10.0


class Objects(Settings):
    """An S3-compatible store that sealed segments are put into.

    Without `access_key` the usual places are asked: `AWS_*` in the environment, then the machine's own role. A
    segment's files stay on the local disk for `keep_local` after they were put, so that what has begun to read them
    there can go on. What is read back lies in `cache`, up to `cache_bytes_max`.
    """

    url: str
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: SecretReference = None
    secret_key: SecretReference = None
    keep_local: SecondsOrNone = 600.0
    cache: Path | None = None
    cache_bytes_max: Bytes = 1 << 30

    @field_validator("url")
    @classmethod
    def _bucket(cls, url: str) -> str:
        if re.fullmatch(r"s3://[^/@:?#\s]+(/[^?#]*)?", url) is None:
            raise ValueError("must look like s3://bucket/prefix")
        return url.rstrip("/")

    @field_validator("endpoint")
    @classmethod
    def _http(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and re.fullmatch(r"https?://[^/@\s]+/?", endpoint) is None:
            raise ValueError("must look like https://host:port, without user and path")
        return endpoint

    @model_validator(mode="after")
    def _both_keys(self) -> Objects:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("needs access_key and secret_key, or neither")
        return self


_NOWHERE = Path("/dev/null/no log.path")


def _elsewhere(objects: Objects) -> Path:
    """Where a log that has no directory of its own on this machine keeps what it reads."""
    if objects.cache is not None:
        return objects.cache
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = hashlib.sha256(f"{objects.endpoint} {objects.url}".encode()).hexdigest()[:16]
    return Path(base) / "cdcflow" / "objects" / place


class FileLog(Settings):
    """A log in a directory; with `objects` its sealed segments are put into an object store.

    Without `path` the log is only read, from the store: `has_directory` says so, and `path` is where what was read
    is kept.
    """

    path: Path
    seal: Seal = Seal()
    objects: Objects | None = None

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
    """A log in Kafka: its topic, and `<topic>.checkpoint` beside it.

    `options` go to the client library as they are (`security.protocol`, `sasl.mechanism`, `ssl.ca.location`, …), with
    secrets in them as references. `message_bytes`: what is larger than this goes in pieces. `replicas`: copies of the
    topics that are made (None: what the brokers think). `work`: a local folder for the control socket, and for large
    transactions while they arrive; nothing in it need be kept. `history`: the folder that sealed segments go to when
    the log is merged; it is kept.
    """

    brokers: str
    topic: str
    username: str | None = None
    password: SecretReference = None
    options: dict[str, str] = Field(default_factory=dict)
    message_bytes: Annotated[int, _with_unit(_UNITS, "900kB"), Field(ge=1000, le=512 << 20)] = 900_000
    replicas: int | None = Field(None, gt=0)
    work: Path | None = None
    history: Path | None = None

    @field_validator("brokers")
    @classmethod
    def _hosts(cls, brokers: str) -> str:
        if not all(_LISTEN.fullmatch(broker.strip()) for broker in brokers.split(",")):
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
        # YAML reads true and 30000 as what they look like; the library takes texts.
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
            if _SECRET_OPTION.search(name) and _REFERENCE.fullmatch(value) is None:
                raise ValueError(f"has {name}: it must be a reference, ${{env:NAME}} or ${{file:path}}")
        return options

    @model_validator(mode="after")
    def _whole_login(self) -> Kafka:
        if (self.username is None) != (self.password is None):
            raise ValueError("has a username without a password, or the other way round")
        if self.username is not None and not self.options.keys() & {"sasl.mechanism", "sasl.mechanisms"}:
            raise ValueError("has a username, and options do not say sasl.mechanism: PLAIN, SCRAM-SHA-512 …")
        return self


_OF_THE_LOG = "cdcflow sets itself: the log is right only so"
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


_PATHS = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
)


class KafkaLog(Settings):
    kafka: Kafka

    @property
    def folder(self) -> Path:
        """The local folder of this log's daemon."""
        return (self.kafka.work or Path(".cdcflow")) / self.kafka.topic

    @property
    def history(self) -> Path:
        """The folder with this log's sealed segments."""
        return self.kafka.history or self.folder / "history"


class Merge(Settings):
    """How the log becomes tables. `spark` are settings of Spark's own, such as `spark.master`; they win over ours."""

    format: Literal["delta"] = "delta"
    warehouse: Path = Path("warehouse")
    every: Seconds | None = None
    spark: dict[str, str] = Field(default_factory=dict)


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
    """A schema registry that speaks Confluent's interface."""

    url: str
    username: str | None = None
    password: SecretReference = None

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        if not re.match(r"https?://", url):
            raise ValueError("must look like http://host:8081")
        return _without_password(url)


class PublishKafka(Settings):
    """A topic a table in Debezium's envelope. What has Debezium's name means what it means there."""

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
    """Where changes go besides the log."""

    kafka: PublishKafka


class Service(Settings):
    """HTTP health, metrics and status. `hosts` are names it may be asked by, besides `listen`'s and addresses."""

    listen: str | None = None
    hosts: tuple[str, ...] = ()

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, listen: str | None) -> str | None:
        if listen is not None and (_LISTEN.fullmatch(listen) is None or int(listen.rpartition(":")[2]) > 65535):
            raise ValueError("must be host:port, such as 127.0.0.1:8079")
        return listen


class Config(Settings):
    """The whole of `cdcflow.yaml`."""

    source: Annotated[Postgres | MySQL, Field(discriminator="kind")]
    log: FileLog | KafkaLog
    merge: Merge = Merge()
    publish: Publish | None = None
    service: Service = Service()

    @field_validator("log", mode="wrap")
    @classmethod
    def _in_one_place(cls, log: object, checked: ValidatorFunctionWrapHandler) -> object:
        if not isinstance(log, dict):
            return checked(log)
        if "kafka" in log and len(log) > 1:
            raise ValueError("is in one place: either path (with what belongs to it) or kafka, not both")
        return (KafkaLog if "kafka" in log else FileLog).model_validate(log)


def load(path: Path | str) -> Config:
    """Read a settings file. Relative paths in it are taken from the folder it lies in.

    Raises:
        ConfigurationError: one line a mistake, each with its place in the file.
    """
    path = Path(path)
    node = _composed(path)
    places: Places = {}
    _note_places(path, node, (), places)
    try:
        config = Config.model_validate(yaml.SafeLoader("").construct_document(node))
    except ValidationError as error:
        lines = [_line(path, places, tuple(e["loc"]), e["type"], e["msg"]) for e in error.errors(include_input=False)]
        raise ConfigurationError("\n".join(lines)) from None
    except yaml.constructor.ConstructorError as error:
        raise ConfigurationError(
            f"{_at(path, error.problem_mark)}: this value cannot be read; put it in quotes"
        ) from None
    return _rebased(config, path.parent.absolute())


def byte_count(text: str) -> int:
    """An amount of bytes as the settings write it (`64MiB`), for options of commands.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        return TypeAdapter(Bytes).validate_python(text)
    except ValidationError:
        raise ConfigurationError("an amount of bytes must be a number with a unit, such as 256MiB") from None


def seconds(text: str, *, zero: bool = False) -> float:
    """A time as the settings write it (`30s`, `5m`), for options of commands. `zero`: 0s is one too.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        return TypeAdapter(SecondsOrNone if zero else Seconds).validate_python(text)
    except ValidationError:
        raise ConfigurationError("a time must be a number with a unit, such as 30s or 5m") from None


def is_reference(text: str) -> bool:
    """Whether a setting's text names a secret instead of being the value."""
    return _REFERENCE.fullmatch(text) is not None


def secret(reference: str | None) -> str | None:
    """The secret that a reference of the settings names, read anew at every call; None for None.

    Raises:
        ConfigurationError: it is not there, or everybody on the machine may read its file.
    """
    if reference is None:
        return None
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ConfigurationError("a secret is given as such; write a reference: ${env:NAME} or ${file:path}")
    kind, name = match.groups()
    return _secret_from_environment(name) if kind == "env" else _secret_from_file(Path(name).expanduser())


def _secret_from_environment(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise ConfigurationError(
            f"the settings take a secret from the environment variable {name}, which is not set",
            remedy=f"set {name} where cdcflow is started",
        ) from None


def _secret_from_file(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
                raise ConfigurationError(
                    f"everybody on this machine may read the secret in {path}", remedy=f"chmod o-rwx {path}"
                )
            return file.read().rstrip("\r\n")
    except OSError as error:
        raise ConfigurationError(f"the settings take a secret from {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the secret in {path} is not UTF-8 text") from None


# ── places in the file ──────────────────────────────────────────────────────────────────────────────────────

Place = tuple[str | int, ...]
Places = dict[Place, yaml.Mark]


def _composed(path: Path) -> yaml.Node:
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except FileNotFoundError:
        raise ConfigurationError(
            f"there is no settings file {path}", remedy="run `cdcflow init` to write one, or name yours with --config"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"the settings file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the settings file {path} is not UTF-8 text") from None
    except yaml.composer.ComposerError as error:
        # Not its own words: they repeat what stands there, which may be a password that begins with *.
        raise ConfigurationError(f"{_at(path, error.problem_mark)}: a value that begins with * needs quotes") from None
    except yaml.MarkedYAMLError as error:
        if "alias" in str(error.context):
            raise ConfigurationError(
                f"{_at(path, error.problem_mark)}: a value that begins with * needs quotes"
            ) from None
        raise ConfigurationError(f"{_at(path, error.problem_mark)}: not YAML: {error.problem}") from None
    except yaml.YAMLError:
        raise ConfigurationError(f"{path}: not YAML: a character that YAML does not allow") from None
    if not isinstance(node, yaml.MappingNode):
        raise ConfigurationError(
            f"{path}: holds no settings", remedy="run `cdcflow init` elsewhere to see a whole file"
        )
    return node


def _note_places(path: Path, node: yaml.Node, place: Place, places: Places) -> None:
    if len(place) > 16:
        raise ConfigurationError(f"{_at(path, node.start_mark)}: settings are not nested this deep")
    if node.tag.startswith("!"):
        raise ConfigurationError(f"{_at(path, node.start_mark)}: a value that begins with ! needs quotes")
    match node:
        case yaml.MappingNode():
            for key, value in node.value:
                inner = (*place, str(key.value) if isinstance(key, yaml.ScalarNode) else "?")
                if inner in places:
                    raise ConfigurationError(f"{_at(path, key.start_mark)}: {_dotted(inner)} is set twice")
                places[inner] = key.start_mark
                _note_places(path, value, inner, places)
        case yaml.SequenceNode():
            for number, value in enumerate(node.value):
                places[(*place, number)] = value.start_mark
                _note_places(path, value, (*place, number), places)
        case _:
            pass


def _line(path: Path, places: Places, tagged: Place, kind: str, message: str) -> str:
    """One mistake as one line, at the nearest place that stands in the file."""
    place, source = _untagged(tagged)
    if kind == "union_tag_invalid":
        place, message = (*place, "kind"), f"must be {_one_of(list(_KINDS))}"
    elif kind == "union_tag_not_found":
        place, kind = (*place, "kind"), "missing"
    found = next((places[place[:n]] for n in range(len(place), 0, -1) if place[:n] in places), None)
    name = _dotted(place)
    match kind:
        case "extra_forbidden":
            text = f"unknown setting {name}{_nearest(place, source)}"
        case "missing":
            text = f"{name} is missing"
        case _:
            text = f"{name} {message.removeprefix('Value error, ').replace('Input should be', 'must be')}"
    return f"{_at(path, found)}: {text}"


_KINDS: dict[str, type[Settings]] = {"postgres": Postgres, "mysql": MySQL, "mariadb": MySQL}


def _untagged(place: Place) -> tuple[Place, type[Settings]]:
    """A place without the kind of source that pydantic puts into it, and the settings of that kind."""
    if len(place) > 1 and place[0] == "source" and place[1] in _KINDS:
        return ("source", *place[2:]), _KINDS[str(place[1])]
    return place, Postgres


def _one_of(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:-1]) + f" or '{names[-1]}'"


def _nearest(place: Place, source: type[Settings]) -> str:
    *parents, wrong = place
    model = _model_at(tuple(parents), source)
    names = [] if model is None else list(model.model_fields)
    close = difflib.get_close_matches(str(wrong), names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {_dotted((*parents, close[0]))}?"
    elsewhere = [p for p in _all_names(Config, (), source) if p[-1] == wrong]
    if elsewhere:
        return f"; it belongs at {_dotted(elsewhere[0])}"
    return f"; known here: {', '.join(names)}" if names else ""


def _model_at(place: Place, source: type[Settings]) -> type[Settings] | None:
    models: list[type[Settings]] = [Config]
    for name in place:
        models = [inner for model in models for inner in _inner_models(model, str(name), source)]
    return models[0] if models else None


def _inner_models(model: type[Settings], name: str, source: type[Settings]) -> list[type[Settings]]:
    if model is Config and name == "source":
        return [source]
    field = model.model_fields.get(name)
    if field is None:
        return []
    annotation = field.annotation
    choices = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return [c for c in choices if isinstance(c, type) and issubclass(c, Settings)]


def _all_names(model: type[Settings], place: Place, source: type[Settings]) -> list[Place]:
    names: list[Place] = []
    for name in model.model_fields:
        inner = _inner_models(model, name, source)
        names += [found for m in inner for found in _all_names(m, (*place, name), source)] or [(*place, name)]
    return names


def _dotted(place: Place) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place).removeprefix(".")


def _at(path: Path, mark: yaml.Mark | None) -> str:
    return str(path) if mark is None else f"{path}:{mark.line + 1}:{mark.column + 1}"


def _rebased(config: Config, folder: Path) -> Config:
    source = config.source
    source = source.model_copy(update={"password": _reference_below(folder, source.password)})
    if isinstance(source, MySQL):
        tls = source.tls.model_copy(update={"ca": _below(folder, source.tls.ca)})
        key = _below(folder, source.server_public_key)
        source = source.model_copy(update={"tls": tls, "server_public_key": key})
    return config.model_copy(
        update={
            "source": source,
            "log": _rebased_log(config.log, folder),
            "merge": config.merge.model_copy(update={"warehouse": folder / config.merge.warehouse.expanduser()}),
            "publish": None if config.publish is None else Publish(kafka=_rebased_topics(config.publish.kafka, folder)),
        }
    )


def _rebased_log(log: FileLog | KafkaLog, folder: Path) -> FileLog | KafkaLog:
    match log:
        case FileLog():
            return _rebased_files(log, folder)
        case KafkaLog(kafka=kafka):
            return log.model_copy(update={"kafka": _rebased_kafka(kafka, folder)})


def _rebased_files(log: FileLog, folder: Path) -> FileLog:
    objects = log.objects
    if objects is not None:
        objects = objects.model_copy(
            update={
                "access_key": _reference_below(folder, objects.access_key),
                "secret_key": _reference_below(folder, objects.secret_key),
                "cache": _below(folder, objects.cache),
            }
        )
    if objects is not None and not log.has_directory:
        return FileLog(seal=log.seal, objects=objects)  # type: ignore[call-arg]  # the path is the store's cache
    return log.model_copy(update={"objects": objects, "path": folder / log.path.expanduser()})


def _rebased_kafka(kafka: Kafka, folder: Path) -> Kafka:
    return kafka.model_copy(
        update={
            "work": _below(folder, kafka.work or Path(".cdcflow")),
            "history": _below(folder, kafka.history),
            "options": _rebased_options(kafka.options, folder),
            "password": _reference_below(folder, kafka.password),
        }
    )


def _rebased_topics(kafka: PublishKafka, folder: Path) -> PublishKafka:
    registry = kafka.registry
    if registry is not None:
        registry = registry.model_copy(update={"password": _reference_below(folder, registry.password)})
    return kafka.model_copy(
        update={
            "options": _rebased_options(kafka.options, folder),
            "password": _reference_below(folder, kafka.password),
            "registry": registry,
        }
    )


def _rebased_options(options: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Options of Kafka's library: files that they name, and references to files."""
    return {
        name: str(folder / Path(value).expanduser())
        if name in _PATHS and value != "probe"
        else _reference_below(folder, value) or value
        for name, value in options.items()
    }


def _reference_below(folder: Path, reference: str | None) -> str | None:
    """A reference to a file, from the folder that the settings lie in."""
    if reference is None or not reference.startswith("${file:"):
        return reference
    return f"${{file:{folder / Path(reference[7:-1]).expanduser()}}}"


def _below(folder: Path, path: Path | None) -> Path | None:
    return None if path is None else folder / path.expanduser()
