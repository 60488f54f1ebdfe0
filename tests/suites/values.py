"""Values of a table at the source and in its log, brought into one form by code of their own.

Nothing here is shared with `cdcflow verify`: the server gives texts, and what they mean is decided by the type that the
column has in the log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

Plain = Any
"""A number, a text, bytes as hexadecimal digits, or a tuple of such; None is NULL."""
GEOMETRIES = frozenset(f"{many}{kind}" for many in ("", "multi") for kind in ("point", "linestring", "polygon")) | {
    "geometry",
    "geometrycollection",
    "geomcollection",
}
_SRID = 0x20000000


def of_the_log(value: object, type_: pa.DataType) -> Plain:
    """A value as pyarrow gives it."""
    match value:
        case None | bool() | int() | Decimal():
            return value
        case float():
            return struct.pack(">d", value).hex()
        case str():
            return value.encode("utf-8", "surrogatepass").hex()
        case bytes():
            return value.hex()
        case datetime():
            return value.replace(tzinfo=None).isoformat(" ", "microseconds")
        case date():
            return value.isoformat()
        case timedelta():
            return value // timedelta(microseconds=1)
        case list() | tuple():
            inner = type_.value_type if pa.types.is_list(type_) else pa.null()
            return tuple(of_the_log(one, inner) for one in value)
    return repr(value)


# ── MySQL and MariaDB ───────────────────────────────────────────────────────────────────────────────────────────


def mysql_expression(name: str, data_type: str, type_: pa.DataType) -> str:
    """What is selected of a column."""
    quoted = "`" + name.replace("`", "``") + "`"
    if pa.types.is_floating(type_):
        return f"{quoted} - 0e0"
    if pa.types.is_integer(type_):
        return f"{quoted} + 0" if data_type in ("bit", "year") else quoted
    if pa.types.is_string(type_):
        return (
            f"HEX(CONVERT(CAST({quoted} AS CHAR) USING utf8mb4))"
            if data_type == "json"
            else f"HEX(CONVERT({quoted} USING utf8mb4))"
        )
    if pa.types.is_binary(type_) or pa.types.is_list(type_):
        return f"HEX({quoted})"
    return quoted


def of_mysql(value: bytes | None, data_type: str, type_: pa.DataType) -> Plain:
    """What the server gave for `mysql_expression`."""
    if value is None:
        return None
    if pa.types.is_binary(type_):
        return _ewkb(bytes.fromhex(value.decode())).hex() if data_type in GEOMETRIES else value.decode().lower()
    if pa.types.is_list(type_):
        packed = bytes.fromhex(value.decode())
        return tuple(struct.pack(">d", f).hex() for f in struct.unpack(f"<{len(packed) // 4}f", packed))
    text = value.decode()
    return _OF_TEXT[_family(type_)](text)


def _ewkb(stored: bytes) -> bytes:
    """The server's own form (SRID, then WKB) as WKB with the SRID behind the type, where it is not 0."""
    srid, order, kind = struct.unpack_from("<IBI", stored)
    if srid == 0:
        return stored[4:]
    return struct.pack("<BII", order, kind | _SRID, srid) + stored[9:]


def _family(type_: pa.DataType) -> str:
    for name in ("integer", "floating", "decimal", "date", "timestamp", "duration"):
        if getattr(pa.types, f"is_{name}")(type_):
            return name
    return "text"


def _microseconds(text: str) -> int:
    hours, minutes, seconds = text.lstrip("-").split(":")
    whole, _, part = seconds.partition(".")
    total = (int(hours) * 3600 + int(minutes) * 60 + int(whole)) * 1_000_000 + int(part.ljust(6, "0") or 0)
    return -total if text.startswith("-") else total


def _moment(text: str) -> str:
    whole, _, part = text.partition(".")
    return f"{whole}.{part.ljust(6, '0')}"


_OF_TEXT: dict[str, Callable[[str], Plain]] = {
    "integer": int,
    "floating": lambda text: struct.pack(">d", float(text)).hex(),
    "decimal": Decimal,
    "date": str,
    "timestamp": _moment,
    "duration": _microseconds,
    "text": str.lower,
}

__all__ = ["mysql_expression", "of_mysql", "of_the_log"]
