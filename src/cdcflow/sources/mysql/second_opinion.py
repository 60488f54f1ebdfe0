"""Checks whether another library decodes a row event to the same values: the second opinion.

A read by key (the shadow check) interprets a type like the stream's decoder: an error in that affects both sides.
`mysql-replication` shares no code with cdcflow's decoders, and has different errors. `opinion_exclusions` lists the
library's known errors; values that these affect are not compared.

    row event ──▶ decoders ──────────▶ changes ──┐
        └───────▶ mysql-replication ──▶ images ──┴──▶ equal in every column
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final

from cdcflow.capture.ports.source import EventComparison
from cdcflow.model.change import DELETE, INSERT, UPDATE
from cdcflow.model.table import BEFORE, OP, UNCHANGED
from cdcflow.sources.mysql import mysql_replication
from cdcflow.sources.mysql.event_samples import EventSample
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.mysql_replication import Images, Masked, NoValue
from cdcflow.sources.mysql.opinion_exclusions import TEXTS, is_excluded
from cdcflow.sources.mysql.row_events import kind_of
from cdcflow.sources.mysql.rows import RowKind
from cdcflow.sources.mysql.tables import DescribedTable
from cdcflow.sources.mysql.types.columns import BINARY_COLLATION, ServerColumn, TypeCode
from cdcflow.sources.mysql.types.family import Codec
from cdcflow.sources.mysql.types.numbers import INTEGER_BYTES

NOT_INSTALLED: Final = "not installed (pip install 'cdcflow[second-opinion]')"

Row = Mapping[str, Any]
_ABSENT: Final = object()


def compare(sample: EventSample, flavor: Flavor) -> EventComparison:
    """Decode the row event with the library, and compare.

    An exception of the library counts as a difference: the cause may be that cdcflow cut the bytes wrongly.
    """
    found = _Comparison(sample.described)
    failure = ""
    try:
        images = mysql_replication.rows_of(sample.table_map, sample.event, flavor, _masked_columns(sample.described))
        found.compare(kind_of(sample.event), sample.rows.to_pylist(), images, is_whole=sample.is_whole)
    except Exception as error:  # noqa: BLE001 - any error; its text may contain values
        failure = f"cannot be decoded by it ({type(error).__name__})"
    if not failure and found.has_other_rows:
        failure = "has other rows by it"
    columns = tuple(c.name for c in sample.described.columns if c.name in found.columns)
    return EventComparison(sample.described.table.id, sample.position, columns, failure, mysql_replication.NAME)


def is_installed() -> bool:
    return mysql_replication.is_installed()


def _masked_columns(described: DescribedTable) -> Masked:
    """Return the columns that the library must not decode: it may fail at them, and they are not compared anyway."""
    excluded = [
        (number, column)
        for number, (column, codec) in enumerate(zip(described.columns, described.codecs, strict=True))
        if is_excluded(column, codec)
    ]
    return Masked(
        as_bytes=[number for number, column in excluded if column.type_code in TEXTS],
        as_numbers=[number for number, column in excluded if column.type_code == TypeCode.DATE],
    )


# ── rows ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Comparison:
    """Compares one event's changes with the library's images of its rows. `columns`: the names of the columns that
    differ."""

    described: DescribedTable
    columns: set[str] = field(default_factory=set)
    has_other_rows: bool = False

    def compare(self, kind: RowKind, changes: list[Row], images: Iterator[Images], *, is_whole: bool) -> None:
        rest = iter(changes)
        for change in rest:
            found = next(images, None)
            if found is None:
                self.has_other_rows = True
                return
            match kind, change[OP]:
                case (RowKind.INSERT, op) if op == INSERT:
                    self._change(change, found.after or {})
                case (RowKind.DELETE, op) if op == DELETE:
                    self._change(change, found.before or {})
                case (RowKind.UPDATE, op) if op == UPDATE and self._is_split(found) is not True:
                    self._change(change, _updated_row(found), found.before or {})
                case (RowKind.UPDATE, op) if op == DELETE and self._is_split(found) is not False:
                    self._change(change, found.before or {})
                    created = next(rest, None)
                    if created is not None:
                        self.has_other_rows |= created[OP] != INSERT
                        self._change(created, _updated_row(found))
                    elif is_whole:
                        self.has_other_rows = True
                case _:
                    self.has_other_rows = True
        if is_whole and next(images, None) is not None:
            self.has_other_rows = True

    def _is_split(self, found: Images) -> bool | None:
        """Whether an update is a delete and an insert, because its key changed; None if the library's values cannot
        show it."""
        key = self.described.table.key
        if any(c.name in key and c.type_code not in INTEGER_BYTES for c in self.described.columns):
            return None
        before, after = found.before or {}, _updated_row(found)
        return not key or any(before.get(name) != after.get(name) for name in key)

    def _change(self, change: Row, image: Row, before: Row | None = None) -> None:
        unchanged = frozenset(change[UNCHANGED] or ())
        for column, codec in zip(self.described.columns, self.described.codecs, strict=True):
            theirs = image.get(column.name, _ABSENT)
            is_sent = theirs is not _ABSENT and theirs is not NoValue.PART
            if is_sent is (column.name in unchanged):
                self.columns.add(column.name)
            elif is_sent:
                self._value(column, codec, change[column.name], theirs)
            if before is not None and change[BEFORE] is not None and column.name in change[BEFORE]:
                self._value(column, codec, change[BEFORE][column.name], before.get(column.name))

    def _value(self, column: ServerColumn, codec: Codec, ours: Any, theirs: Any) -> None:
        if not is_excluded(column, codec, ours) and not is_equal(column, ours, theirs):
            self.columns.add(column.name)


def _updated_row(found: Images) -> Row:
    """Return the row after an update: columns that were not sent keep their previous value."""
    return {**(found.before or {}), **(found.after or {})}


# ── values ─────────────────────────────────────────────────────────────────────────────────────────────────────


def is_equal(column: ServerColumn, ours: Any, theirs: Any) -> bool:
    """Whether cdcflow's value equals the library's."""
    if ours is None or theirs is None:
        return ours is None and theirs is None
    if isinstance(ours, bytes) and theirs == "":
        theirs = b""  # the library returns no bytes as an empty text, whatever the column
    known = _AS_OURS.get(column.type_code)
    if column.type_code == TypeCode.JSON:
        return _is_same_json(json.loads(ours, parse_float=_Number), theirs)
    value = theirs if known is None else known(column, theirs)
    if isinstance(ours, float):
        return isinstance(value, float) and struct.pack("<d", ours) == struct.pack("<d", value)
    return type(ours) is type(value) and bool(ours == value)


def _char(column: ServerColumn, value: Any) -> Any:
    """Return the value without zero bytes at the end: the binary log omits them in BINARY(n), and so does the
    library."""
    return value.ljust(column.metadata, b"\0") if column.collation in (None, BINARY_COLLATION) else value


def _set(column: ServerColumn, value: Any) -> Any:
    return ",".join(label for label in column.labels if label in value) if isinstance(value, set) else value


def _geometry(_: ServerColumn, value: bytes) -> bytes:
    """Return the server's bytes as EWKB: with the SRID after the type, if it has one."""
    if value[:4] == bytes(4):
        return value[4:]
    return value[4:8] + bytes([value[8] | 0x20]) + value[:4] + value[9:]


_AS_OURS: Final[Mapping[int, Callable[[ServerColumn, Any], Any]]] = {
    TypeCode.BIT: lambda _, value: int(value, 2),
    TypeCode.TIMESTAMP: lambda _, value: value.replace(tzinfo=UTC),
    TypeCode.CHAR: _char,
    TypeCode.SET: _set,
    TypeCode.GEOMETRY: _geometry,
}
"""For types whose values the library represents differently, without being wrong: the function that converts cdcflow's
value or the library's, so that both can be compared."""


class _Number(str):
    """A number with a point or an exponent, exactly as written in the text: a double or a decimal."""

    __slots__ = ()


_OPAQUE: Final = "base64:type"


def _is_same_json(ours: Any, theirs: Any) -> bool:
    """Whether a document's text equals the library's document, whose keys and texts are bytes.

    Dates, times and bytes in a document are not compared: only a human could recognize their type in the text.
    """
    if isinstance(theirs, bytes):
        theirs = theirs.decode(errors="replace")
    match ours, theirs:
        case dict(), dict():
            found = {k.decode() if isinstance(k, bytes) else k: v for k, v in theirs.items()}
            return ours.keys() == found.keys() and all(_is_same_json(v, found[k]) for k, v in ours.items())
        case list(), list():
            return len(ours) == len(theirs) and all(map(_is_same_json, ours, theirs))
        case _Number(), float():
            return struct.pack("<d", float(ours)) == struct.pack("<d", theirs)
        case ((_Number() | int()), Decimal()):
            return Decimal(ours) == theirs
        case str(), (datetime() | date() | time()):
            return True
        case str(), _ if ours.startswith(_OPAQUE):
            return True
    return type(ours) is type(theirs) and bool(ours == theirs)
