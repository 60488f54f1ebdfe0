"""cdcflow's small text files in a folder of a warehouse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cdcflow.tables.folders import WarehouseFolder


def read_text(warehouse: WarehouseFolder | Path, path: Sequence[str]) -> str | None:
    """Return the text of one of cdcflow's small files in a warehouse; None if it does not exist."""
    try:
        return WarehouseFolder.of(warehouse).read("/".join(path)).decode()
    except FileNotFoundError:
        return None


def write_text(warehouse: WarehouseFolder | Path, path: Sequence[str], text: str) -> None:
    """Write one of cdcflow's small files atomically: a reader sees either the old or the new content, whole."""
    WarehouseFolder.of(warehouse).replace("/".join(path), text.encode())
