"""Text in every character set of MySQL and MariaDB, as UTF-8, one column at a time.

The collation's id determines the character set. Most sets have a codec in Python that agrees with the servers; this
module holds the differences (compared code by code with MySQL 9.7 and MariaDB 11.8). UTF-8 is only validated;
single-byte sets go through a table of 256 entries with numpy; the others are decoded value by value, and only if a
value is not ASCII.

Bytes without a meaning in their set stop the capture with an error that names the column, or become U+FFFD
(`Where.bad_text`, hard case N15).

East Asia's multi-byte sets go through Python's codec first. Each of their codes was compared with the servers' result
(`tests/integration/mysql/test_every_code_of_a_set.py`). A code differs in one of three ways: Python does not know it,
Python decodes it to a different character, or only Python knows it. A code that a server has no character for has none
here either, even if the server's own table has U+FFFD for it. A code without a character becomes one U+FFFD as a whole:
its second byte is not treated as a letter, even if it could be one.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.model.change import Int64s
from cdcflow.sources.engine.buffers import Bytes, Cells, binary_array, gather
from cdcflow.sources.mysql.types.columns import UTF8_COLLATION
from cdcflow.sources.mysql.types.family import Where

UNKNOWN = "\ufffd"

# Ids below 1024 are the same on both servers; MariaDB adds 1024 for NO PAD, and blocks of 256 for UCA 14.00.
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
# Where the servers differ from that codec: runs of characters by the number of the first byte.
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
    """A character set. `has_ascii`: a byte below 128 that is not part of a longer code is ASCII."""

    name: str
    bytes_max: int
    has_ascii: bool


@cache
def charset_of(collation: int) -> Charset:
    """Return the character set of a collation's id.

    Raises:
        ConfigurationError: cdcflow does not know the id.
    """
    name = _UCA_1400[(collation - 2048) >> 8] if 2048 <= collation < 2048 + 5 * 256 else _BY_ID.get(collation & 0x3FF)
    if name is None or collation >= 4096:
        raise ConfigurationError(
            f"a column has the collation number {collation}, whose character set cdcflow does not know",
            remedy="convert the column to utf8mb4, or leave its table out of source.tables",
            runbook="table-not-capturable",
        )
    wide = name in ("ucs2", "utf16", "utf16le", "utf32")
    return Charset(name, _BYTES_MAX.get(name, 1), not wide and name != "swe7")


def text(charset: Charset, cells: Cells, where: Where) -> pa.Array:
    """Return values in this character set as an Arrow string array."""
    if charset.name in _UTF8:
        raw = cells.binary()
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            return _one_by_one(charset, raw, where)
    size = cells.size if cells.valid is None else np.where(cells.valid, cells.size, 0)
    data, offsets = gather(cells.buffer.bytes, cells.start, size)
    if charset.has_ascii and (not len(data) or int(data.max()) < 0x80):
        return binary_array(data, offsets, cells.valid).view(pa.string())
    if charset.name in _SINGLE:
        return _by_table(charset, data, offsets, cells, where)
    return _one_by_one(charset, binary_array(data, offsets, cells.valid), where)


def decode_text(charset: str, value: bytes, errors: str = "stop") -> str:
    """Return one value, such as a label or a name, as text. `errors` "replace": invalid bytes become U+FFFD.

    Raises:
        UnicodeDecodeError: the bytes are invalid in this character set.
    """
    return _decoder(charset, errors)(value)


def is_single_byte(charset: str) -> bool:
    """Whether a set has one byte for each character."""
    return charset in _SINGLE


def _by_table(charset: Charset, data: Bytes, offsets: Int64s, cells: Cells, where: Where) -> pa.Array:
    table = _table(charset.name)
    if where.bad_text == "stop" and table.unknown[data].any():
        raise bad_text(where, charset.name)
    width = table.width[data]
    ends = np.zeros(len(data) + 1, np.int64)
    np.cumsum(width, out=ends[1:])
    out = np.empty(int(ends[-1]), np.uint8)
    for nth in range(3):
        there = np.flatnonzero(width > nth)
        out[ends[:-1][there] + nth] = table.utf8[data[there], nth]
    return binary_array(out, ends[offsets], cells.valid).view(pa.string())


def _one_by_one(charset: Charset, raw: pa.Array, where: Where) -> pa.Array:
    """Decode East Asia's multi-byte sets with Python's codecs, value by value, each distinct value once."""
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
        return lambda value: _decode_by_map(value, letters, charset, errors)
    return decoder(charset, errors)


def _decode_by_map(value: bytes, letters: str, charset: str, errors: str) -> str:
    found = "".join(map(letters.__getitem__, value))
    if errors != "replace" and UNKNOWN in found:
        raise UnicodeDecodeError(charset, value, 0, 1, "no character")
    return found


@dataclass(frozen=True, slots=True)
class _Table:
    """A single-byte set, by byte: `utf8` has the character in UTF-8, padded to three bytes; `width` is its size without
    the padding; `unknown`: whether the byte has no character."""

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
    """Return the characters of the 256 bytes of a single-byte set."""
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


def bad_text(where: Where, charset: str) -> ConfigurationError:
    remedy = (
        f"in cdcflow.yaml set source.columns to {{{where.column}: replace}} (U+FFFD takes their place), or "
        "source.bad_text for all columns, or fix the rows, then start again"
    )
    if where.key_of is not None:  # replaced bytes could make two keys equal
        remedy = (
            f"leave the table out of source.tables (write !{where.key_of}) and start again; once its keys are text, "
            "include it again, which reads it from scratch"
        )
    return ConfigurationError(
        f"decoding {where}: found bytes that are not {charset} text, and "
        + ("it is part of the key" if where.key_of else "bad_text is stop"),
        remedy=remedy,
        runbook="value-not-representable",
    )


utf8 = partial(text, charset_of(UTF8_COLLATION))
"""The decoder of text that is UTF-8 already."""


# ── multi-byte sets ────────────────────────────────────────────────────────────────────────────────────────────

_CODECS = {
    "big5": "big5", "cp932": "cp932", "eucjpms": "euc_jp", "euckr": "cp949", "gb18030": "gb18030", "gb2312": "gb2312",
    "gbk": "gbk", "sjis": "shift_jis", "ucs2": "utf_16_be", "ujis": "euc_jp", "utf16": "utf_16_be",
    "utf16le": "utf_16_le", "utf32": "utf_32_be", "utf8mb3": "utf_8", "utf8mb4": "utf_8",
}  # fmt: skip

_EUC = rb"\x8e[\xa1-\xdf]|\x8f[\xa1-\xfe]{2}|[\xa1-\xfe]{2}"
_SHIFT_JIS = rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]"
_GBK = rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]"
_CODES = {
    "big5": rb"[\xa1-\xf9][\x40-\x7e\xa1-\xfe]",
    "cp932": _SHIFT_JIS,
    "eucjpms": _EUC,
    "euckr": rb"[\x81-\xfe][\x41-\x5a\x61-\x7a\x81-\xfe]",
    "gb18030": rb"[\x81-\xfe][\x30-\x39][\x81-\xfe][\x30-\x39]|" + _GBK,
    "gb2312": rb"[\xa1-\xf7][\xa1-\xfe]",
    "gbk": _GBK,
    "sjis": _SHIFT_JIS,
    "ujis": _EUC,
}
"""Patterns of what the servers treat as one multi-byte code, whether or not it has a character."""
CLIENT_SETS = ("utf8mb4", *_SINGLE, *_CODES)
"""The possible values of `character_set_client`; utf8mb3 and binary are read as utf8mb4."""

_OTHERWISE = {
    "sjis": str.maketrans("＼", "\\"),
    "ujis": str.maketrans("＼", "\\"),
    "eucjpms": str.maketrans("〜‖−¢£¬¦", "～∥－￠￡￢￤"),
}
"""Characters that Python decodes a code to, and the different ones of the servers."""

_ROWS_83_84 = bytes.fromhex(
    "21702171217221732174217521762177217821792160216121622163216421652166216721682169ff07ff0232312116212170bb"
    "4efc50f451ec53075324fa0e548a5759fa0ffa10589e5bec5cf55d53fa115fb760856120654e663b6665fa12f9296801fa13fa14"
    "6a6b6ae26df86df27028fa15fa1675017682769efa177930fa18fa19fa1afa1b7ae7fa1cfa1d7da07dd6fa1e8362fa1f85b0fa20"
    "fa218807fa228b7f8cf48d76fa23fa24fa2590defa269115fa27fa289592f9dcfa29973b974d9751fa2afa2bfa2c999e9ad99b72"
    "fa2d9ed1"
).decode("utf_16_be")
"""eucjpms from 8F F3 F3 to 8F F4 FE: IBM's characters, in the order of cp932. Some change when text is normalized, so
they are written as numbers."""


@dataclass(frozen=True, slots=True)
class _Own:
    """The servers' characters for codes unknown to Python, and for those that Python decodes differently."""

    unknown: dict[bytes, str]
    known: dict[bytes, str]


@cache
def _own(charset: str) -> _Own:
    match charset:
        case "big5":
            letters = {bytes([0xF9, trail]): bytes([0xF9, trail]).decode("cp950") for trail in range(0xD6, 0xDD)}
            nothing = ("a15a", "a1c3", "a1c5", "a1fe", "a240", "a2cc", "a2ce")
            return _Own(letters, dict.fromkeys(map(bytes.fromhex, nothing), UNKNOWN))
        case "ujis":
            return _Own(_of_users(), {})
        case "eucjpms":
            return _Own(_of_users() | _of_vendors(), {b"\x8f\xa2\xb7": "～"})
        case "gb18030":
            return _Own({}, {b"\x81\x35\xf4\x37": "\ue7c7", b"\xa8\xbc": "ḿ"})
    return _Own({}, {})


def _of_users() -> dict[bytes, str]:
    """Return the codes of user-defined characters: rows F5 to FE of the two planes of EUC."""
    found: dict[bytes, str] = {}
    for plane, first in ((b"", 0xE000), (b"\x8f", 0xE3AC)):
        found |= {
            plane + bytes([lead, trail]): chr(first + (lead - 0xF5) * 94 + trail - 0xA1)
            for lead in range(0xF5, 0xFF)
            for trail in range(0xA1, 0xFF)
        }
    return found


def _of_vendors() -> dict[bytes, str]:
    """Return the codes of vendors' characters: row 13, which cp932 has at 87 40, and rows 83 and 84 of the second
    plane."""
    found: dict[bytes, str] = {}
    for trail in range(0xA1, 0xFF):
        letter = bytes([0x87, trail - 0x61 + (trail > 0xDF)]).decode("cp932", "replace")
        if UNKNOWN not in letter:
            found[bytes([0xAD, trail])] = letter
    codes = [bytes([0x8F, lead, trail]) for lead in (0xF3, 0xF4) for trail in range(0xA1, 0xFF)]
    return found | dict(zip(codes[-len(_ROWS_83_84) :], _ROWS_83_84, strict=True))


@cache
def decoder(charset: str, errors: str) -> Callable[[bytes], str]:
    """Return a decoder for text in one of these sets. `errors`: "stop" raises UnicodeDecodeError, "replace" inserts
    U+FFFD."""
    codec, otherwise = _CODECS[charset], _OTHERWISE.get(charset)
    if charset not in _CODES:
        policy = {"stop": "strict", "replace": "replace"}[errors]
        return lambda value: value.decode(codec, policy)
    policy = f"cdcflow.{charset}.{errors}"
    codecs.register_error(policy, _going_on(charset, errors))
    known = _own(charset).known
    if not known:
        if otherwise is None:
            return lambda value: value.decode(codec, policy)
        return lambda value: value.decode(codec, policy).translate(otherwise)
    return lambda value: _by_code(value, charset, policy, known)


def _going_on(charset: str, errors: str) -> Callable[[UnicodeError], tuple[str, int]]:
    """Return the error handler that Python's codec calls for a code that it does not know."""
    code, unknown = re.compile(_CODES[charset], re.DOTALL), _own(charset).unknown

    def go_on(problem: UnicodeError) -> tuple[str, int]:
        if not isinstance(problem, UnicodeDecodeError):
            raise problem
        found = code.match(problem.object, problem.start)
        letter = UNKNOWN if found is None else unknown.get(found[0], UNKNOWN)
        if letter == UNKNOWN and errors != "replace":
            raise problem
        return letter, problem.start + 1 if found is None else found.end()

    return go_on


def _by_code(value: bytes, charset: str, policy: str, known: dict[bytes, str]) -> str:
    """Decode text with codes that Python decodes differently: its codec gets only the bytes between those."""
    codec, otherwise = _CODECS[charset], _OTHERWISE.get(charset, {})
    pieces: list[str] = []
    begin = 0
    for found in _walk(charset).finditer(value) if _has_any(charset).search(value) else ():
        letter = known.get(found[0])
        if letter is None:
            continue
        if letter == UNKNOWN and policy.endswith("stop"):
            raise UnicodeDecodeError(charset, value, found.start(), found.end(), "no character")
        pieces += value[begin : found.start()].decode(codec, policy).translate(otherwise), letter
        begin = found.end()
    return "".join([*pieces, value[begin:].decode(codec, policy).translate(otherwise)])


@cache
def _walk(charset: str) -> re.Pattern[bytes]:
    """Return a pattern that matches the next code of the character set, or a single byte with which no code begins."""
    return re.compile(_CODES[charset] + b"|.", re.DOTALL)


@cache
def _has_any(charset: str) -> re.Pattern[bytes]:
    return re.compile(b"|".join(map(re.escape, _own(charset).known)))
