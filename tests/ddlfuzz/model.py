"""What a case assumes about the database: tables, their columns and keys. No rows: the server itself has those."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Server = Literal["postgres", "mysql", "mariadb"]
SERVERS: tuple[Server, ...] = ("postgres", "mysql", "mariadb")

TYPES: dict[str, dict[str, str]] = {
    "postgres": {
        "int": "integer",
        "big": "bigint",
        "short": "varchar(40)",
        "text": "text",
        "number": "numeric(14,2)",
        "moment": "timestamp",
        "flag": "boolean",
        "mood": "mood",
    },
    "mysql": {
        "int": "int",
        "big": "bigint",
        "short": "varchar(40)",
        "text": "text",
        "number": "decimal(14,2)",
        "moment": "datetime(6)",
        "flag": "tinyint",
        "mood": "enum({moods})",
        "latin": "varchar(40) CHARACTER SET latin1",
    },
}
MOODS = ("calm", "glad", "odd")
KEY_COLUMNS = ("id", "alt")
"""In every table: `id` its first key, `alt` another column that is unique and never NULL."""


@dataclass(frozen=True)
class Column:
    """`values`: who gives a row its value: the statement, or the server by a sequence, an expression, its clock."""

    type: str
    values: Literal["given", "counted", "computed", "stamped"] = "given"
    moods: tuple[str, ...] = MOODS


@dataclass
class Table:
    """`parts`: each partition of a partitioned table with its ids, which start at its number times 1000; or None."""

    columns: dict[str, Column]
    key: tuple[str, ...] = ("id",)
    parts: dict[str, int] | None = None
    versioned: bool = False
    unique: bool = False
    """Its key is a unique key over `alt`, not a primary one (MySQL)."""
    hashed: bool = False
    """It has partitions by hash (MySQL)."""
    indexes: tuple[str, ...] = ()
    """The names of indexes on `alt` (MySQL)."""

    def free(self) -> list[str]:
        """The columns that may be altered: in no key."""
        return [name for name in self.columns if name not in KEY_COLUMNS]

    def given(self, *types: str) -> list[str]:
        """The free columns that a statement may set, of these types (none named: of any)."""
        found = ((name, self.columns[name]) for name in self.free())
        return [name for name, c in found if c.values == "given" and (not types or c.type in types)]


@dataclass
class Model:
    server: Server
    tables: dict[str, Table] = field(default_factory=dict)
    moods: tuple[str, ...] = MOODS
    parted: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Tables that were partitions: the table each was detached from, and its number."""
    in_transaction: bool = False
    has_savepoint: bool = False
    held: bool = False
    """A commit waits for a standby that does not exist, and other sessions do not see it yet (PostgreSQL)."""
    published: bool = True
    """The publication is as cdcflow left it."""

    @property
    def is_postgres(self) -> bool:
        return self.server == "postgres"

    def copy(self) -> Model:
        """Its own tables; columns are values, and shared."""
        tables = {
            n: replace(t, columns=dict(t.columns), parts=None if t.parts is None else dict(t.parts))
            for n, t in self.tables.items()
        }
        return replace(self, tables=tables, parted=dict(self.parted))

    def plain(self) -> list[str]:
        """Tables that are no partition and have none."""
        return [name for name, t in self.tables.items() if t.parts is None]

    def sql_type(self, type_: str, moods: tuple[str, ...] = MOODS) -> str:
        text = TYPES["postgres" if self.is_postgres else "mysql"][type_]
        return text.replace("{moods}", ", ".join(f"'{m}'" for m in moods))

    def types(self) -> list[str]:
        return list(TYPES["postgres" if self.is_postgres else "mysql"])

    def literal(self, column: Column, n: int) -> str:
        """A value of a column, generated from a number: every eleventh is NULL."""
        if n % 11 == 10:
            return "NULL"
        match column.type:
            case "int":
                return str(n % 2001 - 1000)
            case "big":
                return str(n * 1_000_003)
            case "number":
                return f"{n % 100_000 / 100:.2f}"
            case "moment":
                return f"'2024-{n % 12 + 1:02}-{n % 28 + 1:02} {n % 24:02}:{n % 60:02}:07.{n % 1000:03}'"
            case "flag":
                return ("false", "true")[n % 2] if self.is_postgres else str(n % 2)
            case "mood":
                moods = self.moods if self.is_postgres else column.moods
                return f"'{moods[n % len(moods)]}'"
            case "text" if n % 7 == 3:
                return f"repeat('wide {n} ', 400)"
            case _:
                return f"'{('ä', 'é', 'x')[n % 3]} {n}'"

    def split(self, name: str) -> tuple[str, str]:
        """Schema, with its dot, and name."""
        schema, dot, table = name.rpartition(".")
        return schema + dot, table


def is_hidden(name: str) -> bool:
    """Whether the settings leave a table out."""
    return name.rpartition(".")[2].startswith("hidden_") or name.startswith("away.")


__all__ = ["KEY_COLUMNS", "MOODS", "SERVERS", "TYPES", "Column", "Model", "Server", "Table", "is_hidden"]
