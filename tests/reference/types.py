"""The tables of docs/types.md, generated from the code's conversion of each type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cdcflow.config import Special
from cdcflow.model.sqltypes import stored_type
from cdcflow.model.table import Identity, TableId
from cdcflow.sources.mysql.types import registry
from cdcflow.sources.mysql.types.columns import CatalogColumn
from cdcflow.sources.mysql.types.columns import Policy as MySQLPolicy
from cdcflow.sources.postgres.types import describe
from cdcflow.tables.formats.iceberg import RULES as ICEBERG

ID = TableId("s", "t")


def _numeric(precision: int, scale: int) -> int:
    return (precision << 16 | (scale & 0x7FF)) + 4


POSTGRES: dict[str, dict[str, int | str]] = {
    "boolean": {"type_oid": 16},
    "smallint": {"type_oid": 21},
    "integer": {"type_oid": 23},
    "bigint": {"type_oid": 20},
    "oid": {"type_oid": 26},
    "real": {"type_oid": 700},
    "double precision": {"type_oid": 701},
    "numeric(12,2)": {"type_oid": 1700, "base_modifier": _numeric(12, 2)},
    "numeric(50,2)": {"type_oid": 1700, "base_modifier": _numeric(50, 2)},
    "numeric": {"type_oid": 1700},
    "money": {"type_oid": 790},
    "text, varchar, char(n), name": {"type_oid": 25},
    "bytea": {"type_oid": 17},
    "date": {"type_oid": 1082},
    "timestamp": {"type_oid": 1114},
    "timestamptz": {"type_oid": 1184},
    "time": {"type_oid": 1083},
    "timetz": {"type_oid": 1266},
    "interval": {"type_oid": 1186},
    "uuid": {"type_oid": 2950},
    "json": {"type_oid": 114},
    "jsonb": {"type_oid": 3802},
    "bit(n)": {"type_oid": 1560},
    "enum": {"type_oid": 99_999, "kind": "e"},
    "integer[]": {"type_oid": 1007, "element_oid": 23},
    "numeric(50,2)[]": {"type_oid": 1231, "element_oid": 1700, "element_modifier": _numeric(50, 2)},
    "everything else": {"type_oid": 603},
}
"""The catalog's description of a column of the type, keyed by field."""


def _mysql(type_: str, full: str | None = None, **more: Any) -> CatalogColumn:
    given: dict[str, Any] = {"octets": 400, "precision": 10, "scale": 0, "fraction": 6, "collation": None, **more}
    return CatalogColumn("c", "YES", type_, full or type_, extra="", **given)


MYSQL: dict[str, CatalogColumn] = {
    "tinyint": _mysql("tinyint"),
    "smallint": _mysql("smallint"),
    "mediumint, int": _mysql("int"),
    "bigint": _mysql("bigint"),
    "tinyint unsigned": _mysql("tinyint", "tinyint unsigned"),
    "smallint unsigned": _mysql("smallint", "smallint unsigned"),
    "mediumint, int unsigned": _mysql("int", "int unsigned"),
    "bigint unsigned": _mysql("bigint", "bigint unsigned"),
    "decimal(12,2)": _mysql("decimal", "decimal(12,2)", precision=12, scale=2),
    "decimal(65,30)": _mysql("decimal", "decimal(65,30)", precision=65, scale=30),
    "float": _mysql("float"),
    "double": _mysql("double"),
    "bit(n)": _mysql("bit", "bit(8)", precision=8),
    "date": _mysql("date"),
    "datetime(n)": _mysql("datetime", "datetime(6)"),
    "timestamp(n)": _mysql("timestamp", "timestamp(6)"),
    "time(n)": _mysql("time", "time(6)"),
    "year": _mysql("year"),
    "char, varchar, text": _mysql("varchar", "varchar(100)", collation="utf8mb4_bin"),
    "binary, varbinary, blob": _mysql("varbinary", "varbinary(100)"),
    "enum": _mysql("enum", "enum('a')", collation="utf8mb4_bin"),
    "set": _mysql("set", "set('a')", collation="utf8mb4_bin"),
    "json": _mysql("json"),
    "geometry": _mysql("geometry"),
}
_DEFAULT_AND_NULL: tuple[Special, Special] = ("stop", "null")
SETTINGS = {
    "zero_dates": "zero and impossible dates: `source.zero_dates`",
    "bad_text": "bytes that are no text of the column's set: `source.bad_text`",
    None: "",
}


@dataclass(frozen=True, slots=True)
class Line:
    """What happens to one type. `beyond`: the values that do not fit, and who decides what happens to them."""

    source: str
    arrow: pa.DataType
    beyond: str

    def cells(self) -> list[str]:
        delta = stored_type(self.arrow).table
        iceberg = ICEBERG.holds(delta)
        table = _code(delta) + ("" if iceberg == delta else f", Iceberg {_code(iceberg)}")
        differs = "; ".join(filter(None, (_otherwise(self.arrow), self.beyond)))
        return [_code(self.source), _code(str(self.arrow)), table, differs]


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _otherwise(arrow: pa.DataType) -> str:
    """How the table's type differs from the source's."""
    if pa.types.is_list(arrow):
        return _otherwise(arrow.value_type)
    if pa.types.is_decimal(arrow) and arrow.precision > 38:
        return "all digits, as text: no decimal of Spark's is that wide, and text sorts otherwise"
    if arrow == pa.uint64():
        return "a decimal, because no integer of Spark's is that wide"
    if arrow == pa.duration("us"):
        return "text like `-838:59:59.000000`"
    return ""


def postgres() -> Iterator[Line]:
    for name, about in POSTGRES.items():
        given: dict[str, Any] = {"base_modifier": -1, **about}
        attribute = describe.AttributeInfo("v", 1, type_modifier=-1, type_text=name, **given)
        plain, null = (
            describe.describe_table(ID, 1, [attribute], Identity.KEY, describe.Policy(special))
            for special in _DEFAULT_AND_NULL
        )
        arrow = plain.table.columns[0].type.arrow
        decides = any(kept.special for kept in null.kept.values())
        yield Line(name, arrow, _special(arrow) if decides else "")


def _special(arrow: pa.DataType) -> str:
    what = "infinity"
    if pa.types.is_decimal(arrow):
        what = "NaN"
    elif pa.types.is_list(arrow):
        what = "arrays of several dimensions, or that do not begin at 1"
    elif pa.types.is_timestamp(arrow):
        what = "infinity, timestamps after the year 294246"
    return f"{what}: `source.special_values`"


def mysql() -> Iterator[Line]:
    for name, column in MYSQL.items():
        found = registry.server_column(column, {"utf8mb4_bin": 46})
        family = registry.family_of(found)
        assert family is not None
        arrow = registry.codec_of(found, ID, MySQLPolicy()).arrow
        yield Line(name, arrow, SETTINGS[family.setting(found)])


ARROW = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.decimal128(38, 2), pa.decimal256(50, 2)),
    *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")),
    *(pa.time64("us"), pa.duration("us"), pa.list_(pa.int32()), pa.struct([("x", pa.int32())])),
)
"""The types that a log can have."""


def markdown() -> dict[str, str]:
    """Each table by the name of its marker."""
    return {
        "postgres": _table("PostgreSQL", postgres()),
        "mysql": _table("MySQL, MariaDB", mysql()),
        "arrow": _arrow(),
    }


def _table(title: str, lines: Iterator[Line]) -> str:
    head = (f"| {title} | in the log | in the table | what differs from the source |", "| --- | --- | --- | --- |")
    return "\n".join((*head, *(f"| {' | '.join(line.cells())} |" for line in lines)))


def _arrow() -> str:
    rows = ["| in the log | Delta | Iceberg |", "| --- | --- | --- |"]
    for arrow in ARROW:
        delta = stored_type(arrow).table
        rows.append(f"| {_code(str(arrow))} | {_code(delta)} | {_code(ICEBERG.holds(delta))} |")
    return "\n".join(rows)
