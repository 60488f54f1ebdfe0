"""cdcflow's small text files in a warehouse that is a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4


def read_text(warehouse: Path, path: Sequence[str]) -> str | None:
    """See `cdcflow.tables.port.Engine.read_text`."""
    try:
        return warehouse.joinpath(*path).read_text()
    except FileNotFoundError:
        return None


def write_text(warehouse: Path, path: Sequence[str], text: str) -> None:
    """See `cdcflow.tables.port.Engine.write_text`."""
    target = warehouse.joinpath(*path)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f".{target.name}.{uuid4()}")
    try:
        made.write_text(text)
        os.replace(made, target)
    finally:
        made.unlink(missing_ok=True)
