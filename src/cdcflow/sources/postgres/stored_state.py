"""What a checkpoint's `source` contains of a log that PostgreSQL is captured into. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from cdcflow.model.table import TableId
from cdcflow.sources.engine import policies
from cdcflow.sources.engine.policies import Policies
from cdcflow.sources.engine.stored_state import StoredEntries
from cdcflow.sources.postgres.lives import Life, lives_as_json, lives_from_json
from cdcflow.sources.postgres.lsn import Lsn
from cdcflow.sources.postgres.table_numbers import TableNumbers

STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresState:
    """The state that a checkpoint stores of a PostgreSQL source. With it a restart can determine whether the position
    in the server's log is still valid for the change log.

    `system_id`, `timeline` and `database` identify the server. `publication_state`: see `publication.fingerprint`.
    `began_at`: where the slot was created for this log (None: an earlier cdcflow did not store it). `captured`: if the
    publication sends other tables too, each captured table with its oid, and since when it is captured. `policies`: see
    `engine.policies`. `release`: the id of the latest release of the slot after which this log took a new position ("":
    none, see `slot_release`). `version`: the server's major version at the latest start (None: an earlier cdcflow did
    not store it). `lives`: captured names that their tables no longer have. `joining`: the entries of new tables whose
    older transactions had not ended, each with the id below which these are. `is_standby`: the slot is on a standby,
    whose timeline changes with its primary's. `numbers`: the numbers of the tables in the log. `others`: entries that
    this version does not know.
    """

    system_id: str
    timeline: int
    database: str
    slot: str
    publication: str
    publication_state: str
    began_at: Lsn | None = None
    captured: Mapping[TableId, tuple[int, Lsn]] | None = None
    policies: Policies | None = None
    lives: tuple[Life, ...] = ()
    joining: Mapping[int, int] = field(default_factory=dict)
    release: str = ""
    is_standby: bool = False
    version: int | None = None
    numbers: TableNumbers = field(default_factory=TableNumbers)
    others: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: Mapping[str, str]) -> PostgresState | None:
        """Return the state that an earlier start stored; None at the first start.

        Raises:
            ConfigurationError: another version of cdcflow wrote it.
        """
        if not stored:
            return None
        entries = StoredEntries(stored, "PostgreSQL", version=STATE_VERSION)
        began, captured, kept = entries.get("began_at"), entries.get("captured"), entries.get("policies")
        return cls(
            system_id=entries.take("system_id"),
            timeline=int(entries.take("timeline")),
            database=entries.take("database"),
            slot=entries.take("slot"),
            publication=entries.take("publication"),
            publication_state=entries.take("publication_state"),
            began_at=None if began is None else Lsn.parse(began),
            captured=None if captured is None else _captured_from(captured),
            policies=None if kept is None else policies.from_json(kept),
            lives=lives_from_json(entries.get("lives") or "[]"),
            joining={int(number): bound for number, bound in json.loads(entries.get("joining") or "{}").items()},
            release=entries.get("release") or "",
            is_standby=bool(entries.get("standby")),
            version=None if (version := entries.get("server_version")) is None else int(version),
            numbers=TableNumbers.from_text(entries.get("table_numbers")),
            others=entries.rest,
        )

    def write(self) -> dict[str, str]:
        stored = {
            "system_id": self.system_id,
            "timeline": str(self.timeline),
            "database": self.database,
            "slot": self.slot,
            "publication": self.publication,
            "publication_state": self.publication_state,
        }
        if self.began_at is not None:
            stored["began_at"] = str(self.began_at)
        if self.captured is not None:
            stored["captured"] = _captured_as_json(self.captured)
        if self.policies is not None:
            stored["policies"] = policies.to_json(self.policies)
        stored["lives"] = lives_as_json(self.lives)
        if self.joining:
            stored["joining"] = json.dumps(self.joining, separators=(",", ":"))
        if self.release:
            stored["release"] = self.release
        if self.is_standby:
            stored["standby"] = "yes"
        if self.version is not None:
            stored["server_version"] = str(self.version)
        if self.numbers.moves:
            stored["table_numbers"] = self.numbers.to_text()
        return {**stored, **self.others}

    @property
    def names_by_oid(self) -> dict[int, TableId]:
        """The tables that an earlier run captured, by oid."""
        published = json.loads(self.publication_state)["tables"]
        names = {entry[0]: TableId(*json.loads(name)) for name, entry in published.items()}
        return names | {oid: table for table, (oid, _) in (self.captured or {}).items()}


def _captured_from(text: str) -> dict[TableId, tuple[int, Lsn]]:
    return {TableId(*json.loads(name)): (oid, Lsn.parse(since)) for name, (oid, since) in json.loads(text).items()}


def _captured_as_json(captured: Mapping[TableId, tuple[int, Lsn]]) -> str:
    listed = {json.dumps([table.schema, table.name]): [oid, str(since)] for table, (oid, since) in captured.items()}
    return json.dumps(listed, separators=(",", ":"))


def captured_names(state: PostgresState | None) -> dict[int, TableId]:
    """Return the tables that an earlier run captured, by oid. Empty at the first start."""
    return {} if state is None else state.names_by_oid
