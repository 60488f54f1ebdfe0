"""SQL as text: names and strings as we write them, and the tokens of a statement that the log has. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cdcflow.model.table import TableId

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

# A version comment (/*!50100 …*/, /*M! …*/) is executed, so only its frame goes; other comments go whole.
_WORDS = r"""\s+ | /\*M?!\d* | \*/ | /\*.*?\*/ | --(?=\s|$)[^\n]* | \#[^\n]*
    | (?P<quoted>`(?:[^`]|``)*`) | (?P<string>{single}|{double}) | (?P<word>[\w$]+) | (?P<other>.)"""
_ESCAPED = {"single": r"'(?:[^'\\]|''|\\.)*'", "double": r'"(?:[^"\\]|""|\\.)*"'}
_PLAIN = {"single": r"'(?:[^']|'')*'", "double": r'"(?:[^"]|"")*"'}


def _pattern(single: Mapping[str, str], double: Mapping[str, str]) -> re.Pattern[str]:
    return re.compile(_WORDS.format(single=single["single"], double=double["double"]), re.VERBOSE | re.DOTALL)


_WITH_ESCAPES, _WITHOUT = _pattern(_ESCAPED, _ESCAPED), _pattern(_PLAIN, _PLAIN)
_NAMES_IN_DOUBLE = _pattern(_ESCAPED, _PLAIN)

ANSI_QUOTES, NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20
"""The bits of sql_mode that say what quotes hold: a name in double ones; a backslash that is one."""


@dataclass(slots=True)
class Token:
    """`word` in capitals where it is a bare word, else empty; `name` what it is called as an identifier."""

    word: str
    name: str
    is_name: bool


def tokens_of(text: str, sql_mode: int = 0) -> Iterator[Token]:
    """`sql_mode` is that of the session that said it, as its bits in the log."""
    pattern = _NAMES_IN_DOUBLE if sql_mode & ANSI_QUOTES else _WITH_ESCAPES
    for found in (_WITHOUT if sql_mode & NO_BACKSLASH_ESCAPES else pattern).finditer(text):
        if found["word"]:
            yield Token(found["word"].upper(), found["word"], True)
        elif found["quoted"]:
            yield Token("", found["quoted"][1:-1].replace("``", "`"), True)
        elif found["string"]:
            yield Token("", found["string"][1:-1].replace('""', '"'), found["string"][0] == '"')
        elif found["other"]:
            yield Token("", found["other"], False)


def table_at(tokens: Sequence[Token], at: int, schema: str) -> tuple[TableId | None, int]:
    """The table that is named from this token on, and the token behind its name."""
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
