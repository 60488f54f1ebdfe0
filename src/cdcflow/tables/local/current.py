"""A whole table of a log at an offset, as Arrow, read through a live view of the log that ends at that offset."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.log.files.layout import Layout
from cdcflow.log.read import upto
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import MISSING, Table, TableId
from cdcflow.tables.local.engine import LocalEngine
from cdcflow.tables.local.live import LocalReader
from cdcflow.tables.merge.policy import DEFAULTS
from cdcflow.tables.merge.target import Target
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.verify.live_copy import CopyParts, ask_copy
from cdcflow.tables.verify.port import NotComparable


class LocalCurrent:
    """Implements `cdcflow.log.query.log.CurrentRows`."""

    def rows_at(
        self,
        log: LogReader,
        layout: Layout,
        table: TableId,
        floor: int,
        checkpoint: Checkpoint,
        base: tuple[Table, pa.Table] | None = None,
    ) -> pa.Table:
        offset = int(checkpoint.next_offset) - 1
        there = layout.segment_offsets() if layout.exists() else []
        kept = [bounds for bounds in there if bounds[1] >= floor and bounds[1] <= offset]
        begins = kept[-1][1] + 1 if kept else floor
        rows = log.read_rows(begins, offset, (table,)) if begins <= offset else iter(())
        front = [] if base is None else [(base[0], upto.BASE_VERSION, base[1])]
        with tempfile.TemporaryDirectory(prefix="cdcflow-current-") as room:
            ended = upto.ending(layout, kept, rows, begins, checkpoint, Path(room) / "log", front, floor)
            try:
                return _rows(ended, table, Path(room) / "tables")
            except CdcflowError as error:
                raise _about(error, room, log.name) from error


def _about(error: CdcflowError, room: str, name: str) -> CdcflowError:
    """Return the same error, with the requested log's name in place of the temporary folder."""
    text = str(error) if error.remedy is None else str(error).removesuffix(f"\n  {error.remedy}")
    remedy = None if error.remedy is None else _with_log_name(error.remedy, room, name)
    return type(error)(_with_log_name(text, room, name), remedy=remedy, runbook=error.runbook)


def _with_log_name(text: str, room: str, name: str) -> str:
    return text.replace(f"{room}/log", name).replace(f"{room}/tables", f"the tables of {name}")


def _rows(layout: Layout, table: TableId, room: Path) -> pa.Table:
    def ask(past: Any, query: str, target: Target) -> pa.Table:  # Any: a `LocalPastTable`
        rows: pa.Table = past.result(query, target)
        missing = rows.num_rows - rows.column(MISSING).null_count
        if missing:  # their cells are NULL, which would be mistaken for values
            raise NotComparable(f"the log does not have all values of {missing} rows at that point")
        return rows.drop_columns([MISSING])

    with closing(LocalEngine(room, "delta")) as engine:
        try:
            return ask_copy(
                LocalReader(engine), CopyParts(layout, Warehouse.of(room), of_log=True, policies=DEFAULTS), table, ask
            )[1]
        except NotComparable as error:
            raise ConfigurationError(
                f"reading all of {table} from the log: {error}", runbook="table-not-followed"
            ) from None
