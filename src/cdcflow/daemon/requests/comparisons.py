"""Passes results of comparisons to the daemon, for its status and metrics, and has it read a changed shape."""

from __future__ import annotations

import time
from pathlib import Path

from cdcflow.config import Config
from cdcflow.daemon.interfaces.control_socket import ask
from cdcflow.log.maintenance import activity, state_files
from cdcflow.tables.verify.report import TableReport

ANSWER_WITHIN_S = 30.0


def record_comparison(settings: Config, table: TableReport) -> None:
    """Write the result into the log's folder, for `cdcflow status` and the daemon's metrics."""
    folder = settings.log.folder
    if table.verdict == "equal":
        found = {"position": table.position, "offset": table.offset, "rows": table.rows, "range": "all"}
        state_files.write_verified(folder, table.table, table.against, equal=found)
        activity.note_comparison(folder, time.time(), table.table, table.against, 0)
    elif table.verdict == "equal but for":
        state_files.write_not_compared(folder, table.table, table.against, table.missing_columns)
        _read_shape_again(folder, table)
    elif table.verdict == "different":
        state_files.write_verified(folder, table.table, table.against, equal=None, different=table.different)
        activity.note_comparison(folder, time.time(), table.table, table.against, table.different)


def _read_shape_again(folder: Path, table: TableReport) -> None:
    """Have the daemon read one row of the table again, because the table's current shape enters the log with a row."""
    if table.shape_key:
        ask(
            folder,
            {"op": "reread", "tables": [table.table], "keys": [list(table.shape_key)]},
            timeout_s=ANSWER_WITHIN_S,
        )
