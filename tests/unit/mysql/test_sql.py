"""SQL as text: what cdcflow writes in every session's dialect, and the tokens of logged statements."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.sql import (
    ANSI_QUOTES,
    MSSQL,
    NO_BACKSLASH_ESCAPES,
    SqlToken,
    behind_if,
    literal,
    name_at,
    quote_name,
    string_list,
    table_at,
    tokens_of,
    word_at,
)

MODES = [0, ANSI_QUOTES, NO_BACKSLASH_ESCAPES, ANSI_QUOTES | NO_BACKSLASH_ESCAPES]


def tokens(text: str, sql_mode: int = 0) -> list[SqlToken]:
    return list(tokens_of(text, sql_mode))


def names(text: str, sql_mode: int = 0) -> list[str]:
    return [t.name for t in tokens(text, sql_mode)]


@pytest.mark.parametrize("sql_mode", MODES)
@settings(max_examples=30)
@given(st.text(min_size=1))
def test_quoted_name_is_read_back_unchanged(sql_mode: int, name: str) -> None:
    """S01: whatever it has in it, it stays one name."""
    assert tokens(quote_name(name), sql_mode) == [SqlToken("", name, True)]


@pytest.mark.parametrize("sql_mode", MODES)
@settings(max_examples=30)
@given(st.text())
def test_string_literal_contains_none_of_its_characters(sql_mode: int, text: str) -> None:
    """S01: nothing in it can end it, in any session."""
    written = literal(text)
    if not text:
        assert written == "''"
        return
    charset, x, string = tokens(written, sql_mode)
    assert (charset.word, x.word) == ("_UTF8MB4", "X")
    assert bytes.fromhex(string.name).decode() == text
    assert not string.is_name


def test_strings_of_a_list_have_commas_between() -> None:
    """An empty list gives an empty text; that is the caller's concern."""
    assert string_list([]) == ""
    assert string_list(["a"]) == "_utf8mb4 X'61'"
    assert string_list(["a", "", "b"]) == "_utf8mb4 X'61', '', _utf8mb4 X'62'"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" \n\t", []),
        ("a b", ["a", "b"]),
        ("a$1_b", ["a$1_b"]),
        ("täble", ["täble"]),
        ("a.b", ["a", ".", "b"]),
        ("a/* b */c", ["a", "c"]),
        ("a/*! b */c", ["a", "b", "c"]),
        ("a/*!50100 b */c", ["a", "b", "c"]),
        ("a/*M! b */c", ["a", "b", "c"]),
        ("a/*M!100301 b */c", ["a", "b", "c"]),
        ("a -- b\nc", ["a", "c"]),
        ("a --", ["a"]),
        ("a --b", ["a", "-", "-", "b"]),
        ("a # b\nc", ["a", "c"]),
        ("a#b", ["a"]),
        ("`a``b`", ["a`b"]),
        ("`a'b`", ["a'b"]),
        ("'a b'", ["a b"]),
        ("'a`b'", ["a`b"]),
        ("'-- a'b", ["-- a", "b"]),
        ('"a""b"', ['a"b']),
        ("(a,b)", ["(", "a", ",", "b", ")"]),
        ("'open", ["'", "open"]),
    ],
)
def test_a_text_is_cut_where_the_server_cuts_it(text: str, found: list[str]) -> None:
    """A comment is nothing, but what only some versions are to run is run."""
    assert names(text) == found


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("Table", SqlToken("TABLE", "Table", True)),
        ("`Table`", SqlToken("", "Table", True)),
        ("'Table'", SqlToken("", "Table", False)),
        ('"Table"', SqlToken("", "Table", True)),
        ("=", SqlToken("", "=", False)),
        ("7", SqlToken("7", "7", True)),
    ],
)
def test_only_an_unquoted_word_is_a_keyword_and_a_string_is_not_a_name(text: str, token: SqlToken) -> None:
    """Text in double quotes is a string or a name, depending on the session; where it matters it is treated as a
    name."""
    assert tokens(text) == [token]


def test_brackets_are_quotes_in_one_mode_of_mariadb() -> None:
    """A statement with them would be about no table."""
    assert names("TRUNCATE TABLE [a]]`b], [c]", MSSQL) == ["TRUNCATE", "TABLE", "a]`b", ",", "c"]
    assert "[" in names("TRUNCATE TABLE [a]", 0)


@pytest.mark.parametrize(
    ("text", "sql_mode", "found"),
    [
        (r"'a\'b'", 0, [r"a\'b"]),
        (r"'a\'b'", ANSI_QUOTES, [r"a\'b"]),
        (r"'a\' 'b'", NO_BACKSLASH_ESCAPES, ["a\\", "b"]),
        (r'"a\"b"', 0, [r"a\"b"]),
        (r'"a\" "b"', ANSI_QUOTES, ["a\\", "b"]),
        (r'"a\" "b"', NO_BACKSLASH_ESCAPES, ["a\\", "b"]),
        (r"'a\' 'b'", ANSI_QUOTES | NO_BACKSLASH_ESCAPES, ["a\\", "b"]),
    ],
)
def test_meaning_of_a_backslash_follows_the_session_s_mode(text: str, sql_mode: int, found: list[str]) -> None:
    """Other bits of the mode do not affect it."""
    other = ~(ANSI_QUOTES | MSSQL | NO_BACKSLASH_ESCAPES) & 0xFFFFFFFF
    assert names(text, sql_mode) == names(text, sql_mode | other) == found


@pytest.mark.parametrize(
    ("text", "at", "table", "behind"),
    [
        ("t", 0, TableId("shop", "t"), 1),
        ("t x", 0, TableId("shop", "t"), 1),
        ("x t", 1, TableId("shop", "t"), 2),
        ("s.t", 0, TableId("s", "t"), 3),
        ("s.t x", 0, TableId("s", "t"), 3),
        ("x `s`.`t`", 1, TableId("s", "t"), 4),
        ("s.", 0, TableId("shop", "s"), 1),
        ("s.'t'", 0, TableId("shop", "s"), 1),
        ("s,t", 0, TableId("shop", "s"), 1),
        ("s t u", 0, TableId("shop", "s"), 1),
        ("'t'", 0, None, 0),
        ("(t", 0, None, 0),
        ("t", 1, None, 1),
        ("t", 2, None, 2),
        ("", 0, None, 0),
    ],
)
def test_a_table_is_named_with_its_schema_or_without(text: str, at: int, table: TableId | None, behind: int) -> None:
    """Text that is not a name gives no table and consumes no token; the end of the text gives no table either."""
    assert table_at(tokens(text), at, "shop") == (table, behind)


def test_tokens_end_at_the_end_of_the_text() -> None:
    """The text of a statement may end anywhere."""
    found = tokens("Drop `Table`")
    assert [word_at(found, at) for at in range(4)] == ["DROP", "", "", ""]
    assert [name_at(found, at) for at in range(4)] == ["Drop", "Table", "", ""]


@pytest.mark.parametrize(
    ("text", "at", "behind"),
    [
        ("IF EXISTS t", 0, 2),
        ("if not exists t", 0, 3),
        ("TABLE IF EXISTS t", 1, 3),
        ("TABLE IF NOT EXISTS t", 1, 4),
        ("TABLE t", 1, 1),
        ("TABLE `if` EXISTS", 1, 1),
        ("TABLE", 1, 1),
    ],
)
def test_words_between_if_exists_and_a_name_name_nothing(text: str, at: int, behind: int) -> None:
    """The words in between name nothing."""
    assert behind_if(tokens(text), at) == behind
