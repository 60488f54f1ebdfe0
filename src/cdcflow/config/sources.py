"""The databases that changes are captured from, with one settings model per kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BeforeValidator, Field, field_validator, model_validator

from cdcflow.config.addresses import is_one_host, mysql_url, postgres_url
from cdcflow.config.base import Settings
from cdcflow.config.passwords import PasswordSetting
from cdcflow.config.ssh import Ssh
from cdcflow.config.units import Bytes, Seconds
from cdcflow.model.log_budget import LogBudget
from cdcflow.model.reading_hours import parse_hours
from cdcflow.model.source_load import DayBudget, LoadLimits, ReadingLimits

Special = Literal["stop", "null", "text", "clamp"]

_NAME_PART = r'(?:"(?:[^"]|"")+"|[^".\s]+)'
PATTERN = re.compile(rf"!?{_NAME_PART}\.{_NAME_PART}")
"""The pattern of an element of `source.tables`."""
_COLUMN = re.compile(rf"{_NAME_PART}\.{_NAME_PART}\.{_NAME_PART}")


class LoadLimitSettings(Settings):
    """How busy the source may be while existing rows are read."""

    commit_latency_ratio: float | None = Field(None, gt=1)
    """How many times as long as without reading the slowest of a hundred commits may take, such as `1.1`. cdcflow
    measures it with small commits. Default: no limit."""
    replica_lag: Seconds | None = None
    """How far a replica may lag. PostgreSQL: each connected standby; MySQL, MariaDB: each of `replicas`. Default:
    no limit."""
    replicas: tuple[str, ...] = ()
    """MySQL, MariaDB: the replicas whose lag counts, as `mysql://user@host:port/`; the password is that of the
    source."""
    log_budget_used: float | None = Field(0.8, gt=0, le=1)
    """The used part of `source.log_budget` or `log_budget_age`, where one is set; `null`: no limit."""
    lock_waits: int | None = Field(None, ge=0)
    """How many sessions may wait for a lock. Default: no limit."""
    history_list_length: int | None = Field(None, gt=0)
    """MySQL, MariaDB: how many transactions' old row versions InnoDB may keep. Default: no limit."""
    cpu_used: float | None = Field(None, gt=0, le=1)
    """PostgreSQL on Linux: the used part of the server's processors, such as `0.8`
    ([rights](source-load.md#rights)). Default: no limit."""

    @property
    def limits(self) -> LoadLimits:
        return LoadLimits(
            self.commit_latency_ratio,
            self.replica_lag,
            self.log_budget_used,
            self.lock_waits,
            self.history_list_length,
            self.cpu_used,
        )


class DayBudgetSettings(Settings):
    """How much may be read of the source in a day, which begins at midnight in the time zone of `hours`, or else in
    UTC."""

    rows: int | None = Field(None, gt=0)
    """How many rows are read of the source in a day, at most. Default: no limit."""
    bytes: Bytes | None = None
    """How many bytes of rows are read in a day, at most, by their size in memory. Default: no limit."""
    time: Seconds | None = None
    """For how long rows are read in a day, as the sum over all chunks. Default: no limit."""


def zone_of(name: str) -> ZoneInfo:
    """Return the time zone with a name. Raises ValueError if this machine does not know it."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f'the time zone "{name}" is unknown here; write one such as Europe/Berlin or UTC, or install the package '
            "tzdata"
        ) from None


class Backfill(Settings):
    """How existing rows are read."""

    url: str | None = None
    """A standby (PostgreSQL) or replica (MySQL, MariaDB) of the server of `source.url` that existing rows are read
    from, while changes are captured from `source.url` ([backfill.md](backfill.md#from-a-standby)). The password, `tls`
    and `ssh` are those of the source: write the same user and database. Default: rows are read at `source.url`."""
    chunk_time_target_ms: int = Field(200, gt=0)
    """Chunks of existing rows grow and shrink towards this reading time, in milliseconds."""
    chunk_time_live_ms: int = Field(50, gt=0)
    """The reading time while any captured table is written to: other changes wait while a chunk is written to the
    log."""
    chunk_time_busy_ms: int = Field(10, gt=0)
    """The reading time while the table itself is written to: its changes wait for the chunk that is being read."""
    chunk_rows_max: int = Field(200_000, gt=0)
    """Upper bound of a chunk's rows."""
    rows_per_second_max: int | None = Field(None, gt=0)
    """How fast the rows of a table are read. Default: no limit."""
    ranges_at_once: int = Field(2, gt=0, le=16)
    """Connections that read one large chunk together, each in its own snapshot; one while any captured table is written
    to."""
    held_bytes_max: Bytes = 64 << 20
    """Changes that are held back for a chunk, at most: if there are more, the chunk is abandoned and a smaller one is
    read."""
    whole_bytes_max: Bytes = 1 << 30
    """The maximum size of a table without a key, which is read in one piece, in memory. A larger one fails with an
    error."""
    hours: str | None = None
    """When backfills and comparisons read the source, such as `22:00-06:00 Europe/Berlin`; several spans with commas
    between ([source-load.md](source-load.md#hours)). Default: at any time."""
    per_day: DayBudgetSettings = DayBudgetSettings()
    limits: LoadLimitSettings = LoadLimitSettings()

    @field_validator("hours")
    @classmethod
    def _are_hours(cls, text: str | None) -> str | None:
        if text is not None:
            parse_hours(text, zone_of)
        return text

    @property
    def reading(self) -> ReadingLimits:
        """The limits on when and how rows may be read."""
        hours = None if self.hours is None else parse_hours(self.hours, zone_of)
        zone = UTC if hours is None else hours.zone
        day = DayBudget(self.per_day.rows, self.per_day.bytes, self.per_day.time, zone)
        return ReadingLimits(self.limits.limits, hours, day)

    def refuse(self, *names: str, because: str) -> None:
        """Raise ValueError if one of these limits is set. `because`: the reason."""
        for name in names:
            if getattr(self.limits, name):
                raise ValueError(f"backfill.limits.{name} is not possible: {because}; remove it")


def one_table(name: str) -> str:
    """Return the name, if it is that of one table; otherwise raise ValueError."""
    if re.fullmatch(rf"{_NAME_PART}\.{_NAME_PART}", name) is None or "*" in name or "?" in name:
        raise ValueError("must be the name of one table: schema.table")
    return name


def check_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the patterns, if they select tables; otherwise raise ValueError."""
    for pattern in patterns:
        if PATTERN.fullmatch(pattern) is None:
            raise ValueError(
                f'"{pattern}" is not a table pattern; write schema.name, with * as a wildcard and a leading ! to '
                "leave tables out"
            )
    if all(pattern.startswith("!") for pattern in patterns):
        raise ValueError("selects no table; name at least one pattern without !")
    return patterns


class SourceSettings(Settings):
    """The settings that all sources have, also those of plug-ins."""

    kind: str
    """The kind of the source: one of cdcflow's, or an installed plug-in's."""
    tables: tuple[str, ...] = ("*.*",)
    """Patterns of `schema.table`; `*` matches any characters, `?` one, a leading `!` excludes tables, `"…"` around a
    part takes it literally. Default: `["*.*"]`."""
    heartbeat: Seconds = 10.0
    """How often a mark is written to the source's log, so that its position and
    [commit clock](log-reference.md#the-order) advance while nothing else happens. On MySQL and MariaDB with
    `fence: read-only` the daemon queries the server's time instead."""
    backfill: Backfill = Backfill()

    @field_validator("tables")
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        return check_patterns(patterns)

    @model_validator(mode="after")
    def _is_measured(self) -> Self:
        if self.backfill.url is not None and not isinstance(self, _Database):
            raise ValueError(f"backfill.url is not possible for a source of kind {self.kind}; remove it")
        if not isinstance(self, _Database):
            names = ("commit_latency_ratio", "replica_lag", "replicas", "lock_waits", "history_list_length", "cpu_used")
            self.backfill.refuse(*names, because=f"a source of kind {self.kind} is not measured")
        return self


class _Database(SourceSettings):
    """The settings that all databases have."""

    url: str
    """`postgresql://user@host:port/database`, with the library's parameters after `?` (`sslmode=verify-full`, …), or
    `mysql://user@host:port/` (`?socket=path` for a socket); never with a password."""
    password: PasswordSetting = None
    """A reference to the password ([secrets](settings.md#secrets)), or a command that prints it."""
    ssh: Ssh | None = None
    columns: dict[str, str] = Field(default_factory=dict)
    """The policy for values of one column, such as `{public.orders.due: clamp}`: PostgreSQL's `special_values` and
    `unconstrained_numeric`, MySQL's and MariaDB's `zero_dates` and `bad_text`."""
    control_table: str | None = None
    """A table in the source whose rows are commands for the daemon, which reads it every `source.heartbeat`
    ([control.md](control.md#commands-by-sql))."""
    spool_bytes_max: Bytes = 4 << 20
    """A transaction above this size goes to disk while it arrives."""
    log_budget: Bytes | None = None
    """How much log the source may keep for cdcflow ([budget.md](budget.md)): warnings begin at 50 % of it. Default: no
    budget."""
    log_budget_age: Seconds | None = None
    """How old the oldest log may be that the source keeps for cdcflow. Default: no budget."""
    log_budget_then: Literal["stop", "release"] = "stop"
    """What happens when the budget is used up, or when the server has removed log that cdcflow needs. `stop`: the
    source keeps more, as far as its own limits allow, and an operator decides. `release`: cdcflow drops the slot,
    captures from the present, compares the tables with the source, and repairs what differs."""

    @model_validator(mode="after")
    def _one_host_through_ssh(self) -> Self:
        for name, url in (("source.url", self.url), ("source.backfill.url", self.backfill.url)):
            if self.ssh is not None and url is not None and not is_one_host(url):
                raise ValueError(
                    f"ssh needs a {name} with one host, as the SSH server reaches it; no socket, and no list of hosts"
                )
        return self

    @property
    def releases(self) -> bool:
        """Whether the capture continues by itself after a gap in the source's log."""
        return self.log_budget_then == "release"

    @property
    def budget(self) -> LogBudget:
        """The budget for the log that the source keeps."""
        return LogBudget(self.log_budget, self.log_budget_age)

    @field_validator("control_table")
    @classmethod
    def _control_table_name(cls, name: str | None) -> str | None:
        return name if name is None else one_table(name)

    @field_validator("columns")
    @classmethod
    def _full_column_names(cls, columns: dict[str, str]) -> dict[str, str]:
        for name in columns:
            if _COLUMN.fullmatch(name) is None:
                raise ValueError(f'"{name}" is not a full column name; write schema.table.column')
        return columns


class Postgres(_Database):
    """A PostgreSQL source.

    `slot` and `publication` are named after the log by default, so that cdcflow never uses those of another process.
    """

    kind: Literal["postgres"]
    """The kind of the database."""
    tables: tuple[str, ...] = ("public.*",)
    """Patterns of `schema.table`; `*` matches any characters, `?` one, a leading `!` excludes tables, `"…"` around a
    part takes it literally. Default: `[public.*]`; none for MySQL and MariaDB."""
    slot: str | None = None
    """The replication slot; created if it does not exist. Default: named after the log."""
    publication: str | None = None
    """The publication; created if it does not exist. Default: named after the log."""
    failover: bool = False
    """Make the slot survive a failover to a standby (PostgreSQL 17 and newer)."""
    special_values: Special = "stop"
    """What to do with values that the column's type in the log cannot hold (infinity in dates and timestamps, NaN in
    `numeric(p,s)`): `stop` capturing the table, with a reason that names the column, `null`, keep the column as
    `text`, or `clamp` to the type's ends."""
    unconstrained_numeric: str = "text"
    """What `numeric` without precision becomes: exact `text`, or `decimal(p,s)`."""
    streaming: bool = True
    """Let the server send large transactions while they are still open."""
    binary: bool = True
    """Ask for binary values where every captured type has a decoder for them."""
    catch_up: Literal["auto", "never"] = "auto"
    """`auto`: a large backlog is read in windows through SQL, which is faster than streaming; `never`: always
    streaming."""

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        return postgres_url(url)

    @model_validator(mode="after")
    def _limits(self) -> Postgres:
        if self.backfill.url is not None:
            _check_backfill_url(self.backfill.url, postgres_url)
        self.backfill.refuse("replicas", because="the server knows its standbys")
        self.backfill.refuse("history_list_length", because="only InnoDB has a history list")
        return self

    @field_validator("unconstrained_numeric")
    @classmethod
    def _numeric(cls, policy: str) -> str:
        if policy != "text" and re.fullmatch(r"decimal\(\d{1,2},\d{1,2}\)", policy) is None:
            raise ValueError("must be text or decimal(precision,scale)")
        return policy


def _check_backfill_url(url: str, check: Callable[[str], object]) -> None:
    try:
        check(url)
    except ValueError as error:
        raise ValueError(f"backfill.url {error}") from None


def _off(value: object) -> object:
    # YAML reads the plain word `off` as false.
    return "off" if value is False else value


class Tls(Settings):
    """How the connection to a MySQL or MariaDB server is secured."""

    mode: Annotated[Literal["verify", "verify-ca", "off"], BeforeValidator(_off)] = "verify"
    """`verify`: the certificate must be good for the host's name; `verify-ca`: signed by `ca`, whatever the name;
    `off`."""
    ca: Path | None = None
    """The file with the certificate of the authority that signed the server's. Default: the system's."""
    cert: Path | None = None
    """The file with the client's certificate, for a user that the server requires one of (`REQUIRE X509`)."""
    key: Path | None = None
    """The file with the certificate's private key, without a passphrase; only the daemon's user may read it. Default:
    the key is in `cert`."""

    @model_validator(mode="after")
    def _authority(self) -> Tls:
        if self.cert is None and self.key is not None:
            raise ValueError("has a key and no cert; set cert to the file with the client's certificate")
        if self.cert is not None and self.mode == "off":
            raise ValueError("has a cert, which mode: off does not send; remove one of the two")
        if self.mode == "verify-ca" and self.ca is None:
            raise ValueError("needs ca; set it to the file with the authority's certificate")
        return self


class MySQL(_Database):
    """A MySQL or MariaDB source."""

    kind: Literal["mysql", "mariadb"]
    """As for `Postgres`."""
    tables: tuple[str, ...]
    """As for `Postgres`."""
    server_id: int | None = Field(None, ge=1, lt=1 << 32)
    """The number under which the binary log is read, as a replica does; no two readers of a server may share one.
    Default: made from the log's id."""
    fence: Literal["marks", "read-only"] = "marks"
    """`marks`: a backfill writes rows to `marks_table`; `read-only`: it writes nothing to the source at all."""
    marks_table: str = "cdcflow.cdcflow_marks"
    """The table to which a backfill writes its marks. It is created if it does not exist."""
    tls: Tls = Tls()
    server_public_key: Path | None = None
    """A file with the server's RSA key, for a password over a link without TLS."""
    tables_without_key: Literal["refuse", "whole"] = "refuse"
    """`whole`: a table without a key is read in one piece, in one window."""
    zero_dates: Literal["stop", "null", "text"] = "stop"
    """What happens to `0000-00-00` and dates with a zero month or day: `stop` this table with an error that names the
    column, `null`, or keep the column as `text`."""
    bad_text: Literal["stop", "replace"] = "stop"
    """What happens to bytes that the column's character set does not have: `stop` this table with an error that names
    the column, or `replace` them."""

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        return mysql_url(url)

    @field_validator("marks_table")
    @classmethod
    def _table_name(cls, name: str) -> str:
        return one_table(name)

    @model_validator(mode="after")
    def _limits(self) -> MySQL:
        if self.backfill.url is not None:
            _check_backfill_url(self.backfill.url, mysql_url)
        self.backfill.refuse("cpu_used", because=f"{self.kind} does not tell how busy its processors are")
        for url in self.backfill.limits.replicas:
            mysql_url(url)
        if self.backfill.limits.replica_lag is not None and not self.backfill.limits.replicas:
            raise ValueError(
                "backfill.limits.replica_lag needs backfill.limits.replicas: the server does not know how far its "
                "replicas lag"
            )
        if self.fence == "read-only":
            because = "it is measured with small commits, and with fence: read-only cdcflow writes nothing"
            self.backfill.refuse("commit_latency_ratio", because=because)
        return self

    @model_validator(mode="after")
    def _writes_or_not(self) -> MySQL:
        if self.fence == "read-only" and self.control_table is not None:
            raise ValueError(
                "control_table has rows that cdcflow answers, and with fence: read-only it writes nothing; remove "
                "one of the two"
            )
        return self
