"""What every value decoder shares: its shape, the errors it raises, and values that the Arrow type cannot hold.

A decoder turns one column's cells, a batch at a time, into an Arrow array. NULL cells stay NULL. No error here
names a value, and none is chained to the Arrow error that caused it, because that one does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.config import Special
from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.model.change import Int64s
from cdcflow.sources.buffers import Bools, Cells

INTERVAL = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])
MONEY = pa.decimal128(19, 2)
TIMESTAMP = pa.timestamp("us")
TIMESTAMPTZ = pa.timestamp("us", tz="UTC")
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Where:
    """Which column is being decoded, for errors; and what becomes of values that its Arrow type cannot hold."""

    column: str
    type_text: str
    special: Special

    def __str__(self) -> str:
        return f"column {self.column} ({self.type_text})"


Decoder = Callable[[Cells, Where], pa.Array]


@dataclass(frozen=True, slots=True)
class Unholdable:
    """Rows whose value the Arrow type cannot hold: what they hold, and the value that `clamp` puts there
    (None: nothing fits, so clamp stops as well)."""

    rows: Bools
    what: str
    clamped: pa.Scalar | None


def unreadable(where: Where, expected: str) -> InvariantViolated:
    """The error for a value that is not what the server prints for its type."""
    return InvariantViolated(
        f"decoding {where}: a value is not {expected}; the session's settings or this server's output are not what "
        "cdcflow knows (the value is not shown)"
    )


def held(array: pa.Array, unholdable: Sequence[Unholdable], where: Where) -> pa.Array:
    """`array` (NULL where a value cannot be held) with such values treated as the policy says.

    Raises:
        ConfigurationError: the policy is to stop.
    """
    for found in unholdable:
        if not found.rows.any() or where.special == "null":
            continue
        if where.special != "clamp" or found.clamped is None:
            raise ConfigurationError(
                f"decoding {where}: found {found.what}, which its Arrow type cannot hold, and special_values is "
                f"{where.special}",
                remedy=f"in cdcflow.yaml set source.columns to {{{where.column}: text}} (or, where it is no key, "
                "null or clamp), or source.special_values for all columns, then start again",
            )
        array = pc.if_else(pa.array(found.rows), found.clamped, array)
    return array


def utf8(array: pa.Array, where: Where) -> pa.Array:
    """Bytes as text.

    Raises:
        ConfigurationError: some are not UTF-8, which only a database with encoding SQL_ASCII sends.
    """
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        raise ConfigurationError(
            f"decoding {where}: a value is not UTF-8, so the database's encoding does not say what its bytes mean",
            remedy="convert the database to an encoding (SHOW server_encoding must not be SQL_ASCII), or leave the "
            "table out of source.tables",
        ) from None


def text(cells: Cells, where: Where) -> pa.Array:
    """Text as the server prints it; the same in both formats for the text family, json and enums."""
    return utf8(cells.binary(), where)


def integers(values: Int64s | npt.NDArray[np.int32], cells: Cells, arrow: pa.DataType) -> pa.Array:
    """Numbers as an Arrow array of the same width, NULL where the cells are."""
    return pa.array(values, mask=cells.mask).view(arrow)


def interval(months: Int64s, days: Int64s, microseconds: Int64s, cells: Cells) -> pa.Array:
    mask = None if cells.valid is None else pa.array(~cells.valid)
    parts = [pa.array(months.astype(np.int32)), pa.array(days.astype(np.int32)), pa.array(microseconds)]
    return pa.StructArray.from_arrays(parts, fields=list(INTERVAL), mask=mask)


INTERVAL_ENDS = (
    pa.scalar({"months": INT32_MAX, "days": INT32_MAX, "microseconds": INT64_MAX}, INTERVAL),
    pa.scalar({"months": -INT32_MAX - 1, "days": -INT32_MAX - 1, "microseconds": -INT64_MAX - 1}, INTERVAL),
)


def integer_ends(arrow: pa.DataType, bits: int) -> tuple[pa.Scalar, pa.Scalar]:
    """The greatest and the least value of a date or timestamp type, for `clamp`."""
    plain = pa.int32() if bits == 32 else pa.int64()
    greatest = 2 ** (bits - 1) - 1
    ends = pa.array([greatest, -greatest - 1], plain).view(arrow)
    return ends[0], ends[1]


def decimal_ends(arrow: pa.Decimal128Type | pa.Decimal256Type) -> tuple[pa.Scalar, pa.Scalar]:
    digits = "9" * arrow.precision
    number = digits if not arrow.scale else f"{digits[: -arrow.scale]}.{digits[-arrow.scale :]}"
    ends = pa.array([number, "-" + number]).cast(arrow)
    return ends[0], ends[1]
