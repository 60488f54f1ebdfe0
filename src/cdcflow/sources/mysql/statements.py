"""Statements in the log, classified by their first words: which change rows, which change tables, which do neither.

This is not a parser. The stream does not depend on the meaning of a statement (hard case M35): table maps define the
shapes. Only this must be known: whether rows changed without row events (a session with `binlog_format=STATEMENT`,
M07), whether a table was emptied, dropped or renamed (M37, M38, M40), and that something changed at all. If it cannot
be determined, the most cautious of the possible meanings is assumed.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.alters import HARMLESS, Altered, alter_effects, engine_in
from cdcflow.sources.mysql.events import Query, Xid
from cdcflow.sources.mysql.sql import SqlToken, behind_if, name_at, table_at, tokens_of, word_at


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
    """A statement that changes rows without row events. `tables` is empty if the tables cannot be determined.
    `schemas`: those of all tables that it may have changed apart from these, if they are known, otherwise None."""

    tables: tuple[TableId, ...]
    what: str
    schemas: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Emptied:
    """TRUNCATE TABLE, or DROP TABLE (`dropped`): these tables no longer have rows."""

    tables: tuple[TableId, ...]
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class SchemaDropped:
    schema: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """Tables that were renamed, one after another."""

    pairs: tuple[tuple[TableId, TableId], ...]


@dataclass(frozen=True, slots=True)
class PartsChanged:
    """Whole parts of this table (partitions, tablespaces) were added or removed without row events; `other` is the
    other table involved."""

    table: TableId
    other: TableId | None
    what: str


@dataclass(frozen=True, slots=True)
class Created:
    """A table was created, without rows. `like`: the table whose columns it has. `engine`: the engine without
    transactions that it has; "": none that the statement names."""

    table: TableId
    like: TableId | None = None
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Versioned:
    """The table now keeps the history of its rows (MariaDB), so its row events mix old and current rows. `replaces`: it
    is a new table that replaced one with that name."""

    table: TableId
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class OtherDdl:
    """A table's definition may have changed. `table` is None if the table cannot be determined."""

    table: TableId | None
    altered: Altered = HARMLESS


@dataclass(frozen=True, slots=True)
class Harmless:
    """No rows and no shapes change: SAVEPOINT's RELEASE, temporary tables, FLUSH, XA END."""


@dataclass(frozen=True, slots=True)
class Several:
    """A statement that has the effects of all its `parts`, one after another: an ALTER with clauses of several
    kinds."""

    parts: tuple[Versioned | Renamed | OtherDdl, ...]


@dataclass(frozen=True, slots=True)
class Unsure:
    """A statement as read in the character set that its event names, and (`others`) as read in sets in which it has
    another meaning. `sure`: the tables for which the first reading is certain. `is_any`: some of its names are not
    valid text in that set."""

    statement: Statement
    others: tuple[Statement, ...]
    sure: frozenset[TableId]
    is_any: bool = False


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
    | Created
    | Versioned
    | OtherDdl
    | Harmless
    | Several
    | Unsure
)

_XID = re.compile(
    r"^\s*XA\s+(COMMIT|ROLLBACK)\s+X'((?:[0-9a-f]{2})*)'(?:\s*,\s*X'((?:[0-9a-f]{2})*)')?(?:\s*,\s*(\d+))?", re.I
)
_CHECKSUM = re.compile(r"/\*(?:checksum (?:table|chunk)|past (?:lower|upper) chunk)\*/\s*\Z")
"""How statements of pt-table-checksum end, which it always logs as statements. They change its own table only."""
_ROW_WORDS = frozenset(("INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH", "CALL", "DO", "SELECT", "VALUES"))
_HARMLESS_WORDS = frozenset(("FLUSH", "RELEASE", "GRANT", "REVOKE", "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "SET"))
_NOISE = frozenset(("LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK", "IGNORE", "INTO", "FROM"))
_PART_WORDS = frozenset(("EXCHANGE", "TRUNCATE", "DROP", "DISCARD", "IMPORT", "CONVERT"))
_ROW_TOKENS_MAX = 4000
"""Only the first words of a statement that changes rows are inspected, since there may be millions."""


def statement_of(query: Query) -> Statement:
    """Return what a statement in the log does, by its text; `readings.statement_in` adds other readings of its
    bytes."""
    if not query.is_done:
        return Harmless()
    found = _XID.match(query.text)
    if found:
        xid = (int(found[4] or 1), bytes.fromhex(found[2]), bytes.fromhex(found[3] or ""))
        return XaEnd(xid, found[1].upper() == "COMMIT")
    read = tokens_of(query.text, query.sql_mode, query.flavor, is_single=query.is_single)
    tokens = list(itertools.islice(read, _ROW_TOKENS_MAX))
    if not tokens or tokens[0].word not in _ROW_WORDS:
        tokens += read
    if [t.word for t in tokens[:2]] == ["SET", "STATEMENT"]:  # MariaDB: SET STATEMENT … FOR the actual statement
        tokens = list(itertools.dropwhile(lambda t: t.word != "FOR", tokens))[1:]
    match [t.word for t in tokens[:4]]:
        case ["BEGIN", *_] | ["XA", "START" | "BEGIN", *_] | ["START", "TRANSACTION", *_]:
            return Begin()
        case ["COMMIT", *_]:
            return Commit()
        case ["SAVEPOINT", *_]:
            return Savepoint(name_at(tokens, 1), to=False)
        case ["ROLLBACK", "TO", "SAVEPOINT", _]:
            return Savepoint(name_at(tokens, 3), to=True)
        case ["ROLLBACK", "TO", *_]:
            return Savepoint(name_at(tokens, 2), to=True)
        case ["ROLLBACK", *_]:
            return Rollback()
        case ["XA", *_]:
            return Harmless()
        case ["ANALYZE", word, *_] if word not in ("TABLE", "TABLES", "LOCAL", "NO_WRITE_TO_BINLOG"):
            return RowChange((), "ANALYZE", query.schemas)
        case [word, *_] if word in _ROW_WORDS:
            schemas = () if _CHECKSUM.search(query.text) else query.schemas
            return RowChange(_changed_tables(tokens, query.schema), word, schemas)
        case [word, *_] if word in _HARMLESS_WORDS:
            return Harmless()
    return _ddl(tokens, query)


def _ddl(tokens: list[SqlToken], query: Query) -> Statement:
    words = [t.word for t in tokens[:5]]
    schema = query.schema
    if "TEMPORARY" in words[:4] and words[0] in ("CREATE", "DROP"):
        return Harmless()
    match words[:3]:
        case ["TRUNCATE", "TABLE", *_]:
            return Emptied(_table_list(tokens, 2, schema))
        case ["TRUNCATE", *_]:
            return Emptied(_table_list(tokens, 1, schema))
        case ["DROP", "TABLE" | "TABLES", *_]:
            return Emptied(_table_list(tokens, behind_if(tokens, 2), schema), dropped=True)
        case ["DROP", "DATABASE" | "SCHEMA", *_]:
            return SchemaDropped(name_at(tokens, behind_if(tokens, 2)))
        case ["RENAME", "TABLE" | "TABLES", *_]:
            return Renamed(_rename_pairs(tokens, behind_if(tokens, 2), schema))
        case ["ALTER", *_] if "TABLE" in words[1:4]:
            return _parse_alter(tokens, words.index("TABLE") + 1, schema, is_ignore="IGNORE" in words[1:3])
        case ["CREATE", *_] if "TABLE" in words[1:4]:
            return _parse_create(tokens, words.index("TABLE") + 1, query)
        case ["CREATE", *_] if "UNIQUE" in words[1:4]:
            ons = (at for at, token in enumerate(tokens) if token.word == "ON")
            table, _ = table_at(tokens, next(ons, len(tokens)) + 1, schema)
            return OtherDdl(table, Altered(False, refuses=True, keys=True))
        case ["DROP", *_] if "INDEX" in words[1:3]:
            ons = (at for at, token in enumerate(tokens) if token.word == "ON")
            return OtherDdl(table_at(tokens, next(ons, len(tokens)) + 1, schema)[0], Altered(False, keys=True))
    return OtherDdl(None)


def _parse_create(tokens: list[SqlToken], at: int, query: Query) -> Statement:
    """Parse a CREATE TABLE. A table created from a query is logged as an empty one with row events, or its rows are not
    in the log."""
    schema = query.schema
    table, rest = table_at(tokens, behind_if(tokens, at), schema)
    words = [t.word for t in tokens]
    if _has_query(words[at:]):
        return RowChange((table,) if table else (), "CREATE TABLE … SELECT", query.schemas)
    if table is None:
        return OtherDdl(None)
    replaces = words[1:3] == ["OR", "REPLACE"]
    if _is_versioned(words):
        return Versioned(table, replaces=replaces)
    if replaces:
        return Emptied((table,), dropped=True)
    like = rest + (name_at(tokens, rest) == "(")
    if word_at(tokens, like) == "LIKE":
        return Created(table, table_at(tokens, like + 1, schema)[0])
    return Created(table, engine=engine_in(tokens[rest:]))


def _has_query(words: list[str]) -> bool:
    """Whether a CREATE TABLE has SELECT, TABLE or VALUES, also within WITH. The VALUES of partitions are not a
    query."""
    return (
        "SELECT" in words
        or "TABLE" in words
        or any(word == "VALUES" and after not in ("LESS", "IN") for word, after in itertools.pairwise([*words, ""]))
    )


def _is_versioned(words: list[str]) -> bool:
    """Whether the words contain MariaDB's WITH SYSTEM VERSIONING, of a table or of a column, or ADD SYSTEM
    VERSIONING."""
    return any(
        words[at + 1 : at + 3] == ["SYSTEM", "VERSIONING"] for at, word in enumerate(words) if word in ("WITH", "ADD")
    )


def _parse_alter(tokens: list[SqlToken], at: int, schema: str, *, is_ignore: bool) -> Statement:
    table, at = table_at(tokens, behind_if(tokens, at), schema)
    if table is None:
        return OtherDdl(None)
    rest = tokens[at:]
    words = [t.word for t in rest]
    for first, second in itertools.pairwise(words):
        if first in _PART_WORDS and (second in ("PARTITION", "TABLESPACE") or (first, second) == ("CONVERT", "TABLE")):
            other = table_at(rest, words.index("TABLE") + 1, schema)[0] if "TABLE" in words else None
            return PartsChanged(table, other, f"{first} {second}")
    kept, new = _without_rename(rest, schema)
    # IGNORE drops rows that violate a new unique key.
    found = alter_effects(kept)
    if is_ignore:
        found = Altered(fills=True, renamed=found.renamed)
    parts: list[Versioned | Renamed | OtherDdl] = []
    if new is not None and new != table:
        parts.append(Renamed(((table, new),)))
    now = new or table
    if _is_versioned(words):
        parts.append(Versioned(now))
    elif found != HARMLESS or not parts:
        parts.append(OtherDdl(now, found))
    return parts[0] if len(parts) == 1 else Several(tuple(parts))


def _without_rename(tokens: list[SqlToken], schema: str) -> tuple[list[SqlToken], TableId | None]:
    """Return the clauses except those that rename the table, and the last new name, or None.

    A rename whose name cannot be determined stays in the clauses: it then counts as a clause that may change values.
    """
    kept: list[SqlToken] = []
    new: TableId | None = None
    at = 0
    while at < len(tokens):
        if tokens[at].word == "RENAME" and word_at(tokens, at + 1) not in ("COLUMN", "INDEX", "KEY", "CONSTRAINT"):
            is_form = word_at(tokens, at + 1) in ("TO", "AS") or name_at(tokens, at + 1) == "="
            found, behind = table_at(tokens, at + 1 + is_form, schema)
            if found is not None:
                new, at = found, behind
                continue
        kept.append(tokens[at])
        at += 1
    return kept, new


def _changed_tables(tokens: list[SqlToken], schema: str) -> tuple[TableId, ...]:
    """Return the one table that a plain INSERT, REPLACE, UPDATE or DELETE changes; empty for other statements."""
    word, at = tokens[0].word, 1
    while word_at(tokens, at) in _NOISE:
        at += 1
    if word not in ("INSERT", "REPLACE", "UPDATE", "DELETE"):
        return ()
    table, at = table_at(tokens, at, schema)
    if table is None:
        return ()
    is_listed = name_at(tokens, at) == ","
    if word in ("UPDATE", "DELETE") and (
        is_listed or word_at(tokens, at) not in ("SET", "WHERE", "LIMIT", "ORDER", "")
    ):
        return ()
    return (table,)


def _rename_pairs(tokens: list[SqlToken], at: int, schema: str) -> tuple[tuple[TableId, TableId], ...]:
    pairs: list[tuple[TableId, TableId]] = []
    while True:
        old, at = table_at(tokens, at, schema)
        while (word := word_at(tokens, at)) in ("WAIT", "NOWAIT") or word.isdecimal():
            at += 1
        if old is None or word != "TO":
            return tuple(pairs)
        new, at = table_at(tokens, at + 1, schema)
        if new is None:
            return tuple(pairs)
        pairs.append((old, new))
        if name_at(tokens, at) != ",":
            return tuple(pairs)
        at += 1


def _table_list(tokens: list[SqlToken], at: int, schema: str) -> tuple[TableId, ...]:
    out: list[TableId] = []
    while True:
        table, at = table_at(tokens, at, schema)
        if table is None:
            return tuple(out)
        out.append(table)
        if name_at(tokens, at) != ",":
            return tuple(out)
        at += 1
