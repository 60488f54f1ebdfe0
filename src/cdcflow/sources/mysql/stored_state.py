"""The state that a checkpoint's `source` contains of a log that MySQL or MariaDB is captured into. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdcflow.model.position import Position
from cdcflow.model.table import TableId, tables_as_json, tables_from_json
from cdcflow.sources.engine import policies
from cdcflow.sources.engine.policies import Policies
from cdcflow.sources.engine.stored_state import StoredEntries
from cdcflow.sources.mysql.lives import Lives

STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MySQLState:
    """The state that a checkpoint stores of a MySQL or MariaDB source.

    `server`: MySQL's uuid, or MariaDB's server_id, which the position's file and byte refer to. `has_all_gtids`: the
    position contains every transaction's GTID, so another server may take its place. `slot`: the name of this log's
    marks. `compared_from`: the number of the first transaction of the change log that was read from this server
    (`overlap`; None: an earlier cdcflow did not store it). `foreign`: the position, if its file and byte are those of
    another server. `captured`: the tables that the last run captured, sorted. `lives`: which of them are gone, which
    are new. `policies`: see `engine.policies`. `others`: entries that this version does not know.
    """

    server: str
    has_all_gtids: bool
    slot: str
    compared_from: int | None = None
    foreign: Position | None = None
    policies: Policies | None = None
    captured: tuple[TableId, ...] = ()
    lives: Lives = field(default_factory=Lives)
    others: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: Mapping[str, str]) -> MySQLState | None:
        """Return the state that an earlier start stored; None at the first start.

        Raises:
            ConfigurationError: another version of cdcflow wrote it.
        """
        if not stored:
            return None
        entries = StoredEntries(stored, "MySQL or MariaDB", version=STATE_VERSION)
        compared, foreign, kept = entries.get("compared_from"), entries.get("foreign"), entries.get("policies")
        lives = entries.get("lives")
        return cls(
            server=entries.take("server"),
            has_all_gtids=entries.get("gtids") == "yes",
            slot=entries.take("slot"),
            compared_from=None if compared is None else int(compared),
            foreign=None if foreign is None else Position(foreign),
            policies=None if kept is None else policies.from_json(kept),
            captured=tables_from_json(entries.get("tables")),
            lives=Lives() if lives is None else Lives.from_json(lives),
            others=entries.rest,
        )

    def write(self) -> dict[str, str]:
        stored = {"server": self.server, "gtids": "yes" if self.has_all_gtids else "no", "slot": self.slot}
        if self.compared_from is not None:
            stored["compared_from"] = str(self.compared_from)
        if self.foreign is not None:
            stored["foreign"] = self.foreign.text
        if self.policies is not None:
            stored["policies"] = policies.to_json(self.policies)
        stored |= {"tables": tables_as_json(self.captured), "lives": self.lives.to_json()}
        return {**stored, **self.others}
