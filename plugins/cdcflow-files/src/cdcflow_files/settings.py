"""The settings of `source:` with `kind: files`."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
from pydantic import Field, field_validator

from cdcflow.ports import Bytes, Seconds, Settings, SourceSettings

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
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")


class Csv(Settings):
    """How CSV files are written."""

    delimiter: str = Field(",", min_length=1, max_length=1)
    """The character between values."""
    quote: str = Field('"', min_length=1, max_length=1)
    """The character around values that contain the delimiter."""


class FilesSettings(SourceSettings):
    """Files in a folder."""

    folder: Path
    """The folder with the files. A folder in it, and a file directly in it, is a table: `orders/…` and `orders.csv` are
    both `files.orders`."""
    state: Path
    """The folder of the ledger: which files were read, in which order, and their content, compressed."""
    poll_every: Seconds = 5.0
    """The pause between two polls. A file is read when its size and time of change are equal in two polls."""
    keys: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The key of each table that has one: `{files.orders: [id]}`."""
    types: dict[str, str] = Field(default_factory=dict)
    """Types of columns that are not inferred: `{files.orders.amount: "decimal(12,2)"}`."""
    csv: Csv = Csv()
    file_bytes_max: Bytes = 1 << 30
    """A larger file stops its table: a file is read in one piece."""

    @field_validator("keys")
    @classmethod
    def _are_of_tables(cls, keys: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for table, columns in keys.items():
            if _TABLE.fullmatch(table) is None:
                raise ValueError(f"has {table}, which is not the name of a table; write {SCHEMA}.name: [column]")
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


def _decimal(text: str) -> pa.DataType | None:
    found = _DECIMAL.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= 38 or int(found[2]) > int(found[1]):
        return None
    return pa.decimal128(int(found[1]), int(found[2]))
