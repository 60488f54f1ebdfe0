"""SQL as text: quoting names and strings, and the tokens of a statement in the log. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.gtids import Flavor

# ── written ────────────────────────────────────────────────────────────────────────────────────────────────────


def quote_name(name: str) -> str:
    """Return an identifier in SQL, whatever characters it has (hard case S01)."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Return a string as SQL text that means the same under all session settings."""
    return f"_utf8mb4 X'{text.encode().hex()}'" if text else "''"


def string_list(texts: Sequence[str]) -> str:
    """Return strings for an IN (…)."""
    return ", ".join(literal(text) for text in texts)


# ── read ───────────────────────────────────────────────────────────────────────────────────────────────────────

# A version comment (/*!50100 …*/, MariaDB's /*M! …*/) is executed, so only its frame is removed; other comments are
# removed as a whole. A server older than that version does not execute it, and logs it as an ordinary comment.
_WORDS = r"""[ \t\n\v\f\r{space}]+ | /\*{frame}(?:\d{{5,6}})? | \*/ | /\*.*?\*/ | --(?=[\0-\x20\x7f]|$)[^\n]* | \#[^\n]*
    | (?P<quoted>`(?:[^`]|``)*`) | (?P<bracketed>{brackets}) | (?P<string>{single}|{double})
    | (?P<word>[0-9A-Za-z_${letters}]+) | (?P<other>.)"""
_ESCAPED = {"single": r"'(?:[^'\\]|''|\\.)*'", "double": r'"(?:[^"\\]|""|\\.)*"'}
_PLAIN = {"single": r"'(?:[^']|'')*'", "double": r'"(?:[^"]|"")*"'}
# A name without quotes may have any multi-byte character, even a sign or a space; in a single-byte character set the
# no-break space of Latin-1 separates words.
_WIDE = {"space": "", "letters": r"\x80-\U0010ffff"}
_SINGLE = {"space": r"\xa0", "letters": r"\x80-\x9f\xa1-\U0010ffff"}

ANSI_QUOTES, MSSQL, NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 10, 1 << 20
"""The bits of sql_mode that determine the meaning of double quotes (a name), brackets (in MariaDB, a name) and
backslashes (literal)."""


@cache
def _pattern(sql_mode: int, flavor: Flavor, is_single: bool) -> re.Pattern[str]:
    single = _PLAIN if sql_mode & NO_BACKSLASH_ESCAPES else _ESCAPED
    double = _PLAIN if sql_mode & ANSI_QUOTES else single
    is_bracket = sql_mode & MSSQL and flavor == "mariadb"
    text = _WORDS.format(
        brackets=r"\[(?:[^\]]|\]\])*\]" if is_bracket else "(?!)",
        single=single["single"],
        double=double["double"],
        frame="M?!" if flavor == "mariadb" else "!",
        **(_SINGLE if is_single else _WIDE),
    )
    return re.compile(text, re.VERBOSE | re.DOTALL)


@dataclass(slots=True)
class SqlToken:
    """A token of a statement. `word`: in capitals if it is a bare word, otherwise empty; `name`: its text as an
    identifier."""

    word: str
    name: str
    is_name: bool


def tokens_of(
    text: str, sql_mode: int = 0, flavor: Flavor = "mariadb", *, is_single: bool = False
) -> Iterator[SqlToken]:
    """Return the tokens of a statement.

    `sql_mode`: the bits, as in the log, of the mode of the session that executed the statement. `is_single`: the text
    was in a single-byte character set.
    """
    pattern = _pattern(sql_mode & (ANSI_QUOTES | MSSQL | NO_BACKSLASH_ESCAPES), flavor, is_single)
    for found in pattern.finditer(text):
        if word := found["word"]:
            # Only ASCII words are compared in capitals: some other letters, such as a dotless i and a long s, have an
            # ASCII letter as their capital.
            yield SqlToken(word.upper() if word.isascii() else "", word, True)
        elif found["quoted"]:
            yield SqlToken("", found["quoted"][1:-1].replace("``", "`"), True)
        elif found["bracketed"]:
            yield SqlToken("", found["bracketed"][1:-1].replace("]]", "]"), True)
        elif found["string"]:
            yield SqlToken("", found["string"][1:-1].replace('""', '"'), found["string"][0] == '"')
        elif found["other"]:
            yield SqlToken("", found["other"], False)


def split_statements(text: str, flavor: Flavor) -> list[str]:
    """Return the statements of a text with semicolons between them."""
    found, begin = [], 0
    for token in _pattern(0, flavor, False).finditer(text):
        if token["other"] == ";":
            found.append(text[begin : token.start()])
            begin = token.end()
    return [one.strip() for one in (*found, text[begin:]) if one.strip()]


def table_at(tokens: Sequence[SqlToken], at: int, schema: str) -> tuple[TableId | None, int]:
    """Return the table whose name begins at this token, and the index of the token after the name."""
    if name_at(tokens, at) == "." and not tokens[at].is_name:  # MariaDB: of the session's schema
        at += 1
    if at >= len(tokens) or not tokens[at].is_name:
        return None, at
    if at + 2 < len(tokens) and tokens[at + 1].name == "." and tokens[at + 2].is_name:
        return TableId(tokens[at].name, tokens[at + 2].name), at + 3
    return TableId(schema, tokens[at].name), at + 1


def name_at(tokens: Sequence[SqlToken], at: int) -> str:
    return tokens[at].name if at < len(tokens) else ""


def word_at(tokens: Sequence[SqlToken], at: int) -> str:
    return tokens[at].word if at < len(tokens) else ""


def behind_if(tokens: Sequence[SqlToken], at: int) -> int:
    """Return the index of the token after IF EXISTS or IF NOT EXISTS, if that is at `at`; otherwise `at`."""
    if word_at(tokens, at) != "IF":
        return at
    return at + (3 if word_at(tokens, at + 1) == "NOT" else 2)
