"""Keys as SQL: literals that the server reads as the value it sent, and conditions that follow its order."""

from __future__ import annotations

import datetime
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import KeySet
from cdcflow.sources.engine.table_key import KEYS_AT_ONCE
from cdcflow.sources.mysql.keys import literal_of, table_key, value_literal
from cdcflow.sources.mysql.results import cells_of
from cdcflow.sources.mysql.types.columns import CatalogColumn, ServerColumn, TypeCode
from cdcflow.sources.mysql.types.family import TWO_DIGITS
from cdcflow.sources.mysql.types.registry import server_column

INT = ServerColumn("a", TypeCode.LONG, 0, False)
TEXT = ServerColumn("b", TypeCode.VARCHAR, 40, False, collation=45)
LATIN = ServerColumn("l", TypeCode.VARCHAR, 10, False, collation=8)
BYTES = ServerColumn("v", TypeCode.VARCHAR, 10, False, collation=63)
ENUM = ServerColumn("e", TypeCode.ENUM, 1, False, collation=45, labels=("z", "", "a'b"))
SET = ServerColumn("s", TypeCode.SET, 1, False, collation=45, labels=("z", "b", "a"))
MOMENT = ServerColumn("d", TypeCode.DATETIME, 6, False)
FLOAT = ServerColumn("f", TypeCode.FLOAT, 4, False)
BIT = ServerColumn("n", TypeCode.BIT, 9, False)
JSON = ServerColumn("j", TypeCode.JSON, 4, False)
YEAR = ServerColumn("y", TypeCode.YEAR, 0, False)


@pytest.mark.parametrize(
    ("column", "cell", "sql"),
    [
        (INT, b"-5", "-5"),
        (INT, b"18446744073709551615", "18446744073709551615"),
        (TEXT, "ä'x\\".encode(), "_utf8mb4 X'c3a427785c'"),
        (LATIN, b"\xe4", "_latin1 X'e4'"),
        (BYTES, b"\x00'", "X'0027'"),
        (ENUM, b"a'b", "3"),
        (ENUM, b"", "2"),
        (ENUM, b"gone", "0"),
        (SET, b"z,a", "5"),
        (SET, b"", "0"),
        (MOMENT, b"2024-01-01 00:00:00.5", "'2024-01-01 00:00:00.5'"),
        (FLOAT, b"1.100000023841858", "1.100000023841858e0"),
        (FLOAT, b"1e30", "1e30"),
        (BIT, b"\x01\x02", "258"),
    ],
)
def test_cell_becomes_the_literal_of_its_value(column: ServerColumn, cell: bytes, sql: str) -> None:
    """W16, W19, W21: the bytes that the server sent, in its own character set, or the number that it orders by."""
    assert literal_of(column, cell) == sql


@pytest.mark.parametrize(("column", "cell"), [(INT, b"1 OR 1=1"), (MOMENT, b"'; DROP"), (FLOAT, b"nan()")])
def test_cell_that_is_not_a_value_of_its_type_is_written_into_no_statement(column: ServerColumn, cell: bytes) -> None:
    """S01: a party between cdcflow and the server may send anything."""
    with pytest.raises(SourceUnavailable):
        literal_of(column, cell)


def test_type_that_no_key_can_have_is_refused() -> None:
    """Unknown means stop."""
    with pytest.raises(ConfigurationError, match="part of a key"):
        literal_of(JSON, b"{}")
    for code in (TypeCode.VARCHAR_COMPRESSED, TypeCode.BLOB_COMPRESSED):
        with pytest.raises(ConfigurationError, match="column z is part of a key"):
            literal_of(ServerColumn("z", code, 2, False, collation=45), b"x")
    with pytest.raises(ConfigurationError, match="part of a key"):
        value_literal(INT, {"a": 1})


@pytest.mark.parametrize(
    ("column", "value", "sql"),
    [
        (INT, 2**64 - 1, "18446744073709551615"),
        (TEXT, "ä", "_utf8mb4 X'c3a4'"),
        (TEXT, "", "''"),
        (INT, Decimal("-0.10"), "-0.10"),
        (BYTES, b"\xff", "X'ff'"),
        (ENUM, "z", "1"),
        (MOMENT, datetime.datetime(2024, 1, 2, 3, 4, 5, 6), "'2024-01-02 03:04:05.000006'"),
        (MOMENT, datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC), "'2024-01-02 00:00:00'"),
        (MOMENT, datetime.date(999, 1, 2), "'0999-01-02'"),
        (MOMENT, datetime.timedelta(hours=-838, minutes=-59, microseconds=-5), "'-838:59:00.000005'"),
        (FLOAT, 0.1, "0.1e0"),
        (FLOAT, 1e300, "1e+300"),
    ],
)
def test_value_of_the_log_becomes_a_literal(column: ServerColumn, value: Any, sql: str) -> None:
    """W11: rows that moved are looked up by the keys that the log has."""
    assert value_literal(column, value) == sql


def test_composite_key_is_followed_column_by_column() -> None:
    """W22: row values would use no index, and give the same result."""
    key = table_key((INT, ENUM, TEXT), "PRIMARY")
    row = key.literals([b"5", b"z", b"x"])
    after = "(`a` > 5 OR (`a` = 5 AND ((`e` + 0) > 1 OR ((`e` + 0) = 1 AND `b` > _utf8mb4 X'78'))))"
    assert key.after(row) == after
    assert key.upto(row) == after.replace(">", "<").replace("`b` <", "`b` <=")
    assert key.names == "`a`, `e`, `b`"
    assert key.descending == "`a` DESC, `e` DESC, `b` DESC"


@pytest.mark.parametrize(
    ("columns", "selected", "sought", "whole"),
    [
        ((INT,), "`a`", True, True),
        ((INT, TEXT), "`a`, `b`", True, False),
        ((TEXT,), "`b`", True, False),
        ((LATIN,), "CONVERT(`l` USING binary)", True, False),
        ((INT, ENUM), "`a`, `e`", False, False),
        ((ENUM, INT), "`e`, `a`", False, False),
        ((FLOAT,), "`f` - 0e0", False, False),
        ((YEAR,), "`y`", True, True),
        ((replace(YEAR, extra=TWO_DIGITS),), "IF(YEAR(`y`) = 1900, 0, YEAR(`y`))", False, True),
        ((ServerColumn("d", TypeCode.DECIMAL, 10, False),), "`d`", True, False),
    ],
)
def test_what_is_queried_of_a_key_s_columns(
    columns: tuple[ServerColumn, ...], selected: str, sought: bool, whole: bool
) -> None:
    """Every bit of their values; and an index is used only for a column that is compared unchanged."""
    key = table_key(columns, "PRIMARY")
    assert (key.select_list, key.is_sought, key.is_whole_number) == (selected, sought, whole)


def test_key_that_is_null_is_refused() -> None:
    """A key has no NULLs; a server that sends one is not understood."""
    with pytest.raises(SourceUnavailable, match="NULL"):
        table_key((INT,), "PRIMARY").literals([None])


def test_many_keys_go_in_several_conditions() -> None:
    """A condition beyond the server's limit would read the whole table."""
    keys = KeySet(pa.table({"a": list(range(KEYS_AT_ONCE + 1)), "b": ["x"] * (KEYS_AT_ONCE + 1)}))
    conditions = list(table_key((INT, TEXT), "PRIMARY").among(keys))
    assert len(conditions) == 2
    assert conditions[1] == f"(`a` = {KEYS_AT_ONCE} AND `b` = _utf8mb4 X'78')"


def test_digest_changes_with_what_a_literal_depends_on() -> None:
    """W27: a cursor of another key, or of the same key under another collation, means nothing."""
    digests = {
        table_key(columns, "PRIMARY").digest
        for columns in ((INT,), (TEXT,), (LATIN,), (INT, TEXT), (ServerColumn("a", TypeCode.LONGLONG, 0, False),))
    }
    assert len(digests) == 5


def test_cells_of_a_row_are_distinguished() -> None:
    """NULL and the empty text differ."""
    row = b"\x01a\xfb\x00\xfc\x03\x00xyz\xfd\x01\x00\x00q\xfe\x01\0\0\0\0\0\0\0r"
    assert cells_of(b"??" + row + b"??", 2, 2 + len(row)) == [b"a", None, b"", b"xyz", b"q", b"r"]
    for end in range(1, len(row)):
        try:
            cells_of(row, 0, end)
        except SourceUnavailable:
            continue  # never a read beyond the row


@pytest.mark.parametrize(
    ("full_type", "labels"),
    [
        ("enum('a','b''c','d,e')", ("a", "b'c", "d,e")),
        (r"enum('f\\g','new\nline','','\0','\r')", ("f\\g", "new\nline", "", "\0", "\r")),
        ("enum('(x)','y')", ("(x)", "y")),
    ],
)
def test_labels_are_read_as_the_server_writes_them(full_type: str, labels: tuple[str, ...]) -> None:
    """N10: a label may hold whatever separates labels."""
    column = CatalogColumn("e", "YES", "enum", full_type, 4, None, None, None, "utf8mb4_bin", "")
    assert server_column(column, {"utf8mb4_bin": 46}).labels == labels


def test_unknown_type_is_refused_with_an_error_that_names_it() -> None:
    """M35: a type of a newer server is not guessed at."""
    column = CatalogColumn("x", "YES", "tensor", "tensor(3)", None, None, None, None, None, "")
    with pytest.raises(ConfigurationError, match="column x has the type tensor"):
        server_column(column, {})
