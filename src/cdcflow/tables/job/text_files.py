"""cdcflow's small text files in a folder of a warehouse."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cdcflow.tables.folders import WarehouseFolder


def read_text(warehouse: WarehouseFolder | Path, path: Sequence[str]) -> str | None:
    """See `cdcflow.tables.port.Engine.read_text`."""
    try:
        return WarehouseFolder.of(warehouse).read("/".join(path)).decode()
    except FileNotFoundError:
        return None


def write_text(warehouse: WarehouseFolder | Path, path: Sequence[str], text: str) -> None:
    """See `cdcflow.tables.port.Engine.write_text`."""
    WarehouseFolder.of(warehouse).replace("/".join(path), text.encode())
