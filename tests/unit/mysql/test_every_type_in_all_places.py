"""What each type of MySQL and MariaDB is in a log, in a table, in a row's digest and in a message."""

from __future__ import annotations

from typing import Any

import pytest

from cdcflow.model.sqltypes import stored_type
from cdcflow.model.table import Identity, TableId
from cdcflow.publish.columns import Modes
from cdcflow.publish.mysql_columns import encoding
from cdcflow.sources.mysql.tables import describe
from cdcflow.sources.mysql.types.columns import CatalogColumn, Policy
from cdcflow.sources.mysql.types.registry import FAMILIES, row_text_of, server_column

TEXT = {"collation": "utf8mb4_bin"}
NUMBER = "`c` + 0"
WHOLE_YEAR = "IF(YEAR(`c`) = 1900, 0, YEAR(`c`))"
MEASURED = "CONCAT(OCTET_LENGTH({0}), ':', {0})"
PLAIN, CONVERTED = MEASURED.format("`c`"), MEASURED.format("CONVERT(`c` USING utf8mb4)")
CAST, CLOCK = MEASURED.format("CAST(`c` AS CHAR)"), MEASURED.format("CAST(`c` AS TIME(6))")
DAY = "IF(FROM_DAYS(TO_DAYS(`c`)) <=> DATE(`c`), IFNULL({0}, ''), CONCAT('?', `c`))"
MOMENT = DAY.format("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', `c`)")
NONE = "none"
DECIMAL, TIME, DATA = "org.apache.kafka.connect.data.Decimal", "io.debezium.time.", "io.debezium.data."

# The type in the catalog; in the log and in tables; its text in a digest (inside IFNULL); how it is published.
TYPES: dict[str, tuple[dict[str, Any], str, str, str, str]] = {
    "tinyint": ({}, "int8", "tinyint", NUMBER, "int16"),
    "smallint": ({}, "int16", "smallint", NUMBER, "int16"),
    "mediumint": ({}, "int32", "int", NUMBER, "int32"),
    "int": ({}, "int32", "int", NUMBER, "int32"),
    "bigint": ({}, "int64", "bigint", NUMBER, "int64"),
    "tinyint unsigned": ({}, "uint8", "smallint", NUMBER, "int16"),
    "smallint unsigned": ({}, "uint16", "int", NUMBER, "int32"),
    "mediumint unsigned": ({}, "uint32", "bigint", NUMBER, "int32"),
    "int unsigned": ({}, "uint32", "bigint", NUMBER, "int64"),
    "bigint unsigned": ({}, "uint64", "decimal(20,0)", NUMBER, "int64"),
    "decimal(12,2)": ({"precision": 12, "scale": 2}, "decimal128(12, 2)", "decimal(12,2)", NUMBER, DECIMAL),
    "decimal(65,30)": ({"precision": 65, "scale": 30}, "decimal256(65, 30)", "string", PLAIN, DECIMAL),
    "float": ({}, "float", "float", NONE, "float"),
    "double": ({}, "double", "double", NONE, "double"),
    "bit(8)": ({"precision": 8}, "uint64", "decimal(20,0)", NUMBER, f"{DATA}Bits"),
    "year": ({}, "int16", "smallint", NUMBER, f"{TIME}Year"),
    "year(2)": ({}, "int16", "smallint", WHOLE_YEAR, f"{TIME}Year"),
    "date": ({}, "date32[day]", "date", DAY.format("TO_DAYS(`c`) - 719528"), f"{TIME}Date"),
    "datetime(6)": ({}, "timestamp[us]", "timestamp_ntz", MOMENT, f"{TIME}MicroTimestamp"),
    "timestamp(6)": ({}, "timestamp[us, tz=UTC]", "timestamp", MOMENT, f"{TIME}ZonedTimestamp"),
    "time(6)": ({}, "duration[us]", "string", CLOCK, f"{TIME}MicroTime"),
    **{f"{kind}(9)": (TEXT, "string", "string", PLAIN, "string") for kind in ("char", "varchar")},
    **{f"{size}text": (TEXT, "string", "string", PLAIN, "string") for size in ("tiny", "", "medium", "long")},
    **{f"{kind}(9)": ({}, "binary", "binary", "HEX(`c`)", "bytes") for kind in ("binary", "varbinary")},
    **{f"{size}blob": ({}, "binary", "binary", "HEX(`c`)", "bytes") for size in ("tiny", "", "medium", "long")},
    "enum('a')": (TEXT, "string", "string", CONVERTED, f"{DATA}Enum"),
    "set('a')": (TEXT, "string", "string", CONVERTED, f"{DATA}EnumSet"),
    "json": ({}, "string", "string", CAST, f"{DATA}Json"),
    **{
        name: ({}, "binary", "binary", NONE, f"{DATA}geometry.Geometry")
        for name in (
            *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
            *("geometrycollection", "geomcollection"),
        )
    },
    "vector(2)": ({}, "list<element: float>", "array<float>", NONE, f"{DATA}FloatVector"),
    **{name: ({}, "string", "string", CAST, "string") for name in ("uuid", "inet4", "inet6")},
}


def name_of(type_: str) -> str:
    """The type as the catalog names it (DATA_TYPE)."""
    return type_.partition("(")[0].removesuffix(" unsigned")


def test_table_has_every_type() -> None:
    """A type of a family that is not in it was added without its digest or its published form."""
    assert {name_of(type_) for type_ in TYPES} == {name for family in FAMILIES for name in family.names}


@pytest.mark.parametrize("type_", TYPES)
def test_type_in_all_places(type_: str) -> None:
    """They are in four modules, and a log, its tables, a comparison and messages must agree on the value."""
    more, *expected = TYPES[type_]
    given = {"octets": 36, "precision": 10, "scale": 0, "fraction": 6, "collation": None, **more}
    stored_as = server_column(CatalogColumn("c", "YES", name_of(type_), type_, extra="", **given), {"utf8mb4_bin": 46})
    described = describe(TableId("s", "t"), [stored_as], (), Identity.KEY, Policy())
    (column,), (codec,) = described.table.columns, described.codecs
    text = row_text_of(stored_as, codec)
    digest = NONE if text.lacking else "".join(text.pieces).removeprefix("IFNULL(").removesuffix(", '')")
    schema = encoding("s.t.c", column, Modes()).schema
    arrow = column.type.arrow
    assert [str(arrow), stored_type(arrow).table, digest, schema.name or schema.type] == expected
