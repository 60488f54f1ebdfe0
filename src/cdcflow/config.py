"""Settings: one file, `cdcflow.yaml`, parsed once into frozen models. The names here are the names everywhere.

Loading lives here too (`load`), because a wrong setting is answered with its place in the file. Secrets are
references (`${env:NAME}`, `${file:path}`) and are resolved when they are used, so that a rotated one is read anew.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import types
import typing
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
Special = Literal["stop", "null", "text", "clamp"]

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
_NAME_PART = r'(?:"(?:[^"]|"")+"|[^".\s]+)'
_PATTERN = re.compile(rf"!?{_NAME_PART}\.{_NAME_PART}")
_COLUMN = re.compile(rf"{_NAME_PART}\.{_NAME_PART}\.{_NAME_PART}")
_LISTEN = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[^:\s]+):\d{1,5}")


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

    password: str | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    heartbeat: Seconds = 10.0
    spool_bytes_max: Bytes = 8 << 20
    backfill: Backfill = Backfill()

    @field_validator("password")
    @classmethod
    def _password_by_reference(cls, password: str | None) -> str | None:
        if password is not None and _REFERENCE.fullmatch(password) is None:
            raise ValueError("must be a reference, not the password itself: ${env:NAME} or ${file:path}")
        return password

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


class FileLog(Settings):
    path: Path
    seal: Seal = Seal()


class Merge(Settings):
    format: Literal["delta"] = "delta"
    warehouse: Path = Path("warehouse")
    every: Seconds | None = None


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


def _by_reference(secret: str | None) -> str | None:
    if secret is not None and _REFERENCE.fullmatch(secret) is None:
        raise ValueError("must be a reference, not the secret itself: ${env:NAME} or ${file:path}")
    return secret


SecretReference = Annotated[str | None, AfterValidator(_by_reference)]


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
    log: FileLog
    merge: Merge = Merge()
    publish: Publish | None = None
    service: Service = Service()


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


def seconds(text: str) -> float:
    """A time as the settings write it (`30s`, `5m`), for options of commands.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        return TypeAdapter(Seconds).validate_python(text)
    except ValidationError:
        raise ConfigurationError("a time must be a number with a unit, such as 30s or 5m") from None


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
    model: type[Settings] = Config
    for name in place:
        inner = _inner_model(model, str(name), source)
        if inner is None:
            return None
        model = inner
    return model


def _inner_model(model: type[Settings], name: str, source: type[Settings]) -> type[Settings] | None:
    if model is Config and name == "source":
        return source
    field = model.model_fields.get(name)
    if field is None:
        return None
    annotation = field.annotation
    choices = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    return next((c for c in choices if isinstance(c, type) and issubclass(c, Settings)), None)


def _all_names(model: type[Settings], place: Place, source: type[Settings]) -> list[Place]:
    names: list[Place] = []
    for name in model.model_fields:
        inner = _inner_model(model, name, source)
        names += [(*place, name)] if inner is None else _all_names(inner, (*place, name), source)
    return names


def _dotted(place: Place) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place).removeprefix(".")


def _at(path: Path, mark: yaml.Mark | None) -> str:
    return str(path) if mark is None else f"{path}:{mark.line + 1}:{mark.column + 1}"


def _rebased(config: Config, folder: Path) -> Config:
    source = config.source
    if source.password is not None and source.password.startswith("${file:"):
        password = f"${{file:{folder / Path(source.password[7:-1]).expanduser()}}}"
        source = source.model_copy(update={"password": password})
    if isinstance(source, MySQL):
        tls = source.tls.model_copy(update={"ca": _below(folder, source.tls.ca)})
        key = _below(folder, source.server_public_key)
        source = source.model_copy(update={"tls": tls, "server_public_key": key})
    return config.model_copy(
        update={
            "source": source,
            "log": config.log.model_copy(update={"path": folder / config.log.path.expanduser()}),
            "merge": config.merge.model_copy(update={"warehouse": folder / config.merge.warehouse.expanduser()}),
        }
    )


def _below(folder: Path, path: Path | None) -> Path | None:
    return None if path is None else folder / path.expanduser()
