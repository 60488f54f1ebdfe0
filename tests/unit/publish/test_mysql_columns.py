"""Unsigned numbers of MySQL as Debezium's connector publishes them; the integration tests compare with Debezium
itself."""

from __future__ import annotations

import pyarrow as pa

from cdcflow.model.table import Column
from cdcflow.model.types import ColumnType
from cdcflow.publish import connect
from cdcflow.publish.columns import Modes
from cdcflow.publish.mysql_columns import encoding


def column(source: str, arrow: pa.DataType) -> Column:
    return Column("n", 1, ColumnType(source, arrow))


def test_a_mediumint_unsigned_is_an_int32() -> None:
    """It has 24 bits; the log's type for it has 32, unsigned."""
    found = encoding("shop.t.n", column("mediumint unsigned", pa.uint32()), Modes())
    assert found.schema == connect.INT32
    assert found.convert(pa.array([2**24 - 1, None], pa.uint32())) == pa.array([2**24 - 1, None], pa.int32())


def test_a_precise_bigint_unsigned_names_its_precision() -> None:
    """Sink connectors derive a column from it: without a precision, one with any number of digits."""
    found = encoding("shop.t.n", column("bigint unsigned", pa.uint64()), Modes(bigint_unsigned="precise"))
    assert dict(found.schema.parameters)["connect.decimal.precision"] == "20"
