"""Parses PostgreSQL's statements before they are executed: which rules of `statement_rules` apply to which tables.
Pure.

The effect of a statement can depend on the table, so the current shapes are given. A word that is not known here is an
error: the statement is then not rehearsed at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cdcflow.model.table import Column, Identity, Table, TableId
from cdcflow.sources.engine.statement_rules import ColumnEdit, StatementPart, part_of
from cdcflow.sources.postgres.ddl_defaults import default_kind, has_unkept_constant, retype_kind
from cdcflow.sources.postgres.ddl_tokens import DdlReader, DdlToken, table_id, text_of_tokens
from cdcflow.sources.postgres.statement_rules import BY_KIND

_CONSTRAINTS = frozenset(
    (
        *("COLLATE", "CONSTRAINT", "NOT", "NULL", "CHECK", "DEFAULT", "GENERATED", "UNIQUE", "PRIMARY", "REFERENCES"),
        *("STORAGE", "COMPRESSION", "DEFERRABLE", "INITIALLY", "USING"),
    )
)
"""Words that end the type of a column."""
_TYPE_WORDS = frozenset(("VARYING", "PRECISION", "WITH", "WITHOUT", "TIME", "ZONE"))
_COUNTED = {"serial": "integer", "bigserial": "bigint", "smallserial": "smallint"}
_COUNTED |= {"serial4": "integer", "serial8": "bigint", "serial2": "smallint"}
_OTHERS = frozenset(
    (
        *("VIEW", "SEQUENCE", "FUNCTION", "PROCEDURE", "TRIGGER", "RULE", "POLICY", "CAST", "OPERATOR", "COLLATION"),
        *("EXTENSION", "SERVER", "LANGUAGE", "TRANSFORM", "ROUTINE", "AGGREGATE"),
    )
)
_STORED_SINCE = 18
"""The version of PostgreSQL since which stored generated columns are published."""
_OF_PARTITIONS = frozenset(
    ("TABLESPACE", "PRIMARY", "LOGGED", "UNLOGGED", "ATTACH", "DETACH", "RENAME", "IDENTITY", "ACCESS")
)
"""Words of statements that matter to a captured table if they are about a partition of it."""
_SOME_VALUE = "\\x"
"""A placeholder for the constant that older rows have in a new column. It is valid for every type whose constants a
merge can write."""
_WITHOUT_KEY = "the table has no key then, and its rows are told apart by all columns: docs/postgres.md"
_NO_TABLE = "the settings capture no table of this name"


@dataclass(frozen=True, slots=True)
class ServerTables:
    """What a statement is rehearsed against: the captured tables, which tables the settings select, and the server's
    major version."""

    tables: Mapping[TableId, Table]
    selects: Callable[[TableId], bool]
    version: int


def statement_parts(tokens: Sequence[DdlToken], server: ServerTables) -> list[StatementPart]:
    """Return the effects of one statement.

    Raises:
        ConfigurationError: cdcflow does not know the statement, or the statement cannot fit the tables.
    """
    return list(_Statement(DdlReader(tokens), server).parts())


def keep_numbers(before: Table, columns: Sequence[Column]) -> list[Column]:
    """Return the columns with numbers: new ones get numbers that no column had."""
    number = max((c.number for c in before.columns), default=0)
    found = []
    for column in columns:
        number += column.number == 0
        found.append(column if column.number else replace(column, number=number))
    return found


def _part(kind: str, table: TableId | None = None, *edits: ColumnEdit, **known: object) -> StatementPart:
    return part_of(BY_KIND[kind], table, *edits, **known)  # type: ignore[arg-type]  # as `part_of` takes them


class _Statement:
    def __init__(self, reader: DdlReader, server: ServerTables) -> None:
        self._in = reader
        self._server = server

    def parts(self) -> Iterator[StatementPart]:
        read = self._in
        if read.skip("ALTER", "TABLE"):
            yield from self._alter_table()
        elif read.skip("ALTER", "TYPE"):
            read.table()
            if not read.skip("ADD", "VALUE"):
                raise read.unknown()
            yield _part("add_label")
        elif read.skip("DROP", "TABLE"):
            yield from self._tables("drop_table")
        elif read.skip("TRUNCATE"):
            read.skip("TABLE")
            yield from self._tables("truncate")
        elif (read.word() == "VACUUM" and any(t.word == "FULL" for t in read.tokens)) or read.word() == "CLUSTER":
            yield from self._rewrite()
        elif read.word() == "CREATE":
            yield from self._create()
        elif read.word() in ("VACUUM", "ANALYZE", "REINDEX", "COMMENT") or (read.word(), read.word(1)) in (
            ("ALTER", "INDEX"),
            ("DROP", "STATISTICS"),
        ):
            yield _part("maintain")
        elif read.skip("DROP", "INDEX"):
            why = "nothing, unless it is the identity of a table's rows (REPLICA IDENTITY USING INDEX)"
            yield _part("maintain", effect="unknown", why=why)
        elif read.word() in ("GRANT", "REVOKE"):
            yield _part("owner")
        elif read.word() in ("ALTER", "DROP", "REFRESH") and self._is_other(1):
            if any(t.word == "CASCADE" for t in read.tokens):
                raise read.unknown()
            yield _part("other_object")
        else:
            raise read.unknown()

    def _is_other(self, at: int) -> bool:
        words = [self._in.word(at), self._in.word(at + 1)]
        return words[0] in _OTHERS or words in (["MATERIALIZED", "VIEW"], ["EVENT", "TRIGGER"], ["TEXT", "SEARCH"])

    # ── whole tables ────────────────────────────────────────────────────────────────────────────────────────

    def _table(self) -> TableId:
        return table_id(self._in.table(), list(self._server.tables))

    def _shape_of(self, table: TableId) -> Table | None:
        return self._server.tables.get(table)

    def _tables(self, kind: str) -> Iterator[StatementPart]:
        read = self._in
        read.skip("IF", "EXISTS")
        while True:
            read.skip("ONLY")
            table = self._table()
            if self._shape_of(table) is None:
                yield self._perhaps_a_part(kind, table)
            else:
                yield _part(kind, table, is_end=kind == "drop_table")
            if not read.skip_sign(","):
                break
        is_drop = kind == "drop_table"
        if is_drop and read.skip("CASCADE"):
            read.end()
            return
        if not is_drop and any(t.word == "CASCADE" for t in read.rest):
            raise read.unknown()  # tables that refer to it are emptied, too
        while read.skip("RESTRICT") or (
            not is_drop and (read.skip("RESTART", "IDENTITY") or read.skip("CONTINUE", "IDENTITY"))
        ):
            continue
        read.end()

    def _perhaps_a_part(self, kind: str, table: TableId) -> StatementPart:
        why = f"{_NO_TABLE}; if it is a partition of a captured table, that one is read again"
        return _part(kind, table, effect="unknown", why=why)

    def _rewrite(self) -> Iterator[StatementPart]:
        read = self._in
        read.at += 1
        if not read.is_at_end and read.tokens[read.at].text == "(":
            read.parentheses()
        while read.skip("FULL") or read.skip("VERBOSE") or read.skip("FREEZE") or read.skip("ANALYZE"):
            continue
        table = self._table()
        if read.skip("USING"):
            read.name()
        read.end()
        found = self._shape_of(table)
        if found is None:
            yield self._perhaps_a_part("rewrite", table)
        elif any(c.missing is not None for c in found.columns):
            yield _part("rewrite_constant", table)
        else:
            yield _part("rewrite", table)

    def _create(self) -> Iterator[StatementPart]:
        read = self._in
        read.skip("CREATE")
        read.skip("OR", "REPLACE")
        if read.skip("UNIQUE") or read.word() in ("INDEX", "STATISTICS"):
            yield _part("maintain")
            return
        for word in ("TEMPORARY", "TEMP", "UNLOGGED", "FOREIGN", "LOCAL", "GLOBAL"):
            if read.word() == word and "TABLE" in (read.word(1), read.word(2)):
                yield _part("create_other")
                return
        if not read.skip("TABLE"):
            if not (self._is_other(0) or self._is_other(1)):
                raise read.unknown()
            yield _part("other_object")
            return
        read.skip("IF", "NOT", "EXISTS")
        table = self._table()
        if read.skip("PARTITION", "OF"):
            yield _part("create_part", self._table())
        elif self._shape_of(table) is not None:
            raise read.unknown()
        elif self._server.selects(table):
            yield _part("create_table", table)
        else:
            yield _part("create_table", table, effect="not captured", why=_NO_TABLE)

    # ── ALTER TABLE ─────────────────────────────────────────────────────────────────────────────────────────

    def _alter_table(self) -> Iterator[StatementPart]:
        read = self._in
        read.skip("IF", "EXISTS")
        read.skip("ONLY")
        table = self._table()
        found = self._shape_of(table)
        if (read.word(), read.word(1)) in (("RENAME", "TO"), ("SET", "SCHEMA")):
            yield from self._move_parts(table)
            return
        if found is None:
            yield self._alter_other(table)
            return
        if read.skip("ATTACH", "PARTITION") or read.skip("DETACH", "PARTITION"):
            word = read.tokens[read.at - 2].word
            part = self._table()
            yield _part("attach_part" if word == "ATTACH" else "detach_part", table)
            if word == "DETACH" and self._server.selects(part):
                yield _part("detach_part", part, effect="added")
            return
        if read.skip("RENAME"):
            yield self._rename_column(found)
            return
        actions = read.parts()
        parts = [self._action(action, found) for action in actions]
        yield from self._with_key(found, _with_new_columns(parts, found))

    def _move_parts(self, table: TableId) -> Iterator[StatementPart]:
        read = self._in
        is_name = read.skip("RENAME", "TO")
        if not is_name:
            read.skip("SET", "SCHEMA")
        name = read.name()
        read.end()
        new = TableId(table.schema, name) if is_name else TableId(name, table.name)
        is_selected = self._server.selects(new)
        if self._shape_of(table) is not None:
            kind = "rename_table" if is_selected else "rename_outside"
            yield _part(kind, table, effect="kept", becomes=new if is_selected else None, is_end=True)
        elif not is_selected:
            yield _part("rename_table", table, effect="not captured", why=_NO_TABLE)
        if is_selected:
            yield _part("rename_table", new)

    def _alter_other(self, table: TableId) -> StatementPart:
        """Return the effect on a table that is not captured: it may be a partition of a captured one, or may be
        captured later."""
        words = {t.word for t in self._in.rest}
        if words & _OF_PARTITIONS:
            return self._perhaps_a_part("tablespace", table)
        return _part("constraint", table, effect="not captured", why=_NO_TABLE)

    def _rename_column(self, table: Table) -> StatementPart:
        read = self._in
        if read.skip("CONSTRAINT"):
            read.name()
            kind, edits = "same_key", ()
        else:
            read.skip("COLUMN")
            old = read.name()
            if not read.skip("TO"):
                raise read.unknown()
            return self._at_end(read, _part("rename_column", table.id, ColumnEdit("rename", old, becomes=read.name())))
        if not read.skip("TO"):
            raise read.unknown()
        read.name()
        return self._at_end(read, _part(kind, table.id, *edits))

    def _at_end(self, read: DdlReader, part: StatementPart) -> StatementPart:
        read.end()
        return part

    def _action(self, read: DdlReader, table: Table) -> StatementPart:
        """Read one action of ALTER TABLE, and return its effect."""
        for first, act in (("ADD", self._add), ("DROP", self._drop), ("ALTER", self._alter), ("SET", self._set)):
            if read.skip(first):
                return act(read, table)
        for words, kind in _ACTIONS:
            if read.skip(*words):
                return _part(kind, table.id)
        if read.skip("REPLICA", "IDENTITY"):
            return _part("lose_identity" if read.word() == "NOTHING" else "identity", table.id)
        raise read.unknown()

    def _set(self, read: DdlReader, table: Table) -> StatementPart:
        for words, kind in _SETTINGS:
            if read.skip(*words):
                return _part(kind, table.id)
        if read.skip_sign("("):
            return _part("table_settings", table.id)
        raise read.unknown()

    def _add(self, read: DdlReader, table: Table) -> StatementPart:
        if read.skip("CONSTRAINT"):
            read.name()
        if read.word() == "PRIMARY":
            read.skip("PRIMARY", "KEY")
            if read.skip("USING", "INDEX"):
                raise read.unknown()  # the statement does not name the index's columns
            return _part("change_key", table.id, ColumnEdit("key", key=read.column_list()))
        if read.word() in ("CHECK", "FOREIGN", "UNIQUE", "EXCLUDE", "NOT"):
            return _part("constraint", table.id)
        read.skip("COLUMN")
        is_optional = read.skip("IF", "NOT", "EXISTS")
        name = read.name()
        if is_optional and any(c.name == name for c in table.columns):
            return _part("add_null", table.id, why="nothing: the column exists already")
        return self._add_column(read, table, name, is_optional)

    def _add_column(self, read: DdlReader, table: Table, name: str, is_optional: bool) -> StatementPart:
        text = self._type(read)
        begin = read.at
        kind = self._definition(read, counted=text in _COUNTED)
        if kind == "add_constant" and has_unkept_constant(text, read.tokens[begin : read.at]):
            kind = "add_unkept"
        missing = _SOME_VALUE if kind == "add_constant" else None
        if kind == "add_virtual" or (kind == "add_stored" and self._server.version < _STORED_SINCE):
            return _part(kind, table.id, effect="nothing", why="nothing: the server does not publish the column")
        edit = ColumnEdit("add", name, _COUNTED.get(text, text), missing=missing, is_optional=is_optional)
        return _part(kind, table.id, edit, effect="read again" if kind == "add_stored" else None)

    def _definition(self, read: DdlReader, *, counted: bool) -> str:
        """Read what follows an added column's type, and return the rule for the column."""
        kind = "add_counted" if counted else "add_null"
        while not read.is_at_end:
            if read.skip("DEFAULT"):
                begin = read.at
                while not read.is_at_end and (read.at == begin or not self._ends_default(read)):
                    if read.tokens[read.at].text == "(":
                        read.parentheses()
                    else:
                        read.at += 1
                kind = default_kind(read.tokens[begin : read.at])
            elif read.skip("GENERATED"):
                kind = self._generated_kind(read)
            elif read.word() == "PRIMARY":
                raise read.unknown()
            elif read.tokens[read.at].text == "(":
                read.parentheses()
            elif read.word() or read.tokens[read.at].kind in ("quoted", "sign"):
                read.at += 1
            else:
                raise read.unknown()
        return kind

    def _ends_default(self, read: DdlReader) -> bool:
        return read.word() in _CONSTRAINTS and not (read.word() == "NULL" and read.tokens[read.at - 1].text == "::")

    def _generated_kind(self, read: DdlReader) -> str:
        if not (read.skip("ALWAYS") or read.skip("BY", "DEFAULT")) or not read.skip("AS"):
            raise read.unknown()
        if read.skip("IDENTITY"):
            return "add_counted"
        read.parentheses()
        if read.skip("STORED"):
            return "add_stored"
        read.skip("VIRTUAL")
        return "add_virtual"

    def _type(self, read: DdlReader) -> str:
        """Read a type, and return its text."""
        begin = read.at
        read.name()
        while read.skip_sign("."):
            read.name()
        while not read.is_at_end:
            if read.tokens[read.at].text in ("(", "["):
                if read.tokens[read.at].text == "(":
                    read.parentheses()
                    continue
                read.at += 1
                if not read.skip_sign("]"):
                    raise read.unknown()
            elif read.word() in _TYPE_WORDS:
                read.at += 1
            else:
                break
        if not read.is_at_end and read.word() not in _CONSTRAINTS:
            raise read.unknown()
        tokens = list(read.tokens[begin : read.at])
        if [t.name for t in tokens[:2]] == ["pg_catalog", ""]:
            tokens = tokens[2:]
        return text_of_tokens(tokens).lower()

    def _drop(self, read: DdlReader, table: Table) -> StatementPart:
        if read.skip("CONSTRAINT"):
            read.skip("IF", "EXISTS")
            name = read.name()
            read.skip("RESTRICT") or read.skip("CASCADE")
            read.end()
            if name == f"{table.id.name}_pkey" and table.key:
                return _part("lose_key", table.id, ColumnEdit("key"))
            why = f"nothing, unless {name} is the primary key of the table or the identity of its rows"
            return _part("constraint", table.id, effect="unknown", why=why)
        read.skip("COLUMN")
        is_optional = read.skip("IF", "EXISTS")
        name = read.name()
        read.skip("RESTRICT") or read.skip("CASCADE")
        read.end()
        edit = ColumnEdit("drop", name, is_optional=is_optional)
        return _part("lose_key" if name in table.key else "drop_column", table.id, edit)

    def _alter(self, read: DdlReader, table: Table) -> StatementPart:
        if read.skip("CONSTRAINT"):
            return _part("constraint", table.id)
        read.skip("COLUMN")
        name = read.name()
        column = next((c for c in table.columns if c.name == name), None)
        if read.skip("SET", "DATA", "TYPE") or read.skip("TYPE"):
            return self._retype(read, table, name, column)
        is_old = self._server.version < _STORED_SINCE
        if read.skip("SET", "EXPRESSION"):
            if column is None:
                return _part("set_expression", table.id, effect="nothing", why="nothing: the column is not published")
            return _part("set_expression", table.id, effect="read again")
        if read.skip("DROP", "EXPRESSION"):
            if is_old:
                raise read.unknown()  # a column appears whose type is not in the statement
            return _part("drop_expression", table.id, effect="nothing", why="nothing")
        for words, kind in _COLUMN_ACTIONS:
            if read.skip(*words):
                return _part(kind, table.id)
        if read.skip("SET") and read.skip_sign("("):
            return _part("column_storage", table.id)
        raise read.unknown()

    def _retype(self, read: DdlReader, table: Table, name: str, column: Column | None) -> StatementPart:
        text = self._type(read)
        if read.skip("COLLATE"):
            read.table()
        edit = ColumnEdit("retype", name, text)
        if read.skip("USING"):
            if not _is_plain_cast(read.rest, name, text):
                return _part("retype_values", table.id, edit)
        else:
            read.end()
        if column is None:
            raise read.unknown()
        return _part(retype_kind(column.type.source, text), table.id, edit)

    def _with_key(self, table: Table, parts: Sequence[StatementPart]) -> Iterator[StatementPart]:
        """Return the parts, with the rule for their combined effect on the key."""
        kinds = [part.rule.kind for part in parts]
        for part in parts:
            if part.rule.kind == "lose_key" and "change_key" in kinds:
                yield _part("drop_column", table.id, *(e for e in part.edits if e.what == "drop"))
            elif part.rule.kind == "lose_key" and table.identity is Identity.FULL:
                yield _part("lose_key", table.id, *part.edits, effect="unknown", why=_WITHOUT_KEY)
            elif part.rule.kind == "change_key" and table.identity is Identity.FULL:
                yield _part("double_key", table.id, *part.edits)
            elif part.rule.kind == "change_key" and table.key and "lose_key" not in kinds:
                raise self._in.unknown()  # a table has one primary key
            else:
                yield part


def _with_new_columns(parts: Sequence[StatementPart], table: Table) -> list[StatementPart]:
    """Return the parts; if a column is dropped and added again in one statement, the answer for its drop is "depends".

    The log may not show which of the two columns a row has.
    """
    dropped = {e.column for part in parts for e in part.edits if e.what == "drop"}
    return [
        _part("drop_column", table.id, *part.edits, effect="depends")
        if any(e.what == "add" and e.column in dropped for e in part.edits) and part.effect == "nothing"
        else part
        for part in parts
    ]


def _is_plain_cast(tokens: Sequence[DdlToken], name: str, text: str) -> bool:
    """Whether an expression is the column itself, or the column as the new type."""
    if not tokens or tokens[0].name != name or tokens[0].kind not in ("word", "quoted"):
        return False
    rest = tokens[1:]
    return not rest or (rest[0].text == "::" and text_of_tokens(rest[1:]).lower() == text)


_ACTIONS = (
    (("ENABLE", "ROW"), "row_security"),
    (("DISABLE", "ROW"), "row_security"),
    (("FORCE", "ROW"), "row_security"),
    (("NO", "FORCE"), "row_security"),
    (("ENABLE",), "triggers"),
    (("DISABLE",), "triggers"),
    (("VALIDATE", "CONSTRAINT"), "constraint"),
    (("CLUSTER", "ON"), "table_settings"),
    (("RESET",), "table_settings"),
    (("INHERIT",), "inherit"),
    (("NO", "INHERIT"), "inherit"),
    (("OF",), "inherit"),
    (("NOT", "OF"), "inherit"),
    (("OWNER", "TO"), "owner"),
)
_SETTINGS = (
    (("WITHOUT", "CLUSTER"), "table_settings"),
    (("WITHOUT", "OIDS"), "table_settings"),
    (("TABLESPACE",), "tablespace"),
    (("ACCESS", "METHOD"), "access_method"),
    (("UNLOGGED",), "unlogged"),
)
_COLUMN_ACTIONS = (
    (("SET", "DEFAULT"), "column_default"),
    (("DROP", "DEFAULT"), "column_default"),
    (("SET", "NOT", "NULL"), "column_default"),
    (("DROP", "NOT", "NULL"), "column_default"),
    (("ADD", "GENERATED"), "column_identity"),
    (("SET", "GENERATED"), "column_identity"),
    (("RESTART",), "column_identity"),
    (("DROP", "IDENTITY"), "column_identity"),
    (("SET", "STATISTICS"), "column_storage"),
    (("SET", "STORAGE"), "column_storage"),
    (("SET", "COMPRESSION"), "column_storage"),
    (("RESET",), "column_storage"),
)
