"""The clauses of ALTER TABLE on MySQL and MariaDB, in any combination, and in every form that their grammar has.

    combined t0  head/double/nowait  add/c7/null~back~m  drop/c1~later
                 the statement       a clause            another: of several names and marks

`head`: how the table is named and what is around its name. Marks of a clause, after `~`: how its names are quoted,
which comment it is in, or next to it. A clause that the server ignores, in a comment for others, must change nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.ddlfuzz.kinds import fresh_name, kind, one_table
from tests.ddlfuzz.model import Column, Model, Server, Table

FORMS = {"none": "RENAME {}", "to": "RENAME TO {}", "as": "RENAME AS {}", "sign": "RENAME = {}"}
OLD_ROWS = {"null": "", "filled": "DEFAULT 7", "required": "NOT NULL", "comment": "COMMENT 'NOT NULL, DROP c1'"}
QUOTES = {"none": "{}", "back": "`{}`", "double": '"{}"'}
QUALIFIED = ("qualified", "qualified-back", "qualified-double", "apart")
"""Of a table's name only; the last has spaces around its dot."""
SIZES = (2, 2, 2, 3, 3, 4, 4, 5, 6)

GHOST = ", RENAME TO hidden_ghost"
"""In a comment that the server ignores. A table of that name would be captured no more."""
BOTH: dict[str, str] = {
    "old": "/*!50001 {} */",
    "bare": "/*! {} */",
    "nested": "/*!50001 {} /* , */ */",
    "plain": "/* RENAME TO hidden_ghost */ {}",
    "within": "{within}",
    "dashes": "-- it's `x\n{}",
    "hash": "# DROP COLUMN body\n{}",
    "after": "{} -- , RENAME TO hidden_ghost\n",
    "newest": f"{{}} /*M!999999 {GHOST} */",
    "far": f"{{}} /*!999999 {GHOST} */",
    "later": f"{{}} /*!99999 {GHOST} */",
}
COMMENTS: dict[Server, dict[str, str]] = {
    "mysql": {
        **BOTH,
        "six": "/*!080000 {} */",
        "foreign": f"{{}} /*M! {GHOST} */",
        "tens": f"{{}} /*!100100 {GHOST} */",
    },
    "mariadb": {
        **BOTH,
        "m": "/*M! {} */",
        "m-old": "/*M!50701 {} */",
        "m-tens": "/*M!100000 {} */",
        "six": "/*!100100 {} */",
        "foreign": f"{{}} /*!50701 {GHOST} */",
        "foreign-six": f"{{}} /*!080000 {GHOST} */",
    },
}
"""A clause in a comment, or with one, by the name of its mark. MariaDB ignores the versions 50700 to 99999 of MySQL."""
HEADS: dict[Server, dict[str, str]] = {
    "mysql": {"none": "ALTER TABLE {}"},
    "mariadb": {
        "none": "ALTER TABLE {}",
        "online": "ALTER ONLINE TABLE {}",
        "ignore": "ALTER IGNORE TABLE {}",
        "exists": "ALTER TABLE IF EXISTS {}",
        "nowait": "ALTER TABLE {} NOWAIT",
        "wait": "ALTER TABLE IF EXISTS {} WAIT 3",
        "set": "SET STATEMENT lock_wait_timeout = 4 FOR ALTER TABLE {}",
        "dot": "ALTER TABLE .{}",
    },
}
"""The last one's name has no schema."""
EVERYWHERE = (
    "STATS_PERSISTENT = 1",
    "STATS_AUTO_RECALC DEFAULT",
    "STATS_SAMPLE_PAGES = 20",
    "MAX_ROWS = 100000",
    "MIN_ROWS 5",
    "AVG_ROW_LENGTH = 99",
    "CHECKSUM = 1",
    "PACK_KEYS = DEFAULT",
    "KEY_BLOCK_SIZE = 0",
)
OPTIONS: dict[Server, tuple[str, ...]] = {
    "mysql": (
        *EVERYWHERE,
        "COMPRESSION = ''",
        "ENCRYPTION = 'N'",
        "TABLESPACE innodb_file_per_table",
        "DELAY_KEY_WRITE = 0",
        "INSERT_METHOD = NO",
        "CHECKSUM 0 MIN_ROWS = 3",
    ),
    "mariadb": (
        *EVERYWHERE,
        "PAGE_CHECKSUM = 0",
        "TRANSACTIONAL = 0",
        "DELAY_KEY_WRITE = 0",
        "CHECKSUM 0, MIN_ROWS = 3",
        "CHECKSUM 0 MIN_ROWS = 3",
    ),
}
TEXTS = ("'é, RENAME TO x'", "'it''s, RENAME TO x'", r"'\', RENAME TO x'", '"it\'s, RENAME TO x"', "= 'x'")
LOCKS = ("ALGORITHM = COPY", "ALGORITHM DEFAULT", "ALGORITHM = INPLACE")
SIZED = {"int": ("int", "bigint"), "big": ("big", "bigint"), "short": ("short", "varchar(60)")}
"""The model's type of a column that is redefined with room for more, and its SQL."""
MOVED = {"int": "int", "big": "bigint", "short": "varchar(40)", "number": "decimal(14,2)", "moment": "datetime(6)"}
INDEXES = tuple(f"i{n}" for n in range(6))
NEW_TABLES = tuple(f"t{n}" for n in range(6))
PLACES = ("FIRST", "AFTER id", "AFTER alt")


class Chosen:
    """What the clauses of one ALTER have taken: a column is in one clause only, and a new name is new."""

    def __init__(self, model: Model, table: str, dice: random.Random) -> None:
        self.model, self.shape, self.dice = model, model.tables[table], dice
        self._columns = self.shape.given()
        dice.shuffle(self._columns)
        self._names = set(self.shape.columns)
        self._indexes = list(self.shape.indexes)
        dice.shuffle(self._indexes)

    def column(self, *types: str) -> str:
        """A column of one of these types; raises LookupError if none is left."""
        found = next((c for c in self._columns if not types or self.shape.columns[c].type in types), None)
        if found is None:
            raise LookupError
        self._columns.remove(found)
        return found

    def name(self) -> str:
        found = next((n for _ in range(20) if (n := fresh_name(self.model, self.dice)) not in self._names), None)
        if found is None:
            raise LookupError
        self._names.add(found)
        return found

    def of(self, *choices: str) -> str:
        """One of these; raises LookupError if there is none."""
        return self.dice.choice(choices)

    def number(self, limit: int) -> str:
        return str(self.dice.randrange(limit))

    def index(self) -> str:
        """One that the table has; raises LookupError if none is left."""
        return self._indexes.pop()

    def new_index(self) -> str:
        return self.of(*(n for n in INDEXES if n not in self.shape.indexes))

    def new_table(self) -> str:
        return self.of(*(n for n in NEW_TABLES if n not in self.model.tables and self.shape.parts is None))

    def allowed(self, is_so: bool) -> str:
        """Nothing; raises LookupError if the table does not allow the clause."""
        if not is_so:
            raise LookupError
        return ""


Arguments = Callable[[Chosen], list[str]]
_PLAIN: Arguments = lambda c: []  # noqa: E731  as short as the others of the list

ARGUMENTS: dict[str, Arguments] = {
    "add": lambda c: [c.name(), c.of(*OLD_ROWS)],
    "place": lambda c: [c.name(), c.number(3)],
    "many": lambda c: [c.name(), c.name()],
    "drop": lambda c: [c.column()],
    "again": lambda c: [c.column()],
    "widen": lambda c: [c.column(*SIZED)],
    "move": lambda c: [c.column(*MOVED), c.number(3)],
    "change": lambda c: [c.column(*SIZED), c.name()],
    "retitle": lambda c: [c.column(*SIZED)],
    "column": lambda c: [c.column(), c.name()],
    "default": lambda c: [c.column("int", "big", "short", "number")],
    "nodefault": lambda c: [c.column()],
    "convert": lambda c: [c.of("latin1", "utf8mb4")],
    "charset": lambda c: [c.number(4)],
    "same": lambda c: [c.of(*FORMS)],
    "rename": lambda c: [c.of(*FORMS), c.new_table()],
    "index": lambda c: [c.new_index()],
    "retag": lambda c: [c.index(), c.new_index()],
    "unindex": lambda c: [c.index()],
    "hide": lambda c: [c.index(), c.number(2)],
    "key": lambda c: [c.allowed(c.shape.parts is None) + c.of("id", "alt", "id,alt", "alt,id")],
    "engine": _PLAIN,
    "comment": lambda c: [c.number(len(TEXTS))],
    "order": _PLAIN,
    "counter": lambda c: [c.number(2)],
    "format": lambda c: [c.of("DYNAMIC", "COMPACT", "DEFAULT")],
    "algorithm": lambda c: [c.number(len(LOCKS))],
    "lock": lambda c: [c.of("EXCLUSIVE", "EXCLUSIVE", "SHARED", "DEFAULT")],
    "keys": lambda c: [c.of("ENABLE", "DISABLE")],
    "force": _PLAIN,
    "check": _PLAIN,
    "option": lambda c: [c.number(len(OPTIONS[c.model.server]))],
    "hash": lambda c: [c.allowed(c.shape.parts is None and c.shape.key[0] == "id" and not c.shape.versioned) + "id"],
    "unpart": lambda c: [c.allowed(c.shape.hashed or c.shape.parts is not None) + "id"],
}
OWN_ARGUMENTS: dict[Server, dict[str, Arguments]] = {
    "mysql": {
        "validation": lambda c: [c.of("WITH", "WITHOUT")],
        "unseen": lambda c: [c.column(), c.of("INVISIBLE", "VISIBLE")],
    },
    "mariadb": {
        "absent": lambda c: [c.name()],
        "present": lambda c: [c.column()],
        "nothing": _PLAIN,
        "unseen": lambda c: [c.column("int", "big")],
    },
}
SELDOM = {"unpart": 0.25, **dict.fromkeys(("hash", "rename", "retag", "unindex", "hide", "key", "validation"), 0.6)}
"""Clauses that tables do not always allow: they are chosen earlier."""
LAST = ("order", "hash", "unpart")
"""In this order, at the end; the partitions have no comma before them."""
VALIDATED = ("add", "place", "many", "again", "widen", "move", "change", "retitle", "column")
"""MySQL takes WITH VALIDATION only together with one of these."""


def words(server: Server) -> dict[str, Arguments]:
    return {**ARGUMENTS, **OWN_ARGUMENTS[server]}


def _clauses(model: Model, dice: random.Random) -> tuple[object, ...] | None:
    found = one_table(model, dice)
    if found is None:
        return None
    chosen = Chosen(model, str(found[0]), dice)
    every = words(model.server)
    made: list[str] = []
    size = dice.choice(SIZES)
    for word in sorted(every, key=lambda word: dice.random() * SELDOM.get(word, 1)):
        if len(made) == size:
            break
        try:
            made.append("/".join((word, *every[word](chosen))))
        except LookupError:
            continue
    if not {word for text in made if (word := text.partition("/")[0]) in VALIDATED}:
        made = [text for text in made if not text.startswith("validation")]
    made.sort(key=lambda text: LAST.index(word) if (word := text.partition("/")[0]) in LAST else -1)
    head = dice.choice(("none", *HEADS[model.server]))
    quote = dice.choice(list(QUOTES)) if head == "dot" else _table_quote(dice)
    return (*found, f"head/{quote}/{head}", *(_marked(model, dice, text) for text in made))


def _table_quote(dice: random.Random) -> str:
    return dice.choice((*QUOTES, "none", "none", *QUALIFIED))


def _marked(model: Model, dice: random.Random, text: str) -> str:
    marks = dice.choice(("", "~back", "~double", "", ""))
    if text.startswith(("same", "rename")):
        marks = f"~{_table_quote(dice)}"
    return text + marks + (f"~{dice.choice(list(COMMENTS[model.server]))}" if dice.random() < 0.35 else "")


@kind(_clauses, "mysql", "mariadb", weight=24)
def combined(model: Model, table: str, *clauses: str) -> list[str] | None:
    """Each clause counts, in any order and combination; those with a `!` are in an executable comment."""
    quote = head = "none"
    name, shape = table, model.tables[table]
    text = ""
    for clause in clauses:
        plain, *marks = clause.replace("!", "~old").split("~")
        word, *rest = plain.split("/")
        if word == "head":
            quote, head = rest
            continue
        comment = next((COMMENTS[model.server][m] for m in marks if m in COMMENTS[model.server]), "{}")
        marked = next((m for m in marks if m in (*QUOTES, *QUALIFIED)), "none")
        said = _said(model, shape, word, rest, marked)
        if word == "rename":
            if shape.parts is not None or rest[1] in model.tables:
                return None
            name = rest[1]
        if word == "same":
            name = table  # of several names the server takes the last
            said = FORMS[rest[0]].format(_quoted(table, marked))
        if said is None:
            return None
        said = said.replace(" ", "/* , */", 1) if comment == "{within}" else comment.format(said)
        # A comment to the end of its line may not hide what follows.
        text += (" " if not text or word in ("hash", "unpart") else ", ") + said
    alter = HEADS[model.server][head].format(_quoted(table, quote)) + text
    if name != table:
        model.tables[name] = model.tables.pop(table)
    return _in_a_mode(alter)


def _in_a_mode(alter: str) -> list[str] | None:
    """The statement, and before it what decides what its double quotes mean: names, except in a clause's comment."""
    strings = "\"it's" in alter
    rest = alter.replace(TEXTS[3], "")
    if strings and '"' in rest:
        return None
    if strings:
        return ["SET SESSION sql_mode = DEFAULT", alter]
    return ["SET SESSION sql_mode = CONCAT(@@GLOBAL.sql_mode, ',ANSI_QUOTES')", alter] if '"' in rest else [alter]


def _quoted(name: str, quote: str) -> str:
    if quote == "apart":
        return f"{{database}} . {name}"
    if quote.startswith("qualified"):
        sign = QUOTES[quote.removeprefix("qualified").removeprefix("-") or "none"]
        return f"{sign.format('{database}')}.{sign.format(name)}"
    return QUOTES[quote].format(name)


def _renamed(shape: Table, old: str, new: str, column: Column) -> None:
    shape.columns = {new if n == old else n: column if n == old else c for n, c in shape.columns.items()}


def _said(model: Model, shape: Table, word: str, rest: list[str], quote: str) -> str | None:
    """A clause's text, and the table changed as it will be; None where the clause means nothing."""

    def q(name: str) -> str:
        return _quoted(name, quote)

    match word:
        case "add" | "place" | "many" | "drop" | "again" | "absent" | "present" | "nothing":
            return _added(shape, word, rest, q)
        case "widen" | "move" | "change" | "retitle" | "column" | "default" | "nodefault" | "unseen":
            return _redefined(model, shape, word, rest, q)
        case "index" | "retag" | "unindex" | "hide" | "key":
            return _indexed(model, shape, word, rest, q)
        case "convert":
            return f"CONVERT TO CHARACTER SET {rest[0]}"
        case "charset":
            forms = ("DEFAULT CHARACTER SET = {}", "CHARACTER SET {}", "DEFAULT CHARSET {}", "COLLATE = {}_bin")
            return forms[int(rest[0])].format(("utf8mb4", "latin1")[len(shape.columns) % 2])
        case "rename":
            return FORMS[rest[0]].format(q(rest[1]))
        case "same":
            return ""
        case "hash":
            shape.hashed = True
            return f"PARTITION BY HASH ({q('id')}) PARTITIONS 3"
        case "unpart" if shape.hashed or shape.parts is not None:
            shape.hashed, shape.parts = False, None
            return "REMOVE PARTITIONING"
    return _option(model, word, rest)


def _added(shape: Table, word: str, rest: list[str], q: Callable[[str], str]) -> str | None:
    match word:
        case "add" if rest[0] not in shape.columns:
            shape.columns[rest[0]] = Column("int")
            return f"ADD COLUMN {q(rest[0])} int {OLD_ROWS[rest[1]]}"
        case "place" if rest[0] not in shape.columns:
            shape.columns[rest[0]] = Column("int")
            return f"ADD {q(rest[0])} int NULL DEFAULT 6 {PLACES[int(rest[1])]}"
        case "many" if not set(rest) & set(shape.columns):
            shape.columns |= dict.fromkeys(rest, Column("int"))
            return f"ADD COLUMN ({q(rest[0])} int, {q(rest[1])} int DEFAULT 5)"
        case "drop" if rest[0] in shape.given() and len(shape.given()) > 1:
            del shape.columns[rest[0]]
            return f"DROP COLUMN {q(rest[0])}"
        case "again" if rest[0] in shape.given():
            del shape.columns[rest[0]]
            shape.columns[rest[0]] = Column("int")
            return f"DROP {q(rest[0])}, ADD {q(rest[0])} int"
        case "absent" if rest[0] not in shape.columns:
            shape.columns[rest[0]] = Column("int")
            return f"ADD COLUMN IF NOT EXISTS {q(rest[0])} int DEFAULT 3"
        case "present" if rest[0] in shape.given() and len(shape.given()) > 1:
            del shape.columns[rest[0]]
            return f"DROP COLUMN IF EXISTS {q(rest[0])}"
        case "nothing":
            return f"DROP COLUMN IF EXISTS {q('not_there')}"
    return None


def _redefined(model: Model, shape: Table, word: str, rest: list[str], q: Callable[[str], str]) -> str | None:
    name = rest[0]
    if name not in shape.given():
        return None
    old = shape.columns[name]
    match word:
        case "widen" if old.type in SIZED:
            shape.columns[name] = Column("big" if old.type == "int" else old.type)
            return f"MODIFY {q(name)} {SIZED[old.type][1]}"
        case "move" if old.type in MOVED:
            shape.columns[name] = Column(old.type)
            return f"MODIFY COLUMN {q(name)} {MOVED[old.type]} {PLACES[int(rest[1])]}"
        case "change" if old.type in SIZED and rest[1] not in shape.columns:
            _renamed(shape, name, rest[1], Column("big" if old.type == "int" else old.type))
            return f"CHANGE COLUMN {q(name)} {q(rest[1])} {SIZED[old.type][1]}"
        case "retitle" if old.type in SIZED:
            shape.columns[name] = Column("big" if old.type == "int" else old.type)
            return f"CHANGE {q(name)} {q(name)} {SIZED[old.type][1]}"
        case "column" if rest[1] not in shape.columns:
            _renamed(shape, name, rest[1], old)
            return f"RENAME COLUMN {q(name)} TO {q(rest[1])}"
        case "default" if old.type in SIZED or old.type == "number":
            return f"ALTER COLUMN {q(name)} SET DEFAULT {model.literal(old, 4)}"
        case "nodefault":
            return f"ALTER {q(name)} DROP DEFAULT"
        case "unseen" if len(rest) > 1:
            return f"ALTER COLUMN {q(name)} SET {rest[1]}"
        case "unseen" if old.type in ("int", "big"):
            return f"MODIFY {q(name)} {MOVED[old.type]} INVISIBLE"
    return None


def _indexed(model: Model, shape: Table, word: str, rest: list[str], q: Callable[[str], str]) -> str | None:
    """The indexes that it knows are on `alt`, which stays."""
    match word:
        case "index" if rest[0] not in shape.indexes:
            shape.indexes += (rest[0],)
            return f"ADD INDEX {q(rest[0])} ({q('alt')})"
        case "retag" if rest[0] in shape.indexes and rest[1] not in shape.indexes:
            shape.indexes = tuple(rest[1] if n == rest[0] else n for n in shape.indexes)
            return f"RENAME INDEX {q(rest[0])} TO {q(rest[1])}"
        case "unindex" if rest[0] in shape.indexes:
            shape.indexes = tuple(n for n in shape.indexes if n != rest[0])
            return f"DROP INDEX {q(rest[0])}"
        case "hide" if rest[0] in shape.indexes:
            hows = ("INVISIBLE", "VISIBLE") if model.server == "mysql" else ("IGNORED", "NOT IGNORED")
            return f"ALTER INDEX {q(rest[0])} {hows[int(rest[1])]}"
        case "key" if shape.parts is None:
            gone = f"DROP KEY {q('only_alt')}" if shape.unique else "DROP PRIMARY KEY"
            shape.key, shape.unique = tuple(rest[0].split(",")), False
            return f"{gone}, ADD PRIMARY KEY ({', '.join(map(q, shape.key))})"
    return None


def _option(model: Model, word: str, rest: list[str]) -> str | None:
    match word:
        case "engine":
            return "ENGINE = InnoDB"
        case "comment":
            return f"COMMENT {TEXTS[int(rest[0]) if rest else 0]}"
        case "order":
            return "ORDER BY alt"
        case "counter":
            return ("AUTO_INCREMENT = 77", "AUTO_INCREMENT 99")[int(rest[0])]
        case "format":
            return f"ROW_FORMAT = {rest[0]}"
        case "algorithm":
            return LOCKS[int(rest[0])]
        case "lock":
            return f"LOCK = {rest[0]}"
        case "keys":
            return f"{rest[0]} KEYS"
        case "force":
            return "FORCE"
        case "check":
            return "ADD CHECK (alt > -100000000)"
        case "option":
            return OPTIONS[model.server][int(rest[0])]
        case "validation":
            return f"{rest[0]} VALIDATION"
    return None


__all__ = ["COMMENTS", "FORMS", "HEADS", "QUALIFIED", "QUOTES", "words"]
