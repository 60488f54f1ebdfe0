"""What each of PostgreSQL's types is in a log, in a table, in a row's digest and in a message."""

from __future__ import annotations

import pytest

from cdcflow.model.sqltypes import stored_type
from cdcflow.model.table import Identity, TableId
from cdcflow.publish.columns import Modes
from cdcflow.publish.postgres_columns import encoding
from cdcflow.sources.postgres.types.describe import _TYPES, AttributeInfo, Policy, describe_table

NONE = "none"
MEASURED = 'pg_catalog.octet_length(t."c"::text) || \':\' || t."c"::text'
PRINTED = 'CASE WHEN t."c" IS NOT NULL THEN pg_catalog.format(\'%s\', t."c") END'
EPOCH = 'pg_catalog.trim_scale(extract(epoch FROM t."c") * 1000000)'
TIME = "io.debezium.time."

# The number and the name of a type; its type in the log and in tables; its text in a digest; how it is published.
TYPES = {
    (16, "boolean"): ("bool", "boolean", 't."c"::int', "boolean"),
    (17, "bytea"): ("binary", "binary", 'pg_catalog.upper(pg_catalog.encode(t."c", \'hex\') COLLATE "C")', "bytes"),
    (19, "name"): ("string", "string", f"pg_catalog.octet_length({PRINTED}) || ':' || {PRINTED}", "string"),
    (20, "bigint"): ("int64", "bigint", 't."c"', "int64"),
    (21, "smallint"): ("int16", "smallint", 't."c"', "int16"),
    (23, "integer"): ("int32", "int", 't."c"', "int32"),
    (25, "text"): ("string", "string", MEASURED, "string"),
    (26, "oid"): ("int64", "bigint", 't."c"', "int64"),
    (114, "json"): ("string", "string", MEASURED, "io.debezium.data.Json"),
    (700, "real"): ("float", "float", NONE, "float"),
    (701, "double precision"): ("double", "double", NONE, "double"),
    (790, "money"): (
        "decimal128(19, 2)",
        "decimal(19,2)",
        't."c"::numeric',
        "org.apache.kafka.connect.data.Decimal",
    ),
    (1042, "character(3)"): ("string", "string", f"pg_catalog.octet_length({PRINTED}) || ':' || {PRINTED}", "string"),
    (1043, "character varying(3)"): ("string", "string", MEASURED, "string"),
    (1082, "date"): (
        "date32[day]",
        "date",
        'CASE WHEN pg_catalog.isfinite(t."c") THEN (t."c" - \'1970-01-01\'::date)::text ELSE t."c"::text END',
        f"{TIME}Date",
    ),
    (1083, "time without time zone"): ("string", "string", MEASURED, f"{TIME}MicroTime"),
    (1114, "timestamp without time zone"): ("timestamp[us]", "timestamp_ntz", EPOCH, f"{TIME}MicroTimestamp"),
    (1184, "timestamp with time zone"): ("timestamp[us, tz=UTC]", "timestamp", EPOCH, f"{TIME}ZonedTimestamp"),
    (1186, "interval"): (
        "struct<months: int32, days: int32, microseconds: int64>",
        "struct<`months`:int,`days`:int,`microseconds`:bigint>",
        NONE,
        f"{TIME}MicroDuration",
    ),
    (1266, "time with time zone"): ("string", "string", MEASURED, f"{TIME}ZonedTime"),
    (1560, "bit(3)"): ("string", "string", MEASURED, "io.debezium.data.Bits"),
    (1562, "bit varying(3)"): ("string", "string", MEASURED, "io.debezium.data.Bits"),
    (1700, "numeric"): ("string", "string", MEASURED, "io.debezium.data.VariableScaleDecimal"),
    (2950, "uuid"): ("string", "string", MEASURED, "io.debezium.data.Uuid"),
    (3802, "jsonb"): ("string", "string", MEASURED, "io.debezium.data.Json"),
}


def test_table_has_every_type() -> None:
    """A type of a family that is not in it was added without its digest or its published form."""
    assert {oid for oid, _ in TYPES} == {*_TYPES, 1700}


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind[1])
def test_type_in_all_places(kind: tuple[int, str]) -> None:
    """They are in four modules, and a log, its tables, a comparison and messages must agree on the value."""
    oid, source = kind
    described = describe_table(TableId("s", "t"), 1, [AttributeInfo("c", 1, oid, -1, source)], Identity.KEY, Policy())
    (column,), (codec,) = described.table.columns, described.codecs
    digest = NONE if codec.digest is None else codec.digest('"c"', source)
    schema = encoding(column, Modes()).schema
    arrow = column.type.arrow
    assert (str(arrow), stored_type(arrow).table, digest, schema.name or schema.type) == TYPES[kind]
    assert codec.text.kernel or oid in (790, 1186), "only these have no compiled decoder of their text"
