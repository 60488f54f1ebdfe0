"""Decides, for an ALTER TABLE, whether existing rows may have other values after it. Pure.

The binary log contains the statement, but not what it did to rows. A statement counts as filling (it may change
existing values) unless every one of its clauses is known to keep all values. An unknown clause counts as filling. Two
seemingly harmless clauses do count:

- DROP COLUMN. The binary log gives columns no number, so cdcflow derives one from the name, and a column that is added
  later under the name of a dropped one would show the dropped one's values. Rows that are read again after the DROP no
  longer have such a column. So nothing needs to be remembered across a restart.
- A character set that is named, even as the table's default. A later MODIFY that names none takes the default, and then
  it could not be determined whether it converted anything.

A column that is redefined fills unless it only became wider. That depends on its previous definition, which is not in
the text: `Redefined` holds what the text contains, and `widens` compares.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cdcflow.sources.mysql.sql import SqlToken, behind_if, name_at, word_at
from cdcflow.sources.mysql.types.charsets import charset_of
from cdcflow.sources.mysql.types.columns import BINARY_COLLATION, ServerColumn, TypeCode
from cdcflow.sources.mysql.types.numbers import INTEGER_BYTES

_INDEXES = frozenset(("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK", "CONSTRAINT"))
_CONDITIONS = frozenset(("UNIQUE", "CHECK", "CONSTRAINT", "FOREIGN", "PARTITION"))
_PARTITIONS = frozenset(("ADD", "ANALYZE", "CHECK", "COALESCE", "OPTIMIZE", "REBUILD", "REORGANIZE"))
_OPTIONS = frozenset(
    (
        *("ALGORITHM", "AUTOEXTEND_SIZE", "AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHECKSUM", "COMMENT", "COMPRESSION"),
        *("ENCRYPTED", "ENCRYPTION", "ENCRYPTION_KEY_ID", "FORCE", "KEY_BLOCK_SIZE", "LOCK", "MAX_ROWS", "MIN_ROWS"),
        *("NOWAIT", "PACK_KEYS", "PAGE_CHECKSUM", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "ROW_FORMAT"),
        *("STATS_AUTO_RECALC", "STATS_PERSISTENT", "STATS_SAMPLE_PAGES", "TRANSACTIONAL", "WAIT"),
    )
)
"""Table options that do not affect values; each is followed by one value, or by none."""
_ENGINES = frozenset(("INNODB", "ROCKSDB"))
_INTEGERS = {"TINYINT": 1, "SMALLINT": 2, "MEDIUMINT": 3, "INT": 4, "INTEGER": 4, "BIGINT": 8}
_PLAIN = frozenset(("NULL", "NOT", "DEFAULT", "COMMENT", "FIRST", "AFTER", "VISIBLE", "INVISIBLE", "SIGNED"))
"""Words of a column's definition that do not affect values. One value follows DEFAULT, COMMENT and AFTER."""


@dataclass(frozen=True, slots=True)
class Redefined:
    """A column that MODIFY or CHANGE redefines under its name, in words that need not change a value. `size`: the
    characters of a VARCHAR; 0 for an integer. `becomes` is the name as the statement writes it: in another case it may
    be a different name to readers of the log."""

    name: str
    kind: str
    size: int
    unsigned: bool
    nullable: bool
    becomes: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Altered:
    """The effect that ALTER TABLE may have on values.

    `fills`: it may change them. `redefined`: it may change the values of these columns, unless each only became wider.
    `defaults`: it changes the defaults of columns, which generated columns may use. `renamed`: the earlier and the new
    names of columns; if it renames any, it fills. `refuses`: the table may refuse rows that it accepted before. The
    statement fails if it finds such rows, but a tool that copies rows into an altered empty table skips them.
    `keys`: other columns may identify its rows, if it has no primary key. `engine`: the engine without transactions
    that the table gets; "": none.
    """

    fills: bool
    redefined: tuple[Redefined, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    refuses: bool = False
    defaults: bool = False
    keys: bool = False
    engine: str = ""


HARMLESS = Altered(fills=False)


def alter_effects(tokens: Sequence[SqlToken]) -> Altered:
    """Return the effects of the clauses of ALTER TABLE; `tokens` are those after the table's name."""
    redefined: list[Redefined] = []
    clauses = list(split_clauses(tokens))
    for clause in clauses:
        match _clause(clause):
            case True:
                return Altered(True, renamed=renamed_columns(clauses), engine=engine_in(tokens))
            case Redefined() as column:
                redefined.append(column)
    return Altered(
        False,
        tuple(redefined),
        refuses=any(map(_refuses, clauses)),
        defaults=any(map(_sets_default, clauses)),
        keys=any(map(_changes_keys, clauses)),
    )


def engine_in(tokens: Sequence[SqlToken]) -> str:
    """Return the engine without transactions that a table gets, by the options outside of parentheses; "": none."""
    found = ""
    depth = 0
    for at, token in enumerate(tokens):
        if not token.is_name:
            depth += (token.name == "(") - (token.name == ")")
        elif depth == 0 and token.word == "ENGINE":
            found = name_at(tokens, at + 1 + (name_at(tokens, at + 1) == "="))
    return "" if found.upper() in _ENGINES else found


def renamed_columns(clauses: Iterable[Sequence[SqlToken]]) -> tuple[tuple[str, str], ...]:
    """Return the earlier and the new names of the columns that these clauses rename."""
    found = []
    for clause in clauses:
        at = _behind_options(clause, 0)
        head, is_named = word_at(clause, at), word_at(clause, at + 1) == "COLUMN"
        if head == "CHANGE":
            at = behind_if(clause, at + 1 + is_named)
            found.append((name_at(clause, at), name_at(clause, at + 1)))
        elif head == "RENAME" and is_named:
            at = behind_if(clause, at + 2)
            found.append((name_at(clause, at), name_at(clause, at + 2)))
    return tuple((earlier, new) for earlier, new in found if earlier and new and earlier.lower() != new.lower())


def widens(column: Redefined, before: ServerColumn, now: ServerColumn) -> bool:
    """Whether no value can have changed when `before` became `column`. `now` is the column in the current catalog.

    A VARCHAR without a character set in the text takes the table's default, which only the catalog knows. The default
    may have changed again since; but any statement that changes it names a character set, and so counts as filling.
    """
    if before.nullable and not column.nullable:
        return False
    if column.kind in _INTEGERS:
        size = INTEGER_BYTES.get(TypeCode(before.type_code))
        return size is not None and size <= _INTEGERS[column.kind] and before.unsigned == column.unsigned
    texts = (before, now)
    if any(c.type_code != TypeCode.VARCHAR or c.collation in (None, BINARY_COLLATION) for c in texts):
        return False
    old, new = (charset_of(c.collation or 0) for c in texts)
    return old.name == new.name and before.metadata // old.bytes_max <= column.size


def split_clauses(tokens: Sequence[SqlToken]) -> Iterator[Sequence[SqlToken]]:
    """Split tokens at commas, except commas in parentheses."""
    begin = depth = 0
    for at, token in enumerate(tokens):
        if token.is_name:
            continue
        depth += (token.name == "(") - (token.name == ")")
        if token.name == "," and depth == 0:
            yield tokens[begin:at]
            begin = at + 1
    yield tokens[begin:]


def _clause(clause: Sequence[SqlToken]) -> bool | Redefined:
    """Return whether a clause fills, or the column that it redefines, which must still be compared."""
    at = _behind_options(clause, 0)
    if at == len(clause):
        return False
    head, second = word_at(clause, at), word_at(clause, at + 1)
    match head:
        case "PARTITION" | "ORDER" | "WITH" | "WITHOUT":
            return second not in ("BY", "VALIDATION")
        case "REMOVE":
            return second != "PARTITIONING"
        case "ENABLE" | "DISABLE":
            return second != "KEYS"
        case "ALTER":
            return False  # a default for future rows, an index, a constraint
        case "RENAME":
            return second not in ("INDEX", "KEY", "CONSTRAINT")
        case "DROP":
            return second not in _INDEXES
        case "ADD" if second != "PARTITION":
            return _add_fills(clause[at + 1 :])
        case "MODIFY" | "CHANGE":
            return _redefinition(clause, at)
    return head not in _PARTITIONS or second != "PARTITION"


def _refuses(clause: Sequence[SqlToken]) -> bool:
    """Whether a clause may add a condition that rows have to meet."""
    words = {t.word for t in clause[_behind_options(clause, 0) :]}
    return words.isdisjoint(("DROP", "RENAME")) and not words.isdisjoint(_CONDITIONS)


def _changes_keys(clause: Sequence[SqlToken]) -> bool:
    """Whether a clause may add or remove a unique key. `DROP INDEX` names no kind of index, and may also remove the
    primary key."""
    at = _behind_options(clause, 0)
    match word_at(clause, at):
        case "DROP":
            return word_at(clause, at + 1) in ("INDEX", "KEY", "CONSTRAINT")
        case "ADD":
            return any(token.word == "UNIQUE" for token in clause[at:])
    return False


def _sets_default(clause: Sequence[SqlToken]) -> bool:
    """Whether a clause is ALTER COLUMN with SET DEFAULT or DROP DEFAULT."""
    at = _behind_options(clause, 0)
    return word_at(clause, at) == "ALTER" and any(t.word == "DEFAULT" for t in clause[at:])


def _behind_options(clause: Sequence[SqlToken], at: int) -> int:
    """Return the index of the first token, from `at`, that does not belong to a harmless option."""
    while at < len(clause):
        if clause[at].word == "ENGINE":
            value = at + 1 + (name_at(clause, at + 1) == "=")
            if name_at(clause, value).upper() not in _ENGINES:
                return at
            at = value + 1
        elif clause[at].word in _OPTIONS:
            has_sign = name_at(clause, at + 1) == "="
            has_value = clause[at].word not in ("FORCE", "NOWAIT")
            at += 1 + has_sign + has_value
        else:
            return at
    return len(clause)


def _add_fills(rest: Sequence[SqlToken]) -> bool:
    if any(t.word == "PRIMARY" for t in rest):  # a reserved word, so it means a key at any position
        return True
    first = word_at(rest, 0)
    if first in _INDEXES:
        return False
    at = behind_if(rest, 1 if first == "COLUMN" else 0)
    if name_at(rest, at) == "(" and not rest[at].is_name:
        # The closing parenthesis ends the clause, and does not affect the last column.
        return any(_comes_filled(part) for part in split_clauses(rest[at + 1 :]))
    return _comes_filled(rest[at:])


def _comes_filled(definition: Sequence[SqlToken]) -> bool:
    """Whether an added column has anything but NULL in the existing rows."""
    words = [t.word for t in definition]
    if not words or words[0] in ("SYSTEM", "PERIOD"):
        return True
    if {"AUTO_INCREMENT", "SERIAL", "AS"} & set(words[1:]):
        return True
    pairs = list(itertools.pairwise([*words, ""]))
    if ("NOT", "NULL") in pairs or any(first == "DEFAULT" and second != "NULL" for first, second in pairs):
        return True
    if any(second == "KEY" and first != "UNIQUE" for first, second in pairs[1:]):
        return True
    # Without explicit_defaults_for_timestamp, a TIMESTAMP that is not declared NULL has an implicit default.
    says_null = any(second == "NULL" and first not in ("NOT", "DEFAULT") for first, second in pairs)
    return word_at(definition, 1) == "TIMESTAMP" and not says_null


def _redefinition(clause: Sequence[SqlToken], at: int) -> bool | Redefined:
    """Return the new definition of a column in a MODIFY or CHANGE.

    True if it cannot be compared with the old definition: the statement is then treated as one that changes values.
    """
    is_change = clause[at].word == "CHANGE"
    at = behind_if(clause, at + 1 + (word_at(clause, at + 1) == "COLUMN"))
    name = name_at(clause, at)
    if is_change:
        at += 1
        if name_at(clause, at).lower() != name.lower():
            return True
    becomes = name_at(clause, at)
    kind, at = word_at(clause, at + 1), at + 2
    if kind not in _INTEGERS and kind != "VARCHAR":
        return True
    size = 0
    if name_at(clause, at) == "(" and name_at(clause, at + 2) == ")":
        size, at = int(word_at(clause, at + 1)) if word_at(clause, at + 1).isdecimal() else 0, at + 3
    words = [t.word for t in clause[at:]]
    unsigned = word_at(clause, at) == "UNSIGNED"
    rest = at + unsigned
    while rest < len(clause):
        word = clause[rest].word
        if word not in _PLAIN:
            return True
        rest += 1 + (word in ("DEFAULT", "COMMENT", "AFTER"))
    nullable = ("NOT", "NULL") not in itertools.pairwise(words)
    return Redefined(name, kind, 0 if kind in _INTEGERS else size, unsigned, nullable, becomes)
