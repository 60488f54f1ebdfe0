"""What every value decoder shares: its shape, and the errors it raises.

A decoder turns one column's cells, a batch at a time, into an Arrow array. NULL cells stay NULL. No error here names
a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.sources.buffers import Cells, protocol_error
from cdcflow.sources.mysql.types import BadText, ZeroDates


@dataclass(frozen=True, slots=True)
class Where:
    """Which column is being decoded, for errors; and what becomes of values that have no place in its Arrow type."""

    column: str
    type_text: str
    zero_dates: ZeroDates = "stop"
    bad_text: BadText = "stop"

    def __str__(self) -> str:
        return f"column {self.column} ({self.type_text})"


Decoder = Callable[[Cells, Where], pa.Array]


def unreadable(where: Where, expected: str) -> SourceUnavailable:
    """The error for bytes that cannot be a value of this column: the connection is made anew, nothing is lost."""
    return protocol_error(f"a value of {where} is not {expected} (it is not shown)")


def out_of_calendar(where: Where) -> ConfigurationError:
    return ConfigurationError(
        f"decoding {where}: found a date that is in no calendar (a zero year, month or day, or a day that its month "
        "does not have), and zero_dates is stop",
        remedy=f"in cdcflow.yaml set source.columns to {{{where.column}: text}} (or null), or source.zero_dates for "
        "all columns, then start again",
    )


def bad_text(where: Where, charset: str) -> ConfigurationError:
    return ConfigurationError(
        f"decoding {where}: found bytes that are no {charset} text, and bad_text is stop",
        remedy=f"in cdcflow.yaml set source.columns to {{{where.column}: replace}} (U+FFFD stands in their place), or "
        "source.bad_text for all columns, or mend the rows, then start again",
    )
