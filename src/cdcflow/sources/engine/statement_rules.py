"""Rules that decide what a statement does to the shape of a table, before it is executed. Pure.

    text ──▶ a dialect's parser ──▶ StatementPart: table, rule, edits ──▶ edit_table ──▶ the table's next shape

Each dialect has its rules in one place, row by row as its page in docs/ has them. A statement that has no rule is
refused: a rehearsal never guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cdcflow.errors import ConfigurationError
from cdcflow.model.suggestions import did_you_mean
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType

StatementEffect = Literal[
    "nothing",
    "read again",
    "depends",
    "added",
    "kept",
    "emptied",
    "fails",
    "stops",
    "refused",
    "unknown",
    "not captured",
]
"""What a statement does to the rows of a table in the log: `added`: they are read for the first time; `kept`: they
stay, and get no more changes; `emptied`: the log gets a truncate; `fails`: changes of this table are missing until its
remedy was followed; `stops`: the capture ends with an error, or that of this table alone; `refused`: the server does
not execute it; `depends`, `unknown`: the effect depends on facts that the statement does not show and the answer names;
`not captured`: the settings do not select the table."""


@dataclass(frozen=True, slots=True)
class StatementRule:
    """One row of a page of statements: `statement` and `answer` are its cells."""

    kind: str
    effect: StatementEffect
    statement: str
    answer: str


@dataclass(frozen=True, slots=True)
class ColumnEdit:
    """The change that a statement makes to one column, or to the key.

    `type`: as the statement writes it. `missing`: the value, as the server's text, of rows that were written before the
    column was added. `is_optional`: the statement has IF EXISTS, or IF NOT EXISTS.
    """

    what: Literal["add", "drop", "rename", "retype", "key"]
    column: str = ""
    type: str = ""
    becomes: str = ""
    missing: str | None = None
    key: tuple[str, ...] = ()
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class StatementPart:
    """One effect that a statement has on one table. `effect` and `why` are those of the rule, if the statement alone
    decides. `becomes`: the table's new name. `is_end`: no table is captured under its name afterwards."""

    table: TableId | None
    rule: StatementRule
    effect: StatementEffect
    why: str
    edits: tuple[ColumnEdit, ...] = ()
    becomes: TableId | None = None
    is_end: bool = False


def part_of(
    rule: StatementRule,
    table: TableId | None = None,
    *edits: ColumnEdit,
    effect: StatementEffect | None = None,
    why: str = "",
    becomes: TableId | None = None,
    is_end: bool = False,
) -> StatementPart:
    """Return the effect of a rule on a table. `effect` and `why` replace the rule's own, where they are known
    exactly."""
    return StatementPart(table, rule, effect or rule.effect, why or plain_text(rule.answer), edits, becomes, is_end)


def plain_text(cell: str) -> str:
    """Return a cell of a documentation page without its markup."""
    return cell.replace("**", "").replace("`", "")


def unknown_statement(why: str, remedy: str = "") -> ConfigurationError:
    """Return the error for a statement whose effect is not certain."""
    return ConfigurationError(
        f"plan --ddl: {why}",
        remedy=remedy or "the pages postgres-ddl.md and mysql-ddl.md have every statement that cdcflow knows",
        runbook="settings",
    )


TypeOf = Callable[[TableId, str, str], ColumnType]
"""Returns the type of a column, given its table, its name, and the type's text in a statement. Raises ValueError if the
type is unknown."""
Numbers = Callable[[Table, Sequence[Column]], Sequence[Column]]
"""Assigns their numbers to the columns of a table's next shape, in which new columns still have the number 0."""


def edit_table(table: Table, edits: Iterable[ColumnEdit], type_of: TypeOf, numbers: Numbers) -> Table:
    """Return the table after the edits of one statement. Each edit refers to the table before all of them.

    Raises:
        ConfigurationError: a column does not exist, or does already, or its type is unknown.
    """
    of = {what: [e for e in edits if e.what == what] for what in ("add", "drop", "rename", "retype", "key")}
    names = {c.name for c in table.columns}
    for edit in (*of["drop"], *of["rename"], *of["retype"]):
        if edit.column not in names and not edit.is_optional:
            hint = did_you_mean(edit.column, names)
            raise unknown_statement(f"table {table.id} has no column {edit.column}", f"{hint}correct the statement")
    dropped = {e.column for e in of["drop"]}
    types = {e.column: e.type for e in of["retype"]}
    becomes = {e.column: e.becomes for e in of["rename"]}
    columns = []
    for column in (c for c in table.columns if c.name not in dropped):
        if (text := types.get(column.name)) is not None:
            column = replace(column, type=_type(table.id, column.name, text, type_of), missing=None)
        columns.append(replace(column, name=becomes.get(column.name, column.name)))
    for edit in of["add"]:
        if any(c.name == edit.column for c in columns):
            if edit.is_optional:
                continue
            raise unknown_statement(f"table {table.id} has a column {edit.column} already", "correct the statement")
        columns.append(Column(edit.column, 0, _type(table.id, edit.column, edit.type, type_of), missing=edit.missing))
    key = tuple(becomes.get(name, name) for name in table.key)
    if dropped & set(table.key):
        key = ()
    for edit in of["key"]:
        key = edit.key
    if unknown := [name for name in key if all(c.name != name for c in columns)]:
        raise unknown_statement(f"table {table.id} has no column {unknown[0]} for its key", "correct the statement")
    return replace(table, columns=tuple(numbers(table, columns)), key=key)


def _type(table: TableId, column: str, text: str, type_of: TypeOf) -> ColumnType:
    try:
        return type_of(table, column, text)
    except ValueError as error:
        raise unknown_statement(
            f"column {column} of {table}: {error}",
            "rehearse the statement with a built-in type: an enum is captured like text, a domain like its base type",
        ) from None
