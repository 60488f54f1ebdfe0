"""What a checkpoint's `source` contains of a log that the database in memory is captured into. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from cdcflow.model.table import TableId, tables_from_json
from cdcflow.sources.engine.stored_state import StoredEntries

STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryState:
    """The state that a checkpoint stores. `slot`: the name by which the database keeps history for this log.
    `captured`: the tables of the last run. `others`: entries that this version does not know."""

    slot: str
    captured: tuple[TableId, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: Mapping[str, str]) -> MemoryState | None:
        """Return the state that an earlier start stored; None at the first start.

        Raises:
            ConfigurationError: another version of cdcflow wrote it.
        """
        if not stored:
            return None
        entries = StoredEntries(stored, "memory", version=STATE_VERSION)
        captured = tables_from_json(entries.get("tables"))
        return cls(slot=entries.take("slot"), captured=captured, others=entries.rest)

    def write(self) -> dict[str, str]:
        names = json.dumps([[table.schema, table.name] for table in self.captured])
        return {"slot": self.slot, "tables": names, **self.others}
