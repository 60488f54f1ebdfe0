"""The settings of `source:` with `kind: files`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from cdcflow.ports import Bytes, Seconds, SecretReference, Settings, SourceSettings, StoreAccess

SCHEMA = "files"
TYPES = {
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
_TABLE = re.compile(rf"{SCHEMA}\.[^.]+")
_COLUMN = re.compile(rf"({SCHEMA}\.[^.]+)\.(.+)")
_URL = re.compile(r"https?://[^/@\s?#]+(/[^\s#]*)?")
_SECRET = re.compile(r"[?&][^=&]*(token|key|secret|passw|sig)[^=&]*=", re.IGNORECASE)
_ENDING = re.compile(r"\.((csv|jsonl|ndjson)(\.(gz|zst|bz2))?|parquet)$")
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")


class Csv(Settings):
    """How CSV files are written."""

    delimiter: str = Field(",", min_length=1, max_length=1)
    """The character between values."""
    quote: str = Field('"', min_length=1, max_length=1)
    """The character around values that contain the delimiter."""


class Store(StoreAccess):
    """A prefix of a bucket in an S3-compatible store."""

    url: str
    """`s3://bucket/prefix`: the files are the objects below it. A folder below it, and an object directly in it, is a
    table."""

    @field_validator("url")
    @classmethod
    def _is_a_bucket(cls, url: str) -> str:
        if re.fullmatch(r"s3://[^/@:?#\s]+(/[^?#\s]*)?", url) is None:
            raise ValueError("must look like s3://bucket/prefix")
        return url.rstrip("/")


class FilesSettings(SourceSettings):
    """Files in a folder, in an object store, or at URLs: one of the three."""

    folder: Path | None = None
    """The folder with the files. A folder in it, and a file directly in it, is a table: `orders/…` and `orders.csv` are
    both `files.orders`."""
    store: Store | None = None
    urls: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The URLs of each table's files: `{files.rates: ["https://host/rates.csv"]}`."""
    lists: dict[str, str] = Field(default_factory=dict)
    """The URL of a list of each table's files: a text with one URL per line, which may be relative."""
    headers: dict[str, SecretReference] = Field(default_factory=dict)
    """HTTP headers with a secret, such as `{Authorization: "${env:TOKEN}"}`. They are sent to the hosts of `urls` and
    `lists`, but not to other hosts that a list names or a server redirects to."""
    state: Path
    """The folder of the ledger: which files were read, in which order, and their content, compressed. It must be
    outside of `source.folder`."""
    poll_every: Seconds = 5.0
    """The pause between two polls. A file in a folder is read when its size and time of change are equal in two
    polls."""
    keys: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The key of each table that has one: `{files.orders: [id]}`."""
    types: dict[str, str] = Field(default_factory=dict)
    """Types of columns that are not inferred: `{files.orders.amount: "decimal(12,2)"}`."""
    csv: Csv = Csv()
    file_bytes_max: Bytes = 1 << 30
    """The maximum size of a file. A larger one stops its table, because a file is read in one piece."""

    @property
    def address(self) -> str:
        """Where the files are, for messages."""
        if self.folder is not None:
            return f"folder {self.folder}"
        return self.store.url if self.store is not None else ", ".join(sorted(self.hosts))

    @property
    def hosts(self) -> frozenset[str]:
        """The scheme and host of each URL in the settings."""
        parts = [urlsplit(url) for urls in self.urls.values() for url in urls]
        parts += [urlsplit(url) for url in self.lists.values()]
        return frozenset(f"{one.scheme}://{one.netloc}" for one in parts)

    @model_validator(mode="after")
    def _are_in_one_place(self) -> Self:
        places = (self.folder is not None, self.store is not None, bool(self.urls or self.lists))
        if sum(places) != 1:
            raise ValueError("needs one place for the files: folder, store, or urls and lists")
        if self.headers and not (self.urls or self.lists):
            raise ValueError("has headers, which only urls and lists use")
        return self

    @field_validator("urls")
    @classmethod
    def _are_urls_of_files(cls, urls: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for table, addresses in urls.items():
            _check_table(table, "[https://host/name.csv]")
            for url in addresses:
                _check_url(url)
                if _ENDING.search(urlsplit(url).path) is None:
                    raise ValueError(f"has {url}, whose path does not end as a file's: .csv, .jsonl, .ndjson, .parquet")
            if len(set(addresses)) < max(1, len(addresses)):
                raise ValueError(f"has no URL for {table}, or one twice")
        return urls

    @field_validator("lists")
    @classmethod
    def _are_urls_of_lists(cls, lists: dict[str, str]) -> dict[str, str]:
        for table, url in lists.items():
            _check_table(table, "https://host/list.txt")
            _check_url(url)
        return lists

    @field_validator("headers")
    @classmethod
    def _are_names_of_headers(cls, headers: dict[str, str | None]) -> dict[str, str | None]:
        for name, reference in headers.items():
            if re.fullmatch(r"[A-Za-z0-9-]+", name) is None or reference is None:
                raise ValueError('has a name that no header has, or one without a value; write {Name: "${env:NAME}"}')
        return headers

    @field_validator("keys")
    @classmethod
    def _are_of_tables(cls, keys: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for table, columns in keys.items():
            _check_table(table, "[column]")
            if not columns or len(set(columns)) < len(columns):
                raise ValueError(f"has a key of {table} without a column, or with one twice")
        return keys

    @field_validator("types")
    @classmethod
    def _are_types(cls, types: dict[str, str]) -> dict[str, str]:
        for column, text in types.items():
            if _COLUMN.fullmatch(column) is None:
                raise ValueError(f"has {column}, which is not the name of a column; write {SCHEMA}.table.column: type")
            if text not in TYPES and _decimal(text) is None:
                raise ValueError(f"has a type for {column} that is not one of {', '.join(TYPES)} or decimal(p,s)")
        return types

    def types_of(self, table: str) -> dict[str, pa.DataType]:
        """The given types of a table's columns."""
        found = {}
        for column, text in self.types.items():
            name = _COLUMN.fullmatch(column)
            if name is not None and name[1] == table:
                found[name[2]] = TYPES.get(text) or _decimal(text)
        return found


def is_web_address(url: str) -> bool:
    """Whether this is a URL that may be read, without a secret in it."""
    return _URL.fullmatch(url) is not None and _SECRET.search(url) is None


def _check_url(url: str) -> None:
    if not is_web_address(url):
        raise ValueError(
            "has what is not a URL such as https://host/path, or one with a secret in it; a secret goes into headers,"
            " as a reference"
        )


def _check_table(table: str, value: str) -> None:
    if _TABLE.fullmatch(table) is None:
        raise ValueError(f"has {table}, which is not the name of a table; write {SCHEMA}.name: {value}")


def _decimal(text: str) -> pa.DataType | None:
    found = _DECIMAL.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= 38 or int(found[2]) > int(found[1]):
        return None
    return pa.decimal128(int(found[1]), int(found[2]))
