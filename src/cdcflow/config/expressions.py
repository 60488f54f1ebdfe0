"""Expressions of the settings over a table's columns, read into trees: the SQL that `where` and `computed` understand.

    text ─▶ words ─▶ tree          `status <> 'draft' AND total > 10`

A tree is data: nothing here calculates, and no server ever gets the text. Whatever is not in the lists below is
refused, with the nearest name. What the words mean, and for which types, is up to `cdcflow.sources.rows`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

from cdcflow.model.suggestions import did_you_mean

TEXT_MAX = 10_000
DEPTH_MAX = 100
"""The maximum depth of nested parentheses, functions and signs in an expression."""

FUNCTIONS: Mapping[str, tuple[int, int]] = {
    "abs": (1, 1),
    "ceil": (1, 1),
    "char_length": (1, 1),
    "coalesce": (1, 100),
    "concat": (1, 100),
    "date_trunc": (2, 2),
    "day": (1, 1),
    "floor": (1, 1),
    "hour": (1, 1),
    "left": (2, 2),
    "lower": (1, 1),
    "minute": (1, 1),
    "month": (1, 1),
    "nullif": (2, 2),
    "replace": (3, 3),
    "right": (2, 2),
    "substr": (2, 3),
    "substring": (2, 3),
    "trim": (1, 1),
    "upper": (1, 1),
    "year": (1, 1),
}
"""The functions, each with the least and the greatest number of arguments."""
TYPES: Mapping[str, str] = {
    "bigint": "bigint",
    "bool": "boolean",
    "boolean": "boolean",
    "date": "date",
    "datetime": "timestamp",
    "decimal": "decimal",
    "double": "double",
    "float8": "double",
    "int": "integer",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "integer": "integer",
    "numeric": "decimal",
    "smallint": "smallint",
    "string": "text",
    "text": "text",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "varchar": "text",
}
"""The names of types that CAST accepts, each with the type that it means: `varchar` means `text`."""
_PARTS = ("year", "month", "day", "hour", "minute")
_COMPARE = ("=", "<>", "<", "<=", ">", ">=")
_WORDS = re.compile(
    r"""\s*(?:
    (?P<number>\d+(?:\.\d*)?|\.\d+)(?![\w.])
  | (?P<text>'(?:[^']|'')*')
  | (?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
  | (?P<name>[^\W\d]\w*)
  | (?P<sign>->>|<=|>=|<>|!=|::|\|\||-(?!-)|/(?!\*)|[+*%=<>(),])
    )""",
    re.VERBOSE,
)
_RESERVED = frozenset(
    {"and", "as", "between", "case", "cast", "distinct", "else", "end", "extract", "false", "from", "ilike", "in", "is"}
    | {"like", "not", "null", "or", "then", "true", "when"}
)

LiteralType = Literal["integer", "decimal", "text", "boolean", "null", "date", "timestamp"]


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column. Quoted names match exactly, others without case."""

    name: str
    is_quoted: bool


@dataclass(frozen=True, slots=True)
class Constant:
    """A value in the words of the expression; dates and timestamps are their texts."""

    type: LiteralType
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or a function. `between`, `in` and `case` have their operands in the order in which they are written:
    `case` has pairs of condition and value, and last the value of ELSE."""

    name: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """CAST: `type` is a name that `TYPES` has; a decimal has precision and scale."""

    operand: Expression
    type: str
    digits: tuple[int, int] | None = None


Expression = ColumnName | Constant | Call | Cast


def columns_of(expression: Expression) -> Iterator[ColumnName]:
    """Yield the columns that an expression uses, each as often as it does."""
    match expression:
        case ColumnName():
            yield expression
        case Call(_, operands):
            for operand in operands:
                yield from columns_of(operand)
        case Cast(operand):
            yield from columns_of(operand)


def parse(text: str) -> Expression:
    """Parse an expression into a tree.

    Raises:
        ValueError: it is not an expression; the message can be shown after the name of the setting.
    """
    if len(text) > TEXT_MAX:
        raise ValueError(f"has more than {TEXT_MAX} characters")
    reader = _ExpressionReader(text)
    found = reader.either()
    if reader.kind:
        reader.refuse("is not expected here")
    return found


class _ExpressionReader:
    """Reads an expression from left to right. Each rank of operators has a method, which calls that of the next tighter
    one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self._depth = 0
        self.kind = self.word = ""
        self._start = 0
        self._next()

    # ── words ───────────────────────────────────────────────────────────────────────────────────────────────

    def _next(self) -> str:
        """Step to the next word, and return the current one."""
        before = self.word
        found = _WORDS.match(self._text, self._end)
        if found is None:
            rest = self._text[self._end :].lstrip()
            self._start = len(self._text) - len(rest)
            self.kind, self.word = ("odd", rest[0]) if rest else ("", "")
            self._end = len(self._text)
        else:
            self.kind = found.lastgroup or ""
            self.word, self._start, self._end = found[self.kind], found.start(self.kind), found.end()
        if self.kind == "odd":
            self.refuse("is not understood")
        return before

    def refuse(self, why: str) -> NoReturn:
        where = f'"{self.word}" at character {self._start + 1}' if self.word else "its end"
        raise ValueError(f"is not an expression: {where} {why}")

    def expect(self, what: str) -> NoReturn:
        self.refuse(f"is not {what}")

    def _is(self, *words: str) -> bool:
        return self.kind in ("name", "sign") and self.word.lower() in words

    def _take(self, *words: str) -> str:
        """Step past the current word if it is one of these. Return it in lower case, or "" if it is not."""
        return self._next().lower() if self._is(*words) else ""

    def _need(self, word: str) -> None:
        if not self._take(word):
            self.expect(f"{word.upper()}")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise ValueError(f"is nested more than {DEPTH_MAX} times")

    # ── conditions ──────────────────────────────────────────────────────────────────────────────────────────

    def either(self) -> Expression:
        found = self._both()
        while self._take("or"):
            found = Call("or", (found, self._both()))
        return found

    def _both(self) -> Expression:
        found = self._negation()
        while self._take("and"):
            found = Call("and", (found, self._negation()))
        return found

    def _negation(self) -> Expression:
        if not self._take("not"):
            return self._condition()
        self._deeper()
        found = Call("not", (self._negation(),))
        self._depth -= 1
        return found

    def _condition(self) -> Expression:
        found = self._sum()
        while True:
            if sign := self._take(*_COMPARE, "!="):
                found = Call("<>" if sign == "!=" else sign, (found, self._sum()))
            elif self._take("is"):
                found = self._is_what(found)
            elif (negated := bool(self._take("not"))) or self._is("in", "between", "like", "ilike"):
                found = self._among(found)
                found = Call("not", (found,)) if negated else found
            else:
                return found

    def _is_what(self, tested: Expression) -> Expression:
        negated = bool(self._take("not"))
        if self._take("distinct"):
            self._need("from")
            found = Call("is distinct from", (tested, self._sum()))
        elif self._is("null", "true", "false"):
            found = Call(f"is {self._next().lower()}", (tested,))
        else:
            self.expect("NULL, TRUE, FALSE or DISTINCT FROM")
        return Call("not", (found,)) if negated else found

    def _among(self, tested: Expression) -> Expression:
        if self._take("in"):
            self._need("(")
            return Call("in", (tested, *self._list()))
        if self._take("between"):
            least = self._sum()
            self._need("and")
            return Call("between", (tested, least, self._sum()))
        if word := self._take("like", "ilike"):
            return Call(word, (tested, self._sum()))
        return self.expect("IN, BETWEEN, LIKE or ILIKE")

    def _list(self) -> tuple[Expression, ...]:
        """Return the values of a list, and step past its closing parenthesis."""
        self._deeper()
        found = [self.either()]
        while self._take(","):
            found.append(self.either())
        self._need(")")
        self._depth -= 1
        return tuple(found)

    # ── values ──────────────────────────────────────────────────────────────────────────────────────────────

    def _sum(self) -> Expression:
        found = self._product()
        while sign := self._take("+", "-", "||"):
            found = Call(sign, (found, self._product()))
        return found

    def _product(self) -> Expression:
        found = self._sign()
        while sign := self._take("*", "/", "%"):
            found = Call(sign, (found, self._sign()))
        return found

    def _sign(self) -> Expression:
        if not (sign := self._take("-", "+")):
            return self._suffixes()
        self._deeper()
        found = self._sign()
        self._depth -= 1
        if sign == "+":
            return Call("+", (Constant("integer", "0"), found))
        if isinstance(found, Constant) and found.type in ("integer", "decimal"):
            return Constant(found.type, found.text[1:] if found.text.startswith("-") else f"-{found.text}")
        return Call("negate", (found,))

    def _suffixes(self) -> Expression:
        found = self._value()
        while sign := self._take("::", "->>"):
            if sign == "::":
                found = Cast(found, *self._type())
                continue
            if self.kind != "text":
                self.expect("a path such as '$.city'")
            path = self._string()
            json_path(path)
            found = Call("->>", (found, Constant("text", path)))
        return found

    def _value(self) -> Expression:
        match self.kind:
            case "number":
                number = self._next()
                return Constant("decimal" if "." in number else "integer", number)
            case "text":
                return Constant("text", self._string())
            case "quoted":
                quote = self.word[0]
                return ColumnName(self._next()[1:-1].replace(quote * 2, quote), is_quoted=True)
            case "name":
                return self._word()
            case _:
                if not self._take("("):
                    self.expect("a value")
                self._deeper()
                found = self.either()
                self._need(")")
                self._depth -= 1
                return found

    def _string(self) -> str:
        return self._next()[1:-1].replace("''", "'")

    def _word(self) -> Expression:
        if self._take("null"):
            return Constant("null", "")
        if word := self._take("true", "false"):
            return Constant("boolean", word)
        if self._take("case"):
            return self._case()
        if self._take("cast"):
            return self._cast()
        if self._take("extract"):
            return self._extract()
        if self._is(*_RESERVED):
            self.expect("a value")
        name = self._next()
        if self.kind == "text" and name.lower() in ("date", "timestamp"):
            return Constant("date" if name.lower() == "date" else "timestamp", self._string())
        return self._function(name) if self._is("(") else ColumnName(name, is_quoted=False)

    def _function(self, name: str) -> Expression:
        function = name.lower()
        if function not in FUNCTIONS:
            known = did_you_mean(function, FUNCTIONS) or f"known are {', '.join(FUNCTIONS)} "
            raise ValueError(f"has the unknown function {name}: {known.strip()}")
        self._need("(")
        operands = self._list()
        least, most = FUNCTIONS[function]
        if not least <= len(operands) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise ValueError(f"has {function} with {len(operands)} arguments: it takes {wanted}")
        return Call("substr" if function == "substring" else function, operands)

    def _case(self) -> Expression:
        self._deeper()
        tested = None if self._is("when") else self.either()
        found: list[Expression] = []
        while self._take("when"):
            condition = self.either()
            found.append(condition if tested is None else Call("=", (tested, condition)))
            self._need("then")
            found.append(self.either())
        if not found:
            self.expect("WHEN")
        found.append(self.either() if self._take("else") else Constant("null", ""))
        self._need("end")
        self._depth -= 1
        return Call("case", tuple(found))

    def _cast(self) -> Expression:
        self._need("(")
        self._deeper()
        found = self.either()
        self._depth -= 1
        self._need("as")
        cast = Cast(found, *self._type())
        self._need(")")
        return cast

    def _extract(self) -> Expression:
        self._need("(")
        part = self._take(*_PARTS)
        if not part:
            self.expect(f"{', '.join(_PARTS)}")
        self._need("from")
        found = self._list()
        return Call(part, found[:1]) if len(found) == 1 else self.refuse("ends more than one value")

    def _type(self) -> tuple[str, tuple[int, int] | None]:
        if self.kind != "name":
            self.expect("a type")
        name = self._next().lower()
        if name not in TYPES:
            known = did_you_mean(name, TYPES) or f"known are {', '.join(dict.fromkeys(TYPES.values()))}"
            raise ValueError(f"has the unknown type {name}: {known.strip()}")
        if name == "double":
            self._take("precision")
        found = TYPES[name]
        if found != "decimal":
            return found, None
        digits = self._digits()
        if not (1 <= digits[0] <= 38 and 0 <= digits[1] <= digits[0]):
            raise ValueError("has a decimal without digits for it: write decimal(12,2), with 38 digits at most")
        return found, digits

    def _digits(self) -> tuple[int, int]:
        if not self._take("("):
            return 0, 0
        numbers = [self._whole_number()]
        if self._take(","):
            numbers.append(self._whole_number())
        self._need(")")
        return numbers[0], numbers[1] if len(numbers) == 2 else 0

    def _whole_number(self) -> int:
        if self.kind != "number" or not self.word.isdecimal() or len(self.word) > 9:
            self.expect("a number")
        return int(self._next())


_STEP = re.compile(r"""\.(?P<name>[^\W\d][\w-]*)|\."(?P<quoted>(?:[^"\\]|\\.)*)"|\[(?P<place>\d{1,9})\]""")


def json_path(text: str) -> tuple[str | int, ...]:
    """Return the steps of a path into a JSON document: names of members, and places in arrays from 0. A path without a
    `$` at its beginning is the name of one member.

    Raises:
        ValueError: it is not a path.
    """
    if not text.startswith("$"):
        return (text,)
    steps: list[str | int] = []
    at = 1
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise ValueError(f'has a path that is not like $.address.city, $.items[0] or $."a name": {text}')
        if found["place"] is not None:
            steps.append(int(found["place"]))
        else:
            name = found["name"]
            steps.append(re.sub(r"\\(.)", r"\1", found["quoted"]) if name is None else name)
        at = found.end()
    return tuple(steps)
