"""Statements in the log, told apart by their first words: which change rows, which change tables, which do neither.

This is no parser. The stream does not depend on what a statement means (hard case M35): shapes come from table maps.
What must be known is little: rows that changed without row events (a session with `binlog_format=STATEMENT`, M07), a
table that was emptied, dropped or renamed (M37, M38, M40), and that something changed at all. What cannot be told is
answered with the most careful of the possible meanings.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.events import Query, Xid


@dataclass(frozen=True, slots=True)
class Begin:
    """BEGIN, or XA START: row events follow."""


@dataclass(frozen=True, slots=True)
class Commit:
    """COMMIT at the end of a group."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """ROLLBACK at the end of a group."""


@dataclass(frozen=True, slots=True)
class Savepoint:
    """SAVEPOINT (`to` False) or ROLLBACK TO (True)."""

    name: str
    to: bool


@dataclass(frozen=True, slots=True)
class XaEnd:
    """XA COMMIT (True) or XA ROLLBACK of a transaction that was prepared before."""

    xid: Xid
    commit: bool


@dataclass(frozen=True, slots=True)
class RowChange:
    """A statement that changes rows without row events. `tables` empty: which ones cannot be told."""

    tables: tuple[TableId, ...]
    what: str


@dataclass(frozen=True, slots=True)
class Emptied:
    """TRUNCATE TABLE, or DROP TABLE (`dropped`): these tables have no rows any more."""

    tables: tuple[TableId, ...]
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class SchemaDropped:
    schema: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """Tables that got other names, one after another."""

    pairs: tuple[tuple[TableId, TableId], ...]


@dataclass(frozen=True, slots=True)
class PartsChanged:
    """Whole parts of these tables came or went without row events (partitions, tablespaces)."""

    tables: tuple[TableId, ...]
    what: str


@dataclass(frozen=True, slots=True)
class OtherDdl:
    """Something about tables may have changed. `table` None: it cannot be told which. `fills`: rows that were there
    before may have got values in columns that they did not have under that name."""

    table: TableId | None
    fills: bool = False


@dataclass(frozen=True, slots=True)
class Harmless:
    """No rows and no shapes change: SAVEPOINT's RELEASE, temporary tables, FLUSH, XA END."""


Statement = (
    Begin
    | Commit
    | Rollback
    | Savepoint
    | XaEnd
    | RowChange
    | Emptied
    | SchemaDropped
    | Renamed
    | PartsChanged
    | OtherDdl
    | Harmless
)

# A version comment (/*!50100 …*/, /*M! …*/) is executed, so only its frame goes; other comments go whole.
_TOKEN = re.compile(
    r"""\s+ | /\*M?!\d* | \*/ | /\*.*?\*/ | --(?=\s|$)[^\n]* | \#[^\n]*
    | (?P<quoted>`(?:[^`]|``)*`) | (?P<string>'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*")
    | (?P<word>[\w$]+) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_XID = re.compile(
    r"^\s*XA\s+(COMMIT|ROLLBACK)\s+X'((?:[0-9a-f]{2})*)'(?:\s*,\s*X'((?:[0-9a-f]{2})*)')?(?:\s*,\s*(\d+))?", re.I
)
_ROW_WORDS = frozenset(("INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH", "CALL", "DO", "SELECT", "VALUES"))
_HARMLESS_WORDS = frozenset(("FLUSH", "RELEASE", "GRANT", "REVOKE", "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "SET"))
_NOISE = frozenset(
    ("LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK", "IGNORE", "INTO", "FROM", "ONLINE", "OFFLINE", "CONCURRENT")
)
_PART_WORDS = frozenset(("EXCHANGE", "TRUNCATE", "DROP", "DISCARD", "IMPORT", "CONVERT"))
_TOKENS_MAX = 4000


@dataclass(frozen=True, slots=True)
class _Token:
    """`word` in capitals where it is a bare word, else empty; `name` what it is called as an identifier."""

    word: str
    name: str
    is_name: bool


def statement_of(query: Query) -> Statement:
    """What a statement in the log does."""
    found = _XID.match(query.text)
    if found:
        xid = (int(found[4] or 1), bytes.fromhex(found[2]), bytes.fromhex(found[3] or ""))
        return XaEnd(xid, found[1].upper() == "COMMIT")
    tokens = list(_tokens(query.text))
    if [t.word for t in tokens[:2]] == ["SET", "STATEMENT"]:  # MariaDB: SET STATEMENT … FOR what it is about
        tokens = list(itertools.dropwhile(lambda t: t.word != "FOR", tokens))[1:]
    match [t.word for t in tokens[:4]]:
        case ["BEGIN", *_] | ["XA", "START" | "BEGIN", *_] | ["START", "TRANSACTION", *_]:
            return Begin()
        case ["COMMIT", *_]:
            return Commit()
        case ["SAVEPOINT", *_]:
            return Savepoint(_named(tokens, 1), to=False)
        case ["ROLLBACK", "TO", "SAVEPOINT", _]:
            return Savepoint(_named(tokens, 3), to=True)
        case ["ROLLBACK", "TO", *_]:
            return Savepoint(_named(tokens, 2), to=True)
        case ["ROLLBACK", *_]:
            return Rollback()
        case ["XA", *_]:
            return Harmless()
        case ["ANALYZE", word, *_] if word not in ("TABLE", "LOCAL", "NO_WRITE_TO_BINLOG"):
            return RowChange((), "ANALYZE")
        case [word, *_] if word in _ROW_WORDS:
            return RowChange(_changed(tokens, query.schema), word)
        case [word, *_] if word in _HARMLESS_WORDS:
            return Harmless()
    return _ddl(tokens, query)


def _ddl(tokens: list[_Token], query: Query) -> Statement:
    words = [t.word for t in tokens]
    schema = query.schema
    if "TEMPORARY" in words[:4] and words[0] in ("CREATE", "DROP"):
        return Harmless()
    match words[:3]:
        case ["TRUNCATE", "TABLE", *_]:
            return Emptied(_listed(tokens[2:], schema))
        case ["TRUNCATE", *_]:
            return Emptied(_listed(tokens[1:], schema))
        case ["DROP", "TABLE" | "TABLES", *_]:
            return Emptied(_listed(_after_if(tokens[2:]), schema), dropped=True)
        case ["DROP", "DATABASE" | "SCHEMA", *_]:
            return SchemaDropped(_named(_after_if(tokens[2:]), 0))
        case ["RENAME", "TABLE" | "TABLES", *_]:
            return Renamed(_renamed(_after_if(tokens[2:]), schema))
        case ["ALTER", *_] if "TABLE" in words[1:4]:
            return _altered(tokens[words.index("TABLE") + 1 :], schema)
        case ["CREATE", *_] if "TABLE" in words[1:4]:
            return _created(tokens[words.index("TABLE") + 1 :], words, schema)
    return OtherDdl(None)


def _created(rest: list[_Token], words: list[str], schema: str) -> Statement:
    """A table made of a query's rows is logged as an empty one with row events; else its rows are not in the log."""
    table = _one(_after_if(rest), schema)
    if "SELECT" in words:
        return RowChange((table,) if table else (), "CREATE TABLE … SELECT")
    if table and words[1:3] == ["OR", "REPLACE"]:
        return Emptied((table,), dropped=True)
    return OtherDdl(table)


def _altered(rest: list[_Token], schema: str) -> Statement:
    rest = _after_if(rest)
    table = _one(rest, schema)
    words = [t.word for t in rest]
    for first, second in itertools.pairwise(words):
        if first in _PART_WORDS and (second in ("PARTITION", "TABLESPACE") or (first, second) == ("CONVERT", "TABLE")):
            others = (_one(rest[words.index("TABLE") + 1 :], schema),) if "TABLE" in words[1:] else ()
            return PartsChanged(tuple(t for t in (table, *others) if t), f"{first} {second}")
    if table and "RENAME" in words:
        at = words.index("RENAME") + 1
        if at < len(words) and words[at] not in ("COLUMN", "INDEX", "KEY", "CONSTRAINT"):
            new = _one(rest[at + 1 :] if words[at] in ("TO", "AS") else rest[at:], schema)
            return Renamed(((table, new),)) if new else OtherDdl(table)
    return OtherDdl(table, fills=_fills(rest))


def _fills(tokens: list[_Token]) -> bool:
    """Whether ALTER TABLE may give old rows values in new columns, or other names to old columns.

    Told from words, not by parsing: a column that is only added as NULL never counts, some that need not count do.
    """
    words = [t.word for t in tokens]
    pairs = list(itertools.pairwise(words))
    if ("RENAME", "COLUMN") in pairs:
        return True
    for at in (i for i, word in enumerate(words) if word == "CHANGE"):
        old = at + 1 + (words[at + 1 : at + 2] == ["COLUMN"])
        old += 2 * (words[old : old + 2] == ["IF", "EXISTS"])
        if [t.name.lower() for t in tokens[old : old + 1]] != [t.name.lower() for t in tokens[old + 1 : old + 2]]:
            return True
    if "ADD" not in words:
        return False
    return (
        ("NOT", "NULL") in pairs
        or bool({"AUTO_INCREMENT", "SERIAL", "AS", "PRIMARY"} & set(words))
        or any(first == "DEFAULT" and second != "NULL" for first, second in itertools.pairwise([*words, ""]))
    )


def _changed(tokens: list[_Token], schema: str) -> tuple[TableId, ...]:
    """The one table that a plain INSERT, REPLACE, UPDATE or DELETE changes; empty where it is not that plain."""
    word = tokens[0].word
    rest = tokens[1:]
    while rest and rest[0].word in _NOISE:
        rest = rest[1:]
    if word not in ("INSERT", "REPLACE", "UPDATE", "DELETE"):
        return ()
    table, size = _place(rest, schema)
    if table is None:
        return ()
    after = rest[size].word if size < len(rest) else ""
    other = rest[size].name if size < len(rest) else ""
    if word in ("UPDATE", "DELETE") and (other == "," or after not in ("SET", "WHERE", "LIMIT", "ORDER", "")):
        return ()
    return (table,)


def _renamed(tokens: list[_Token], schema: str) -> tuple[tuple[TableId, TableId], ...]:
    pairs: list[tuple[TableId, TableId]] = []
    while tokens:
        old, size = _place(tokens, schema)
        tokens = tokens[size:]
        while tokens and (tokens[0].word in ("WAIT", "NOWAIT") or tokens[0].word.isdecimal()):
            tokens = tokens[1:]
        if old is None or not tokens or tokens[0].word != "TO":
            break
        new, size = _place(tokens[1:], schema)
        if new is None:
            break
        pairs.append((old, new))
        tokens = tokens[1 + size :]
        if not tokens or tokens[0].name != ",":
            break
        tokens = tokens[1:]
    return tuple(pairs)


def _listed(tokens: list[_Token], schema: str) -> tuple[TableId, ...]:
    out: list[TableId] = []
    while tokens:
        table, size = _place(tokens, schema)
        if table is None:
            break
        out.append(table)
        tokens = tokens[size:]
        if not tokens or tokens[0].name != ",":
            break
        tokens = tokens[1:]
    return tuple(out)


def _place(tokens: list[_Token], schema: str) -> tuple[TableId | None, int]:
    """The table named first, and how many tokens its name takes."""
    if not tokens or not tokens[0].is_name:
        return None, 0
    if len(tokens) >= 3 and tokens[1].name == "." and tokens[2].is_name:
        return TableId(tokens[0].name, tokens[2].name), 3
    return TableId(schema, tokens[0].name), 1


def _one(tokens: list[_Token], schema: str) -> TableId | None:
    return _place(tokens, schema)[0]


def _named(tokens: list[_Token], at: int) -> str:
    return tokens[at].name if at < len(tokens) else ""


def _after_if(tokens: list[_Token]) -> list[_Token]:
    """Without IF EXISTS or IF NOT EXISTS."""
    if tokens and tokens[0].word == "IF":
        return tokens[3:] if len(tokens) > 1 and tokens[1].word == "NOT" else tokens[2:]
    return tokens


def _tokens(text: str) -> Iterator[_Token]:
    count = 0
    for found in _TOKEN.finditer(text):
        if found["word"]:
            yield _Token(found["word"].upper(), found["word"], True)
        elif found["quoted"]:
            yield _Token("", found["quoted"][1:-1].replace("``", "`"), True)
        elif found["string"]:
            yield _Token("", found["string"][1:-1].replace('""', '"'), found["string"][0] == '"')
        elif found["other"]:
            yield _Token("", found["other"], False)
        else:
            continue
        count += 1
        if count >= _TOKENS_MAX:
            return
