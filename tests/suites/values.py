"""Values of a table at the source and in its log, brought into one form by independent code.

Nothing here is shared with `cdcflow verify`: the server sends texts, and they are interpreted by the column's type in
the log.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

Plain = Any
"""A number, a text, bytes as hexadecimal digits, or a tuple of those; NULL is `None`."""
GEOMETRIES = frozenset(f"{many}{kind}" for many in ("", "multi") for kind in ("point", "linestring", "polygon")) | {
    "geometry",
    "geometrycollection",
    "geomcollection",
}
_SRID = 0x20000000
UNKNOWN = "\ufffd"
_UNICODE = {
    **dict.fromkeys(("utf8", "utf8mb3", "utf8mb4"), "utf-8"),
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}


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


def mysql_expression(name: str, data_type: str, type_: pa.DataType, *, is_replaced: bool = False) -> str:
    """The expression that selects a column. `is_replaced`: its settings replace invalid text by U+FFFD."""
    quoted = "`" + name.replace("`", "``") + "`"
    if is_replaced and pa.types.is_string(type_):
        return _text_and_marks(quoted)
    if pa.types.is_floating(type_):
        return f"{quoted} - 0e0"
    if data_type == "year":
        # Of a YEAR(2) the server shows two digits; its byte 0 is 1900 as a date, and 0 in the log.
        return f"IF({quoted} + 0 = 0 AND YEAR({quoted}) < 1901, 0, YEAR({quoted}))"
    if pa.types.is_integer(type_):
        return f"{quoted} + 0" if data_type == "bit" else quoted
    if pa.types.is_string(type_):
        return (
            f"HEX(CONVERT(CAST({quoted} AS CHAR) USING utf8mb4))"
            if data_type == "json"
            else f"HEX(CONVERT({quoted} USING utf8mb4))"
        )
    if pa.types.is_binary(type_) or pa.types.is_list(type_):
        return f"HEX({quoted})"
    return quoted


def of_mysql(value: bytes | None, data_type: str, type_: pa.DataType, *, is_replaced: bool = False) -> Plain:
    """The server's result for `mysql_expression`."""
    if value is None:
        return None
    if is_replaced and pa.types.is_string(type_):
        return _with_unknown(value.decode()).encode().hex()
    if pa.types.is_binary(type_):
        return _ewkb(bytes.fromhex(value.decode())).hex() if data_type in GEOMETRIES else value.decode().lower()
    if pa.types.is_list(type_):
        packed = bytes.fromhex(value.decode())
        return tuple(struct.pack(">d", f).hex() for f in struct.unpack(f"<{len(packed) // 4}f", packed))
    text = value.decode()
    return _OF_TEXT[_family(type_)](text)


def _text_and_marks(quoted: str) -> str:
    """The character set, then the raw bytes of a Unicode set: the server's conversion keeps invalid bytes or truncates.

    Of other sets the converted text, and the same with U+0001 for each real question mark: the server converts what it
    cannot map to a question mark.
    """
    raw = f"HEX(CONVERT({quoted} USING binary))"
    text, marked = (
        f"HEX(CONVERT({one} USING utf8mb4))" for one in (quoted, f"REPLACE({quoted}, _ascii'?', _ascii X'01')")
    )
    is_unicode = f"CHARSET({quoted}) RLIKE '^(utf|ucs2)'"
    return f"CONCAT(CHARSET({quoted}), ':', IF({is_unicode}, {raw}, CONCAT({text}, ':', {marked})))"


def _with_unknown(selected: str) -> str:
    """The selected text, with U+FFFD for characters that the character set lacks."""
    charset, *found = selected.split(":")
    texts = [bytes.fromhex(text) for text in found]
    if charset in _UNICODE:
        return texts[0].decode(_UNICODE[charset], "replace")
    if charset == "ucs2":  # has no surrogate pairs
        return "".join(texts[0][at : at + 2].decode("utf-16-be", "replace") for at in range(0, len(texts[0]), 2))
    pairs = zip(*(text.decode() for text in texts), strict=True)
    return "".join(UNKNOWN if pair == ("?", "?") else pair[0] for pair in pairs)


def _ewkb(stored: bytes) -> bytes:
    """The server's own form (SRID, then WKB) as WKB with the SRID after the type, where it is not 0."""
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
