"""Names that a column may have and that occur in a statement of cdcflow's: aliases, keywords, cdcflow's own columns."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cdcflow
from cdcflow.model.table import LOG_COLUMNS, MERGE_COLUMNS

_SQL = re.compile(r"\b(SELECT|FROM|WHERE|JOIN|MERGE|ORDER BY|GROUP BY|AS)\b")
_NAME = re.compile(
    r"""\bAS\s+(?:MATERIALIZED\s+)?["`]?(\w+)"""  # what is given a name
    r"""|(?<![\w.'"`])(\w+)\.[\w*"`{(]"""  # what a column is looked up in
    r"""|\b(?:FROM|JOIN|USING)\s+[\w.{}()"`]+\s+(?!AS\b|ON\b|WHERE\b|SET\b)([a-z]\w*)"""  # an alias without AS
    r"""|\)\s+([a-z]\w*)\b"""
)
PSEUDO = (
    *("ctid", "xmin", "xmax", "cmin", "cmax", "tableoid", "oid", "_rowid", "rowid", "key", "keys", "value", "values"),
    *("row", "rows", "rn", "n", "count", "sum", "op", "file", "filename", "file_row_number", "position", "user"),
    *("order", "group", "select", "from", "where", "table", "column", "current_user", "version", "system", "offset"),
    *(
        "partition",
        "struct",
        "array",
        "map",
        "left",
        "right",
        "semi",
        "anti",
        "null",
        "true",
        "now",
        "this",
        "excluded",
    ),
)
"""Names that no statement uses as an alias, but that a server, DuckDB, Spark or a format may treat specially."""

_RESERVED = frozenset(name.lower() for name in (*LOG_COLUMNS, *MERGE_COLUMNS))
_OF_FORMATS = frozenset(("_change_type", "_commit_version", "_commit_timestamp", "_metadata"))
"""Columns of Delta's change data feed, and of Spark's files: indistinguishable from a table's own."""


@cache
def names() -> tuple[str, ...]:
    """All of them that a captured table may have, in one letter case, sorted."""
    root = Path(cdcflow.__file__).parent
    found = {name.lower() for path in root.rglob("*.py") for text in _statements(path) for name in _named(text)}
    assert {"t", "r", "s", "k", "b", "d", "each_row", "miss"} <= found, "the statements are no longer found"
    return tuple(sorted((found | set(PSEUDO)) - _RESERVED - _OF_FORMATS))


def _statements(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    texts = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in prose)
    yield from (n.value for n in texts if isinstance(n.value, str) and _SQL.search(n.value))


def _named(text: str) -> Iterator[str]:
    for found in _NAME.finditer(text):
        yield from (name for name in found.groups() if name and not name.isdigit())
    # `c0`, `k1`: numbered where they are generated.
    yield from (f"{letter}{number}" for letter in re.findall(r"\b([a-z])(?=\{)", text) for number in (0, 1))
