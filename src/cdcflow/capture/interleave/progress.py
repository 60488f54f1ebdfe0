"""The backfill progress of each table: the part of a checkpoint that the machine owns.

Frozen and versioned, because it is stored with every cut and read by the merge (`state`, `generation`, `since`) and by
`status`. The only row values in it are the keys that operators requested to be read again or repaired, until they are.
Keys that must be read again because rows were incomplete are in the log itself: they are the keys of the rows since
`since` that have unchanged columns.

It also contains the latest commands, the latest repairs, and whether the capture is paused; all of these survive a
restart and a seal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from cdcflow.model.position import Epoch, Offset
from cdcflow.model.table import TableId

PROGRESS_VERSION = 1
COMMANDS_KEPT = 50
"""How many commands a checkpoint lists; older ones are in the checkpoints of older segments."""
REPAIRS_KEPT = GAPS_KEPT = 50
"""How many repairs and gaps a checkpoint lists, as with commands."""
MISSED_KEPT = 4
"""How many entries of `TableProgress.missed` a checkpoint lists; older ones are in the checkpoints of older
segments."""

State = Literal["waiting", "reading", "done", "paused", "cancelled", "failed", "forgotten"]
Stale = Literal["reading", "pending"]


@dataclass(frozen=True, slots=True)
class RepairOrder:
    """An unfinished request to repair rows of a table.

    `number` is the number of the repair in the log's record; `keys` are the keys still to be repaired, as
    `KeySet.to_text`; for `known_until` see `Repair`.
    """

    number: int
    keys: str
    known_until: str | None = None

    def to_json(self) -> dict[str, object]:
        return {"number": self.number, "keys": self.keys, "known_until": self.known_until}


REFUSED = "refused"
"""The value of `Gap.by` for a table that the source's checks show as refused."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Lost changes of a table whose rows were kept.

    The changes were between the positions `before` and `after` of the source's log. Without a base, `after` is "" if
    changes cannot leave the source: the log lacks them until the table is read again. `offset` is the log's next offset
    when the gap was recorded, `generation` the table's generation, `epoch` the epoch of the capture that took the new
    position. `proven`: the position through which a comparison that began after the gap found the table equal to its
    source; `until`: the log's next offset when that was recorded. Until a comparison has found that, both are None and
    the table is unverified.

    `base`: names the table's base, if its rows were loaded another way and are not in the log at all ("": the log has
    them). With a base, `before` is "": it is unknown since when changes are missing in those rows.

    `by`: "move" if an operator moved the log to another server. The daemon then repairs the table by itself, whatever
    its settings are. `REFUSED` if the table cannot be captured now: it is read again when it can be. Otherwise "".
    """

    offset: Offset
    generation: int
    epoch: Epoch
    before: str
    after: str
    proven: str | None = None
    until: Offset | None = None
    base: str = ""
    by: str = ""

    @property
    def is_open(self) -> bool:
        """Whether changes are missing until a later generation is read."""
        return not self.after and not self.base

    def is_repaired_by_daemon(self, *, after_any_gap: bool) -> bool:
        """Whether the daemon repairs the table by itself. Attached tables are repaired by operators.

        `after_any_gap`: the daemon's settings request a repair after any gap, not only after a move of the log.
        """
        return self.proven is None and not self.base and (after_any_gap or self.by == "move")

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if name not in ("base", "by") or value}


@dataclass(frozen=True, slots=True)
class TableProgress:
    """One table's backfill.

    `state`       waiting: to be planned; reading: planned, chunks are being read; paused: continues at its cursor when
                  resumed; done: every row is in the log; cancelled, failed: ended early, `reason` explains why;
                  forgotten: no longer captured, and a new generation when it is captured again
    `generation`  counts the table's backfills from 1; 0 before the first one
    `since`       offset at which this generation began: once the state is done, every row that exists has a row in the
                  log at or after it, so what the fold holds with a lower offset is gone from the source
    `incarnation` distinguishes the table from another of the same name (PostgreSQL oid)
    `units`, `units_done`  how much there is to read and was read, in the source's units (PostgreSQL: pages)
    `rows`        rows that this generation has read into the log
    `reason`      why it failed or was cancelled, for operators
    `row_version` the source's version of the rows when this generation was planned; a different version later means
                  that they must be read again (None: the source's log has all changes, or an older cdcflow wrote this)
    `keys_since`  usually None; otherwise the offset from which rows may be incomplete although everything was read
                  once: the keys of partial rows since then are to be read again
    `whole_since`  the `since` of the latest generation that was done: since then the log has every row of the table,
                  whatever happened to later generations. None if no generation of this table was ever done, or changes
                  were lost since, or the table was not captured for a while
    `priority`, `rows_per_second_max`  what an operator adjusted (higher first; 0: no limit, None: the settings') until
                  the generation ends
    `shape`       if this generation has read no row of the table: the table's shape at the start of the capture
                  (`Table.to_text`), because the log may contain its columns nowhere else. None: its rows contain them
    `keys_ordered`  the keys that operators requested to be read again and that are not all read yet, as
                  `KeySet.to_text`
    `to_repair`   the unfinished requests to repair rows, oldest first, each with the keys that are left of it
    `gap`         where its changes were lost and its rows were kept, or where it got a base; None once a later
                  generation is done
    `missed`      where the log began to lack changes, because they could not leave the source: the offset and the
                  generation, of the latest times. A later generation has every row; earlier offsets are not affected
    `stale`       statements on other tables may have changed rows without the log having them, since the last
                  generation that was done. "reading": this generation was planned after all of them, and reads every
                  row; "pending": at least one is later, so another generation follows it. Otherwise None

    The rest records where to continue and is for the machine and the source only: `plan` and `cursor` as the source
    wrote them, `size` of the next chunk in units, `chunks` read, `exhausted` when only keys are left to read, `whole`
    for a table without a key.
    """

    state: State
    generation: int
    since: Offset
    incarnation: int = 0
    units: int = 0
    units_done: int = 0
    rows: int = 0
    reason: str | None = None
    priority: int = 0
    rows_per_second_max: int | None = None
    plan: str | None = None
    cursor: str | None = None
    size: int = 1
    chunks: int = 0
    exhausted: bool = False
    whole: bool = False
    row_version: str | None = None
    keys_since: Offset | None = None
    whole_since: Offset | None = None
    keys_ordered: str | None = None
    shape: str | None = None
    to_repair: tuple[RepairOrder, ...] = ()
    gap: Gap | None = None
    missed: tuple[tuple[Offset, int], ...] = ()
    stale: Stale | None = None

    @property
    def lacks_changes(self) -> bool:
        """Whether changes of the table are missing until it is read again, because some cannot leave the source."""
        return self.state == "failed" and self.gap is not None and self.gap.is_open

    @property
    def is_refused(self) -> bool:
        """Whether changes of the table are missing because it cannot be captured now. It is read again by itself
        when it can be."""
        return self.lacks_changes and self.gap is not None and self.gap.by == REFUSED

    @property
    def in_doubt(self) -> bool:
        """Whether changes of the table were lost, and no comparison has shown since that its rows are right."""
        return self.gap is not None and self.gap.proven is None

    def is_repaired_by_daemon(self, *, after_any_gap: bool) -> bool:
        """Whether the table waits for the daemon to repair it. A table that is being read again does not."""
        gap = self.gap
        return self.state == "done" and gap is not None and gap.is_repaired_by_daemon(after_any_gap=after_any_gap)

    @property
    def has_base(self) -> bool:
        """Whether the table's rows were loaded another way, and no backfill has begun since. The log then lacks some of
        them."""
        return self.gap is not None and self.gap.base != "" and self.gap.generation == self.generation

    @property
    def keys_bytes(self) -> int:
        """The size of the waiting keys that operators requested."""
        return len(self.keys_ordered or "") + sum(len(order.keys) for order in self.to_repair)

    @property
    def active(self) -> bool:
        """Whether chunks of the table are still to be read, now or after a resume."""
        return self.state in ("waiting", "reading", "paused")

    @property
    def collects_from(self) -> Offset | None:
        """The offset since which partial rows must be read again by their keys; None if no rows need be."""
        if self.keys_since is not None:
            return self.keys_since
        return self.since if self.active and self.plan is not None else None

    def next_generation(self, since: Offset, incarnation: int | None = None) -> TableProgress:
        """Return the progress of the table's next backfill, which reads it from the start.

        `incarnation`: the incarnation of a different table that now has the name; None if the table is the same.
        """
        return TableProgress(
            "waiting",
            self.generation + 1,
            since=since,
            incarnation=self.incarnation if incarnation is None else incarnation,
            whole_since=self.whole_since,
            priority=self.priority,
            rows_per_second_max=self.rows_per_second_max,
            shape=self.shape,
            gap=self.gap,
            missed=self.missed,
            stale="pending" if self.stale else None,
        )

    def to_json(self, table: TableId) -> dict[str, object]:
        """Return the table's entry in `Progress.to_json`."""
        entry = {"schema": table.schema, "name": table.name, **{name: getattr(self, name) for name in _FIELDS}}
        entry["to_repair"] = [order.to_json() for order in self.to_repair] or None
        entry["gap"] = None if self.gap is None else self.gap.to_json()
        entry["missed"] = [list(one) for one in self.missed] or None
        return {name: value for name, value in entry.items() if value is not None or name not in _LATER_FIELDS}

    def to_status(self, table: TableId, rate_of_settings: int) -> dict[str, object]:
        """Return the table's entry in a status: without keys, but with the rate that limits its reading (0: no limit)
        and where that rate is set."""
        entry = self.to_json(table)
        for name in _NOT_IN_STATUS:
            entry.pop(name, None)
        by = "settings" if self.rows_per_second_max is None else "order"
        return {**entry, "rate_limit": self.rate(rate_of_settings), "rate_limit_from": by}

    def rate(self, of_settings: int) -> int:
        """Return how many rows of the table may be read per second (0: no limit). `of_settings`: the settings'
        limit."""
        return of_settings if self.rows_per_second_max is None else self.rows_per_second_max


_FIELDS = tuple(f.name for f in fields(TableProgress))
_NOT_IN_STATUS = ("keys_ordered", "shape", "to_repair")
_LATER_FIELDS = (*_NOT_IN_STATUS, "gap", "missed", "stale")
"""Fields of a table that a checkpoint omits while they are empty."""


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """The record of a command: who requested what, through which interface, when, and the outcome.

    `at_us`: microseconds since 1970, UTC. `outcomes` maps each table (`capture`: the capture itself) to its outcome,
    with the reason if nothing was changed. No row values.
    """

    number: int
    at_us: int
    asked_by: str
    op: str
    outcomes: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return {
            "at_us": self.at_us,
            "asked_by": self.asked_by,
            "op": self.op,
            "outcomes": dict(self.outcomes),
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, number: int, value: Mapping[str, Any]) -> CommandRecord:
        return cls(number, value["at_us"], value["asked_by"], value["op"], value["outcomes"], value["details"])


@dataclass(frozen=True, slots=True)
class RepairRecord:
    """The record of a repair.

    The repair wrote the rows of its table in transactions of kind read, from `first_offset` to `last_offset`: a delete
    among them means that the source does not have that key.

    Between `known_until` (None: unknown) and `position`, both in the source's log, the change log may be wrong about
    these rows; `position` is that of the snapshot in which they were last read. `keys` were looked up, `deleted` of
    them did not exist, and `left` are still to be read. No row values.
    """

    number: int
    table: TableId
    first_offset: Offset
    last_offset: Offset
    keys: int
    deleted: int
    left: int
    known_until: str | None
    position: str

    def to_json(self) -> dict[str, object]:
        return {
            "schema": self.table.schema,
            "name": self.table.name,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "keys": self.keys,
            "deleted": self.deleted,
            "left": self.left,
            "known_until": self.known_until,
            "position": self.position,
        }

    @classmethod
    def from_json(cls, number: int, value: Mapping[str, Any]) -> RepairRecord:
        names = ("first_offset", "last_offset", "keys", "deleted", "left", "known_until", "position")
        return cls(number, TableId(value["schema"], value["name"]), *(value[name] for name in names))


@dataclass(frozen=True, slots=True)
class GapRecord:
    """The record of a gap: the log has no change of any table between two positions of the source's log.

    `before`: the last position that the log has; `after`: the first one that it has again. `offset`: the log's next
    offset when that was recorded; no row at or after it is from before the gap. `at_us`: microseconds since 1970, UTC.
    """

    number: int
    at_us: int
    before: str
    after: str
    offset: Offset

    def to_json(self) -> dict[str, object]:
        return {"at_us": self.at_us, "before": self.before, "after": self.after, "offset": self.offset}

    @classmethod
    def from_json(cls, number: int, value: Mapping[str, Any]) -> GapRecord:
        return cls(number, value["at_us"], value["before"], value["after"], value["offset"])


@dataclass(frozen=True, slots=True)
class Progress:
    """The backfill progress of every table that was ever captured. Read-only.

    `commands`: the latest commands; `repairs`: the latest repairs that wrote something; `gaps`: the latest gaps; each
    oldest first. `capture_paused`: the capture is paused, so nothing is read from the source.

    JSON: `{"version": 1, "tables": {"schema.name": {"schema": …, "name": …, and the fields of TableProgress}}}`, and
    where they are not empty `"commands": {"17": {…}}`, `"repairs": {"3": {…}}`, `"gaps": {"1": {…}}` and `"capture":
    {"paused": true}`.
    """

    tables: Mapping[TableId, TableProgress] = field(default_factory=dict)
    commands: tuple[CommandRecord, ...] = ()
    capture_paused: bool = False
    repairs: tuple[RepairRecord, ...] = ()
    gaps: tuple[GapRecord, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "version": PROGRESS_VERSION,
            "tables": {str(table): known.to_json(table) for table, known in self.tables.items()},
            **self.people_json(),
        }

    def people_json(self) -> dict[str, object]:
        """Return the part of the JSON that records operators' commands and their results."""
        commands = {str(one.number): one.to_json() for one in self.commands}
        repairs = {str(one.number): one.to_json() for one in self.repairs}
        gaps = {str(one.number): one.to_json() for one in self.gaps}
        found: dict[str, object] = {"commands": commands, "repairs": repairs, "gaps": gaps}
        if self.capture_paused:
            found["capture"] = {"paused": True}
        return {name: value for name, value in found.items() if value}

    def to_status(self, rate_of_settings: int) -> dict[str, object]:
        """Return every table's entry in a status, by table name."""
        return {str(table): known.to_status(table, rate_of_settings) for table, known in self.tables.items()}

    @property
    def lacking(self) -> frozenset[TableId]:
        """The tables whose changes are not captured until they are read again."""
        return frozenset(table for table, known in self.tables.items() if known.lacks_changes)

    def with_command(self, record: CommandRecord) -> Progress:
        return replace(self, commands=(*self.commands, record)[-COMMANDS_KEPT:])

    def with_repair(self, record: RepairRecord) -> Progress:
        """Return this progress with another record of a repair's chunk."""
        known = {one.number: one for one in self.repairs}
        if (before := known.get(record.number)) is not None:
            keys, deleted = before.keys + record.keys, before.deleted + record.deleted
            record = replace(record, first_offset=before.first_offset, keys=keys, deleted=deleted)
        known[record.number] = record
        return replace(self, repairs=tuple(known[number] for number in sorted(known)[-REPAIRS_KEPT:]))

    def with_gap(self, at_us: int, before: str, after: str, offset: Offset) -> Progress:
        """Return this progress with the record of another gap."""
        number = self.gaps[-1].number + 1 if self.gaps else 1
        record = GapRecord(number, at_us, before, after, offset)
        return replace(self, gaps=(*self.gaps, record)[-GAPS_KEPT:])

    @property
    def next_repair(self) -> int:
        """The number for the next request to repair rows."""
        waiting = (order.number for known in self.tables.values() for order in known.to_repair)
        return max((0, *waiting, *(one.number for one in self.repairs))) + 1

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Progress:
        """Read what `to_json` wrote; an empty mapping is a log without progress.

        Raises ValueError when a newer cdcflow wrote it.
        """
        if not value:
            return cls()
        if value["version"] > PROGRESS_VERSION:
            raise ValueError(f"progress version {value['version']} is newer than {PROGRESS_VERSION}")
        return cls(
            {TableId(e["schema"], e["name"]): _table_progress(e) for e in value["tables"].values()},
            tuple(commands_of(value)),
            bool(value.get("capture", {}).get("paused")),
            tuple(repairs_of(value)),
            tuple(gaps_of(value)),
        )


def commands_of(value: Mapping[str, Any]) -> list[CommandRecord]:
    """Return the commands in a checkpoint's progress, oldest first."""
    found = value.get("commands", {})
    return [CommandRecord.from_json(int(number), found[number]) for number in sorted(found, key=int)]


def repairs_of(value: Mapping[str, Any]) -> list[RepairRecord]:
    """Return the repairs in a checkpoint's progress, oldest first."""
    found = value.get("repairs", {})
    return [RepairRecord.from_json(int(number), found[number]) for number in sorted(found, key=int)]


def gaps_of(value: Mapping[str, Any]) -> list[GapRecord]:
    """Return the gaps in a checkpoint's progress, oldest first."""
    found = value.get("gaps", {})
    return [GapRecord.from_json(int(number), found[number]) for number in sorted(found, key=int)]


def _table_progress(entry: Mapping[str, Any]) -> TableProgress:
    told = {name: entry[name] for name in _FIELDS if name in entry}
    to_repair = tuple(RepairOrder(**order) for order in told.pop("to_repair", ()))
    gap = told.pop("gap", None)
    missed = tuple((Offset(offset), generation) for offset, generation in told.pop("missed", ()))
    known = TableProgress(**told, to_repair=to_repair, gap=None if gap is None else Gap(**gap), missed=missed)
    # A checkpoint of an older cdcflow has no `whole_since`.
    return replace(known, whole_since=known.since) if known.state == "done" and "whole_since" not in entry else known
