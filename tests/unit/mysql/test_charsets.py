"""Text in every character set as UTF-8: which set a collation means, and what its bytes mean."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.support.mysql.values import WAYS, bitmap, column, image, joined, result_row, table

from cdcflow.errors import ConfigurationError
from cdcflow.sources.mysql.rows import RowKind
from cdcflow.sources.mysql.types.charsets import charset_of, decode_text
from cdcflow.sources.mysql.types.columns import Policy, TypeCode
from cdcflow.sources.mysql.types.registry import select_expression

# Some text in each set, with letters whose bytes are above 127, and a collation's id.
SAMPLES = {
    "armscii8": (32, "Հայ."),
    "ascii": (11, "plain"),
    "big5": (1, "中文"),
    "cp1250": (26, "Łódź"),
    "cp1251": (51, "Привет"),
    "cp1256": (57, "سلام"),
    "cp1257": (59, "Žalia"),
    "cp850": (4, "été"),
    "cp852": (40, "český"),
    "cp866": (36, "Привет"),
    "cp932": (95, "日本ｶﾅ①"),
    "dec8": (3, "façade Ÿ"),
    "eucjpms": (97, "日本～"),
    "euckr": (19, "한국"),
    "gb18030": (248, "中文😀"),
    "gb2312": (24, "中文"),
    "gbk": (28, "中文"),
    "geostd8": (92, "ქართ"),
    "greek": (25, "Ελλάδα"),
    "hebrew": (16, "שלום"),
    "hp8": (6, "été"),
    "keybcs2": (37, "český"),
    "koi8r": (7, "Привет"),
    "koi8u": (22, "Україна"),
    "latin1": (8, "naïve €"),
    "latin2": (9, "Łódź"),
    "latin5": (30, "İstanbul"),
    "latin7": (41, "Žalia"),
    "macce": (38, "český"),
    "macroman": (39, "été"),
    "sjis": (13, "日本ｶﾅ"),
    "swe7": (10, "ÅÄÖ"),
    "tis620": (18, "ไทย"),
    "ucs2": (35, "aä日"),
    "ujis": (12, "日本"),
    "utf16": (54, "a😀"),
    "utf16le": (56, "a😀"),
    "utf32": (60, "a😀"),
    "utf8mb3": (33, "aä日"),
    "utf8mb4": (45, "a😀"),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Any:
    return WAYS[request.param]


def encoded(text: str, charset: str) -> bytes:
    """The bytes of a text, found by trying: the sets' own decoder is what is tested elsewhere."""
    if charset in ("ucs2", "utf16", "utf16le", "utf32", "utf8mb3", "utf8mb4", "gb18030"):
        name = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
        return text.encode(name.get(charset, "utf-8" if "utf8" in charset else "gb18030"))
    found = b""
    for letter in text:
        codes = [bytes([a]) for a in range(256)] + [bytes([a, b]) for a in range(0x81, 256) for b in range(0x40, 256)]
        found += next(code for code in codes if _is(code, letter, charset))
    return found


def _is(code: bytes, letter: str, charset: str) -> bool:
    try:
        return decode_text(charset, code) == letter
    except UnicodeDecodeError:
        return False


def both(way: Any, collation: int, values: list[bytes | None], policy: Policy | None = None) -> pa.Array:
    shape = table(column("id", TypeCode.TINY), column("name", TypeCode.VARCHAR, 80, collation=collation), policy=policy)
    data, extents = joined([b"".join(image(shape, [b"\1", v]) for v in values)])
    found = way[0](shape, data, extents, RowKind.INSERT, b"\3", bitmap([True, True])).rows.column("name")
    data, extents = joined([result_row([b"1", v]) for v in values])
    assert found.equals(way[1](shape, data, extents).column("name"))
    found.validate(full=True)
    return found


@pytest.mark.parametrize("charset", SAMPLES)
def test_text_of_every_character_set(way: Any, charset: str) -> None:
    """A reader of the log gets letters, whatever the table's set was."""
    collation, text = SAMPLES[charset]
    assert charset_of(collation).name == charset
    raw = encoded(text, charset)
    assert both(way, collation, [raw, None, b"", raw + raw]).to_pylist() == [text, None, "", text + text]


def test_ascii_is_ascii_where_the_set_has_it(way: Any) -> None:
    """The usual case uses no table and no loop, and must give the same result."""
    for collation, _ in SAMPLES.values():
        if charset_of(collation).has_ascii:
            assert both(way, collation, [b"shipped", b"[x] ~ 1"]).to_pylist() == ["shipped", "[x] ~ 1"]


def test_latin1_is_what_the_servers_mean_by_it(way: Any) -> None:
    """The servers' latin1 is cp1252, with its five gaps filled."""
    assert both(way, 8, [bytes([0x80, 0x81, 0x8D, 0x9F, 0xFF])]).to_pylist() == ["€\x81\x8dŸÿ"]


@pytest.mark.parametrize(
    ("collation", "raw", "replaced"),
    [
        (45, b"a\xffb", "a�b"),
        (33, b"\xe6\x97", "�"),
        (11, b"a\x80", "a�"),
        (57, b"a\x8ab", "a�b"),
        (13, b"a\x81", "a�"),
        (54, b"\0a\xd8", "a�"),
        (1, b"a\xff\xff", "a��"),
        (1, b"\xc8\x40b", "�b"),
        (1, b"\xa4\xa4\xa2\xcc\xa4\xe5", "中�文"),
        (12, b"\xad\xa1a", "�a"),
        (97, b"\xad\xbfa", "�a"),
    ],
)
def test_bytes_that_are_not_text_are_handled_by_policy(way: Any, collation: int, raw: bytes, replaced: str) -> None:
    """N15: never dropped, never guessed: an error that names the column, or a replacement character."""
    with pytest.raises(ConfigurationError, match=r"shop\.orders\.name(.|\n)*name: replace"):
        both(way, collation, [b"fine", raw])
    assert both(way, collation, [raw, None], Policy(bad_text="replace")).to_pylist() == [replaced, None]


def test_collations_of_mariadb_are_known() -> None:
    """NO PAD adds 1024 to an id, and UCA 14.00 has separate blocks."""
    assert [charset_of(n).name for n in (1032, 1069, 2048, 2304, 2560, 2816, 3072)] == [
        "latin1", "utf8mb4", "utf8mb3", "utf8mb4", "ucs2", "utf16", "utf32",
    ]  # fmt: skip


def test_collations_of_mysql_are_known() -> None:
    """The collations that 8.0 added are all utf8mb4."""
    assert {charset_of(n).name for n in range(255, 324)} == {"utf8mb4"}
    assert charset_of(76).name == "utf8mb3"


@pytest.mark.parametrize("number", [0, 17, 400, 5000, 3500])
def test_unknown_collation_is_refused(number: int) -> None:
    """Bytes of an unknown set mean nothing."""
    with pytest.raises(ConfigurationError, match=str(number)):
        charset_of(number)


def test_text_is_selected_in_its_own_set() -> None:
    """If the server converted it, characters that it cannot convert would become question marks (N15)."""
    assert select_expression(column("a`b", TypeCode.VARCHAR, 80, collation=8)) == "CONVERT(`a``b` USING binary)"
    assert select_expression(column("a", TypeCode.VARCHAR, 80, collation=45)) == "`a`"
    assert select_expression(column("a", TypeCode.VARCHAR, 80, collation=63)) == "`a`"


def test_what_python_does_not_know_of_east_asian_sets() -> None:
    """Compared with MariaDB code by code: rows of users and vendors, and a few letters with another meaning."""
    assert decode_text("ujis", b"\xf5\xa1") == "\ue000"
    assert decode_text("eucjpms", b"\xad\xa1") == "①"
    assert decode_text("eucjpms", b"\xa1\xc1\xa1\xdd") == "～－"
    assert decode_text("eucjpms", b"\x8f\xf5\xa1") == "\ue3ac"
    assert decode_text("eucjpms", b"\x8f\xf3\xf3\x8f\xf4\xfe\x8f\xa2\xb7") == "ⅰ黑～"
    assert decode_text("big5", b"\xf9\xd6") == "碁"
    assert decode_text("gb18030", b"\xa8\xbc\x81\x35\xf4\x37\xd6\xd0") == "ḿ\ue7c7中"
    assert decode_text("sjis", b"\x81\x5f") == "\\"
    assert decode_text("euckr", b"\x81\x41") == "갂"
