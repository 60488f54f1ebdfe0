"""Which rows are stored where in the files of a table, as the engine without Spark reads them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from cdcflow.tables.local.engine import LocalEngine


def places_of(warehouse: Path, format_name: str, table: str, columns: Sequence[str]) -> list[list[tuple[Any, ...]]]:
    """By file of the latest version, the stored values of these columns of its rows."""
    with closing(LocalEngine(warehouse, format_name)) as engine, closing(engine.table(table.split("."))) as there:
        there.snapshot()
        read = [there.read(file, columns).to_pylist() for file in there.files()]
    return [[tuple(row.values()) for row in rows] for rows in read]
