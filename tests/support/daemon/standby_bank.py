"""A bank on a primary, captured from its standby."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.servers.postgres import Database
from tests.servers.standby import Standby
from tests.support.daemon.bank import Bank

from cdcflow.config import Config

PUBLICATION = "bank"


class StandbyBank(Bank):
    """Sessions write to the primary, `database`; the settings lead to the `standby`. The publication exists before."""

    def __init__(self, standby: Standby, database: Database, folder: Path, *, publish: bool = True) -> None:
        self.standby = standby
        super().__init__(database, folder)
        if publish:
            generated = ", publish_generated_columns = stored" if standby.version >= 180000 else ""
            database.execute(
                f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {', '.join(self.tables)} "
                f"WITH (publish_via_partition_root = true{generated})"
            )
        standby.wait_for_replay()

    def configure(self, **source: Any) -> Config:
        url = self.standby.url(self.database.name)
        return super().configure(**{"url": url, "publication": PUBLICATION, "tables": ["public.*"], **source})

    def promote(self) -> None:
        """The standby takes all later writes; nothing that the primary has committed is missing there."""
        self.standby.wait_for_replay()
        self.standby.primary.stop(immediate=True)
        self.standby.promote()
        self.database = Database(self.standby, self.database.name)
