"""A bank whose changes are captured from the primary, and whose rows are read from its standby."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.servers.postgres import Database
from tests.servers.standby import Standby
from tests.support.daemon.bank import Bank

from cdcflow.capture.interleave.progress import Progress
from cdcflow.config import Config


class ReadBank(Bank):
    """Sessions write to the primary, `database`. `address`: what `source.backfill.url` is; None if it is not set."""

    def __init__(self, standby: Standby, database: Database, folder: Path) -> None:
        self.standby = standby
        self.address: str | None = standby.url(database.name)
        super().__init__(database, folder)
        standby.wait_for_replay()

    def configure(self, **source: Any) -> Config:
        reading = {} if self.address is None else {"url": self.address}
        backfill = {"chunk_time_target_ms": 20, "chunk_rows_max": 600, **reading, **source.pop("backfill", {})}
        return super().configure(tables=["public.*"], backfill=backfill, **source)

    @property
    def progress(self) -> Progress:
        return Progress.from_json(self.reader.newest_checkpoint().progress)

    def generations(self) -> set[int]:
        return {table.generation for table in self.progress.tables.values()}

    def read_units(self) -> int:
        return sum(table.units_done for table in self.progress.tables.values())
