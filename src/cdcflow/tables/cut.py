"""A published cut: the version of every table that shows the same state of the source.

    <warehouse>/_cdcflow_cuts     a row per cut; `tables` maps a table's name to its path, version, and whether every
                                  row is present; `ids`, `states` and `commits` add to each, `tags` has the tag
                                  of its version if the format has tags; `left_out` why one is missing; `members` has
                                  the captured tables whose rows a table has, if settings route them to it

A merge appends the row when every table has reached the cut, so a reader that goes through it sees one consistent state
or nothing. Maintenance keeps what the kept cuts need (`tables.job.maintenance`); an operator's own VACUUM needs a
retention longer than the age of the oldest cut in use.

A version number has a meaning in one table only, and in one history of that table. A cut therefore records the table's
id and an identifier of the version's commit, and readers compare both with the table at the path. After a table's
folder was moved away, or replaced by an older copy, version 3 shows a different state. What a cut number shows never
changes; what an edit did to a table is in the next cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from cdcflow.errors import HistoryLost, SinkUnavailable
from cdcflow.model.html_tables import html_table
from cdcflow.model.routes import Routes
from cdcflow.model.table import TableId
from cdcflow.tables.paths import table_at, table_path

LATER_COLUMNS = ("ids", "states", "left_out", "tags", "logs", "commits")
"""Columns of the table of cuts that older versions of cdcflow did not write: maps from a table's name to a text. In
`logs` the keys are logs' ids, and the texts are JSON."""

MEMBERS = "members"
"""A column like `LATER_COLUMNS`, with `CutTable.members` as JSON. Only warehouses in which routes give tables their
rows have it."""

PUBLICATION = "cdcflow/cuts"
"""The app of the transaction that publishes a cut; its version is one more than that of the cut before. So of two
publications after the same cut the table accepts only one."""


@dataclass(frozen=True, slots=True)
class CutMember:
    """One of several captured tables whose rows a table of the warehouse has.

    `source`: the path that it would have under its own name in the warehouse. `key`: the values that its rows have in
    the `key` columns, which tell members apart. `log`: the id of its log if the table has rows of several logs.
    `complete`, `generation` and `state`: as in `CutTable`, for the rows of this member alone.
    """

    source: str
    complete: bool
    generation: int = 0
    state: str = ""
    key: Mapping[str, str] = field(default_factory=dict)
    log: str = ""


@dataclass(frozen=True, slots=True)
class CutTable:
    """A table in a cut. `generation`: the latest backfill whose sweep the table has seen (0 if none).

    `complete`: every row is present. `state` is the table's state in the log at that time. For a complete table, a
    state other than "done" means that the table is being read again, that this was abandoned, or that it is no longer
    captured ("forgotten") and shows an older state. `id` is the table's id. `tag` names the version for readers without
    cdcflow ("" if the format has no tags). `commit` identifies the commit that created the version (see
    `port.TableSnapshot`). These four are "" in a cut of an older cdcflow.

    `members`: the captured tables whose rows the table has under routes, keyed by name; then `complete` and `state` are
    about all of them. A table without members has the name of its source. `member`: the one captured table that this
    entry is about, in a cut of `Cut.by_source`.
    """

    path: str
    version: int
    complete: bool
    generation: int = 0
    id: str = ""
    state: str = ""
    tag: str = ""
    commit: str = ""
    members: Mapping[str, CutMember] = field(default_factory=dict)
    member: CutMember | None = None

    @property
    def source(self) -> TableId:
        """The captured table whose rows this table, or this member of it, has."""
        return table_at(self.path if self.member is None else self.member.source)

    @property
    def key(self) -> Mapping[str, str]:
        """The values, by column, that tell the rows of this member from those of the other members of the
        same table."""
        return {} if self.member is None else self.member.key

    @property
    def members_json(self) -> str:
        """The members as JSON."""
        return json.dumps({name: asdict(one) for name, one in self.members.items()}, separators=(",", ":"))

    @classmethod
    def with_members(cls, newest: CutTable, members: Mapping[str, CutMember]) -> CutTable:
        """Return the entry `newest` with its members replaced by these."""
        first = sorted(members.values(), key=lambda one: one.complete)
        waiting = [one.state for one in first if one.state != "done"]
        return replace(
            newest,
            complete=all(one.complete for one in members.values()),
            generation=0,
            state=waiting[0] if waiting else first[0].state,
            members=members,
            member=None,
        )

    def part_of(self, log_id: str) -> CutTable | None:
        """Return the table with only the members of one log, under the names that they have in that log.

        Return the table itself if all of its rows are of one log, and `None` if it has no member of this log.
        """
        if not any(one.log for one in self.members.values()):
            return self
        own = {str(table_at(one.source)): replace(one, log="") for one in self.members.values() if one.log == log_id}
        return CutTable.with_members(self, own) if own else None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that survive a round trip through JSON."""
        left = {"member"} if self.members else {"member", "members"}
        return {name: value for name, value in asdict(self).items() if name not in left}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> CutTable:
        return cls(**{**_known_fields(cls, found), "members": members_from(found.get("members"))})


@dataclass(frozen=True, slots=True)
class LogPart:
    """One log's part in a cut of several logs: the name of the log, its position (cut, offset and source position as
    the log itself counts them, and its commit clock), and the names of its tables."""

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
        return cls(**{**_known_fields(cls, value), "tables": tuple(value["tables"])})


@dataclass(frozen=True, slots=True)
class Cut:
    """A published cut. `commit_clock` is in microseconds since 1970 UTC. `left_out`: tables that could not be brought
    to the cut, and why.

    `logs`: in a cut of several logs, each log's part by its id. Then `cut` is the warehouse's own number, `offset` the
    sum of the logs' offsets, and `commit_clock` the lowest of the logs that the merge waited for.
    """

    cut: int
    log_id: str
    offset: int
    position: str
    commit_clock: int
    tables: Mapping[str, CutTable]
    left_out: Mapping[str, str] = field(default_factory=dict)
    logs: Mapping[str, LogPart] = field(default_factory=dict)

    def part_of(self, log_id: str) -> Cut | None:
        """Return one log's part of a cut of several logs as a cut that has only its tables; `None` if the cut has
        nothing of that log. For a cut of one log, return the cut itself."""
        if not self.logs:
            return self if self.log_id == log_id else None
        part = self.logs.get(log_id)
        if part is None:
            return None
        own = {name: self.tables[name].part_of(log_id) for name in part.tables if name in self.tables}
        tables = {name: table for name, table in own.items() if table is not None}
        left_out = {name: self.left_out[name] for name in part.tables if name in self.left_out}
        return Cut(part.cut, log_id, part.offset, part.position, part.commit_clock, tables, left_out)

    def part_with(self, table: str, log_id: str = "") -> Cut:
        """Return the part of the log that has this table; if several logs have it, the part of the one with id
        `log_id`."""
        found = [known for known, part in self.logs.items() if table in part.tables]
        return self.part_of(log_id if log_id in found else next(iter(found), self.log_id)) or self

    def by_source(self) -> Cut:
        """Return the cut with an entry for each captured table, under its own name, in place of an entry for each table
        of the warehouse."""
        if not any(table.members for table in self.tables.values()):
            return self
        tables: dict[str, CutTable] = {}
        for name, table in self.tables.items():
            if not table.members:
                tables[name] = table
            for source, one in table.members.items():
                own = replace(table, complete=one.complete, generation=one.generation, state=one.state)
                tables[source] = replace(own, members={}, member=one)
        return replace(self, tables=tables)

    def by_target(self, routes: Routes) -> Cut:
        """Return the cut with an entry for each table of the warehouse: the inverse of `by_source`. A table is excluded
        if one of its members is missing from this cut."""
        names = (*self.tables, *self.left_out)
        goes = {name: str(found.table) for name in names if (found := routes.find(name)) is not None}
        tables = {name: table for name, table in self.tables.items() if name not in goes}
        routed: dict[str, dict[str, CutTable]] = {}
        for name, table in self.tables.items():
            if name in goes:
                routed.setdefault(goes[name], {})[name] = table
        others = {target for name, target in goes.items() if name != target}
        left_out = {name: why for name, why in self.left_out.items() if name not in others}
        for name, why in sorted(self.left_out.items()):
            if (target := goes.get(name, name)) != name:
                left_out[target] = f"it has the rows of {name}, which is not in the cut: {why}"
                routed.pop(target, None)
        for name, parts in routed.items():
            newest = max(parts.values(), key=lambda part: part.version)
            members = {
                source: CutMember(
                    "/".join(table_path(part.source)), part.complete, part.generation, part.state, part.key
                )
                for source, part in sorted(parts.items())
            }
            tables[name] = CutTable.with_members(newest, members)
        return replace(self, tables=tables, left_out=left_out)

    def _repr_html_(self) -> str:
        """Return a row for each table as HTML, for notebooks."""
        shown = [(name, t.version, t.complete, t.state, None) for name, t in sorted(self.tables.items())]
        left_out = [(name, None, None, None, why) for name, why in sorted(self.left_out.items())]
        columns = ["table", "version", "complete", "state", "left out because"]
        return html_table(columns, [*shown, *left_out], [f"cut {self.cut}, position {self.position or 'none'}"])

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that survive a round trip through JSON."""
        logs = {log_id: {**asdict(part), "tables": list(part.tables)} for log_id, part in self.logs.items()}
        tables = {name: table.to_json() for name, table in self.tables.items()}
        return {**asdict(replace(self, tables={})), "tables": tables, "logs": logs}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Cut:
        tables = {name: CutTable.from_json(table) for name, table in found["tables"].items()}
        logs = {log_id: LogPart.from_json(part) for log_id, part in (found.get("logs") or {}).items()}
        return cls(**{**_known_fields(cls, found), "tables": tables, "logs": logs})

    @classmethod
    def from_row(cls, row: Mapping[str, Any], clock: int) -> Cut:
        """Return the cut that a row of the table of cuts records. The row's maps and structs are dicts; `clock` is the
        cut's `commit_clock`."""
        ids, states, left_out, tags, logs, commits = (row.get(name) or {} for name in LATER_COLUMNS)
        later = {"id": ids, "state": states, "tag": tags, "commit": commits}
        members = row.get(MEMBERS) or {}
        tables = {
            name: CutTable(
                **entry,
                **{word: texts.get(name, "") for word, texts in later.items()},
                members=members_from(members.get(name)),
            )
            for name, entry in row["tables"].items()
        }
        parts = {log_id: LogPart.from_json(part) for log_id, part in logs.items()}
        return cls(row["cut"], row["log_id"], row["offset"], row["position"], clock, tables, left_out, parts)


@dataclass(frozen=True, slots=True)
class ListedCut:
    """A published cut in a list. `commit_clock` and `published` are in microseconds since 1970 UTC; `tables`: the
    number of tables that it shows."""

    cut: int
    offset: int
    position: str
    commit_clock: int
    published: int
    tables: int


EXPIRED_PROPERTY = "cdcflow.expired"
"""The property of the table of cuts that has the latest cut which maintenance has expired."""


def joined_tables(parts: Iterable[tuple[str, str, Cut]]) -> dict[str, CutTable]:
    """Return the tables of the parts of several logs as one mapping. `parts`: each log's name, its id and its part.

    A table that has rows of several logs gets the members of all of them. It is shown in its latest version, which has
    the rows of each log as of that log's part.
    """
    found: dict[str, CutTable] = {}
    for log, log_id, part in parts:
        for name, table in part.tables.items():
            known = found.get(name)
            own = {f"{log}/{source}": replace(one, log=log_id) for source, one in table.members.items()}
            if known is None:
                found[name] = replace(table, members=own or table.members)
                continue
            newest = max(known, table, key=lambda one: one.version)
            found[name] = CutTable.with_members(newest, {**known.members, **own})
    return {name: table if _is_of_several(table) else _alone(table) for name, table in found.items()}


def _is_of_several(table: CutTable) -> bool:
    return len({one.log for one in table.members.values()}) > 1


def _alone(table: CutTable) -> CutTable:
    """Return a table whose members are all of one log, with the names that the members have in that log."""
    members = {str(table_at(one.source)): replace(one, log="") for one in table.members.values()}
    return replace(table, members=members)


def members_from(found: str | Mapping[str, Any] | None) -> dict[str, CutMember]:
    """Return members from JSON (see `CutTable.members`)."""
    listed: Mapping[str, Any] = json.loads(found) if isinstance(found, str) else found or {}
    return {name: CutMember(**_known_fields(CutMember, one)) for name, one in listed.items()}


def own_part(cut: Cut | None, log_id: str) -> Cut | None:
    """Return one log's part of a cut, for a caller that needs only that log; a cut without a part of that log is
    returned unchanged."""
    return None if cut is None else cut.part_of(log_id) or cut


def cut_expired(warehouse: object, cut: int, expired: int) -> HistoryLost:
    """Return the error for a reader of a cut that maintenance has expired."""
    return HistoryLost(
        f"reading cut {cut} of {warehouse}: it has expired, as all up to cut {expired} have",
        remedy="read one that `cdcflow cuts` lists; set merge.keep longer to keep coming ones for longer",
        runbook="cut-gone",
    )


def newest_of_each(listed: Iterable[ListedCut]) -> list[ListedCut]:
    """Return the cuts sorted by number, and for a cut that was published more than once only its latest publication."""
    found: dict[int, ListedCut] = {}
    for one in sorted(listed, key=lambda one: (one.cut, one.published)):
        found[one.cut] = one
    return list(found.values())


def _known_fields(
    of: type[Cut] | type[CutTable] | type[CutMember] | type[LogPart], found: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of `found` that this version of cdcflow knows, without those that a newer one has added."""
    return {name: found[name] for name in (field.name for field in fields(of)) if name in found}


def is_replaced(cut: Cut, name: str, commit: str, transactions: Mapping[str, int]) -> bool:
    """Return whether the version number that the cut shows now belongs to a different commit of the table.

    `commit`, `transactions`: the current ones of that version, as in `port.TableSnapshot`. For a cut of an older
    cdcflow, and for a commit that was cleaned up, the test is whether the version has merged anything after the cut.
    """
    shown = cut.tables[name].commit
    if shown and commit:
        return shown != commit
    part = cut.part_with(name)
    return transactions.get(f"cdcflow/{part.log_id}/{name}", 0) > part.cut


REPLACED = "another version has its number: the table was restored from a copy, and has changed since"


def version_gone(warehouse: object, cut: Cut, name: str, why: str) -> HistoryLost:
    """Return the error for a reader of a cut when a table is no longer in the state that the cut shows."""
    return HistoryLost(
        f"reading cut {cut.cut} of {warehouse}: version {cut.tables[name].version} of table {name} no longer exists:"
        f" {why}",
        remedy="read a newer cut, or the other tables of this one: read_cut(…, tables=[…])",
        runbook="cut-gone",
    )


def already_published(cut: Cut) -> SinkUnavailable:
    """Return the error for a merge that tries to publish after a different merge has published."""
    return SinkUnavailable(
        f"publishing cut {cut.cut}: another merge has published one in the meantime",
        remedy="nothing is lost; merge again",
        runbook="busy",
    )
