"""Which Arrow type each PostgreSQL type becomes, and who decodes its values: the one table of both.

Backfill and stream must give the same value for the same row, so both take their decoder from here. Every type has
a decoder for the server's text. Some have one for its binary format too; the stream may ask for binary when all
captured columns have one, and a chunk's COPY (always binary as a format) carries the others as `column::text`.

`docs/postgres_types.md` is this table for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdcflow.config import Special
from cdcflow.model.table import Column, Identity, Table, TableId
from cdcflow.sources.postgres.values import Decoder, Where


@dataclass(frozen=True, slots=True)
class AttributeInfo:
    """One column as the catalog describes it, domains and arrays looked through.

    `base_*` is the type under a domain (else the type itself), `kind` the base's `pg_type.typtype` (b e c d r m).
    `element_*` describe an array's elements, domains resolved (`element_oid` 0: not an array). `missing` is the text
    of the constant that rows older than the column have (`pg_attribute.attmissingval`). `in_key`: part of the key.
    """

    name: str
    number: int
    type_oid: int
    type_modifier: int
    type_text: str
    not_null: bool = False
    missing: str | None = None
    in_key: bool = False
    base_oid: int = 0
    base_modifier: int = -1
    kind: str = "b"
    element_oid: int = 0
    element_modifier: int = -1
    element_kind: str = "b"


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of values that the Arrow type cannot hold, and of `numeric` without precision.

    Named as in `cdcflow.config.Postgres`. `columns` overrides either for one column by its full name.
    """

    special_values: Special = "stop"
    unconstrained_numeric: str = "text"
    columns: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Codec:
    """How one column's values become Arrow. `binary` None: only the server's text is understood."""

    where: Where
    text: Decoder
    binary: Decoder | None


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table's shape with a codec for every column, in the order in which rows carry them.

    `has_binary`: every column has a binary decoder. `copy_expressions`: what a chunk's COPY selects, one a column.
    """

    table: Table
    codecs: tuple[Codec, ...]
    has_binary: bool
    copy_expressions: tuple[str, ...]


def column_of(attribute: AttributeInfo, table: TableId, policy: Policy) -> Column:
    """The column with the Arrow type that its values get in the log.

    Raises:
        ConfigurationError: the policy for this column is not one that its type knows.
    """
    raise NotImplementedError


def has_binary(attribute: AttributeInfo, table: TableId, policy: Policy) -> bool:
    """Whether this column's values can be taken in the server's binary format."""
    raise NotImplementedError


def copy_expression(attribute: AttributeInfo, table: TableId, policy: Policy) -> str:
    """What a chunk's COPY (FORMAT binary) selects for this column: the column, or its text."""
    raise NotImplementedError


def describe_table(
    table: TableId,
    oid: int,
    attributes: tuple[AttributeInfo, ...],
    identity: Identity,
    policy: Policy,
) -> DescribedTable:
    """The table's shape and codecs. `attributes` are the published columns in the order of rows; key columns by `in_key`."""
    raise NotImplementedError
