"""Reads a statement in the log whose event may name a character set other than the one it is in. Pure.

A name with non-ASCII characters reads differently in each set, and the servers do not always name the right set
(`statement_text`). The statement may have meant a table whose name it contains only if it is read in another set. So
each set is tried. The reading in the set that the event names is applied; readings in other sets that differ are kept
as possibilities (`Unsure`), which only matter for captured tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from cdcflow.model.table import TableId
from cdcflow.sources.mysql.events import Query
from cdcflow.sources.mysql.statement_text import other_texts
from cdcflow.sources.mysql.statements import (
    Created,
    Emptied,
    Harmless,
    OtherDdl,
    PartsChanged,
    Renamed,
    RowChange,
    Savepoint,
    SchemaDropped,
    Several,
    Statement,
    Unsure,
    Versioned,
    statement_of,
)
from cdcflow.sources.mysql.types.charsets import UNKNOWN


def statement_in(query: Query) -> Statement:
    """Return what a statement in the log does, along with what else it may mean: if it uses what only its session has,
    its tables may be temporary ones, which hide captured ones of that name."""
    found = _in_all_sets(query)
    if not query.is_of_session:
        return found
    match found:
        case Emptied(dropped=True) | Unsure(Emptied(dropped=True)):
            # Each DROP TABLE has that flag. The servers log what drops a temporary table as DROP TEMPORARY TABLE.
            return found
        case Emptied() | Renamed() | PartsChanged() | Versioned() | OtherDdl() | Several():
            return Unsure(Harmless(), (found,), frozenset())
        case Unsure(first, others, is_any=is_any) if not isinstance(first, RowChange):
            return Unsure(Harmless(), (first, *others), frozenset(), is_any)
    return found


def _in_all_sets(query: Query) -> Statement:
    """Return what a statement in the log does, along with what it would do in other character sets if that differs."""
    found = statement_of(query)
    if query.raw and isinstance(found, Savepoint):
        return _in_utf8(query) or found
    if not query.raw or not _is_of_tables(found):
        return found
    others = dict.fromkeys(
        statement_of(replace(query, text=text, is_single=is_single))
        for text, is_single in other_texts(query.raw, query.text)
    )
    others.pop(found, None)
    sure = frozenset(tables_in(found) if query.is_readable else ())
    is_any = not query.is_readable and any(UNKNOWN in name for name in _names(found))
    return Unsure(found, tuple(others), sure, is_any) if others or is_any else found


def _in_utf8(query: Query) -> Statement | None:
    """Return the statement read as UTF-8; None if its bytes are not UTF-8.

    The servers write statements about savepoints themselves, in UTF-8 whatever the client declares. In any other set a
    savepoint's name could differ from the name in a later rollback to it.
    """
    try:
        return statement_of(replace(query, text=query.raw.decode(), is_single=False))
    except UnicodeDecodeError:
        return None


def tables_in(statement: Statement) -> Iterator[TableId]:
    """Return the tables that a statement names."""
    match statement:
        case RowChange(tables) | Emptied(tables):
            yield from tables
        case Renamed(pairs):
            for pair in pairs:
                yield from pair
        case PartsChanged(table, other):
            yield from (t for t in (table, other) if t is not None)
        case Created(table) | Versioned(table) | OtherDdl(TableId() as table):
            yield table
        case Several(parts):
            for part in parts:
                yield from tables_in(part)


def with_names(statement: Statement, named: Callable[[TableId], TableId]) -> Statement:
    """Return the statement with other names for its tables."""
    match statement:
        case RowChange(tables) | Emptied(tables):
            return replace(statement, tables=tuple(map(named, tables)))
        case Renamed(pairs):
            return Renamed(tuple((named(old), named(new)) for old, new in pairs))
        case PartsChanged(table, other):
            return replace(statement, table=named(table), other=other and named(other))
        case Created(table, like):
            return replace(statement, table=named(table), like=like and named(like))
        case Versioned(table) | OtherDdl(TableId() as table):
            return replace(statement, table=named(table))
        case Several(parts):
            return Several(tuple(with_names(part, named) for part in parts))  # type: ignore[misc]  # each keeps its kind
        case Unsure(first, others, sure):
            changed = tuple(with_names(other, named) for other in others)
            return replace(
                statement, statement=with_names(first, named), others=changed, sure=frozenset(map(named, sure))
            )
    return statement


def _names(statement: Statement) -> Iterator[str]:
    if isinstance(statement, SchemaDropped):
        yield statement.schema
    for table in tables_in(statement):
        yield from (table.schema, table.name)


def _is_of_tables(statement: Statement) -> bool:
    """Whether the statement names tables. For a statement that changes rows: whether a name is not ASCII, since its
    text may contain millions of non-ASCII values."""
    match statement:
        case RowChange():
            return not all(name.isascii() for name in _names(statement))
        case SchemaDropped() | Emptied():
            return True
    return any(True for _ in tables_in(statement))
