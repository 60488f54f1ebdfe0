"""Text in every character set of MySQL and MariaDB, as UTF-8, a column at a time.

The collation's id says the character set. Most sets have a codec in Python that says the same as the servers; where
the two differ, the servers' opinion stands here (compared code by code with MySQL 9.7 and MariaDB 11.8). UTF-8 is only
looked at; single-byte sets go through a table of 256 entries with numpy; the others (`multibyte`) are decoded value by
value, and only where a value is not ASCII.

Bytes that mean nothing in their set stop the capture by name or become U+FFFD (`Where.bad_text`, hard case N15).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import Int64s
from cdcflow.sources.buffers import Bytes, Cells, binary_array, gathered
from cdcflow.sources.mysql import multibyte
from cdcflow.sources.mysql.multibyte import UNKNOWN
from cdcflow.sources.mysql.values import Where, bad_text

# Ids below 1024 as both servers have them; MariaDB adds 1024 for NO PAD, and blocks of 256 for UCA 14.00.
_COLLATIONS = {
    "armscii8": "32 64",
    "ascii": "11 65",
    "big5": "1 84",
    "binary": "63",
    "cp1250": "26 34 44 66 99",
    "cp1251": "14 23 50-52",
    "cp1256": "57 67",
    "cp1257": "29 58-59",
    "cp850": "4 80",
    "cp852": "40 81",
    "cp866": "36 68",
    "cp932": "95-96",
    "dec8": "3 69",
    "eucjpms": "97-98",
    "euckr": "19 85",
    "gb18030": "248-250",
    "gb2312": "24 86",
    "gbk": "28 87",
    "geostd8": "92-93",
    "greek": "25 70",
    "hebrew": "16 71",
    "hp8": "6 72",
    "keybcs2": "37 73",
    "koi8r": "7 74",
    "koi8u": "22 75",
    "latin1": "5 8 15 31 47-49 94",
    "latin2": "2 9 21 27 77",
    "latin5": "30 78",
    "latin7": "20 41-42 79",
    "macce": "38 43",
    "macroman": "39 53",
    "sjis": "13 88",
    "swe7": "10 82",
    "tis620": "18 89",
    "ucs2": "35 90 128-151 159 640-642",
    "ujis": "12 91",
    "utf16": "54-55 101-124 672-674",
    "utf16le": "56 62",
    "utf32": "60-61 160-183 736-738",
    "utf8mb3": "33 76 83 192-215 223 576-578",
    "utf8mb4": "45-46 224-247 255-330 608-610",
}
_UCA_1400 = ("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32")
_BYTES_MAX = {
    "utf8mb4": 4, "utf16": 4, "utf16le": 4, "utf32": 4, "gb18030": 4, "utf8mb3": 3, "ujis": 3, "eucjpms": 3,
    "big5": 2, "cp932": 2, "euckr": 2, "gb2312": 2, "gbk": 2, "sjis": 2, "ucs2": 2,
}  # fmt: skip
_UTF8 = ("utf8mb4", "utf8mb3")

_SINGLE = {
    "ascii": "ascii", "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257", "cp850": "cp850",
    "cp852": "cp852", "cp866": "cp866", "greek": "iso8859_7", "hebrew": "iso8859_8", "hp8": "hp_roman8",
    "koi8r": "koi8_r", "koi8u": "koi8_u", "latin1": "cp1252", "latin2": "iso8859_2", "latin5": "iso8859_9",
    "latin7": "iso8859_13", "macce": "mac_latin2", "macroman": "mac_roman", "tis620": "tis_620", "armscii8": "ascii",
    "dec8": "latin_1", "geostd8": "latin_1", "keybcs2": "ascii", "swe7": "ascii",
}  # fmt: skip
# Where the servers differ from that codec: stretches of characters by the first byte's number.
_OWN: dict[str, dict[int, str]] = {
    "armscii8": {
        0x80: "".join(map(chr, range(0x80, 0xA1))),
        0xA1: "❁§։)(»«—.՝,-՟…՜՛՞" + "".join(chr(c) + chr(c + 48) for c in range(0x531, 0x557)) + "’'",
    },
    "cp1256": dict.fromkeys((0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF), UNKNOWN),
    "cp866": {0xFC: "ⁿ²"},
    "dec8": {
        **dict.fromkeys((0xA4, 0xA6, 0xB4, 0xB8, 0xBE, 0xD0, 0xDE, 0xF0, 0xFE, 0xFF), UNKNOWN),
        0xA8: "¤", 0xAC: UNKNOWN * 4, 0xD7: "Œ", 0xDD: "Ÿ", 0xF7: "œ", 0xFD: "ÿ",
    },
    "geostd8": {
        0x80: "€�‚�„…†‡�‰�‹�����‘’“”•–—���›����",
        0xC0: "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ" + UNKNOWN * 23 + "№��",
    },
    "greek": {0xA1: "ʽʼ", 0xA4: UNKNOWN * 2, 0xAA: UNKNOWN},
    "hebrew": {0xAF: "‾"},
    "keybcs2": {
        0x80: "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀"
        "αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\xa0"
    },
    "koi8u": {0x95: "•"},
    "latin1": {b: chr(b) for b in (0x81, 0x8D, 0x8F, 0x90, 0x9D)},
    "swe7": {0x40: "É", 0x5B: "ÄÖÅÜ", 0x60: "é", 0x7B: "äöåü" + UNKNOWN},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Charset:
    """A character set. `has_ascii`: bytes below 128 are ASCII, wherever they stand alone."""

    name: str
    bytes_max: int
    has_ascii: bool


@cache
def charset_of(collation: int) -> Charset:
    """The character set of a collation's id.

    Raises:
        ConfigurationError: the id is not known here.
    """
    name = _UCA_1400[(collation - 2048) >> 8] if 2048 <= collation < 2048 + 5 * 256 else _BY_ID.get(collation & 0x3FF)
    if name is None or collation >= 4096:
        raise ConfigurationError(
            f"a column has the collation number {collation}, whose character set cdcflow does not know",
            remedy="convert the column to utf8mb4, or leave its table out of source.tables",
        )
    wide = name in ("ucs2", "utf16", "utf16le", "utf32")
    return Charset(name, _BYTES_MAX.get(name, 1), not wide and name != "swe7")


def text(charset: Charset, cells: Cells, where: Where) -> pa.Array:
    """Values in this character set as an Arrow string array."""
    if charset.name in _UTF8:
        raw = cells.binary()
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            return _one_by_one(charset, raw, where)
    size = cells.size if cells.valid is None else np.where(cells.valid, cells.size, 0)
    data, offsets = gathered(cells.buffer.bytes, cells.start, size)
    if charset.has_ascii and (not len(data) or int(data.max()) < 0x80):
        return binary_array(data, offsets, cells.valid).view(pa.string())
    if charset.name in _SINGLE:
        return _by_table(charset, data, offsets, cells, where)
    return _one_by_one(charset, binary_array(data, offsets, cells.valid), where)


def decoded(charset: str, value: bytes) -> str:
    """One value as text: a label, a name.

    Raises:
        UnicodeDecodeError: its bytes mean nothing in this character set.
    """
    return _decoder(charset, "stop")(value)


def _by_table(charset: Charset, data: Bytes, offsets: Int64s, cells: Cells, where: Where) -> pa.Array:
    table = _table(charset.name)
    if where.bad_text == "stop" and table.unknown[data].any():
        raise bad_text(where, charset.name)
    width = table.width[data]
    ends = np.zeros(len(data) + 1, np.int64)
    np.cumsum(width, out=ends[1:])
    out = np.empty(int(ends[-1]), np.uint8)
    for place in range(3):
        there = np.flatnonzero(width > place)
        out[ends[:-1][there] + place] = table.utf8[data[there], place]
    return binary_array(out, ends[offsets], cells.valid).view(pa.string())


def _one_by_one(charset: Charset, raw: pa.Array, where: Where) -> pa.Array:
    """By Python's codecs, which know only single values: East Asia's multi-byte sets. Each different value once."""
    decode = _decoder(charset.name, where.bad_text)
    encoded = raw.dictionary_encode()
    try:
        texts = pa.array([decode(value) for value in encoded.dictionary.to_pylist()], pa.string())
        return texts.take(encoded.indices)
    except UnicodeDecodeError:
        raise bad_text(where, charset.name) from None


def _decoder(charset: str, errors: str) -> Callable[[bytes], str]:
    if charset in _SINGLE:
        letters = _characters(charset)
        return lambda value: _mapped(value, letters, charset, errors)
    return multibyte.decoder(charset, errors)


def _mapped(value: bytes, letters: str, charset: str, errors: str) -> str:
    found = "".join(map(letters.__getitem__, value))
    if errors != "replace" and UNKNOWN in found:
        raise UnicodeDecodeError(charset, value, 0, 1, "no character")
    return found


@dataclass(frozen=True, slots=True)
class _Table:
    """What each byte becomes: `width` bytes of UTF-8; `unknown` ones mean nothing."""

    utf8: Bytes
    width: Bytes
    unknown: np.ndarray[tuple[int], np.dtype[np.bool_]]


@cache
def _table(charset: str) -> _Table:
    utf8 = np.zeros((256, 3), np.uint8)
    width = np.zeros(256, np.uint8)
    unknown = np.zeros(256, np.bool_)
    for byte, character in enumerate(_characters(charset)):
        encoded = character.encode()
        utf8[byte, : len(encoded)] = list(encoded)
        width[byte], unknown[byte] = len(encoded), character == UNKNOWN
    return _Table(utf8, width, unknown)


@cache
def _characters(charset: str) -> str:
    """What the 256 bytes of a single-byte set mean."""
    letters = list(bytes(range(256)).decode(_SINGLE[charset], "replace"))
    for first, stretch in _OWN.get(charset, {}).items():
        letters[first : first + len(stretch)] = stretch
    return "".join(letters)


def _ids(ranges: str) -> list[int]:
    out: list[int] = []
    for part in ranges.split():
        first, _, last = part.partition("-")
        out += range(int(first), int(last or first) + 1)
    return out


_BY_ID = {number: name for name, ranges in _COLLATIONS.items() for number in _ids(ranges)}
