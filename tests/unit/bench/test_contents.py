"""The comparison that decides whether a benchmark may print a number: it must be able to fail."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
from bench.contents import same

AT = datetime(2024, 1, 1, tzinfo=UTC)


def _log(**replaced: pa.Array) -> pa.Table:
    columns = {
        "id": pa.array([1, 2], pa.int64()),
        "amount": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "placed": pa.array([AT, AT], pa.timestamp("us", tz="UTC")),
        "note": pa.array(["", None]),
    }
    return pa.table({**columns, **replaced})


SOURCE = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "amount": pa.array(["1.50", None]),
        "placed": pa.array([int(AT.timestamp()) * 10**6] * 2, pa.int64()),
        "note": pa.array(["", None]),
    }
)


def test_equal_rows_are_the_same() -> None:
    """Decimals and times come as text and numbers from the source."""
    assert same(_log(), SOURCE)


def test_any_difference_is_seen() -> None:
    """A lost row, another value, a NULL that was an empty text, a microsecond."""
    assert not same(_log().slice(0, 1), SOURCE)
    assert not same(_log(amount=pa.array([Decimal("1.51"), None], pa.decimal128(10, 2))), SOURCE)
    assert not same(_log(note=pa.array([None, None], pa.string())), SOURCE)
    later = AT.replace(microsecond=1)
    assert not same(_log(placed=pa.array([later, AT], pa.timestamp("us", tz="UTC"))), SOURCE)
