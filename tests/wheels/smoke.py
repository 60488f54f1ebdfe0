"""Run in a fresh environment that has nothing but the wheel and what it needs: a capture from the source in memory.

python smoke.py FOLDER      prints the number of rows in the log, and whether compiled decoders exist
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from cdcflow.capture.attempt import LoopIntervals, Orders
from cdcflow.capture.capture import Capture
from cdcflow.capture.interleave.limits import Limits
from cdcflow.config import load
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.folder import FolderReader
from cdcflow.model.table import TableId
from cdcflow.model.types import ColumnType
from cdcflow.sinks.files.log import FileLog
from cdcflow.sources.memory import MemoryDatabase, MemorySource

ROWS = 100


def main(folder: Path) -> None:
    """Settings as `cdcflow init` wrote them, a table, one backfill, and the log read back."""
    load(folder / "cdcflow.yaml")
    database = MemoryDatabase()
    types = {"id": ColumnType("bigint", pa.int64()), "note": ColumnType("text", pa.string())}
    table = database.create(TableId("shop", "orders"), types, ("id",))
    transaction = database.begin()
    transaction.insert(table.id, *({"id": n, "note": f"n{n}"} for n in range(ROWS)))
    transaction.commit()
    Capture(
        open_source=lambda: MemorySource(database),
        open_log=lambda identity, accepted: FileLog.open(folder / "log", identity),
        limits=Limits(),
        orders=Orders(once=True),
        pace=LoopIntervals(),
        on_event=lambda event, fields: None,
    ).run()
    rows = sum(batch.num_rows for _, _, batch in FolderReader(Layout(folder / "log")).read_rows())
    if rows != ROWS:
        sys.exit(f"{rows} rows came into the log, and {ROWS} are in the table")
    if any(name.split(".")[0] in ("pyspark", "delta") for name in sys.modules):
        sys.exit("a capture has loaded Spark")
    compiled = any(Path(sys.modules["cdcflow"].__path__[0]).rglob("*.so"))
    sys.stdout.write(f"{rows} rows captured, {'compiled' if compiled else 'plain'} decoders\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
