"""Decodes the text of a statement in the log: finds out which character set its bytes are in. Pure.

A QUERY event names the session's `character_set_client`, and its text is in that set, with two exceptions:

- Text that the server generated is in UTF-8 (MySQL's `CREATE TABLE … SELECT`).
- A statement that was prepared, or is in a routine, keeps the set in which it was prepared or created, while the event
  names the one in force when it ran. Both servers do so; the event does not reveal the original set.

So a text whose bytes are invalid in the named set is taken as UTF-8 if they are valid there; and `other_texts` returns
what the same bytes mean in every other set that a client may have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cdcflow.errors import ConfigurationError
from cdcflow.sources.mysql.types.charsets import CLIENT_SETS, charset_of, decode_text, is_single_byte

_UTF8 = "utf8mb4"
_SWE7 = "swe7"
_QUOTED = re.compile(r"`((?:[^`]|``)*)`")
_IN_WORDS, _IN_QUOTES = "[]{}|^~", "\\@"


@dataclass(frozen=True, slots=True)
class StatementText:
    """The text of a statement. `raw`: its bytes; empty if they mean the same in every set. `is_single`: the set has one
    byte for each character. `is_readable`: all bytes are characters of the set; those that are not are U+FFFD in
    `text`."""

    text: str
    raw: bytes = b""
    is_single: bool = False
    is_readable: bool = True


def statement_text(raw: bytes, client: int | None) -> StatementText:
    """Decode a statement in the set of this collation (None: the event names none)."""
    charset = _charset(client)
    if raw.isascii() and charset != _SWE7:
        return StatementText(raw.decode("ascii"))
    for one in dict.fromkeys((charset, _UTF8)):
        try:
            return StatementText(_decode_text(one, raw, "stop"), raw, is_single_byte(one))
        except UnicodeDecodeError:
            continue
    return StatementText(_decode_text(charset, raw, "replace"), raw, is_single_byte(charset), is_readable=False)


def other_texts(raw: bytes, text: str) -> Iterator[tuple[str, bool]]:
    """Return what the bytes mean in sets other than the one in which they are `text`, and whether that set has one byte
    for each character."""
    seen = {text}
    for charset in CLIENT_SETS:
        other = _decode_text(charset, raw, "replace")
        if other not in seen:
            seen.add(other)
            yield other, is_single_byte(charset)


def _charset(client: int | None) -> str:
    if client is None:
        return _UTF8
    try:
        name = charset_of(client).name
    except ConfigurationError:  # a collation of a later server
        return _UTF8
    return name if name in CLIENT_SETS else _UTF8  # binary: the servers interpret its bytes as UTF-8


def _decode_text(charset: str, raw: bytes, errors: str) -> str:
    return _swe7(raw) if charset == _SWE7 else decode_text(charset, raw, errors)


def _swe7(raw: bytes) -> str:
    r"""Decode swe7, which has letters where ASCII has brackets, `\`, `@` and the backtick.

    The servers find the ends of names and strings by bytes before they interpret letters, so the last three are letters
    only inside quoted names.
    """
    letters = {ord(sign): decode_text(_SWE7, sign.encode()) for sign in _IN_WORDS}
    quoted = {ord(sign): decode_text(_SWE7, sign.encode()) for sign in _IN_QUOTES}
    tick = decode_text(_SWE7, b"`")
    text = raw.decode("ascii", "replace").translate(letters)
    return _QUOTED.sub(lambda found: f"`{found[1].replace('``', tick).translate(quoted)}`", text)
