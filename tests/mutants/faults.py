"""Small faults that can be planted in a source file, one at a time: what a tired person might have written instead.

A fault replaces one piece of the text, so everything else keeps its line. Left alone are docstrings, annotations,
decorators, log lines, what an error says, zip's `strict` (an assertion), and the numbers of module-level constants
(they are settings: tests must hold for any of them). F-strings are changed only where they are SQL.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

SQL_FILES = (
    "tables/merge/",
    "model/digest.py",
    "model/sqltypes.py",
    "sources/mysql/keys.py",
    "sources/mysql/types/",
    "sources/engine/table_key.py",
)

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
_SQL = (
    (" AND ", " OR "),
    (" OR ", " AND "),
    (" < ", " <= "),
    (" <= ", " < "),
    (" > ", " >= "),
    (" >= ", " > "),
    (" = ", " <> "),
    (" <=> ", " = "),
    ("NOT ", ""),
    ("max(", "min("),
    ("min(", "max("),
    ("greatest(", "least("),
    ("least(", "greatest("),
    ("false", "true"),
    ("true", "false"),
    ("LEFT JOIN", "JOIN"),
    ("IS NOT NULL", "IS NULL"),
    (" + ", " - "),
    (" - ", " + "),
)
_ANY_ORDER = frozenset(
    (
        "isinstance",
        "getattr",
        "cast",
        "min",
        "max",
        "maximum",
        "minimum",
        "equal",
        "not_equal",
        "and_",
        "or_",
        "suppress",
    )
)
"""Functions whose arguments are not swapped: nothing would differ, or nothing would run."""
_TELLING = ("_tell", "_on_event", "_log", "info", "warning")


@dataclass(frozen=True, slots=True)
class Fault:
    """One change of a file's text: bytes `start` to `end` become `after`. `path` is relative to the package."""

    path: str
    function: str
    operator: str
    before: str
    after: str
    start: int
    end: int
    number: int = 1

    def __str__(self) -> str:
        """Its identity, independent of its line numbers."""
        again = f" #{self.number}" if self.number > 1 else ""
        return f"{self.path} {self.function} [{self.operator}] {_short(self.before)} -> {_short(self.after)}{again}"

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else f"{line[:80]} … {line[-37:]}"


def faults_of(package: Path, path: str) -> list[Fault]:
    """Every fault that can be planted in a file, in the order of its text."""
    source = (package / path).read_bytes()
    found = list(_Planting(source, path).faults())
    met: Counter[str] = Counter()
    numbered = []
    for fault in sorted(found, key=lambda f: (f.start, f.end, f.operator, f.after)):
        met[str(fault)] += 1
        numbered.append(replace(fault, number=met[str(fault)]))
    return numbered


def compiles(package: Path, fault: Fault) -> bool:
    """Whether Python takes the file with this fault in it: nearly always."""
    try:
        compile(fault.applied((package / fault.path).read_bytes()), "planted", "exec")
    except SyntaxError:
        return False
    return True


_Change = tuple[str, ast.AST | str]
"""An operator's name, and its replacement (text: of a statement)."""


class _Planting:
    def __init__(self, source: bytes, path: str) -> None:
        self._source = source
        self._path = path
        self._sql = path.startswith(SQL_FILES)
        self._running = False  # inside of a function, not among the constants and fields around it
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def faults(self) -> Iterator[Fault]:
        tree = ast.parse(self._source)
        yield from self._walk(tree, "", None)

    def _walk(self, node: ast.AST, function: str, anchor: ast.AST | None) -> Iterator[Fault]:
        if not self._running and _is_product(node):
            return  # a setting, written for readers (64 << 20)
        for operator, instead in _changes(node, inside_text=anchor is not None, running=self._running):
            yield from self._fault(node, function, operator, instead, anchor)
        before, self._running = self._running, self._running or isinstance(node, ast.FunctionDef | ast.Lambda)
        for child in _children(node):
            inside = function
            if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                inside = f"{function}.{child.name}" if function else child.name
            if isinstance(child, ast.JoinedStr) and anchor is None:
                if self._sql:
                    yield from self._walk(child, inside, child)
                continue
            yield from self._walk(child, inside, anchor)
        self._running = before

    def _fault(
        self, node: ast.AST, function: str, operator: str, instead: ast.AST | str, anchor: ast.AST | None
    ) -> Iterator[Fault]:
        whole = anchor or node
        assert isinstance(whole, ast.expr | ast.stmt | ast.pattern)
        start, end = self._at(whole.lineno, whole.col_offset), self._at(whole.end_lineno, whole.end_col_offset)
        before = self._source[start:end].decode()
        if isinstance(instead, str):
            after = instead
        else:
            try:
                after = ast.unparse(_rebuilt(whole, node, instead) if anchor else instead)
            except ValueError:  # an f-string that Python 3.11 cannot write down
                return
            if isinstance(whole, ast.expr):
                after = f"({after})"
        yield Fault(self._path, function or "module", operator, before, after, start, end)

    def _at(self, line: int | None, column: int | None) -> int:
        assert line is not None
        assert column is not None
        return self._lines[line - 1] + column


def _rebuilt(tree: ast.AST, old: ast.AST, new: ast.AST) -> ast.AST:
    if tree is old:
        return new
    made = copy.copy(tree)
    for name, value in ast.iter_fields(tree):
        if isinstance(value, ast.AST):
            setattr(made, name, _rebuilt(value, old, new))
        elif isinstance(value, list):
            setattr(made, name, [_rebuilt(v, old, new) if isinstance(v, ast.AST) else v for v in value])
    return made


def _children(node: ast.AST) -> Iterator[ast.AST]:
    skipped = {"annotation", "returns", "decorator_list", "type_comment", "bases", "format_spec"}
    if isinstance(node, ast.Raise):
        return  # error messages are for readers
    for name, value in ast.iter_fields(node):
        if name in skipped:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_docstring(child) and not _is_typing(child):
                yield child


def _is_product(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_typing(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return True
    if isinstance(node, ast.Call) and _called(node) in ("TypeVar", "NewType"):
        return True
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        return True
    return (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING") or (
        isinstance(node, ast.Expr | ast.Call) and _called(node) in _TELLING
    )


def _called(node: ast.AST) -> str:
    call = node.value if isinstance(node, ast.Expr) else node
    function = call.func if isinstance(call, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _changes(node: ast.AST, *, inside_text: bool, running: bool) -> Iterator[_Change]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            yield "comparison", _with(node, ops=[_COMPARISONS[type(op)]()])
        case ast.Compare(ops=[_, *_]):
            for i, op in enumerate(node.ops):
                if type(op) in _COMPARISONS:
                    ops = [*node.ops[:i], _COMPARISONS[type(op)](), *node.ops[i + 1 :]]
                    yield "comparison", _with(node, ops=ops)
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC and not _is_type_union(node):
            yield "arithmetic", _with(node, op=_ARITHMETIC[type(op)]())
        case ast.BoolOp(op=op):
            yield "and/or", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for i in range(len(node.values)):
                left = [*node.values[:i], *node.values[i + 1 :]]
                yield "operand left out", left[0] if len(left) == 1 else _with(node, values=left)
        case ast.UnaryOp(op=ast.Not()):
            yield "not", node.operand
        case ast.IfExp():
            yield "branches swapped", _with(node, body=node.orelse, orelse=node.body)
        case ast.Constant(value=bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int() as value) if running or value in (0, 1):
            yield "constant", ast.Constant(value + 1)
            if value == 1:
                yield "constant", ast.Constant(0)
        case ast.Constant(value=str() as value):
            yield from _texts(value, inside_text=inside_text)
        case ast.Name(id=name) if name in _NAMES and isinstance(node.ctx, ast.Load):
            yield "function", _with(node, id=_NAMES[name])
        case ast.Call(args=[first, second, *rest]) if not any(isinstance(a, ast.Starred) for a in node.args):
            is_plain = _called(node) in _ANY_ORDER
            if not isinstance(first, ast.Constant) and not is_plain and ast.unparse(first) != ast.unparse(second):
                yield "arguments swapped", _with(node, args=[second, first, *rest])
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "returns None", "return None"
        case ast.Raise():
            yield "raise left out", "pass"
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            yield "statement left out", "(yield from ())" if not isinstance(node.value, ast.Call) else "pass"
        case ast.AugAssign() | ast.Delete():
            yield "statement left out", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement left out", "pass"
        case ast.Continue():
            yield "continue", "break"
        case ast.Break():
            yield "break", "continue"


def _with(node: ast.AST, **changed: object) -> ast.AST:
    made = copy.copy(node)
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def _is_type_union(node: ast.BinOp) -> bool:
    """`A | B` of types, as in a pattern or an alias: capitals on both sides."""
    if not isinstance(node.op, ast.BitOr):
        return False
    names = [ast.unparse(side).split(".")[-1].split(" ")[-1] for side in (node.left, node.right)]
    return any((n[:1].isupper() and not n.isupper()) or n == "None" for n in names)


def _texts(value: str, *, inside_text: bool) -> Iterator[_Change]:
    if inside_text:
        for old, new in _SQL:
            if old in value:
                yield "SQL", ast.Constant(value.replace(old, new, 1))
    elif value and " " not in value:
        yield "text", ast.Constant(value + "_")
