"""Maps Arrow types to Spark types: how Parquet is read, the type in the table, and the conversion in between.

Spark has no decimal beyond 38 digits, no time of day that Delta can hold, and no unsigned integers. Nothing is rounded
for that: a wide decimal becomes its exact text, an unsigned integer the next wider type that holds it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from cdcflow.errors import ConfigurationError

DECIMAL_TEXT = "cdcflow_decimal_text"
"""The SQL function (bytes, scale) → text that `cdcflow.spark` registers: a two's complement number as decimal text."""

DECIMAL_TEXTS = f"{DECIMAL_TEXT}s"
"""The SQL function that does the same for every element of a list, because Spark cannot call `DECIMAL_TEXT` in an
expression over elements."""


@dataclass(frozen=True, slots=True)
class Stored:
    """How Spark stores an Arrow type. `read` is the type to read from Parquet, `table` the type in the table. `convert`
    converts the former to the latter: SQL with `{}` for the value, or None if they are the same."""

    read: str
    table: str
    convert: str | None = None

    def sql(self, value: str) -> str:
        return value if self.convert is None else self.convert.replace("{}", value)


_SIMPLE: dict[pa.DataType, Stored] = {
    pa.bool_(): Stored("boolean", "boolean"),
    pa.int8(): Stored("tinyint", "tinyint"),
    pa.int16(): Stored("smallint", "smallint"),
    pa.int32(): Stored("int", "int"),
    pa.int64(): Stored("bigint", "bigint"),
    pa.uint8(): Stored("smallint", "smallint"),
    pa.uint16(): Stored("int", "int"),
    pa.uint32(): Stored("bigint", "bigint"),
    pa.uint64(): Stored("decimal(20,0)", "decimal(20,0)"),
    pa.float32(): Stored("float", "float"),
    pa.float64(): Stored("double", "double"),
    pa.string(): Stored("string", "string"),
    pa.large_string(): Stored("string", "string"),
    pa.binary(): Stored("binary", "binary"),
    pa.large_binary(): Stored("binary", "binary"),
    pa.date32(): Stored("date", "date"),
    pa.timestamp("us"): Stored("timestamp_ntz", "timestamp_ntz"),
    pa.time64("us"): Stored(
        "bigint",
        "string",
        # Spark's format_string turns NULL into the text "null".
        "CASE WHEN {} IS NOT NULL THEN format_string('%02d:%02d:%02d.%06d', {} div 3600000000, {} div 60000000 % 60,"
        " {} div 1000000 % 60, {} % 1000000) END",
    ),
    pa.duration("us"): Stored(
        "bigint",
        "string",
        "CASE WHEN {} IS NOT NULL THEN concat(if({} < 0, '-', ''), format_string('%02d:%02d:%02d.%06d',"
        " abs({}) div 3600000000, abs({}) div 60000000 % 60, abs({}) div 1000000 % 60, abs({}) % 1000000)) END",
    ),
}


def name_sql(name: str) -> str:
    """Return a name in SQL, whatever it contains (hard case S01)."""
    return "`" + name.replace("`", "``") + "`"


def text_sql(text: str) -> str:
    """Return a text literal in SQL, whatever it contains (hard case S01)."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def stored_type(arrow: pa.DataType) -> Stored:
    """Return how Spark reads and stores an Arrow type.

    Raises:
        ConfigurationError: Spark has nothing that holds its values exactly.
    """
    if (simple := _SIMPLE.get(arrow)) is not None:
        return simple
    if pa.types.is_dictionary(arrow):
        return stored_type(arrow.value_type)
    if pa.types.is_fixed_size_binary(arrow):
        return Stored("binary", "binary")
    if pa.types.is_timestamp(arrow) and arrow.unit == "us":
        return Stored("timestamp", "timestamp")
    if pa.types.is_decimal(arrow):
        if arrow.precision <= 38:
            return Stored(*(f"decimal({arrow.precision},{arrow.scale})",) * 2)
        return Stored("binary", "string", f"{DECIMAL_TEXT}({{}}, {arrow.scale})")
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        item = stored_type(arrow.value_type)
        inner = None if item.convert is None else f"transform({{}}, x -> {item.sql('x')})"
        if pa.types.is_decimal256(arrow.value_type) and item.convert is not None:
            inner = f"{DECIMAL_TEXTS}({{}}, {arrow.value_type.scale})"
        elif DECIMAL_TEXT in (inner or ""):
            raise _no_type(arrow)
        return Stored(f"array<{item.read}>", f"array<{item.table}>", inner)
    if pa.types.is_struct(arrow):
        fields = [(f.name, stored_type(f.type)) for f in arrow]
        if all(s.convert is None for _, s in fields):
            ddl = ",".join(f"{name_sql(n)}:{s.read}" for n, s in fields)
            return Stored(f"struct<{ddl}>", f"struct<{ddl}>")
    raise _no_type(arrow)


def _no_type(arrow: pa.DataType) -> ConfigurationError:
    return ConfigurationError(
        f"Spark has no type that holds the Arrow type {arrow} exactly",
        remedy="capture the column as text (`source.columns` in cdcflow.yaml)",
        runbook="table-not-followed",
    )


def literal(text: str, table_type: str) -> str | None:
    """Return a constant, given as the server's text, as SQL of this type; None if it cannot be written (a struct, or a
    list in another form than PostgreSQL prints for one dimension that begins at 1)."""
    if table_type.startswith("array<"):
        return _list_literal(text, table_type)
    if table_type.startswith("struct<"):
        return None
    if table_type == "string":
        return text_sql(text)
    if table_type == "binary":
        return f"X'{text[2:]}'" if text.startswith("\\x") else None
    return f"CAST({text_sql(text)} AS {table_type})"


def _list_literal(text: str, table_type: str) -> str | None:
    item_type, items = table_type[len("array<") : -1], list_items(text)
    if items is None:
        return None
    found = [f"CAST(NULL AS {item_type})" if item is None else literal(item, item_type) for item in items]
    if any(one is None for one in found):
        return None
    return f"CAST(array({', '.join(one for one in found if one is not None)}) AS {table_type})"


_ITEM = r'"(?:[^"\\]|\\.)*"|[^"\\{},\s](?:[^"\\{},]*[^"\\{},\s])?'
_ITEMS = re.compile(rf"\{{(?:(?:{_ITEM})(?:,(?:{_ITEM}))*)?\}}", re.DOTALL)


def list_items(text: str) -> list[str | None] | None:
    """Return the items of a list as PostgreSQL prints it (`{1,"a b",NULL}`), each as its own text; None if the text is
    another form: several dimensions, other bounds."""
    if _ITEMS.fullmatch(text) is None:
        return None
    found = re.findall(_ITEM, text[1:-1], re.DOTALL)
    return [None if item == "NULL" else _without_quotes(item) for item in found]


def _without_quotes(item: str) -> str:
    return re.sub(r"\\(.)", r"\1", item[1:-1], flags=re.DOTALL) if item[0] == '"' else item


def has_two_zeros(table_type: str) -> bool:
    """Whether 0.0 and -0.0 are two values of this type, or of its parts.

    SQL calls 0.0 and -0.0 equal, and GROUP BY merges them. To keep a value exactly, select it in addition to the
    group's column.
    """
    return "float" in table_type or "double" in table_type


def same_sql(one: str, other: str, table_type: str) -> str:
    """Return the SQL condition that is true if two values of a type are identical, or both NULL.

    0.0 and -0.0 are not identical, although SQL calls them equal. Every NaN is identical to every other, whatever its
    bits.
    """
    same = f"{one} <=> {other}"
    if not has_two_zeros(table_type):
        return same
    return f"{same} AND CAST({one} AS string) <=> CAST({other} AS string)"


_INTEGERS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}


def widens(old: str, new: str) -> bool:
    """Whether every value of `old` is exactly a value of `new`, and Delta can change the one type into the other in
    place."""
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS[old] < _INTEGERS[new]
    if (old, new) in {("float", "double"), ("date", "timestamp_ntz")}:
        return True
    if new.startswith("decimal("):
        precision, scale = _digits(new)
        if old.startswith("decimal("):
            old_precision, old_scale = _digits(old)
            return scale >= old_scale and precision - scale >= old_precision - old_scale
        if old in {"tinyint", "smallint", "int"}:
            return precision - scale >= 10
        if old == "bigint":
            return precision - scale >= 20
    return False


def _digits(decimal: str) -> tuple[int, int]:
    precision, scale = decimal[len("decimal(") : -1].split(",")
    return int(precision), int(scale)
