"""The databases that changes are captured from, with one settings model per kind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from cdcflow.config.addresses import mysql_url, postgres_url
from cdcflow.config.base import Settings
from cdcflow.config.references import SecretReference
from cdcflow.config.units import Bytes, Seconds

Special = Literal["stop", "null", "text", "clamp"]

_NAME_PART = r'(?:"(?:[^"]|"")+"|[^".\s]+)'
PATTERN = re.compile(rf"!?{_NAME_PART}\.{_NAME_PART}")
"""The pattern of an element of `source.tables`."""
_COLUMN = re.compile(rf"{_NAME_PART}\.{_NAME_PART}\.{_NAME_PART}")


class Backfill(Settings):
    """How existing rows are read."""

    chunk_time_target_ms: int = Field(200, gt=0)
    chunk_time_live_ms: int = Field(50, gt=0)
    chunk_time_busy_ms: int = Field(10, gt=0)
    chunk_rows_max: int = Field(200_000, gt=0)
    rows_per_second_max: int | None = Field(None, gt=0)
    ranges_at_once: int = Field(2, gt=0, le=16)
    held_bytes_max: Bytes = 64 << 20
    whole_bytes_max: Bytes = 1 << 30


def one_table(name: str) -> str:
    """The name, if it is that of one table. ValueError otherwise."""
    if re.fullmatch(rf"{_NAME_PART}\.{_NAME_PART}", name) is None or "*" in name or "?" in name:
        raise ValueError("must be the name of one table: schema.table")
    return name


class _Database(Settings):
    """The settings that all databases have."""

    password: SecretReference = None
    columns: dict[str, str] = Field(default_factory=dict)
    heartbeat: Seconds = 10.0
    control_table: str | None = None
    spool_bytes_max: Bytes = 4 << 20
    backfill: Backfill = Backfill()

    @field_validator("tables", check_fields=False)
    @classmethod
    def _patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            if PATTERN.fullmatch(pattern) is None:
                raise ValueError(
                    f'"{pattern}" is not a table pattern; write schema.name, with * as a wildcard and a leading ! to '
                    "leave tables out"
                )
        if all(pattern.startswith("!") for pattern in patterns):
            raise ValueError("selects no table; name at least one pattern without !")
        return patterns

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
    `special_values` specifies what happens to values that the Arrow type cannot hold (infinity in dates and timestamps,
    NaN in a numeric with precision): stop the capture with an error that names the column, store NULL, keep the whole
    column as text, or clamp to the type's ends. `unconstrained_numeric` is the type of `numeric` without precision:
    exact text, or `decimal(p,s)`. `columns` overrides either for one column, by its full name (`public.orders.due`).
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
        return postgres_url(url)

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
    """How the connection to a MySQL or MariaDB server is secured.

    `verify`: the certificate must be valid for the host's name; `ca` names the authority that signed it, by default any
    that the system trusts. `verify-ca`: signed by `ca`, with any name. `off`: no encryption.
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

    `fence` specifies how a backfill finds its position in the log: `marks` writes rows to `marks_table`, `read-only`
    writes nothing at all. `server_id` is the number under which cdcflow reads the binary log, as a replica does
    (default: derived from the log's id). `server_public_key` is a file with the server's RSA key, for passwords over
    connections without TLS. `tables_without_key` refuses them, or reads each as a whole, in one piece. `zero_dates` and
    `bad_text` specify what happens to values that the column's type cannot hold; `columns` overrides either for one
    column by its full name.
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
        return mysql_url(url)

    @field_validator("marks_table")
    @classmethod
    def _table_name(cls, name: str) -> str:
        return one_table(name)

    @model_validator(mode="after")
    def _writes_or_not(self) -> MySQL:
        if self.fence == "read-only" and self.control_table is not None:
            raise ValueError(
                "control_table has rows that cdcflow answers, and with fence: read-only it writes nothing; remove "
                "one of the two"
            )
        return self


__all__ = ["PATTERN", "Backfill", "MySQL", "Postgres", "Special", "Tls"]
