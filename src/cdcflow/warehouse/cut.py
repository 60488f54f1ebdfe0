"""A published cut: which version of every table shows one and the same moment of the source.

    <warehouse>/_cdcflow_cuts     one row a cut; `tables` maps a table's name to its path, version, and whether every
                                  row of it is there; `ids`, `states` and `commits` say more of each, `tags` the tag
                                  of its version where the format has tags; `left_out` why one is not

The row is appended when every table has the cut, so whoever reads tables through it sees all of a moment or nothing.
Upkeep keeps what the kept cuts need (`warehouse.upkeep`); somebody's own VACUUM needs a retention longer than the age
of the oldest cut in use.
A version number means something in one table only, and in one history of it. A cut therefore records the table's id and
what identifies the version's commit, and both are compared with what is at the path: after a table's folder was moved
away, or replaced by an older copy, version 3 shows another moment. A cut's number never changes what it shows; what an
edit made of a table is in the next cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from cdcflow.errors import HistoryLost, SinkUnavailable

LATER_COLUMNS = ("ids", "states", "left_out", "tags", "logs", "commits")
"""Maps from a table's name to text, which an older cdcflow did not have; `logs` from a log's id to its part as JSON."""

PUBLICATION = "cdcflow/cuts"
"""The transaction of a publication, whose versions count: of two that follow the same one a table takes one."""


@dataclass(frozen=True, slots=True)
class CutTable:
    """A table in a cut. `generation`: the newest backfill whose sweep it has seen (0: none).

    `complete`: every row is there. `state` is the table's in the log then: of a complete table, another one than "done"
    says that it is being read again, that this was given up, or that it is no longer captured ("forgotten") and shows
    an older moment. `id` is the table's. `tag` names the version for whoever reads without cdcflow ("": the format has
    no tags). `commit` identifies the commit that made the version (see `port.Snapshot`). All four are "" in a cut of an
    older cdcflow.
    """

    path: str
    version: int
    complete: bool
    generation: int = 0
    id: str = ""
    state: str = ""
    tag: str = ""
    commit: str = ""


@dataclass(frozen=True, slots=True)
class LogPart:
    """One log's part in a cut of several: what people call the log, where it is in it (the cut, offset and position by
    its own count, and its commit clock), and the names of its tables."""

    name: str
    cut: int
    offset: int
    position: str
    commit_clock: int
    tables: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, found: str | Mapping[str, Any]) -> LogPart:
        value = json.loads(found) if isinstance(found, str) else found
        return cls(**{**_known(cls, value), "tables": tuple(value["tables"])})


@dataclass(frozen=True, slots=True)
class Cut:
    """A published cut. `commit_clock` is in microseconds since 1970 UTC. `left_out`: tables that could not be brought
    to it, and why.

    `logs`: of a cut of several logs each one's part, by its id; then `cut` is a number of the warehouse's own, `offset`
    the sum of the logs', and `commit_clock` that of the log that has come least far, of those that were waited for."""

    cut: int
    log_id: str
    offset: int
    position: str
    commit_clock: int
    tables: Mapping[str, CutTable]
    left_out: Mapping[str, str] = field(default_factory=dict)
    logs: Mapping[str, LogPart] = field(default_factory=dict)

    def part_of(self, log_id: str) -> Cut | None:
        """A cut of several logs as that of one alone, with its tables only; None: it has nothing of that log. A cut of
        one log is its own part."""
        if not self.logs:
            return self if self.log_id == log_id else None
        part = self.logs.get(log_id)
        if part is None:
            return None
        tables = {name: self.tables[name] for name in part.tables if name in self.tables}
        left_out = {name: self.left_out[name] for name in part.tables if name in self.left_out}
        return Cut(part.cut, log_id, part.offset, part.position, part.commit_clock, tables, left_out)

    def part_with(self, table: str) -> Cut:
        """The same by one of its tables."""
        found = (log_id for log_id, part in self.logs.items() if table in part.tables)
        return self.part_of(next(found, self.log_id)) or self

    def to_json(self) -> dict[str, Any]:
        """As values that JSON gives back as they are."""
        logs = {log_id: {**asdict(part), "tables": list(part.tables)} for log_id, part in self.logs.items()}
        return {**asdict(self), "logs": logs}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Cut:
        tables = {name: CutTable(**_known(CutTable, table)) for name, table in found["tables"].items()}
        logs = {log_id: LogPart.from_json(part) for log_id, part in (found.get("logs") or {}).items()}
        return cls(**{**_known(cls, found), "tables": tables, "logs": logs})

    @classmethod
    def from_row(cls, row: Mapping[str, Any], clock: int) -> Cut:
        """The cut of a row of the table of cuts, its maps and structs as dicts. `clock` is its `commit_clock`."""
        ids, states, left_out, tags, logs, commits = (row.get(name) or {} for name in LATER_COLUMNS)
        later = {"id": ids, "state": states, "tag": tags, "commit": commits}
        tables = {
            name: CutTable(**entry, **{word: texts.get(name, "") for word, texts in later.items()})
            for name, entry in row["tables"].items()
        }
        return cls(row["cut"], row["log_id"], row["offset"], row["position"], clock, tables, left_out, _parts(logs))


@dataclass(frozen=True, slots=True)
class ListedCut:
    """A published cut in a list. `commit_clock` and `published` are in microseconds since 1970 UTC; `tables`: how many
    it shows."""

    cut: int
    offset: int
    position: str
    commit_clock: int
    published: int
    tables: int


EXPIRED_PROPERTY = "cdcflow.expired"
"""Of the table of cuts: the newest one that upkeep has let go of."""


def own_part(cut: Cut | None, log_id: str) -> Cut | None:
    """What a cut has of one log, for who asks about that alone; a cut that has nothing of it is given as it is."""
    return None if cut is None else cut.part_of(log_id) or cut


def cut_expired(warehouse: object, cut: int, expired: int) -> HistoryLost:
    """The error of a reader of a cut that upkeep has let go of."""
    return HistoryLost(
        f"reading cut {cut} of {warehouse}: it has expired, as all up to cut {expired} have",
        remedy="read one that `cdcflow cuts` lists; set merge.keep longer to keep coming ones for longer",
        runbook="cut-gone",
    )


def newest_of_each(listed: Iterable[ListedCut]) -> list[ListedCut]:
    """In the order of their numbers. Of those that were published again the newest."""
    found: dict[int, ListedCut] = {}
    for one in sorted(listed, key=lambda one: (one.cut, one.published)):
        found[one.cut] = one
    return list(found.values())


def _parts(logs: Mapping[str, str]) -> dict[str, LogPart]:
    return {log_id: LogPart.from_json(part) for log_id, part in logs.items()}


def _known(of: type[Cut] | type[CutTable] | type[LogPart], found: Mapping[str, Any]) -> dict[str, Any]:
    """Without what a newer cdcflow says besides."""
    return {name: found[name] for name in (field.name for field in fields(of)) if name in found}


def is_replaced(cut: Cut, name: str, commit: str, transactions: Mapping[str, int]) -> bool:
    """Whether a table has another commit under the version's number than the one that the cut shows.

    `commit`, `transactions`: what is there, as `port.Snapshot` has it of the version. Of a cut of an older cdcflow, and
    of a commit that was cleaned up, it is decided by what the version has merged: nothing after the cut.
    """
    shown = cut.tables[name].commit
    if shown and commit:
        return shown != commit
    part = cut.part_with(name)
    return transactions.get(f"cdcflow/{part.log_id}/{name}", 0) > part.cut


REPLACED = "another version has its number: the table was put back from a copy, and changed since then"


def version_gone(warehouse: object, cut: Cut, name: str, why: str) -> HistoryLost:
    """The error of a reader of a cut for whom a table is no longer what it was then."""
    return HistoryLost(
        f"reading cut {cut.cut} of {warehouse}: version {cut.tables[name].version} of table {name} is no longer there:"
        f" {why}",
        remedy="read a newer cut, or the other tables of this one: read_cut(…, tables=[…])",
        runbook="cut-gone",
    )


def already_published(cut: Cut) -> SinkUnavailable:
    """The error of a merge that comes to publish after another one did."""
    return SinkUnavailable(
        f"publishing cut {cut.cut}: another merge has published one meanwhile",
        remedy="nothing is lost; merge again",
        runbook="busy",
    )
