"""The tokens of PostgreSQL's statements, and a reader that goes through them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cdcflow.model.table import TableId
from cdcflow.sources.engine.statement_rules import unknown_statement

_TOKEN = re.compile(
    r"""\s+ | --[^\n]* | (?P<comment>/\*) | (?P<quoted>"(?:[^"]|"")+")
    | (?P<string>'(?:[^']|'')*') | (?P<body>\$(?P<tag>[A-Za-z_]\w*|)\$.*?\$(?P=tag)\$)
    | (?P<word>[A-Za-z_\x80-\U0010ffff][\w$]*) | (?P<number>\d[\w.]*|\.\d+) | (?P<sign>::|.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_END = re.compile(r"/\*|\*/")


@dataclass(frozen=True, slots=True)
class DdlToken:
    """A token of a statement. `text`: as written. `word`: in capitals if it is a bare word, otherwise empty. `name`:
    its text as an identifier, or the content of a string."""

    kind: Literal["word", "quoted", "string", "number", "sign"]
    text: str
    word: str = ""
    name: str = ""


def split_statements(text: str) -> list[list[DdlToken]]:
    """Return the tokens of each statement of a text, without comments.

    Raises:
        ConfigurationError: a quote or a comment does not end, or a string is written in a form that is not known.
    """
    found: list[list[DdlToken]] = [[]]
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None  # noqa: S101  any character is a sign
        at = match.end()
        if match["comment"]:
            at = _behind_comment(text, at)
        elif match["sign"] == ";":
            found.append([])
        elif (token := _token(match)) is not None:
            before = found[-1][-1].text.upper() if found[-1] else ""
            is_adjacent = match.start() > 0 and not text[match.start() - 1].isspace()
            has_prefix = token.text[0] in "'\"" and is_adjacent and before in ("E", "B", "X", "N", "&")
            if has_prefix or token.text in ("'", '"', "$"):
                raise unknown_statement(f"{text[max(match.start() - 2, 0) : match.start() + 20]!r} is not understood")
            found[-1].append(token)
    return [tokens for tokens in found if tokens]


def _behind_comment(text: str, at: int) -> int:
    depth = 1
    while depth:
        match = _COMMENT_END.search(text, at)
        if match is None:
            raise unknown_statement("a comment does not end")
        depth += 1 if match[0] == "/*" else -1
        at = match.end()
    return at


def _token(match: re.Match[str]) -> DdlToken | None:
    text = match[0]
    if match["quoted"]:
        return DdlToken("quoted", text, name=text[1:-1].replace('""', '"'))
    if match["string"]:
        return DdlToken("string", text, name=text[1:-1].replace("''", "'"))
    if match["body"]:
        return DdlToken("string", text, name=text[len(match["tag"]) + 2 : -len(match["tag"]) - 2])
    if match["word"]:
        # The server folds ASCII letters alone.
        lower = "".join(c.lower() if c.isascii() else c for c in text)
        return DdlToken("word", text, word=text.upper() if text.isascii() else "", name=lower)
    if match["number"]:
        return DdlToken("number", text)
    return DdlToken("sign", text) if match["sign"] else None


class DdlReader:
    """Reads the tokens of one statement, or of a part of it, one after another."""

    def __init__(self, tokens: Sequence[DdlToken]) -> None:
        self.tokens = tokens
        self.at = 0

    @property
    def is_at_end(self) -> bool:
        return self.at >= len(self.tokens)

    @property
    def rest(self) -> Sequence[DdlToken]:
        return self.tokens[self.at :]

    def word(self, further: int = 0) -> str:
        at = self.at + further
        return self.tokens[at].word if at < len(self.tokens) else ""

    def skip(self, *words: str) -> bool:
        """Skip these words if they are next, and return whether they were."""
        if any(self.word(n) != word for n, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def skip_sign(self, text: str) -> bool:
        is_next = not self.is_at_end and self.tokens[self.at].kind == "sign" and self.tokens[self.at].text == text
        self.at += is_next
        return is_next

    def name(self) -> str:
        """Read the next token, an identifier."""
        if self.is_at_end or self.tokens[self.at].kind not in ("word", "quoted"):
            raise self.unknown()
        self.at += 1
        return self.tokens[self.at - 1].name

    def table(self) -> tuple[str | None, str]:
        """Read the name of a table, with its schema if it is written."""
        first = self.name()
        found = (first, self.name()) if self.skip_sign(".") else (None, first)
        self.skip_sign("*")
        return found

    def column_list(self) -> tuple[str, ...]:
        """Read names in parentheses."""
        if not self.skip_sign("("):
            raise self.unknown()
        names = [self.name()]
        while self.skip_sign(","):
            names.append(self.name())
        if not self.skip_sign(")"):
            raise self.unknown()
        return tuple(names)

    def parentheses(self) -> Sequence[DdlToken]:
        """Read the next tokens, in parentheses, and return those inside."""
        if not self.skip_sign("("):
            raise self.unknown()
        first, depth = self.at, 1
        while depth:
            if self.is_at_end:
                raise self.unknown()
            token = self.tokens[self.at]
            depth += (token.kind == "sign") * ((token.text == "(") - (token.text == ")"))
            self.at += 1
        return self.tokens[first : self.at - 1]

    def parts(self) -> list[DdlReader]:
        """Split the remaining tokens at the commas that are in no parentheses."""
        found: list[list[DdlToken]] = [[]]
        depth = 0
        for token in self.rest:
            if token.kind == "sign":
                depth += (token.text in "([") - (token.text in ")]")
                if token.text == "," and depth == 0:
                    found.append([])
                    continue
            found[-1].append(token)
        self.at = len(self.tokens)
        return [DdlReader(tokens) for tokens in found]

    def end(self) -> None:
        """Raise an error if any token follows."""
        if not self.is_at_end:
            raise self.unknown()

    def unknown(self) -> Exception:
        """Return the error for a next token that cdcflow does not know."""
        text = " ".join(t.text for t in self.tokens)
        where = f" at {self.tokens[self.at].text}" if self.at < len(self.tokens) else " at its end"
        return unknown_statement(f"{text[:200]!r}: cdcflow does not know this{where}")


def text_of_tokens(tokens: Sequence[DdlToken]) -> str:
    """Return the tokens as a text, with spaces only between words."""
    text = ""
    for token in tokens:
        gap = text and (text[-1].isalnum() or text[-1] in "\")'_") and token.kind != "sign"
        text += f" {token.text}" if gap else token.text
    return text


def table_id(name: tuple[str | None, str], tables: Sequence[TableId]) -> TableId:
    """Return the table that a statement means. A name without a schema means the captured table of that name; if there
    is none, the table in `public`.

    Raises:
        ConfigurationError: several captured tables have that name.
    """
    schema, table = name
    if schema is not None:
        return TableId(schema, table)
    found = [t for t in tables if t.name == table]
    if len(found) > 1:
        raise unknown_statement(
            f"{table} may be any of {', '.join(map(str, found))}", "write the table's name with its schema"
        )
    return found[0] if found else TableId("public", table)
