"""What a comparison makes of the source's rows, for types that DuckDB holds as something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.support.merge.histories import make_table

from cdcflow.model.sqltypes import stored_type
from cdcflow.tables.local.comparison import DuckComparer
from cdcflow.tables.verify.port import Columns

INTERVAL = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])
SPAN = {"months": 1, "days": -2, "microseconds": 3}
VALUES: list[tuple[pa.DataType, list[Any], list[Any]]] = [
    (INTERVAL, [SPAN, None, {**SPAN, "days": 5}], [SPAN, None, {**SPAN, "days": 5}]),
    (pa.list_(INTERVAL), [[SPAN, None], None, []], [[SPAN, None], None, []]),
    (pa.decimal128(38, 38), [Decimal("0.5"), None, Decimal("-1e-38")], [Decimal("0.5"), None, Decimal("-1e-38")]),
    (
        pa.list_(pa.decimal128(38, 38)),
        [[Decimal("0.5"), None], None, []],
        [[Decimal("0.5"), None], None, []],
    ),
    (pa.decimal256(50, 3), [Decimal("1.5"), None, Decimal("-0.001")], ["1.500", None, "-0.001"]),
    (pa.list_(pa.decimal256(50, 3)), [[Decimal("1.5"), None], None, []], [["1.500", None], None, []]),
    (pa.list_(pa.decimal256(50, 0)), [[Decimal(-7)], None, [Decimal(0)]], [["-7"], None, ["0"]]),
    (pa.list_(pa.decimal128(12, 2)), [[Decimal("1.5")], None, []], [[Decimal("1.50")], None, []]),
    (pa.list_(pa.uint64()), [[2**64 - 1], None, []], [[Decimal(2**64 - 1)], None, []]),
]


@pytest.fixture
def comparer() -> Iterator[DuckComparer]:
    with closing(DuckComparer()) as made:
        yield made


@pytest.mark.parametrize(
    ("type_", "values", "kept"), VALUES, ids=lambda v: str(v) if isinstance(v, pa.DataType) else ""
)
def test_rows_of_every_type_have_digests(
    comparer: DuckComparer, type_: pa.DataType, values: list[Any], kept: list[Any]
) -> None:
    """A type without one ended the comparison of this table, and of all after it, as a fault in cdcflow."""
    shape = make_table("odd", id="int64", v=type_)
    columns = Columns(shape.id, (("id", "bigint"), ("v", stored_type(type_).table)), ("id",), True)
    rows = pa.table({"id": pa.array(range(3), pa.int64()), "v": pa.array(values, type_)})
    found = comparer.convert_rows(columns, shape, rows)
    assert found.column("v").to_pylist() == kept
    assert comparer.convert_rows(columns, shape, rows.slice(1)).column("v").to_pylist() == kept[1:]
    digests = comparer.digest_rows(columns, found)
    assert len(set(digests.column("d").to_pylist())) == 3
    assert not comparer.differing(digests, comparer.digest_rows(columns, found)).num_rows
