"""Keys of the log as a condition that the server answers by its own equality and its own index."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import KeySet
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.postgres.keys import condition
from cdcflow.sources.postgres.types import DescribedTable

INTERVAL = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])


def where(*columns: tuple[str, str, pa.Array]) -> str:
    """The condition for keys of these columns: name, the server's type, values."""
    made = tuple(Column(name, i, ColumnType(type_, values.type)) for i, (name, type_, values) in enumerate(columns, 1))
    table = Table(
        TableId("public", "t"),
        1,
        (*made, Column("more", 99, ColumnType("text", pa.string()))),
        tuple(name for name, _, _ in columns),
    )
    keys = KeySet(pa.table({name: values for name, _, values in columns}))
    return condition(keys, DescribedTable(table, (), has_binary=True, copy_expressions=()))


def test_keys_are_looked_up_as_rows_of_their_types() -> None:
    """W16: equality is the server's: its collation, its type."""
    found = where(("id", "bigint", pa.array([1, 2])), ('o"k', "citext", pa.array(["a", "b"])))
    assert found == (
        '(t."id", t."o""k") IN (SELECT (k.k0)::bigint, (k.k1)::citext FROM '
        'unnest(\'{"1","2"}\'::pg_catalog.text[], \'{"a","b"}\'::pg_catalog.text[]) AS k (k0, k1))'
    )


STAMP = (
    "'1970-01-01'::pg_catalog.timestamp + (k.k0::int8 / 86400000000) * '1 day'::pg_catalog.interval"
    " + (k.k0::int8 % 86400000000) * '1 microsecond'::pg_catalog.interval"
)


@pytest.mark.parametrize(
    ("type_", "values", "text", "expression"),
    [
        ("text", pa.array(["it's", 'a"b', "c\\d", "{x}"]), r"""{"it''s","a\"b","c\\d","{x}"}""", "k.k0"),
        ("int", pa.array([-5], pa.int32()), '{"-5"}', "k.k0"),
        ("numeric(5,2)", pa.array([Decimal("1.50")]), '{"1.50"}', "k.k0"),
        ("mood", pa.array(["sad"]).dictionary_encode(), '{"sad"}', "k.k0"),
        ("bytea", pa.array([b"\0\xff"]), r'{"\\x00ff"}', "k.k0"),
        ("bytea", pa.array([b"\1"], pa.large_binary()), r'{"\\x01"}', "k.k0"),
        ("date", pa.array([-719528], pa.date32()), '{"-719528"}', "'1970-01-01'::pg_catalog.date + k.k0::int"),
        ("timestamp", pa.array([-1], pa.timestamp("us")), '{"-1"}', STAMP),
        ("timestamptz", pa.array([7], pa.timestamp("us", tz="UTC")), '{"7"}', f"({STAMP}) AT TIME ZONE 'UTC'"),
        (
            "interval",
            pa.array([{"months": 14, "days": -3, "microseconds": 5}], INTERVAL),
            '{"14 mons -3 days 5 microseconds"}',
            "k.k0",
        ),
    ],
    ids=str,
)
def test_key_is_sent_as_a_text_that_means_its_value(type_: str, values: pa.Array, text: str, expression: str) -> None:
    """Dates and times as numbers: a year before 1 has no text that is the same everywhere."""
    found = where(("k", type_, values))
    assert found == (
        f"(t.\"k\") IN (SELECT ({expression})::{type_} FROM unnest('{text}'::pg_catalog.text[]) AS k (k0))"
    )


def test_an_array_in_a_key_cannot_be_looked_up() -> None:
    """It is refused by its name, with what to do."""
    with pytest.raises(ConfigurationError, match=r"key column public\.t\.k is an array") as refused:
        where(("k", "int[]", pa.array([[1]])))
    assert "REPLICA IDENTITY" in (refused.value.remedy or "")
