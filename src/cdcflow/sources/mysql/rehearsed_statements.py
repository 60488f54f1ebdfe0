"""Parses statements of MySQL and MariaDB before they are executed: which rules of `statement_rules` apply where. Pure.

The parser that also reads the binary log decides, clause by clause, whether values change (`statements`, `alters`).
This module adds the columns that a clause names, and an error for a clause that has no rule: the capture reads a table
again if it is not sure, but a rehearsal does not guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cdcflow.model.table import Column, Table, TableId
from cdcflow.sources.engine.statement_rules import ColumnEdit, StatementPart, part_of, unknown_statement
from cdcflow.sources.mysql.alters import alter_effects, split_clauses
from cdcflow.sources.mysql.events import Query
from cdcflow.sources.mysql.gtids import Flavor
from cdcflow.sources.mysql.sql import SqlToken, behind_if, name_at, table_at, tokens_of, word_at
from cdcflow.sources.mysql.statement_rules import BY_KIND
from cdcflow.sources.mysql.statements import (
    Created,
    Emptied,
    OtherDdl,
    PartsChanged,
    Renamed,
    SchemaDropped,
    Several,
    Statement,
    Versioned,
    statement_of,
)
from cdcflow.sources.mysql.table_names import TableNames
from cdcflow.sources.mysql.tables import column_numbers

_NO_TABLE = "the settings capture no table of this name"
_NOT_UNIQUE = "it adds no unique key and drops no index"
_OTHERS = {
    ("CREATE", "INDEX"): "create_index",
    ("DROP", "INDEX"): "create_index",
    **{(verb, "VIEW"): "view" for verb in ("CREATE", "ALTER", "DROP")},
    **{(verb, "SEQUENCE"): "sequence" for verb in ("CREATE", "ALTER", "DROP")},
    **{
        (verb, word): "routine"
        for verb in ("CREATE", "ALTER", "DROP")
        for word in ("TRIGGER", "EVENT", "PROCEDURE", "FUNCTION", "PACKAGE")
    },
    **{(verb, word): "users" for verb in ("CREATE", "ALTER", "DROP", "RENAME") for word in ("USER", "ROLE", "SERVER")},
    **{(verb, "TABLESPACE"): "tablespace" for verb in ("CREATE", "ALTER", "DROP")},
}
_MAINTAIN = ("ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "FLUSH")
_BEFORE_OBJECT = ("OR", "REPLACE", "UNIQUE", "FULLTEXT", "SPATIAL", "ONLINE", "OFFLINE", "TEMPORARY", "AGGREGATE")
_INDEXES = ("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL")
_CONSTRAINTS = ("CONSTRAINT", "CHECK", "FOREIGN")
_PARTITION_VERBS = ("ADD", "ANALYZE", "CHECK", "COALESCE", "OPTIMIZE", "REBUILD", "REORGANIZE")
_OTHER_OPTIONS = ("UNION", "DATA", "SECONDARY_ENGINE", "TABLESPACE", "INSERT_METHOD", "CONNECTION", "DELAY_KEY_WRITE")


@dataclass(frozen=True, slots=True)
class StatementTables:
    """The tables that a statement is rehearsed against: the captured ones, which ones the settings select, the server's
    kind, and how it compares names."""

    tables: Mapping[TableId, Table]
    selects: Callable[[TableId], bool]
    flavor: Flavor
    names: TableNames


def statement_parts(text: str, server: StatementTables) -> list[StatementPart]:
    """Return the effects of one statement.

    Raises:
        ConfigurationError: cdcflow does not know it, or it cannot fit the tables.
    """
    return list(_Rehearsed(text, server).parts())


def number_by_name(before: Table, columns: Sequence[Column]) -> list[Column]:
    """Return the columns with numbers, which depend on their names."""
    numbers = column_numbers([c.name for c in columns])
    return [replace(column, number=number) for column, number in zip(columns, numbers, strict=True)]


def _part(kind: str, table: TableId | None = None, *edits: ColumnEdit, **known: object) -> StatementPart:
    return part_of(BY_KIND[kind], table, *edits, **known)  # type: ignore[arg-type]  # as `part_of` takes them


class _Rehearsed:
    def __init__(self, text: str, server: StatementTables) -> None:
        self._text = text
        self._server = server
        self._tokens = list(tokens_of(text, flavor=server.flavor))
        self._words = [t.word for t in self._tokens]

    def unknown(self, what: str = "") -> Exception:
        return unknown_statement(f"{self._text[:200]!r}: cdcflow does not know {what or 'this statement'}")

    def parts(self) -> Iterator[StatementPart]:
        if self._words[:1] and self._words[0] in _MAINTAIN:
            yield _part("maintain")
            return
        if self._words[:1] == ["GRANT"] or self._words[:1] == ["REVOKE"]:
            yield _part("users")
            return
        if self._words[:2] in (["CREATE", "TEMPORARY"], ["DROP", "TEMPORARY"]):
            yield _part("temporary")
            return
        if (kind := self._object()) is not None:
            is_plain = kind == "create_index" and self._words[0] == "CREATE" and "UNIQUE" not in self._words
            yield _part(kind, effect="nothing", why=_NOT_UNIQUE) if is_plain else _part(kind)
            return
        is_alter = self._words[:1] == ["ALTER"] and "TABLE" in self._words[1:4]
        yield from self._alter() if is_alter else self._whole(self._statement())

    def _statement(self) -> Statement:
        return statement_of(Query("", self._text, flavor=self._server.flavor))

    def _object(self) -> str | None:
        """Return the rule for an object that is not a table; None if the statement names no such object."""
        if not self._words:
            raise self.unknown()
        at = 1
        while word_at(self._tokens, at) in _BEFORE_OBJECT:
            at += 1
        if word_at(self._tokens, at) in ("DEFINER", "ALGORITHM", "SQL"):
            known = [w for w in self._words if (self._words[0], w) in _OTHERS]
            return _OTHERS[self._words[0], known[0]] if known else None
        return _OTHERS.get((self._words[0], word_at(self._tokens, at)))

    # ── whole tables ────────────────────────────────────────────────────────────────────────────────────────

    def _whole(self, statement: Statement) -> Iterator[StatementPart]:
        match statement:
            case Emptied(tables):
                if not tables:
                    raise self.unknown("its tables")
                if self._words[:1] == ["CREATE"]:
                    raise self.unknown("the columns of a table that replaces another")
                is_end = statement.dropped
                yield from (self._of("drop_table", self._table_of(table), is_end=is_end) for table in tables)
            case SchemaDropped(schema):
                tables = tuple(t for t in self._server.tables if t.schema == schema)
                yield from (_part("drop_table", table, is_end=True) for table in tables)
                if not tables:
                    yield _part("drop_table", effect="not captured", why="the settings capture no table of this schema")
            case Renamed(pairs):
                yield from self._rename_parts(pairs)
            case Created(table):
                table = self._table_of(table)
                if self._shape_of(table) is not None:
                    raise self.unknown(f"how to create {table}, which exists")
                yield self._newcomer("create_table", table)
            case Versioned(table):
                yield self._of("versioning", self._table_of(table))
            case _:
                raise self.unknown()

    def _table_of(self, table: TableId) -> TableId:
        """Return the table that a name means. A name without a schema means the captured table of that name, if one
        exists."""
        if table.schema:
            same = [t for t in self._server.tables if self._server.names.key(t) == self._server.names.key(table)]
            return same[0] if same else table
        found = [t for t in self._server.tables if t.name == table.name]
        if len(found) != 1:
            raise unknown_statement(f"{table.name} may be a table of any schema", "write the name with its schema")
        return found[0]

    def _shape_of(self, table: TableId) -> Table | None:
        return self._server.tables.get(table)

    def _of(self, kind: str, table: TableId, *, is_end: bool = False) -> StatementPart:
        if self._shape_of(table) is None:
            return _part(kind, table, effect="not captured", why=_NO_TABLE)
        return _part(kind, table, is_end=is_end)

    def _newcomer(self, kind: str, table: TableId) -> StatementPart:
        if self._server.selects(table):
            return _part(kind, table, effect="added")
        return _part(kind, table, effect="not captured", why=_NO_TABLE)

    def _rename_parts(self, pairs: Sequence[tuple[TableId, TableId]]) -> Iterator[StatementPart]:
        if len(pairs) != 1:
            raise self.unknown("what several renames do together")
        (old, new) = (self._table_of(pairs[0][0]), pairs[0][1])
        new = TableId(new.schema or old.schema, new.name)
        if self._shape_of(new) is not None or any(_is_tool(t) for t in (old, new)):
            raise self.unknown("which rows a table has that takes the name of another table")
        if not old.name.isascii():
            raise self.unknown("whether MariaDB leaves a table of this name")
        is_selected = self._server.selects(new)
        if self._shape_of(old) is not None:
            yield _part("rename_table", old, becomes=new if is_selected else None, is_end=True)
        elif not is_selected:
            yield _part("rename_table", old, effect="not captured", why=_NO_TABLE)
        if is_selected:
            yield _part("rename_table", new, effect="added", why="its rows are read under its new name")

    # ── ALTER TABLE ─────────────────────────────────────────────────────────────────────────────────────────

    def _alter(self) -> Iterator[StatementPart]:
        statement = self._statement()
        at = self._words.index("TABLE") + 1
        named, at = table_at(self._tokens, behind_if(self._tokens, at), "")
        if named is None:
            raise self.unknown("its table")
        table = self._table_of(named)
        found = self._shape_of(table)
        if found is None:
            if isinstance(statement, Renamed | Several):
                raise self.unknown(f"{table}, which is not captured, and its new name")
            yield _part("options", table, effect="not captured", why=_NO_TABLE)
            return
        if isinstance(statement, PartsChanged):
            yield from self._partition(table, statement)
            return
        if isinstance(statement, Renamed):
            yield from self._rename_parts(statement.pairs)
            return
        if isinstance(statement, Several):
            raise self.unknown("a rename or a history together with other clauses")
        if isinstance(statement, Versioned):
            yield _part("versioning", table)
            return
        assert isinstance(statement, OtherDdl)  # noqa: S101  what else ALTER TABLE is
        if "IGNORE" in self._words[1:3]:
            yield _part("ignore", table)
        parts = [part for clause in split_clauses(self._tokens[at:]) for part in self._clause(clause, found)]
        kinds = {part.rule.kind for part in parts}
        has_key = any(e.what == "key" and e.key for part in parts for e in part.edits)
        if "change_key" in kinds and not has_key:
            parts = [_part("lose_key", table, *p.edits) if p.rule.kind == "change_key" else p for p in parts]
        yield from parts

    def _partition(self, table: TableId, statement: PartsChanged) -> Iterator[StatementPart]:
        if statement.what == "EXCHANGE PARTITION" and statement.other is not None:
            yield _part("exchange_part", table)
            yield self._of("exchange_part", self._table_of(statement.other))
        elif statement.what in ("TRUNCATE PARTITION", "DROP PARTITION"):
            yield _part("drop_part", table)
        else:
            raise self.unknown()

    def _clause(self, clause: Sequence[SqlToken], table: Table) -> Iterator[StatementPart]:
        """Return the effects of one clause. `alter_effects` decides whether values change; the rule must agree
        with it."""
        words = [t.word for t in clause]
        effects = alter_effects(clause)
        parts = list(self._known_clause(clause, words, table))
        if effects.fills and all(part.effect == "nothing" for part in parts):
            raise self.unknown(f"the clause {' '.join(t.name for t in clause)[:80]!r}")
        yield from parts

    def _known_clause(self, clause: Sequence[SqlToken], words: list[str], table: Table) -> Iterator[StatementPart]:
        head, second = (*words, "", "")[:2]
        match head:
            case "ADD" if second == "PARTITION":
                yield _part("partition", table.id)
            case "ADD":
                yield from self._add(clause, table)
            case "DROP" if second == "PRIMARY":
                yield _part("change_key", table.id, ColumnEdit("key"))
            case "DROP" if second in ("SYSTEM", "PERIOD"):
                yield _part("no_versioning", table.id)
            case "DROP" if second in _INDEXES:
                yield self._index_part(clause, table)
            case "DROP" if second in _CONSTRAINTS:
                yield self._constraint_part(clause, table)
            case "DROP":
                at = 1 + (second == "COLUMN")
                is_optional = word_at(clause, at) == "IF"
                name = self._column(table, name_at(clause, behind_if(clause, at)))
                yield _part("drop_column", table.id, ColumnEdit("drop", name, is_optional=is_optional))
            case "RENAME" if second in _INDEXES:
                yield self._index_part(clause, table)
            case "RENAME" if second == "COLUMN":
                at = behind_if(clause, 2)
                if word_at(clause, at + 1) != "TO":
                    raise self.unknown()
                name = self._column(table, name_at(clause, at))
                yield _part("rename_column", table.id, ColumnEdit("rename", name, becomes=name_at(clause, at + 2)))
            case "MODIFY" | "CHANGE":
                yield self._redefinition_part(clause, words, table)
            case "ALTER" if second in _INDEXES:
                yield self._index_part(clause, table)
            case "ALTER" if second in _CONSTRAINTS:
                yield _part("constraint", table.id)
            case "ALTER":
                yield _part("column_default", table.id)
            case "CONVERT" | "CHARACTER" | "COLLATE" | "CHARSET":
                yield _part("recode_table", table.id)
            case "DEFAULT" if second in ("CHARACTER", "COLLATE", "CHARSET"):
                yield _part("recode_table", table.id)
            case "PARTITION" | "REMOVE":
                yield _part("partition", table.id)
            case "REPAIR" if second == "PARTITION":
                yield _part("repair_part", table.id)
            case _ if head in _PARTITION_VERBS and second == "PARTITION":
                yield _part("partition", table.id)
            case "ENABLE" | "DISABLE" if second == "KEYS":
                yield self._index_part(clause, table)
            case "ENGINE":
                kind = "lose_transactions" if alter_effects(clause).fills else "engine"
                yield _part(kind, table.id)
            case "ORDER" | "FORCE":
                yield _part("engine", table.id)
            case _ if head in _OTHER_OPTIONS:
                yield _part("other_option", table.id)
            case _ if not alter_effects(clause).fills:
                yield _part("options", table.id)
            case _:
                raise self.unknown(f"the clause {' '.join(t.name for t in clause)[:80]!r}")

    def _index_part(self, clause: Sequence[SqlToken], table: Table) -> StatementPart:
        """Return the effect of a clause about an index. The shape does not show whether the key is a primary one."""
        if alter_effects(clause).keys:
            return _part("index", table.id)
        return _part("index", table.id, effect="nothing", why=_NOT_UNIQUE)

    def _constraint_part(self, clause: Sequence[SqlToken], table: Table) -> StatementPart:
        """Return the effect of a clause about a constraint, which may be a unique key."""
        return _part("index" if alter_effects(clause).keys else "constraint", table.id)

    def _add(self, clause: Sequence[SqlToken], table: Table) -> Iterator[StatementPart]:
        words = [t.word for t in clause]
        if "PRIMARY" in words and (words[1] in ("PRIMARY", "CONSTRAINT")):
            begin = next((n for n, t in enumerate(clause) if t.name == "(" and not t.is_name), len(clause))
            names = [self._column(table, t.name) for t in clause[begin:] if t.is_name and t.word not in ("ASC", "DESC")]
            if not names or any(t.name == "(" for t in clause[begin + 1 :]):
                raise self.unknown("the columns of the key")
            yield _part("change_key", table.id, ColumnEdit("key", key=tuple(names)))
        elif words[1] in _INDEXES:
            yield self._index_part(clause, table)
        elif words[1] in _CONSTRAINTS:
            yield self._constraint_part(clause, table)
        elif words[1] in ("SYSTEM", "PERIOD"):
            yield _part("versioning" if words[1] == "SYSTEM" else "no_versioning", table.id)
        else:
            at = behind_if(clause, 1 + (words[1] == "COLUMN"))
            is_optional = "IF" in words[1:3]
            if name_at(clause, at) == "(" and not clause[at].is_name:
                for one in split_clauses(clause[at + 1 : -1]):
                    yield self._add_column(one, table, is_optional)
            else:
                yield self._add_column(clause[at:], table, is_optional)

    def _add_column(self, definition: Sequence[SqlToken], table: Table, is_optional: bool) -> StatementPart:
        words = [t.word for t in definition]
        if words and words[0] in (*_INDEXES, *_CONSTRAINTS, "PRIMARY") and len(words) > 1:
            raise self.unknown("an index among added columns")
        name, text = self._column(table, name_at(definition, 0)), _type_text(definition[1:])
        edits = [ColumnEdit("add", name, text, is_optional=is_optional)]
        if "PRIMARY" in words:
            edits.append(ColumnEdit("key", key=(name,)))
        kind = "add_null"
        if alter_effects([SqlToken("ADD", "ADD", True), *definition]).fills:
            is_plain = text.startswith("timestamp") and not ({"DEFAULT", "NOT"} & set(words))
            kind = "add_computed" if "AS" in words else "add_timestamp" if is_plain else "add_filled"
        return _part(kind, table.id, *edits)

    def _redefinition_part(self, clause: Sequence[SqlToken], words: list[str], table: Table) -> StatementPart:
        at = behind_if(clause, 1 + (words[1] == "COLUMN"))
        name, becomes = name_at(clause, at), ""
        if words[0] == "CHANGE":
            at += 1
            becomes = name_at(clause, at)
        written = becomes or name
        column = self._column(table, name)
        text = _type_text(clause[at + 1 :])
        edits = [ColumnEdit("retype", column, text)]
        if written != column:
            edits.append(ColumnEdit("rename", column, becomes=written))
            return _part("rename_column", table.id, *edits)
        effects = alter_effects(clause)
        if effects.redefined:
            before = next((c.type.source for c in table.columns if c.name == column), "")
            if _is_narrower(before, text):
                return _part("modify", table.id, *edits)
            return _part("widen", table.id, *edits)
        is_recoded = {"CHARACTER", "COLLATE", "CHARSET"} & set(words)
        return _part("recode" if is_recoded else "modify", table.id, *edits)

    def _column(self, table: Table, name: str) -> str:
        """Return a column's name as the table has it: the server ignores case."""
        return next((c.name for c in table.columns if c.name.lower() == name.lower()), name)


_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")


def _is_narrower(before: str, after: str) -> bool:
    """Whether a type certainly cannot hold all values of another."""
    (old, size), (new, now) = _base(before), _base(after)
    if old in _INTEGERS and new in _INTEGERS:
        is_other_sign = ("unsigned" in before) != ("unsigned" in after)
        return is_other_sign or _INTEGERS.index(new) < _INTEGERS.index(old)
    return old != new or (old == "varchar" and now < size)


def _base(text: str) -> tuple[str, int]:
    name, _, rest = text.lower().partition("(")
    name = name.split()[0] if name.split() else ""
    number = rest.partition(")")[0]
    return {"integer": "int"}.get(name, name), int(number) if number.isdecimal() else 0


def _is_tool(table: TableId) -> bool:
    return table.name.startswith("_") and table.name.endswith(("_gho", "_ghc", "_del", "_new", "_old"))


def _type_text(definition: Sequence[SqlToken]) -> str:
    """Return the text of a type at the beginning of a column's definition."""
    words = [t.word for t in definition]
    if not words or not definition[0].is_name:
        return ""
    if words[0] == "SERIAL":
        return "bigint unsigned"
    text, at = definition[0].name.lower(), 1
    if words[:2] in (["DOUBLE", "PRECISION"], ["LONG", "VARCHAR"], ["CHARACTER", "VARYING"]):
        text, at = f"{text} {definition[1].name.lower()}", 2
    if name_at(definition, at) == "(" and not definition[at].is_name:
        is_labels = words[0] in ("ENUM", "SET")
        listed: list[str] = []
        at += 1
        while at < len(definition):
            token = definition[at]
            if not token.is_name and token.name == ")" and (not is_labels or len(listed) % 2):
                break
            is_label = is_labels and len(listed) % 2 == 0
            listed.append("'" + token.name.replace("'", "''") + "'" if is_label else token.name)
            at += 1
        text, at = f"{text}({''.join(listed)})", at + 1
    while word_at(definition, at) in ("UNSIGNED", "ZEROFILL", "SIGNED"):
        text, at = f"{text} {definition[at].name.lower()}", at + 1
    return text
