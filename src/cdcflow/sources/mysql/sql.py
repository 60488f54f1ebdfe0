"""SQL as text: names and strings as we write them, and the tokens of a statement that the log has. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.gtids import Flavor

# ── written ────────────────────────────────────────────────────────────────────────────────────────────────────


def quoted(name: str) -> str:
    """An identifier in SQL, whatever characters it has (hard case S01)."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A string as SQL text that no setting of a session reads otherwise."""
    return f"_utf8mb4 X'{text.encode().hex()}'" if text else "''"


def listed(texts: Sequence[str]) -> str:
    """Strings for an IN (…)."""
    return ", ".join(literal(text) for text in texts)


# ── read ───────────────────────────────────────────────────────────────────────────────────────────────────────

# A version comment (/*!50100 …*/, MariaDB's /*M! …*/) is executed, so only its frame goes; other comments go whole. A
# server that is older than the version does not execute it, and logs it as another comment.
_WORDS = r"""[ \t\n\v\f\r{space}]+ | /\*{frame}(?:\d{{5,6}})? | \*/ | /\*.*?\*/ | --(?=[\0-\x20\x7f]|$)[^\n]* | \#[^\n]*
    | (?P<quoted>`(?:[^`]|``)*`) | (?P<string>{single}|{double}) | (?P<word>[0-9A-Za-z_${letters}]+) | (?P<other>.)"""
_ESCAPED = {"single": r"'(?:[^'\\]|''|\\.)*'", "double": r'"(?:[^"\\]|""|\\.)*"'}
_PLAIN = {"single": r"'(?:[^']|'')*'", "double": r'"(?:[^"]|"")*"'}
# A name without quotes may have any character of several bytes, also a sign or a space; in a set of one byte for each
# character the space of Latin-1 parts words.
_WIDE = {"space": "", "letters": r"\x80-\U0010ffff"}
_SINGLE = {"space": r"\xa0", "letters": r"\x80-\x9f\xa1-\U0010ffff"}

ANSI_QUOTES, NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20
"""The bits of sql_mode that say what quotes hold: a name in double ones; a backslash that is one."""


@cache
def _pattern(sql_mode: int, flavor: Flavor, is_single: bool) -> re.Pattern[str]:
    single = _PLAIN if sql_mode & NO_BACKSLASH_ESCAPES else _ESCAPED
    double = _PLAIN if sql_mode & ANSI_QUOTES else single
    text = _WORDS.format(
        single=single["single"],
        double=double["double"],
        frame="M?!" if flavor == "mariadb" else "!",
        **(_SINGLE if is_single else _WIDE),
    )
    return re.compile(text, re.VERBOSE | re.DOTALL)


@dataclass(slots=True)
class Token:
    """`word` in capitals where it is a bare word, else empty; `name` what it is called as an identifier."""

    word: str
    name: str
    is_name: bool


def tokens_of(text: str, sql_mode: int = 0, flavor: Flavor = "mariadb", *, is_single: bool = False) -> Iterator[Token]:
    """`sql_mode` is that of the session that said it, as its bits in the log. `is_single`: the text came in a character
    set of one byte for each character."""
    pattern = _pattern(sql_mode & (ANSI_QUOTES | NO_BACKSLASH_ESCAPES), flavor, is_single)
    for found in pattern.finditer(text):
        if word := found["word"]:
            # Capitals of other letters may be those of ASCII: of a dotless i, of a long s.
            yield Token(word.upper() if word.isascii() else "", word, True)
        elif found["quoted"]:
            yield Token("", found["quoted"][1:-1].replace("``", "`"), True)
        elif found["string"]:
            yield Token("", found["string"][1:-1].replace('""', '"'), found["string"][0] == '"')
        elif found["other"]:
            yield Token("", found["other"], False)


def table_at(tokens: Sequence[Token], at: int, schema: str) -> tuple[TableId | None, int]:
    """The table that is named from this token on, and the token behind its name."""
    if name_at(tokens, at) == "." and not tokens[at].is_name:  # MariaDB: of the session's schema
        at += 1
    if at >= len(tokens) or not tokens[at].is_name:
        return None, at
    if at + 2 < len(tokens) and tokens[at + 1].name == "." and tokens[at + 2].is_name:
        return TableId(tokens[at].name, tokens[at + 2].name), at + 3
    return TableId(schema, tokens[at].name), at + 1


def name_at(tokens: Sequence[Token], at: int) -> str:
    return tokens[at].name if at < len(tokens) else ""


def word_at(tokens: Sequence[Token], at: int) -> str:
    return tokens[at].word if at < len(tokens) else ""


def behind_if(tokens: Sequence[Token], at: int) -> int:
    """The token behind IF EXISTS or IF NOT EXISTS."""
    if word_at(tokens, at) != "IF":
        return at
    return at + (3 if word_at(tokens, at + 1) == "NOT" else 2)
