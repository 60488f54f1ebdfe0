"""TABLE_MAP events: everything that full metadata contains about a table."""

from __future__ import annotations

import struct

import pytest
from tests.support.mysql.binlog_bytes import lenenc

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.table import TableId
from cdcflow.sources.mysql.tables import TableMap, table_map
from cdcflow.sources.mysql.types.columns import TypeCode


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return lenenc(len(raw)) + raw


def event(types: list[tuple[int, bytes]], nullable: bytes, *optional: tuple[int, bytes]) -> bytes:
    metadata = b"".join(m for _, m in types)
    body = struct.pack("<IHH", 7, 0, 1) + b"\4shop\0\5t\xc3\xa4bl\0"
    body += lenenc(len(types)) + bytes(c for c, _ in types) + lenenc(len(metadata)) + metadata + nullable
    return bytes(4) + b"\x13" + bytes(14) + body + b"".join(bytes([n]) + text(v) for n, v in optional)


LONG, VARCHAR, STRING, BLOB = (3, b""), (15, b"\x90\1"), (254, b"\xfe\x14"), (252, b"\2")
ENUM, SET = (254, b"\xf7\1"), (254, b"\xf8\1")


def of(*types: tuple[int, bytes], optional: tuple[tuple[int, bytes], ...] = (), nullable: bytes = b"\0") -> TableMap:
    return table_map(event(list(types), nullable, *optional))


def test_names_and_nullability() -> None:
    """M33: names arrive with the rows, so a later rename does not matter."""
    found = of(LONG, VARCHAR, LONG, nullable=b"\2", optional=((4, text("id") + text("näme") + text("x`y")),))
    assert found.id == TableId("shop", "täbl")
    assert [c.name for c in found.columns] == ["id", "näme", "x`y"]
    assert [c.nullable for c in found.columns] == [False, True, False]
    assert found.has_names
    assert [c.metadata for c in found.columns] == [0, 400, 0]


def test_without_full_metadata_names_stay_empty() -> None:
    """M72: the code that describes the table must see that the names are missing."""
    found = of(LONG, VARCHAR)
    assert not found.has_names
    assert [(c.name, c.collation, c.unsigned) for c in found.columns] == [("", None, False)] * 2


def test_signedness_is_counted_over_numbers_only() -> None:
    """A bit a number, the first one highest; years count among them, other columns do not."""
    found = of(LONG, VARCHAR, (8, b""), (246, b"\x0a\2"), (4, b"\4"), (13, b""), (1, b""), optional=((1, b"\x54"),))
    assert [c.unsigned for c in found.columns] == [False, False, True, False, True, False, True]


def test_character_sets_with_exceptions() -> None:
    """One for all and those that differ, counted over the columns of text."""
    found = of(LONG, VARCHAR, STRING, BLOB, optional=((2, lenenc(255) + lenenc(2) + lenenc(63)),))
    assert [c.collation for c in found.columns] == [None, 255, 255, 63]


def test_character_sets_one_by_one() -> None:
    """N16: where most differ the server lists all."""
    found = of(VARCHAR, LONG, BLOB, optional=((3, lenenc(8) + lenenc(2304)),))
    assert [c.collation for c in found.columns] == [8, None, 2304]


def test_labels_are_in_their_columns_character_set() -> None:
    """N10: enums and sets have their own character sets, counted separately from those of text."""
    found = of(
        ENUM,
        VARCHAR,
        SET,
        ENUM,
        optional=(
            (2, lenenc(255)),
            (6, lenenc(2) + text(b"gr\xfcn") + text(b"") + lenenc(1) + text("ä")),
            (5, lenenc(1) + text("ö")),
            (10, lenenc(255) + lenenc(0) + lenenc(8)),
        ),
    )
    assert [c.type_code for c in found.columns] == [TypeCode.ENUM, TypeCode.VARCHAR, TypeCode.SET, TypeCode.ENUM]
    assert [c.labels for c in found.columns] == [("grün", ""), (), ("ö",), ("ä",)]
    assert [c.collation for c in found.columns] == [8, 255, 255, 255]


def test_labels_without_a_character_set_are_utf8() -> None:
    """CHARACTER SET binary: the label is the statement's bytes. Other bytes have no meaning, and the table is named."""
    found = of(ENUM, SET, optional=((6, lenenc(1) + text("ü")), (5, lenenc(1) + text("a ")), (10, lenenc(63))))
    assert [c.labels for c in found.columns] == [("ü",), ("a ",)]
    with pytest.raises(ConfigurationError, match=r"table .*binary has a label that is not UTF-8") as caught:
        of(ENUM, optional=((6, lenenc(1) + text(b"\xfc")), (10, lenenc(63))))
    assert caught.value.remedy is not None
    assert caught.value.remedy.startswith("leave the table out: add ")


@pytest.mark.parametrize(("key", "numbers"), [((8, b"\2\0"), (2, 0)), ((9, b"\1\0\0\x0a"), (1, 0)), ((7, b"\1"), ())])
def test_primary_key_in_its_own_order(key: tuple[int, bytes], numbers: tuple[int, ...]) -> None:
    """Also where only the first characters of a column are in it."""
    found = of(LONG, VARCHAR, LONG, optional=(key, (4, text("a") + text("b") + text("c"))))
    assert found.key == numbers
    assert found.key_names == tuple("abc"[n] for n in numbers)


def test_char_longer_than_255_bytes_hides_its_length_in_its_type() -> None:
    """N17: CHAR(255) in utf8mb4 has 1020 bytes, and one byte for it."""
    found = of((254, struct.pack("BB", 254 ^ (1020 >> 4 & 0x30), 1020 & 0xFF)))
    assert (found.columns[0].type_code, found.columns[0].metadata) == (TypeCode.CHAR, 1020)


def test_unknown_type_is_refused_with_an_error_that_names_it() -> None:
    """The remedy is to exclude the table, so it must be named."""
    with pytest.raises(ConfigurationError, match=r"column number 2 of table shop\.täbl has type 77"):
        of(LONG, (77, b""))


@pytest.mark.parametrize(("code", "metadata"), [(6, 0), (14, 0), (249, 1), (250, 1), (251, 1), (253, 2)])
def test_code_that_servers_use_in_memory_only_is_read_to_the_end_of_its_column(code: int, metadata: int) -> None:
    """The columns after it would be read from its bytes, and the refusal would name the wrong column."""
    found = of((code, bytes([7] * metadata)), VARCHAR, optional=((4, text("odd") + text("v")),))
    assert [(c.name, c.type_code, c.metadata) for c in found.columns][1] == ("v", TypeCode.VARCHAR, 400)
    assert (found.columns[0].name, found.columns[0].type_code) == ("odd", code)


@pytest.mark.parametrize(
    "optional",
    [(8, b"\7"), (2, lenenc(255) + lenenc(9) + lenenc(8)), (6, lenenc(250) + text("a")), (4, text("only one"))],
)
def test_what_leads_beyond_the_table_is_garbled(optional: tuple[int, bytes]) -> None:
    """O10: lengths and numbers of columns are the sender's."""
    with pytest.raises(SourceUnavailable):
        of(ENUM, LONG, optional=(optional,))
