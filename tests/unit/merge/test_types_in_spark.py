"""Each Arrow type's way into a table: the type requested from the Parquet reader, the table's type, and the
conversion."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.model.sqltypes import Stored, literal, stored_type, widens
from cdcflow.tables.local.dialect import connect, duckdb_sql

AS_IT_IS = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary(16): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "Europe/Vienna"): "timestamp",
    pa.decimal128(7, 3): "decimal(7,3)",
    pa.decimal256(38, 0): "decimal(38,0)",
    pa.list_(pa.int16()): "array<smallint>",
    pa.large_list(pa.string()): "array<string>",
    pa.struct([("a`b", pa.int8()), ("c", pa.string())]): "struct<`a``b`:tinyint,`c`:string>",
}


@pytest.mark.parametrize("arrow", AS_IT_IS, ids=str)
def test_types_that_spark_has_are_read_and_kept_unchanged(arrow: pa.DataType) -> None:
    """Both names are written into every table: a different name would not hold the value, or not be read."""
    assert stored_type(arrow) == Stored(AS_IT_IS[arrow], AS_IT_IS[arrow])
    assert stored_type(arrow).sql("x") == "x"


@pytest.mark.parametrize(
    ("arrow", "found"),
    [
        (pa.decimal256(39, 2), Stored("binary", "string", "cdcflow_decimal_text({}, 2)")),
        (
            pa.list_(pa.decimal256(39, 0)),
            Stored("array<binary>", "array<string>", "cdcflow_decimal_texts({}, 0)"),
        ),
    ],
    ids=str,
)
def test_a_decimal_of_more_than_38_digits_becomes_its_text(arrow: pa.DataType, found: Stored) -> None:
    """Spark would round it, or refuse the file."""
    assert stored_type(arrow) == found


@pytest.mark.parametrize(
    "arrow", [pa.timestamp("ns"), pa.timestamp("ms", "UTC"), pa.struct([("a", pa.decimal256(50, 1))]), pa.float16()]
)
def test_what_spark_would_change_is_refused(arrow: pa.DataType) -> None:
    """With an error that names the column, before the first row."""
    with pytest.raises(ConfigurationError, match="Spark has no type"):
        stored_type(arrow)


def converted(arrow: pa.DataType, value: int | None) -> object:
    given = "NULL" if value is None else str(value)
    sql = duckdb_sql(f"SELECT {stored_type(arrow).sql('x')} FROM (SELECT CAST({given} AS bigint) AS x)")
    row = connect().execute(sql).fetchone()
    assert row is not None
    return row[0]


SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "00:00:00.000000"),
        (1, "00:00:00.000001"),
        (59 * SECOND + 999_999, "00:00:59.999999"),
        (60 * SECOND, "00:01:00.000000"),
        (59 * 60 * SECOND, "00:59:00.000000"),
        (HOUR, "01:00:00.000000"),
        (23 * HOUR + 59 * 60 * SECOND + 59 * SECOND + 999_999, "23:59:59.999999"),
        (24 * HOUR, "24:00:00.000000"),
    ],
)
def test_a_time_of_day_becomes_text_that_sorts(value: int, text: str) -> None:
    """Delta has no time of day. PostgreSQL's reaches 24:00:00."""
    assert converted(pa.time64("us"), value) == text
    assert converted(pa.duration("us"), value) == text


@pytest.mark.parametrize("arrow", [pa.time64("us"), pa.duration("us")], ids=str)
def test_no_time_is_no_text(arrow: pa.DataType) -> None:
    """Spark's format_string writes "null" for a missing value: a table would show a text that was never written."""
    assert converted(arrow, None) is None


def test_a_duration_may_be_negative_and_longer_than_a_day() -> None:
    """MySQL's TIME goes from -838:59:59 to 838:59:59."""
    assert converted(pa.duration("us"), -(838 * HOUR + 59 * 60 * SECOND + 59 * SECOND)) == "-838:59:59.000000"
    assert converted(pa.duration("us"), 838 * HOUR) == "838:00:00.000000"
    assert converted(pa.duration("us"), -1) == "-00:00:00.000001"


QUOTED = "CAST(array('a \"b\\\\', 'NULL', CAST(NULL AS string), '{,}') AS array<string>)"


@pytest.mark.parametrize(
    ("text", "type_", "sql"),
    [
        ("7", "int", "CAST('7' AS int)"),
        ("t", "boolean", "CAST('t' AS boolean)"),
        ("it's", "string", "'it\\'s'"),
        ("7", "string", "'7'"),
        ("\\x00ff", "binary", "X'00ff'"),
        ("00ff", "binary", None),
        ("{1,NULL}", "array<int>", "CAST(array(CAST('1' AS int), CAST(NULL AS int)) AS array<int>)"),
        ("{}", "array<int>", "CAST(array() AS array<int>)"),
        ('{"a \\"b\\\\","NULL",NULL,"{,}"}', "array<string>", QUOTED),
        ("{{1},{2}}", "array<int>", None),
        ("[0:0]={1}", "array<int>", None),
        ("{1", "array<int>", None),
        ("(1)", "struct<`a`:int>", None),
    ],
)
def test_a_constant_is_written_exactly_or_not_at_all(text: str, type_: str, sql: str | None) -> None:
    """A guessed default would be a value that was never written."""
    assert literal(text, type_) == sql


WIDER = {
    ("tinyint", "smallint"),
    ("tinyint", "int"),
    ("tinyint", "bigint"),
    ("smallint", "int"),
    ("smallint", "bigint"),
    ("int", "bigint"),
    ("float", "double"),
    ("date", "timestamp_ntz"),
    ("tinyint", "decimal(12,2)"),
    ("smallint", "decimal(12,2)"),
    ("int", "decimal(12,2)"),
    ("tinyint", "decimal(20,0)"),
    ("smallint", "decimal(20,0)"),
    ("int", "decimal(20,0)"),
    ("bigint", "decimal(20,0)"),
    ("tinyint", "decimal(10,0)"),
    ("smallint", "decimal(10,0)"),
    ("int", "decimal(10,0)"),
    ("decimal(10,0)", "decimal(12,2)"),
    ("decimal(10,0)", "decimal(20,0)"),
}
TYPES = sorted({t for pair in WIDER for t in pair} | {"string", "binary", "timestamp", "boolean"})


def test_one_type_holds_another_s_values_only_where_it_is_known_to() -> None:
    """Every pair: nothing else may be widened in place, and no type into itself or into a narrower one."""
    assert {(a, b) for a in TYPES for b in TYPES if a != b and widens(a, b)} == WIDER
