"""Adapter of `mysql-replication` (the package `pymysqlreplication`): row events as plain Python values.

The library decodes row by row in Python, and shares no code with cdcflow's decoders. It is an optional extra, and slow:
it gets single row events (`event_samples`) whose bytes were already received, and never a connection.

    OK byte │ header, with a length that counts a checksum │ TABLE_MAP or row event │ 4 bytes in place of the checksum

Values that the library need not decode (`as_bytes`, `as_numbers`) are read as bytes, or as the number in which they are
stored, so that an exception in one of them does not hide the others.
"""

from __future__ import annotations

import enum
import importlib.util
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from pymysql.protocol import MysqlPacket

from cdcflow.sources.mysql.events import EventType
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.wire import CHECKSUM

NAME: Final = "mysql-replication"
_INT24 = 9
_NOT_SENT, _EMPTY_SET, _NULL = "cols bitmap", "empty set", "null"


class NoValue(enum.Enum):
    """The library's result for a column that has no value."""

    OUT_OF_CALENDAR = "a date that is in no calendar"
    PART = "a part of a JSON document"
    FAILED = "a JSON document that it cannot read"


@dataclass(frozen=True, slots=True)
class Images:
    """One row of an event: values by column, without the columns that were not sent. An image that this kind of event
    does not have is None."""

    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Masked:
    """Columns that the library must not decode, by their numbers from 0: `as_bytes` are read as bytes, `as_numbers` as
    three-byte integers."""

    as_bytes: Collection[int] = field(default_factory=frozenset)
    as_numbers: Collection[int] = field(default_factory=frozenset)


@cache
def is_installed() -> bool:
    return importlib.util.find_spec("pymysqlreplication") is not None


def rows_of(table_map: bytes, event: bytes, flavor: Flavor, masked: Masked) -> Iterator[Images]:
    """Return the rows of a row event as the library decodes it. `table_map`: the body of the event's TABLE_MAP event;
    `event`: the row event with its header.

    Any exception of the library may be raised, also between two rows.
    """
    known: dict[int, Any] = {}
    head = struct.pack("<IBIIIH", 0, EventType.TABLE_MAP, 0, 0, 0, 0)
    _parse_event(head + table_map, flavor, known)
    for columns in (table.columns for table in known.values()):
        for number in masked.as_bytes:
            columns[number].character_set_name = "binary"
        for number in masked.as_numbers:
            columns[number].type, columns[number].unsigned = _INT24, True
    found = _parse_event(event, flavor, known)
    while found.packet.read_bytes < found.event_size:
        yield _images(found._fetch_one_row())


def _images(row: Mapping[str, Any]) -> Images:
    if "values" in row:
        # The caller knows from the event's type whether this is the image before or after the change.
        image = _image(row["values"], row["none_sources"])
        return Images(image, image)
    return Images(
        _image(row["before_values"], row["before_none_sources"]), _image(row["after_values"], row["after_none_sources"])
    )


def _image(values: Mapping[str, Any], reasons: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: _value(value, reasons.get(name, _NULL))
        for name, value in values.items()
        if value is not None or reasons.get(name) != _NOT_SENT
    }


def _value(value: Any, reason: str) -> Any:
    if type(value).__name__ == "JsonDiff":
        return NoValue.PART
    if value is not None or reason == _NULL:
        return value
    if reason == _EMPTY_SET:
        return set()
    return NoValue.OUT_OF_CALENDAR if reason.startswith("out of") else NoValue.PART


def _parse_event(event: bytes, flavor: Flavor, known: dict[int, Any]) -> Any:
    """Return the library's object for an event. A TABLE_MAP event is added to `known`."""
    from pymysqlreplication.packet import BinLogPacketWrapper
    from pymysqlreplication.row_event import (
        DeleteRowsEvent,
        PartialUpdateRowsEvent,
        TableMapEvent,
        UpdateRowsEvent,
        WriteRowsEvent,
    )

    sized = event[:9] + struct.pack("<I", len(event) + CHECKSUM) + event[13:]
    # The library queries its connection only for the kind of server.
    connection = SimpleNamespace(charset="utf8mb4", _get_dbms=lambda: flavor)
    wrapper = BinLogPacketWrapper(
        MysqlPacket(b"\0" + sized + bytes(CHECKSUM), "utf8"),
        known,
        connection,
        mysql_version=(8, 0, 0),
        use_checksum=True,
        allowed_events=(TableMapEvent, WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent, PartialUpdateRowsEvent),
        only_tables=None,
        ignored_tables=None,
        only_schemas=None,
        ignored_schemas=None,
        freeze_schema=False,
        ignore_decode_errors=True,
        verify_checksum=False,
        optional_meta_data=True,
        enable_logging=False,
    )
    if wrapper.event is None:
        raise LookupError(f"{NAME} has nothing to say about an event of type {event[4]}")
    _guard_documents(wrapper)
    return wrapper.event


def _guard_documents(wrapper: Any) -> None:
    """Make a document that the library cannot read a single missing value, instead of a reason to abandon the event:
    the library has read all of its bytes before it parses them."""
    read = wrapper.read_binary_json

    def read_guarded(size: int, is_partial: bool) -> Any:
        try:
            return read(size, is_partial)
        except ValueError:
            return NoValue.FAILED

    wrapper.read_binary_json = read_guarded
