"""MySQL's binary JSON as the text that the server prints for it.

A value is one type byte and its content. Objects and arrays are tables of offsets from their own first byte, with two
bytes each in the small form and four in the large one; short numbers and literals are in the table itself:

    object   count │ size │ (key offset, key length) … │ (type, offset or value) … │ keys … │ values …
    array    count │ size │ (type, offset or value) … │ values …

Dates and decimals are "opaque" values: a column type, a length, and the bytes of that type. Doubles are printed with
the fewest digits that identify their bits, with an exponent at 1e15 and above, and below 1e-15. Keys are printed in the
order in which they are stored (by length, then by bytes). (MySQL's `json_binary.h` and `json_dom.cc` describe all
this.)

MariaDB's JSON is text already: a LONGTEXT.

Compiled kernels: for the form `json` the kernel JSON (`compiled/json.pxi`), which prints all documents of a batch in
one pass, and in result sets the kernel UTF8.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from cdcflow.sources.engine.buffers import Cells
from cdcflow.sources.mysql.types import row_texts
from cdcflow.sources.mysql.types.charsets import utf8
from cdcflow.sources.mysql.types.columns import TypeCode
from cdcflow.sources.mysql.types.family import Codec, TypeFamily, Where, unreadable
from cdcflow.sources.mysql.types.numbers import digit_groups

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_OPAQUE = 15
_LITERALS = ("null", "true", "false")
_NUMBERS = {
    _INT16: struct.Struct("<h"),
    _UINT16: struct.Struct("<H"),
    _INT32: struct.Struct("<i"),
    _UINT32: struct.Struct("<I"),
    _INT64: struct.Struct("<q"),
    _UINT64: struct.Struct("<Q"),
}
_DOUBLES = struct.Struct("<d")
_IN_SMALL = frozenset((_LITERAL, _INT16, _UINT16))
_IN_LARGE = frozenset((*_IN_SMALL, _INT32, _UINT32))
_DEPTH_MAX = 100
_FIXED_FROM, _FIXED_TO = -14, 15  # the positions of the decimal point that need no exponent
_ESCAPED = json.encoder.ESCAPE


class NoJson(ValueError):
    """The bytes are not a JSON value."""


def text(cells: Cells, where: Where) -> pa.Array:
    try:
        # A document is a tree, and this is the reference decoder: the compiled one prints them in one pass.
        return pa.array([None if v is None else document_text(v) for v in cells.binary().to_pylist()], pa.string())
    except NoJson:
        raise unreadable(where, "a JSON document") from None


def document_text(document: bytes) -> str:
    """Return one document as the server prints it. No bytes at all are what the server stores for NULL in a NOT NULL
    column.

    Raises:
        NoJson: the bytes are not a JSON value.
    """
    if not document:
        return "null"
    reader = _Reader(document, len(document))
    try:
        out: list[str] = []
        reader.value(document[0], 1, out, 0)
    except (struct.error, IndexError, UnicodeDecodeError, RecursionError):
        raise NoJson from None
    return "".join(out)


@dataclass(slots=True)
class _Reader:
    """A document being printed. `budget`: how many values it may still have, since each one takes a byte or more."""

    data: bytes
    budget: int

    def value(self, kind: int, at: int, out: list[str], depth: int) -> None:
        self.budget -= 1
        if self.budget < 0 or depth > _DEPTH_MAX:
            raise NoJson
        if kind <= _LARGE_ARRAY:
            self._container(kind, at, out, depth)
        else:
            out.append(self._scalar(kind, at))

    def _container(self, kind: int, at: int, out: list[str], depth: int) -> None:
        large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
        keyed = kind in (_SMALL_OBJECT, _LARGE_OBJECT)
        width, form = (4, "<I") if large else (2, "<H")
        count, size = struct.unpack_from(form + form[1], self.data, at)
        if at + size > len(self.data) or count > self.budget:
            raise NoJson
        keys = at + 2 * width
        entries = keys + count * (width + 2) * keyed
        inlined = _IN_LARGE if large else _IN_SMALL
        out.append("{" if keyed else "[")
        for number in range(count):
            if number:
                out.append(", ")
            if keyed:
                offset, length = struct.unpack_from(form + "H", self.data, keys + number * (width + 2))
                out += [_quote(self._text(at + offset, length)), ": "]
            entry = entries + number * (1 + width)
            child = self.data[entry]
            child_at = entry + 1 if child in inlined else at + struct.unpack_from(form, self.data, entry + 1)[0]
            self.value(child, child_at, out, depth + 1)
        out.append("}" if keyed else "]")

    def _scalar(self, kind: int, at: int) -> str:
        if kind in _NUMBERS:
            return str(_NUMBERS[kind].unpack_from(self.data, at)[0])
        if kind == _LITERAL:
            return _LITERALS[self.data[at]]
        if kind == _DOUBLE:
            return double(_DOUBLES.unpack_from(self.data, at)[0])
        if kind == _STRING:
            length, at = self._length(at)
            return _quote(self._text(at, length))
        if kind != _OPAQUE:
            raise NoJson
        length, start = self._length(at + 1)
        return _opaque(self.data[at], self._bytes(start, length))

    def _length(self, at: int) -> tuple[int, int]:
        """Return a length with seven bits per byte, the lowest first, and the offset after it."""
        length = 0
        for shift in range(0, 35, 7):
            byte = self.data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                return length, at
        raise NoJson

    def _bytes(self, at: int, length: int) -> bytes:
        if at + length > len(self.data):
            raise NoJson
        return self.data[at : at + length]

    def _text(self, at: int, length: int) -> str:
        return self._bytes(at, length).decode()


def double(value: float) -> str:
    """Return a double as JSON prints it: the fewest digits that identify its bits, and always with a point or an
    exponent."""
    if value != value or value in (float("inf"), float("-inf")):
        raise NoJson
    sign = "-" if str(value).startswith("-") else ""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, part = mantissa.partition(".")
    digits = (whole + part).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + part) - len(digits))
    digits = digits.rstrip("0")
    if not digits:
        return sign + "0.0"
    if not (_FIXED_FROM <= point <= _FIXED_TO or 0 < point < len(digits)):
        return f"{sign}{digits[0]}{'.' + digits[1:] if len(digits) > 1 else ''}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    return f"{sign}{digits[:point].ljust(point, '0')}.{digits[point:] or '0'}"


_LETTERS = {c: f"\\u{c:04x}" for c in range(0x20)} | {
    ord(k): v
    for k, v in {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}.items()
}


def _quote(text: str) -> str:
    return f'"{text.translate(_LETTERS)}"' if _ESCAPED.search(text) else f'"{text}"'


def _opaque(code: int, data: bytes) -> str:
    printer = _OPAQUES.get(code)
    if printer is not None:
        return printer(data)
    # The server breaks base64 into lines of 76 letters.
    lines = base64.encodebytes(data).decode().rstrip("\n").replace("\n", "\\n")
    return f'"base64:type{code}:{lines}"'


def _decimal(data: bytes) -> str:
    """Decode a decimal: its precision, its scale, then the digits as in a row image."""
    precision, scale = data[0], data[1]
    raw = bytearray(data[2:])
    negative = raw[0] < 0x80
    if negative:
        raw = bytearray(b ^ 0xFF for b in raw)
    raw[0] ^= 0x80
    number, at = 0, 0
    for size, digits in digit_groups(precision, scale):
        number = number * 10**digits + int.from_bytes(raw[at : at + size], "big")
        at += size
    if at != len(raw):
        raise NoJson
    letters = str(number).rjust(scale + 1, "0")
    sign = "-" if negative else ""
    return f"{sign}{letters[: len(letters) - scale]}" + (f".{letters[-scale:]}" if scale else "")


def _packed_parts(data: bytes) -> tuple[int, int, int]:
    """Return the sign (-1 or 1) of a packed time, its part above the fraction, and its fraction in microseconds."""
    (value,) = struct.unpack("<q", data)
    size = abs(value)
    return -1 if value < 0 else 1, size >> 24, size & 0xFFFFFF


def _moment(data: bytes) -> str:
    _, value, fraction = _packed_parts(data)
    clock = f"{value >> 12 & 31:02}:{value >> 6 & 63:02}:{value & 63:02}.{fraction:06}"
    return f'"{_day(value >> 17)} {clock}"'


def _date(data: bytes) -> str:
    return f'"{_day(_packed_parts(data)[1] >> 17)}"'


def _day(value: int) -> str:
    month = value >> 5
    return f"{month // 13:04}-{month % 13:02}-{value & 31:02}"


def _time(data: bytes) -> str:
    sign, value, fraction = _packed_parts(data)
    clock = f"{value >> 12:02}:{value >> 6 & 63:02}:{value & 63:02}.{fraction:06}"
    return f'"{"-" if sign < 0 else ""}{clock}"'


_OPAQUES: dict[int, Callable[[bytes], str]] = {
    TypeCode.DECIMAL: _decimal,
    TypeCode.DATE: _date,
    TypeCode.TIME_OLD: _time,
    TypeCode.DATETIME_OLD: _moment,
    TypeCode.TIMESTAMP_OLD: _moment,
}


# ── the family ──────────────────────────────────────────────────────────────────────────────────────────────────


FAMILY = TypeFamily(
    codes={TypeCode.JSON: 1},
    names=frozenset(("json",)),
    from_catalog=lambda column: column.stored_as(TypeCode.JSON, 4),
    type_text=lambda _: "json",
    codec=lambda column, where: Codec(where, pa.string(), 0, column.metadata, text, utf8, "json"),
    row_text=row_texts.cast_text,
)
