"""Tables in mode history, as tests see them: their rows, and the oracle's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.versions.embedded_engine import SHAPE
from tests.support.versions.histories import KEY, Piece

from cdcflow.log.fold.fold import Key, TableVersions, Version, history
from cdcflow.model.table import TableId
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.merge.policy import Policies, TablePolicy
from cdcflow.tables.paths import table_path

HISTORIES = Policies(TablePolicy("history"))


def told(merges: Sequence[Sequence[Piece]], gap: tuple[int, int] | None = None) -> list[tuple[Key, Version]]:
    """The oracle's result after these merges. `gap`: where changes were lost, and from where on the rows are right."""
    found = TableVersions()
    for pieces in merges:
        last = pieces[-1]
        changes = [change for piece in pieces for change in piece.changes]
        step = history(found.open, changes, KEY, since=last.since, swept=last.since if last.is_done else 0, gap=gap)
        found = TableVersions([*found.ended, *step.ended], step.open)
    return in_order([*found.ended, *found.open.items()])


def in_order(versions: Sequence[tuple[Key, Version]]) -> list[tuple[Key, Version]]:
    """By key and start."""
    return sorted(versions, key=lambda kv: (str(kv[0]), kv[1].start.offset))


def rows(warehouse: Path, format_name: str, table: TableId = SHAPE.id) -> list[dict[str, Any]]:
    """A table's rows."""
    with closing(LocalEngine(warehouse, format_name)) as engine:
        there = engine.table(table_path(table))
        assert there.snapshot() is not None
        found: list[dict[str, Any]] = there.rows().to_pylist()
    return found
