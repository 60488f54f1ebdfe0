"""MySQL's binary JSON, printed as the server prints it. The documents were recorded from MySQL 9.7."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from tests.support.mysql.values import WAYS, column, image, joined, table

from cdcflow.errors import SourceUnavailable
from cdcflow.sources.mysql.rows import RowKind, changes
from cdcflow.sources.mysql.types.columns import TypeCode
from cdcflow.sources.mysql.types.json import NoJson, document_text, double

RECORDED = [
    ("0200000400", "[]"),
    ("0000000400", "{}"),
    ("0400", "null"),
    ("05ffff", "-1"),
    ("0700000100", "65536"),
    (
        "0207003b00050100071900071d000921000a29000b31000c3900409c00007011010000a22f4dffffffffffffffffffffffff00000000"
        "0000f83f0178",
        '[1, 40000, 70000, -3000000000, 18446744073709551615, 1.5, "x"]',
    ),
    (
        "0003002a00190001001a0001001b000200021d000501000502006162616103000d00040100040200040000",
        '{"a": [true, false, null], "b": 1, "aa": 2}',
    ),
    (
        "02080064000f1c000f26000f30000f3a000f44000f4a000f50000f5f000a08000000000044a5190c08c0d401053144a5190b08e05ef8"
        "b13cffffff0a080000000000000000f60403028132f60403027ffaf60d17038c149aa4350dfb38d2007b0f0300ff41",
        '["2020-01-02", "2020-01-02 03:04:05.120000", "-12:13:14.500000", "0000-00-00", 1.50, -0.05, '
        '12345678901234567890.123, "base64:type15:AP9B"]',
    ),
    ("0c0a6122625c630a01c3a9f0", None),
]


@pytest.mark.parametrize(("document", "expected"), RECORDED)
def test_document_is_printed_as_the_server_prints_it(document: str, expected: str | None) -> None:
    """A document that reads differently in the backfill and in the stream would be a change that never happened."""
    if expected is None:
        with pytest.raises(NoJson):
            document_text(bytes.fromhex(document))
    else:
        assert document_text(bytes.fromhex(document)) == expected


def test_letters_are_escaped_as_the_server_escapes_them() -> None:
    """Quotes, backslashes and the characters below the space; nothing else."""
    text = 'a"b\\c/\b\f\n\r\t\x01\x7fé😀'
    raw = text.encode()
    assert document_text(b"\x0c" + bytes([len(raw)]) + raw) == '"a\\"b\\\\c/\\b\\f\\n\\r\\t\\u0001\x7fé😀"'


def test_bytes_in_a_document_are_broken_into_lines() -> None:
    """The server's base64 has lines of 76 letters, with an escaped line feed between."""
    found = document_text(b"\x0f\x0f" + bytes([58]) + b"\x01" * 58)
    assert found == '"base64:type15:' + "AQEB" * 19 + '\\nAQ=="'


def test_document_of_no_bytes_is_null() -> None:
    """What the server stores for NULL in a NOT NULL column when it is set to ignore errors."""
    assert document_text(b"") == "null"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (1e14, "100000000000000.0"),
        (1e15, "1e15"),
        (1234567890123456.8, "1234567890123456.8"),
        (123456789012345678.0, "1.2345678901234568e17"),
        (0.00001, "0.00001"),
        (1e-15, "0.000000000000001"),
        (1e-16, "1e-16"),
        (1.2345678901234567e-15, "0.0000000000000012345678901234568"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
        (5e-324, "5e-324"),
    ],
)
def test_double_is_printed_with_the_fewest_digits(value: float, expected: str) -> None:
    """N22: recorded from MySQL's own `CAST(… AS CHAR)` of a JSON array."""
    assert double(value) == expected


@pytest.mark.parametrize("size", range(1, 59))
def test_document_cut_off_anywhere_is_refused(size: int) -> None:
    """O10: a length that points beyond the document is an error; other bytes are never read."""
    whole = bytes.fromhex(RECORDED[5][0])
    with pytest.raises(NoJson):
        document_text(whole[:size])


def test_document_that_contains_itself_is_refused() -> None:
    """A malformed offset may point back to its own position; decoding must end, and soon."""
    loop = struct.pack("<BHHBHBH", 2, 2, 14, 2, 0, 2, 0)
    with pytest.raises(NoJson):
        document_text(loop + bytes(8))


def test_garbled_document_names_its_column() -> None:
    """An operator does not find the row by "bad JSON" alone."""
    shape = table(column("id", TypeCode.LONG), column("paper", TypeCode.JSON, 4))
    data, extents = joined([image(shape, [bytes(4), b"\x02\x01\x00"])])
    with pytest.raises(SourceUnavailable, match=r"shop\.orders\.paper \(json\)"):
        changes(shape, data, extents, RowKind.INSERT, b"\x03", b"\x03")


@pytest.mark.parametrize("way", WAYS)
def test_column_of_documents_distinguishes_sql_null_from_json_null(way: str) -> None:
    """SQL's NULL and JSON's null are different values; and a column of many documents equals its documents one by
    one."""
    shape = table(column("id", TypeCode.LONG), column("paper", TypeCode.JSON, 4))
    documents = [
        b"\x04\x00",
        None,
        *(bytes.fromhex(d) for d, text in RECORDED if text),
        b"\x0b" + struct.pack("<d", 5e-324),
    ]
    data, extents = joined([b"".join(image(shape, [bytes(4), d]) for d in documents)])
    found = WAYS[way][0](shape, data, extents, RowKind.INSERT, b"\x03", b"\x03").rows
    assert found.column("paper").equals(pa.array(["null", None, *(t for _, t in RECORDED if t), "5e-324"]))
