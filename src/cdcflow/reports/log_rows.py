"""Rows of a log as text, one line per change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cdcflow.model.table import BEFORE, COMMIT_TS, LOG_COLUMNS, OFFSET, OP, TRANSACTION, UNCHANGED, Table

CELL_CHARACTERS_MAX = 60


def log_row_line(shape: Table, row: Mapping[str, Any]) -> str:
    """A change: offset, transaction, commit time, op, table and values."""
    unchanged = set(row[UNCHANGED] or ())
    values = " ".join(
        f"{name}={'(unchanged)' if name in unchanged else _cell(value)}"
        for name, value in row.items()
        if name not in LOG_COLUMNS and (row[OP] != "d" or name in shape.key_columns)
    )
    before = row.get(BEFORE)
    was = " was " + " ".join(f"{k}={_cell(v)}" for k, v in before.items() if v is not None) if before else ""
    when = row[COMMIT_TS].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return (
        f"{row[OFFSET]} {row[TRANSACTION]} {when} {row[OP]} {shape.id} {'' if row[OP] == 't' else values}{was}".rstrip()
    )


def _cell(value: object) -> str:
    text = "NULL" if value is None else str(value) if not isinstance(value, bytes) else f"\\x{value.hex()}"
    text = text.replace("\n", "\\n")
    return text if len(text) <= CELL_CHARACTERS_MAX else f"{text[:CELL_CHARACTERS_MAX]}…({len(text)})"
