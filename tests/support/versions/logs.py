"""Logs of `histories` as logs on disk, and a merged table's versions in the oracle's form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.support.log.hand_log import HandLog, position_of, time_of
from tests.support.versions.embedded_engine import SHAPE
from tests.support.versions.histories import COLUMNS, Piece

from cdcflow.log.fold.fold import End, Key, LogChange, Version
from cdcflow.model.table import Table
from cdcflow.tables.merge.history_columns import OffsetNames

Step = tuple[Table, str, dict[str, Any]]


def steps(changes: Iterable[LogChange], shape: Table = SHAPE) -> list[Step]:
    """Changes as a log by hand takes them."""
    found: list[Step] = []
    for change in changes:
        values = dict(change.values) | {"_txn": change.transaction}
        if change.unchanged:
            values["_unchanged"] = sorted(change.unchanged)
        if change.read:
            values["_read"] = True
        if change.before is not None:
            values["_before"] = dict(change.before)
        found.append((shape, change.op, values))
    return found


def write(log: HandLog, pieces: Sequence[Piece], shape: Table = SHAPE) -> None:
    """A segment for each piece."""
    for piece in pieces:
        if piece.since:
            log.state(shape, "done" if piece.is_done else "reading", piece.generation, piece.since)
        log.segment(steps(piece.changes, shape))


def versions(
    rows: Iterable[Mapping[str, Any]],
    transactions: Mapping[int, int],
    names: OffsetNames = OffsetNames(),  # noqa: B008 - it is frozen
    columns: Sequence[str] = COLUMNS,
    key: str = "id",
) -> list[tuple[Key, Version]]:
    """The content of a table of versions. `transactions`: the number of each offset's; its ends are checked by that."""
    found: list[tuple[Key, Version]] = []
    for row in rows:
        missing = frozenset(row["_missing"] or ())
        assert row["_missing"] != []
        values = {name: row[name] for name in columns if name not in missing}
        assert all(row[name] is None for name in missing)
        ends: list[End | None] = []
        for offset, side in ((row[names.start], "from"), (row[names.end], "to")):
            position, time, exact = (row[f"_valid_{side}_{part}"] for part in ("position", "time", "exact"))
            if offset is None:
                assert (position, time, exact) == (None, None, None)
                ends.append(None)
                continue
            if offset in transactions:
                assert (position, time) == (position_of(transactions[offset]), time_of(transactions[offset]))
            ends.append(End(offset, exact))
        start, end = ends
        assert start is not None
        found.append(((row[key],), Version(values, missing, start, end, row["_offset"])))
    return sorted(found, key=lambda kv: (str(kv[0]), kv[1].start.offset))
