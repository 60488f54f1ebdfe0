"""A table's shape: its columns, their codecs, and how the log itself describes it (TABLE_MAP events).

    id(6) flags(2) │ schema │ table │ types │ metadata │ nullable │ optional: number, length, value …

With `binlog_row_metadata=FULL` the optional part has the columns' names, signedness, character sets, labels and the
primary key, so the shape is the one in force when the rows were written, whatever the table's current definition (hard
cases M33, N16). Without it names are empty, and `describe` refuses the table.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import Column, Identity, Table, TableId
from cdcflow.model.types import ColumnType
from cdcflow.sources.engine.selection import check_columns
from cdcflow.sources.mysql.errors import READ_ANEW
from cdcflow.sources.mysql.events import length_at
from cdcflow.sources.mysql.position import Coordinate
from cdcflow.sources.mysql.types.charsets import charset_of, decode_text
from cdcflow.sources.mysql.types.columns import Policy, ServerColumn, TypeCode, resolve_type
from cdcflow.sources.mysql.types.family import Codec
from cdcflow.sources.mysql.types.registry import COLLATED, METADATA_BYTES, SIGNED, check_key, codec_of
from cdcflow.sources.mysql.wire import HEADER, protocol_error

# ── shapes ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table's shape with the codecs of its columns. `columns` are all columns of its rows in the binary log, in that
    order.

    `layouts` belongs to the compiled decoder: its data for this shape, built once.
    """

    table: Table
    columns: tuple[ServerColumn, ...]
    codecs: tuple[Codec, ...]
    layouts: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)


def describe(
    table: TableId, columns: Sequence[ServerColumn], key: Sequence[str], identity: Identity, policy: Policy
) -> DescribedTable:
    """Return the table's shape. `columns` are all columns in the server's order; `key` names those that identify rows.

    Raises:
        ConfigurationError: a column's type is not captured, or its type does not support a policy, or a policy would
            make keys of different rows equal.
    """
    unnamed = [number for number, column in enumerate(columns, 1) if not column.name]
    if unnamed:
        raise ConfigurationError(
            f"table {table}: the binary log does not name its columns",
            remedy=f"run SET GLOBAL binlog_row_metadata = 'FULL' (in the server's settings, too), then {READ_ANEW}",
            runbook="binlog-not-complete",
        )
    check_columns(table, [column.name for column in columns])
    codecs = tuple(codec_of(column, table, policy) for column in columns)
    for column, codec in zip(columns, codecs, strict=True):
        if column.name in key:
            check_key(column, codec.where, policy)
    codecs = tuple(_of_key(codec, table) if c.name in key else codec for c, codec in zip(columns, codecs, strict=True))
    described = tuple(
        Column(column.name, number, ColumnType(codec.where.type_text, codec.arrow), column.nullable)
        for column, codec, number in zip(columns, codecs, column_numbers([c.name for c in columns]), strict=True)
    )
    return DescribedTable(Table(table, 1, described, tuple(key), identity), tuple(columns), codecs)


def _of_key(codec: Codec, table: TableId) -> Codec:
    return replace(codec, where=replace(codec.where, key_of=table))


def column_numbers(names: Sequence[str]) -> list[int]:
    """Return a number for each column, computed from its name: the binary log has no number that stays with a column.

    A rename is therefore a drop and an add. If two names of one table have the same number, the later takes the next.
    """
    taken: dict[int, str] = {}
    for name in names:
        number = zlib.crc32(name.encode()) & 0x7FFFFFFF
        while number in taken:
            number = (number + 1) & 0x7FFFFFFF
        taken[number] = name
    return list(taken)


class Tables(Protocol):
    """Answers the stream's questions about tables. The stream's thread calls these methods, in the log's order."""

    def catalog_name(self, table: TableId) -> TableId:
        """Return the table that this name in a statement or the log means, as the catalog names it."""
        ...

    def is_captured(self, table: TableId) -> bool:
        """Whether the table's rows belong into the log, whether or not it exists now.

        Never true for the shadow tables of gh-ost and pt-online-schema-change (`_t_gho`, `_t_new` …), for temporary
        tables and for the table of marks.
        """
        ...

    def describe(self, found: TableMap) -> DescribedTable | None:
        """Return the shape of a captured table according to a table map; None if its rows are skipped.

        Called again whenever the map's bytes differ from the last ones, and after each `invalidate`.
        """
        ...

    def last_shape(self, table: TableId) -> DescribedTable | None:
        """Return the table's last known shape, from a table map or from the catalog; None if it was never seen."""
        ...

    def captured_in(self, schema: str | None) -> Sequence[TableId]:
        """Return the captured tables of a schema (None: of all) as last known, even if they no longer exist."""
        ...

    def mapped_shape(self, table: TableId) -> DescribedTable | None:
        """Return the shape of the table map since the last statement about this table; None if no map followed it."""
        ...

    def now(self, table: TableId) -> Sequence[ServerColumn] | None:
        """Return the columns that a captured table currently has in the catalog; None if it does not exist."""
        ...

    def is_versioned(self, table: TableId) -> bool:
        """Whether a captured table now keeps the history of its rows (MariaDB)."""
        ...

    def is_computed(self, table: TableId) -> bool:
        """Whether a captured table now has generated columns."""
        ...

    def lacks_primary_key(self, table: TableId) -> bool:
        """Whether a captured table now has no primary key; false if it does not exist."""
        ...

    def engine_that_keeps_changes(self, table: TableId) -> str:
        """Return the table's engine if it does not revert changes on ROLLBACK; "" if it does, or is unknown."""
        ...

    def is_new(self, table: TableId) -> bool:
        """Whether a captured table is new, and the stream has not reached the place through which its backfill sees all
        changes.

        Changes that cannot be decoded before that place are skipped.
        """
        ...

    @property
    def next_begin(self) -> Coordinate | None:
        """The first of the coordinates at which a table stops being new; None if no table is new."""
        ...

    def begin(self, upto: Coordinate | None) -> None:
        """Note that the stream has reached this coordinate, or (None) that no table is new any longer."""
        ...

    def invalidate(self, table: TableId | None) -> None:
        """Note that a statement may have changed the shape of this table (None: of any table), or created or dropped
        it."""
        ...


# ── TABLE_MAP events ───────────────────────────────────────────────────────────────────────────────────────────

# Among non-text types, MySQL counts a vector as a column with a character set, MariaDB a geometry; both are bytes.
_LABELLED: Final = frozenset((TypeCode.ENUM, TypeCode.SET))

# Numbers of the optional fields.
_SIGNEDNESS, _DEFAULT_CHARSET, _CHARSETS, _NAMES, _SET_LABELS, _ENUM_LABELS = 1, 2, 3, 4, 5, 6
_KEY, _PREFIX_KEY, _LABELS_DEFAULT_CHARSET, _LABELS_CHARSETS = 8, 9, 10, 11
_VISIBILITY = 12
"""The field with the columns' visibility: always present in MySQL's full metadata, never in MariaDB's."""


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table as the log describes it. `key` are the numbers (from 0) of the primary key's columns, in its order; empty
    if it has none or the log does not name it. `has_names`: the log was written with full metadata."""

    id: TableId
    columns: tuple[ServerColumn, ...]
    key: tuple[int, ...]
    has_names: bool

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(self.columns[i].name for i in self.key)


def table_name(event: bytes) -> TableId:
    """Return only the name of a table map's table: the rest is parsed for captured tables alone."""
    schema, at = _name(event, HEADER + 8)
    table, _ = _name(event, at)
    return TableId(schema, table)


def table_map(event: bytes) -> TableMap:
    """Parse a whole TABLE_MAP event.

    Raises:
        SourceUnavailable: lengths in it lead beyond its end.
        ConfigurationError: a column of a type that cdcflow does not know.
    """
    table = table_name(event)
    _, at = _name(event, HEADER + 8)
    _, at = _name(event, at)
    count, at = length_at(event, at)
    codes, at = _bytes(event, at, count)
    size, at = length_at(event, at)
    metadata, at = _bytes(event, at, size)
    nullable, at = _bytes(event, at, (count + 7) // 8)
    types = _types(table, codes, metadata)
    told = _optional(event, at)
    columns = _columns(table, types, nullable, told)
    key = _numbers(told[_KEY]) if _KEY in told else _numbers(told.get(_PREFIX_KEY, b""))[::2]
    if any(k >= count for k in key):
        raise protocol_error("a TABLE_MAP event whose key names a column that does not exist")
    return TableMap(table, columns, tuple(key), _NAMES in told)


def _types(table: TableId, codes: bytes, metadata: bytes) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    at = 0
    for number, code in enumerate(codes):
        size = METADATA_BYTES.get(code)
        if size is None:
            raise ConfigurationError(
                f"column number {number + 1} of table {table} has type {code}, which cdcflow does not know",
                remedy=f'leave the table out: add "!{table}" to source.tables',
                runbook="table-not-capturable",
            )
        raw, at = _bytes(metadata, at, size)
        out.append(resolve_type(code, raw))
    return out


def _optional(event: bytes, at: int) -> dict[int, bytes]:
    told: dict[int, bytes] = {}
    while at < len(event):
        number = event[at]
        size, at = length_at(event, at + 1)
        told[number], at = _bytes(event, at, size)
    return told


def _columns(
    table: TableId, types: Sequence[tuple[int, int]], nullable: bytes, told: dict[int, bytes]
) -> tuple[ServerColumn, ...]:
    codes = [code for code, _ in types]
    names = _strings(told[_NAMES], len(codes)) if _NAMES in told else [b""] * len(codes)
    unsigned = _unsigned_columns(codes, told.get(_SIGNEDNESS, b""))
    counted = COLLATED if _VISIBILITY in told else COLLATED | {TypeCode.GEOMETRY}
    collations = _collations([i for i, c in enumerate(codes) if c in counted], told, _DEFAULT_CHARSET, _CHARSETS)
    labelled = [i for i, c in enumerate(codes) if c in _LABELLED]
    collations |= _collations(labelled, told, _LABELS_DEFAULT_CHARSET, _LABELS_CHARSETS)
    enums, sets = ([i for i, c in enumerate(codes) if c == code] for code in (TypeCode.ENUM, TypeCode.SET))
    labels = _labels(table, enums, told.get(_ENUM_LABELS), collations)
    labels |= _labels(table, sets, told.get(_SET_LABELS), collations)
    return tuple(
        ServerColumn(
            name=_text(names[i]),
            type_code=code,
            metadata=metadata,
            nullable=bool(nullable[i >> 3] >> (i & 7) & 1),
            unsigned=i in unsigned and code != TypeCode.YEAR,
            collation=None if code in (TypeCode.GEOMETRY, TypeCode.VECTOR) else collations.get(i),
            labels=labels.get(i, ()),
        )
        for i, (code, metadata) in enumerate(types)
    )


def _unsigned_columns(codes: Sequence[int], bits: bytes) -> set[int]:
    """Return the columns that are unsigned. `bits`: one bit per numeric column, the first one highest in its byte."""
    numeric = [i for i, c in enumerate(codes) if c in SIGNED]
    return {column for nth, column in enumerate(numeric) if nth >> 3 < len(bits) and bits[nth >> 3] << (nth & 7) & 0x80}


def _collations(columns: Sequence[int], told: dict[int, bytes], default: int, each: int) -> dict[int, int]:
    """Return the collation of each of these columns: one for all with exceptions, or one per column."""
    if each in told:
        return dict(zip(columns, _numbers(told[each]), strict=False))
    if default not in told:
        return {}
    common, *exceptions = _numbers(told[default]) or [0]
    out = dict.fromkeys(columns, common)
    for nth, collation in zip(exceptions[::2], exceptions[1::2], strict=False):
        if nth >= len(columns):
            raise protocol_error("a TABLE_MAP event with a character set for a column that does not exist")
        out[columns[nth]] = collation
    return out


def _labels(
    table: TableId, columns: Sequence[int], value: bytes | None, collations: dict[int, int]
) -> dict[int, tuple[str, ...]]:
    out: dict[int, tuple[str, ...]] = {}
    if value is None:
        return out
    at = 0
    for column in columns:
        count, at = length_at(value, at)
        if count > len(value):
            raise protocol_error("a TABLE_MAP event with more labels than bytes")
        found = []
        for _ in range(count):
            size, at = length_at(value, at)
            raw, at = _bytes(value, at, size)
            found.append(_label(table, raw, collations.get(column)))
        out[column] = tuple(found)
    return out


def _label(table: TableId, raw: bytes, collation: int | None) -> str:
    charset = "binary" if collation is None else charset_of(collation).name
    if charset != "binary":
        try:
            return decode_text(charset, raw)
        except UnicodeDecodeError:
            raise protocol_error("a label that is not in its column's character set") from None
    try:
        return raw.decode()  # bytes without a character set: those of the statement, which is in UTF-8 nearly always
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"an ENUM or SET of table {table} with CHARACTER SET binary has a label that is not UTF-8",
            remedy=f'leave the table out: add "!{table}" to source.tables',
            runbook="table-not-capturable",
        ) from None


def _strings(value: bytes, count: int) -> list[bytes]:
    out: list[bytes] = []
    at = 0
    for _ in range(count):
        size, at = length_at(value, at)
        raw, at = _bytes(value, at, size)
        out.append(raw)
    return out


def _numbers(value: bytes) -> list[int]:
    out: list[int] = []
    at = 0
    while at < len(value):
        number, at = length_at(value, at)
        out.append(number)
    return out


def _name(event: bytes, at: int) -> tuple[str, int]:
    """Return the name at an offset, and the offset after it. The event has its length, its bytes, and a zero byte."""
    if at >= len(event):
        raise protocol_error("a TABLE_MAP event that ends early")
    raw, after = _bytes(event, at + 1, event[at])
    return _text(raw), after + 1


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise protocol_error("a name that is not UTF-8") from None


def _bytes(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(data):
        raise protocol_error("a TABLE_MAP event that ends early")
    return data[at : at + size], at + size
