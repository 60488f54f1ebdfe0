"""The error for a history that cannot be read on, with the only way on that loses nothing silently."""

from __future__ import annotations

from cdcflow.errors import HistoryLost


def history_lost(message: str) -> HistoryLost:
    return HistoryLost(
        message,
        remedy="run `cdcflow run --accept-history-loss`: it takes a new place in the binary log and reads all tables "
        "anew, which also finds the rows that were deleted meanwhile",
    )
