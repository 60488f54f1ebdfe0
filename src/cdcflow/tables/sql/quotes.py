"""Names and texts as DuckDB's SQL has them."""

from __future__ import annotations


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
