"""The parts that decoders of all types share: their signature, their errors, and values that the Arrow type cannot
hold.

A decoder turns one column's cells, a batch at a time, into an Arrow array. NULL cells stay NULL. No error here contains
a value, nor is one chained to the Arrow error that caused it, whose text contains the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.config import Special
from cdcflow.errors import InvariantViolated, TableMisfit
from cdcflow.model.change import Int64s
from cdcflow.sources.engine.buffers import Bools, Cells, protocol_error


@dataclass(frozen=True, slots=True)
class Where:
    """The column that is being decoded, for errors; and how to treat values that its Arrow type cannot hold."""

    column: str
    type_text: str
    special: Special

    def __str__(self) -> str:
        return f"column {self.column} ({self.type_text})"


Decode = Callable[[Cells, Where], pa.Array]


@dataclass(frozen=True, slots=True)
class ValueDecoder:
    """The decoder of one format of one type. `kernel` names the equivalent compiled kernel (`compiled/decode.pyx`; ""
    if it has none). `element`: for a list, the decoder of its elements, which the kernel needs as well."""

    decode: Decode
    kernel: str = ""
    element: ValueDecoder | None = None


RowText = Callable[[str, str], str]
"""A value's text in its row's digest, in SQL (`row_texts`)."""


@dataclass(frozen=True, slots=True)
class PostgresType:
    """How one type is stored, and its decoders. `binary` None: only the server's text is understood. `lossy`: it has
    values that `arrow` cannot hold. `digest` None: its values have no text that is the same everywhere."""

    arrow: pa.DataType
    text: ValueDecoder
    binary: ValueDecoder | None = None
    lossy: bool = False
    digest: RowText | None = None


@dataclass(frozen=True, slots=True)
class Unholdable:
    """Rows whose value the Arrow type cannot hold: a description of it, and the value that `clamp` stores instead
    (None: nothing fits, so clamp stops as well)."""

    rows: Bools
    what: str
    clamped: pa.Scalar | None


def unreadable(where: Where, expected: str) -> InvariantViolated:
    """Return the error for a value that is not what the server prints for its type."""
    return InvariantViolated(
        f"decoding {where}: a value is not {expected}; the session's settings or this server's output are not what "
        "cdcflow knows (the value is not shown)",
        runbook="stream-not-understood",
    )


def apply_policy(array: pa.Array, unholdable: Sequence[Unholdable], where: Where) -> pa.Array:
    """Return `array`, in which values that its type cannot hold are NULL so far, with these values treated according to
    the policy.

    Raises:
        TableMisfit: the policy is to stop.
    """
    for found in unholdable:
        if not found.rows.any() or where.special == "null":
            continue
        if where.special != "clamp" or found.clamped is None:
            raise TableMisfit(
                f"decoding {where}: found {found.what}, which its Arrow type cannot hold, and special_values is "
                f"{where.special}",
                remedy=f"in cdcflow.yaml set source.columns to {{{where.column}: text}} (or, where it is not "
                "part of a key, null or clamp), or source.special_values for all columns, or correct the rows, "
                "then start again",
                runbook="value-not-representable",
            )
        array = pc.if_else(pa.array(found.rows), found.clamped, array)
    return array


def check_size(cells: Cells, width: int, where: Where) -> None:
    wrong = cells.size != width
    if (wrong if cells.valid is None else wrong & cells.valid).any():
        raise protocol_error(f"a value of {where} has a wrong length")


def cast(strings: pa.Array, arrow: pa.DataType, where: Where, expected: str) -> pa.Array:
    try:
        if strings.type == pa.binary():
            strings = strings.view(pa.string())  # not checked as UTF-8: other bytes than digits are refused anyway
        return strings.cast(arrow)
    except pa.ArrowInvalid:
        raise unreadable(where, expected) from None


def integers(values: Int64s | npt.NDArray[np.int32], cells: Cells, arrow: pa.DataType) -> pa.Array:
    """Return numbers as an Arrow array of the same width, NULL where the cells are."""
    return pa.array(values, mask=cells.mask).view(arrow)
