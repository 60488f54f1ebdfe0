"""Tables as the source describes them: names, columns, key, and which old values the source sends."""

from __future__ import annotations

import base64
import enum
import json
import shlex
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa

from cdcflow.model.types import ColumnType

OP = "_op"
UNCHANGED = "_unchanged"
BEFORE = "_before"
OFFSET = "_offset"
TRANSACTION = "_txn"
COMMIT_TS = "_commit_ts"
LOG_COLUMNS = (OFFSET, OP, TRANSACTION, COMMIT_TS, UNCHANGED, BEFORE)
"""The columns that cdcflow adds to every row. A source table with one of these names is rejected, naming the column."""
MISSING = "_missing"
"""In a merged table: the columns of a row whose values are not known yet (names; NULL when the row is whole)."""
MERGE_COLUMNS = (OFFSET, MISSING)
"""The columns that cdcflow adds to a merged table; a source table with one of these names is rejected too."""


@dataclass(frozen=True, slots=True, order=True)
class TableId:
    """A table's qualified name."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def tables_as_json(tables: Iterable[TableId]) -> str:
    """Tables as stored text: schema and name of each, in the given order."""
    return json.dumps([[table.schema, table.name] for table in tables], separators=(",", ":"))


def tables_from_json(text: str | None) -> tuple[TableId, ...]:
    """The tables of a stored text; none if there is no text."""
    return tuple(TableId(*name) for name in json.loads(text or "[]"))


def word(table: TableId | str) -> str:
    """A table's name quoted as one shell word, for commands that messages print."""
    return shlex.quote(str(table))


class Identity(enum.Enum):
    """How much of the old row the source sends with an update or delete."""

    KEY = "key"
    FULL = "full"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `number` survives a rename (PostgreSQL attnum).

    `missing` is the value, as the server's text, of rows written before this column was added, where the source's log
    has no change for them (ADD COLUMN … DEFAULT constant); None means NULL.
    """

    name: str
    number: int
    type: ColumnType
    nullable: bool = True
    missing: str | None = None


@dataclass(frozen=True)
class Table:
    """One shape of a table. Any change of shape is a different value; two reads of the same shape are equal.

    `incarnation` distinguishes a table from a later one of the same name (PostgreSQL oid). `key` names the columns that
    identify a row; empty means that only all columns together do. `log_schema` is the schema of this table's changes in
    the log.
    """

    id: TableId
    incarnation: int
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    identity: Identity = Identity.KEY

    @cached_property
    def _hash(self) -> int:
        return hash((self.id, self.incarnation, tuple(c.name for c in self.columns), self.key, self.identity))

    def __hash__(self) -> int:
        return self._hash

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that identify a row: the key, or all columns if the table has no key."""
        return self.key or tuple(c.name for c in self.columns)

    def has_columns_of(self, other: Table) -> bool:
        """Whether both shapes have the same key, and columns of the same names, numbers and types."""
        columns = [[(c.name, c.number, c.type) for c in table.columns] for table in (self, other)]
        return self.key == other.key and columns[0] == columns[1]

    @cached_property
    def row_schema(self) -> pa.Schema:
        """The table's own columns, all nullable: a deleted row has only its key."""
        return pa.schema([pa.field(c.name, c.type.arrow) for c in self.columns])

    @cached_property
    def before_type(self) -> pa.StructType:
        """The type of the old row as the source sends it: all columns under FULL, otherwise the key."""
        names = None if self.identity is Identity.FULL else set(self.key_columns)
        return pa.struct([f for f in self.row_schema if names is None or f.name in names])

    @cached_property
    def change_schema(self) -> pa.Schema:
        """The columns of a `ChangeBatch`: the table's own, then `_op`, `_unchanged`, `_before`."""
        return pa.schema(
            [
                *self.row_schema,
                pa.field(OP, pa.string(), nullable=False),
                pa.field(UNCHANGED, pa.list_(pa.field("element", pa.string()))),
                pa.field(BEFORE, self.before_type),
            ]
        )

    @cached_property
    def log_schema(self) -> pa.Schema:
        """The columns of this table in the change log: the order key first, then the change."""
        return pa.schema(
            [
                pa.field(OFFSET, pa.int64(), nullable=False),
                pa.field(TRANSACTION, pa.int64(), nullable=False),
                pa.field(COMMIT_TS, pa.timestamp("us", tz="UTC"), nullable=False),
                *self.change_schema,
            ]
        )

    def to_json(self) -> dict[str, object]:
        return {
            "schema": self.id.schema,
            "name": self.id.name,
            "incarnation": self.incarnation,
            "columns": [
                {
                    "name": c.name,
                    "number": c.number,
                    "type": c.type.to_json(),
                    "nullable": c.nullable,
                    "missing": c.missing,
                }
                for c in self.columns
            ],
            "key": list(self.key),
            "identity": self.identity.value,
        }

    def to_text(self) -> str:
        """Return the JSON of `to_json` as a compact text: a checkpoint stores it for each table that has no row yet."""
        told = json.dumps(self.to_json(), separators=(",", ":")).encode()
        return base64.b85encode(zlib.compress(told, 9)).decode()


def table_from_text(text: str) -> Table:
    """Read what `Table.to_text` wrote."""
    return table_from_json(json.loads(zlib.decompress(base64.b85decode(text))))


@lru_cache(maxsize=4096)
def _intern(table: Table) -> Table:
    return table


def table_from_json(value: dict[str, Any]) -> Table:
    """Read what `Table.to_json` wrote; equal tables are returned as the same object."""
    return _intern(
        Table(
            id=TableId(value["schema"], value["name"]),
            incarnation=value["incarnation"],
            columns=tuple(
                Column(c["name"], c["number"], ColumnType.from_json(c["type"]), c["nullable"], c["missing"])
                for c in value["columns"]
            ),
            key=tuple(value["key"]),
            identity=Identity(value["identity"]),
        )
    )
