"""What a type family defines for its types, and what all value decoders share.

A decoder turns one column's cells, one batch at a time, into an Arrow array. NULL cells stay NULL. No error here
contains a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.table import TableId
from cdcflow.sources.engine.buffers import Cells, protocol_error
from cdcflow.sources.mysql.sql import literal, quote_name
from cdcflow.sources.mysql.types.columns import BadText, CatalogColumn, ServerColumn, ZeroDates


@dataclass(frozen=True, slots=True)
class Where:
    """The column that is being decoded, for errors; and what happens to values that its Arrow type cannot hold.
    `key_of`: the table whose key it is part of."""

    column: str
    type_text: str
    zero_dates: ZeroDates = "stop"
    bad_text: BadText = "stop"
    key_of: TableId | None = None

    def __str__(self) -> str:
        return f"column {self.column} ({self.type_text})"


Decoder = Callable[[Cells, Where], pa.Array]


@dataclass(frozen=True, slots=True)
class Codec:
    """How one column's values become Arrow.

    In a row image a value takes `width` bytes, or `prefix` bytes of length precede it (then `width` is 0). `image`
    decodes such values, `result` those that a SELECT of the column's expression returns. `form` names the kernels of
    both for the compiled decoder, with a number that each of them needs; empty if there are none.
    """

    where: Where
    arrow: pa.DataType
    width: int
    prefix: int
    image: Decoder
    result: Decoder
    form: str = ""
    number: int = 0


@dataclass(frozen=True, slots=True)
class RowText:
    """A column's text in a row's digest, as pieces of SQL to be concatenated; or why it has none (`lacking`)."""

    pieces: tuple[str, ...] = ()
    lacking: str = ""


def as_is(column: ServerColumn) -> str:
    """The column's name in SQL."""
    return quote_name(column.name)


TWO_DIGITS = "year(2)"
"""The `extra` of MariaDB's YEAR(2). The server prints two digits and orders by the whole year, but a comparison with a
number uses neither of these."""


def whole_year(column: ServerColumn) -> str:
    """SQL for the year that a YEAR(2) stores. It is 0 for the first year (1900), like in a row image, which does not
    show that the column has two digits."""
    name = quote_name(column.name)
    return f"IF(YEAR({name}) = 1900, 0, YEAR({name}))"


@dataclass(frozen=True, slots=True)
class TypeFamily:
    """Everything that depends on a column's type, for the types of one family. Looked up once per table shape, never
    per batch.

    How the binary log names the types: `codes` maps each code to the bytes of its metadata in a table map; `old` are
    the codes of formats from before 5.6.4, which are refused, each as "a …". A table map counts the codes in `signed`
    in its field of signedness, and those in `collated` in its field of character sets. How the catalog names them:
    `names` (DATA_TYPE), and `from_catalog` returns the column of one. `extras`: columns that only the catalog knows to
    be of this family (`ServerColumn.extra`).

    `type_text` is the type in SQL's words, as far as it affects values. `codec` decodes a column's values; `setting`
    names the policy that it follows, `zero_dates` or `bad_text`, or None for neither.

    In SQL: `select` is the expression in a chunk's SELECT that preserves every bit of a value, `comparable` the column
    in a comparison that agrees with ORDER BY on it. `cell_literal` returns a value as SQL from the text that the server
    sent for it (None: a key cannot have such a column), `text_literal` from the text that Arrow holds. `row_text` is a
    value's text in its row's digest.
    """

    codes: Mapping[int, int]
    names: frozenset[str]
    from_catalog: Callable[[CatalogColumn], ServerColumn]
    type_text: Callable[[ServerColumn], str]
    codec: Callable[[ServerColumn, Where], Codec]
    row_text: Callable[[ServerColumn, Codec], RowText]
    old: Mapping[int, str] = field(default_factory=dict)
    signed: frozenset[int] = frozenset()
    collated: frozenset[int] = frozenset()
    extras: frozenset[str] = frozenset()
    setting: Callable[[ServerColumn], Literal["zero_dates", "bad_text"] | None] = lambda _: None
    select: Callable[[ServerColumn], str] = as_is
    comparable: Callable[[ServerColumn], str] = as_is
    cell_literal: Callable[[ServerColumn, bytes], str] | None = None
    text_literal: Callable[[ServerColumn, str], str] = lambda _, text: literal(text)


def unreadable(where: Where, expected: str) -> SourceUnavailable:
    """Return the error for bytes that cannot be a value of this column: cdcflow connects again, and nothing is lost."""
    return protocol_error(f"a value of {where} is not {expected} (it is not shown)")


def valid_text(pattern: re.Pattern[str], cell: bytes, column: ServerColumn) -> str:
    """Return a key's text after checking that it is valid for its type: anything else would be SQL (hard case S01).

    Raises: SourceUnavailable: the text is not valid.
    """
    text = cell.decode("ascii", "replace")
    if pattern.fullmatch(text) is None:
        raise SourceUnavailable(f"the server sent a key of column {column.name} that is not a value of its type")
    return text


def no_key(column: ServerColumn) -> ConfigurationError:
    return ConfigurationError(
        f"column {column.name} is part of a key, and cdcflow cannot compare values of its type",
        remedy="ALTER TABLE … ADD PRIMARY KEY over other columns",
        runbook="table-not-capturable",
    )
