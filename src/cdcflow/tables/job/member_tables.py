"""One captured table among several whose rows are in one table of the warehouse (`cdcflow.model.routes`).

    shard_1.orders ──▶ MemberTable shard=1 ──┐
    shard_2.orders ──▶ MemberTable shard=2 ──┼──▶ CurrentTable shop.orders    key (id, shard)
    shard_3.orders ──▶ MemberTable shard=3 ──┘

To the merge, each member is a separate table: it has a position, a description and a backfill, and seems to have the
only rows. A merge makes one commit for each member, with that member's transaction. So a truncate, a drop or a new
backfill of one concerns its rows alone. The members share the columns, which are identified by name: a column is added
once, and its type holds the values of all members. A change that would rename a column for the others is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Generic, TypeVar

from cdcflow.errors import InvariantViolated
from cdcflow.model.file_layout import FileLayout, SortColumn
from cdcflow.model.routes import Destination, Routes
from cdcflow.model.table import TableId, word
from cdcflow.tables.job.past_tables import PastTable
from cdcflow.tables.merge import reduce
from cdcflow.tables.merge.acts import Act, Add, Describe, Fill, MissAlso, MissOnly, Widen
from cdcflow.tables.merge.column_versions import widened_type
from cdcflow.tables.merge.contract import Contract, ContractResult
from cdcflow.tables.merge.format import Format
from cdcflow.tables.merge.modes import CURRENT, MODE_PROPERTY, ModeRules, mode_of_properties
from cdcflow.tables.merge.reduce import OURS, ColumnLayout
from cdcflow.tables.merge.refusals import CannotFollow, member_refused
from cdcflow.tables.merge.statement import BEGUN_PROPERTY, IDENTITY_PROPERTY, TARGET_PROPERTY, Folding
from cdcflow.tables.merge.target import Target, TargetColumn, TargetMember
from cdcflow.tables.port import NO_VALUES, Compacted, CurrentTable, Kept, SqlSession, TableSnapshot

Rows = TypeVar("Rows")


def described_members(found: TableSnapshot) -> Target | None:
    """Return the description of a table with members; `None` if it has none."""
    text = found.properties.get(TARGET_PROPERTY)
    described = None if text is None else Target.from_json(text)
    return described if described is not None and described.members else None


def member_with(described: Target, key: Mapping[str, str]) -> TargetMember | None:
    """Return the member whose rows have these values in the columns that tell members apart; `None` if there is none.
    Members may be tables of several logs, whose names can be the same."""
    return next((one for one in described.members.values() if dict(one.key) == dict(key)), None)


def snapshot_of(found: TableSnapshot, described: Target, key: Mapping[str, str]) -> TableSnapshot | None:
    """Return the snapshot of a table as if it had the rows of one member alone; `None` if that member has not been
    added to it yet."""
    own = member_with(described, key)
    if own is None:
        return None
    ids = {c.id for c in own.target.columns if c.id is not None}
    mode = mode_of_properties(found.properties) or CURRENT
    names = {c.name for c in own.target.columns if c.id is None} | mode.own
    return replace(
        found,
        properties={
            **found.properties,
            TARGET_PROPERTY: own.target.to_json(),
            IDENTITY_PROPERTY: own.source,
            BEGUN_PROPERTY: str(own.begun),
        },
        transactions=_transactions_of(found.transactions, described, key),
        columns=tuple(c for c in found.columns if c.id in ids or c.name in names),
    )


def _transactions_of(known: Mapping[str, int], described: Target, key: Mapping[str, str]) -> dict[str, int]:
    """Return the transactions of a table, without those of its other members. `key`: that of the member itself."""
    others = [_app(one.source) for one in described.members.values() if dict(one.key) != dict(key)]
    return {
        app: version
        for app, version in known.items()
        if not any(app == other or app.startswith(f"{other}/") for other in others)
    }


def _app(source: str) -> str:
    """Return the prefix of the names of a member's transactions (see `Positions.app`)."""
    log, table = _log_and_table(source)
    return f"cdcflow/{log}/{table}"


def _log_and_table(source: str) -> tuple[str, TableId]:
    found = json.loads(source)
    return str(found["log"]), TableId(found["schema"], found["name"])


class MemberTable(CurrentTable):
    """The part of a table that has the rows of one captured table."""

    def __init__(
        self,
        whole: CurrentTable,
        log_id: str,
        source: TableId,
        destination: Destination,
        routes: Routes,
        rules: Format,
    ) -> None:
        self._whole = whole
        self._log_id = log_id
        self._source = source
        self._destination = destination
        self._routes = routes
        self._rules = rules
        self._seen: TableSnapshot | None = None
        self._described: Target | None = None
        self._types: dict[str, str | None] = {}

    @property
    def session(self) -> SqlSession:
        return self._whole.session

    def snapshot(self) -> TableSnapshot | None:
        return self._part_of(self._whole.snapshot())

    def own_snapshot(self) -> TableSnapshot | None:
        return self._part_of(self._whole.own_snapshot())

    def _part_of(self, found: TableSnapshot | None) -> TableSnapshot | None:
        self._seen, self._described = found, None
        if found is None:
            return None
        self._described = described_members(found)
        # A list's type is known from the description only.
        known = {} if self._described is None else {c.name: c.type for c in self._described.columns}
        self._types = {c.name: c.type or known.get(c.name) for c in found.columns}
        if self._described is None:
            raise member_refused(
                self._source,
                self._destination.table,
                "a table of that name exists that has the rows of one table only",
                f"name another table in merge.tables.routes, or move the folder of {self._destination.table} away",
            )
        for one in self._described.members.values():
            self._check_place(one)
        return snapshot_of(found, self._described, self._destination.key)

    def _check_place(self, one: TargetMember) -> None:
        """Check that the settings still route a member of this log here, with the same key."""
        log_id, table = _log_and_table(one.source)
        if log_id != self._log_id and dict(one.key) != dict(self._destination.key):
            return
        name = str(table)
        there = self._routes.find(name)
        if there is None or there.table != self._destination.table or dict(there.key) != dict(one.key):
            raise member_refused(
                self._source,
                self._destination.table,
                f"that table has rows of {name}, which merge.tables.routes no longer routes there in the same way",
                f"set the route of {name} back; or move the folder of {self._destination.table} away, and run `cdcflow"
                " backfill` for each table that is merged into it",
            )

    def newest_commit(self) -> Mapping[str, Any] | None:
        return self._whole.newest_commit()

    def transactions_of(self, version: int) -> Mapping[str, int]:
        known = self._whole.transactions_of(version)
        return known if self._described is None else _transactions_of(known, self._described, self._destination.key)

    def commit_of(self, version: int) -> str:
        return self._whole.commit_of(version)

    def drop_torn(self, published: int | None = None) -> None:
        self._whole.drop_torn(published)

    def sync(self, published: int | None) -> None:
        self._whole.sync(published)

    def edits_since(self, version: int) -> list[str]:
        return self._whole.edits_since(version)

    def pin(self, version: int, cut: int) -> None:
        self._whole.pin(version, cut)

    # ── its shape ───────────────────────────────────────────────────────────────────────────────────────────

    def make(
        self,
        target: Target,
        source: str,
        begun: int,
        metadata: Mapping[str, Any],
        mode: ModeRules = CURRENT,
        *,
        wide: bool = False,
    ) -> None:
        self._check_kind(target, mode)
        own = TargetMember(target, source, begun, dict(self._destination.key))
        if self._seen is None:
            keys = [TargetColumn(name, 0, "string") for name in self._destination.key]
            columns = _with_numbers([*target.columns, *keys])
            whole = Target(1, (*target.key, *self._destination.key), columns, members={str(self._source): own})
            self._whole.make(whole, _identity(source, self._destination.table), begun, metadata, mode, wide=wide)
            return
        self._check_columns(target.columns)
        for column in target.columns:
            self._add(column, metadata)
        self._describe(own, metadata)

    def _check_kind(self, target: Target, mode: ModeRules) -> None:
        """Check that a table of this kind can have members.

        Raises:
            CannotFollow: it cannot have them.
        """
        alone = "route it under a name that no other table has (merge.tables.routes)"
        there = None if self._seen is None else self._seen.properties.get(MODE_PROPERTY, CURRENT.name)
        if there not in (None, mode.property_value):
            raise self._refusal(
                f"its mode is {mode.property_value}, and that of the others is {there}",
                f"give all of them one mode, as {self._destination.table} in merge.tables.each",
            )
        if not target.key and not mode.keeps_changes:
            raise self._refusal("it has no key, by which a row is known among those of other tables", alone)
        keys = {name.lower() for name in self._destination.key}
        if taken := next((c.name for c in target.columns if c.name.lower() in keys), None):
            raise self._refusal(
                f"it has a column {taken}, and so is a group of its route called",
                "give the group another name in merge.tables.routes",
            )
        known = None if self._described is None else self._described.key
        wanted = (*target.key, *self._destination.key)
        if known is not None and known != wanted:
            raise self._refusal(
                f"its key is ({', '.join(wanted)}), and that of the others is ({', '.join(known)})", alone
            )

    def _check_columns(self, columns: Sequence[TargetColumn]) -> None:
        """Check that these columns can be added to those of the other members.

        Raises:
            CannotFollow: a column's name differs from another column's only in upper and lower case, or no type holds
                the values of both.
        """
        names = {name.lower(): name for name in self._types}
        keys = {name.lower() for name in self._destination.key}
        alone = "make them alike at the source, or route it under a name that no other table has (merge.tables.routes)"
        for column in columns:
            there = names.get(column.name.lower())
            if column.name.lower() in keys:
                raise self._refusal(
                    f"it now has a column {column.name}, and so is a group of its route called",
                    f"rename the column at the source, then run `cdcflow backfill {word(self._source)}` and `cdcflow"
                    " merge`",
                )
            if there is not None and there != column.name:
                raise self._refusal(f"its column {column.name} is called {there} in the others", alone)
            held = None if there is None else self._types[there]
            if held is not None and widened_type(held, column.type, self._rules) is None:
                raise self._refusal(
                    f"its column {column.name} is {column.type}, and {held} in the others, which one column of"
                    f" {self._rules.name} cannot both hold",
                    alone,
                )

    def _refusal(self, why: str, remedy: str) -> CannotFollow:
        return member_refused(self._source, self._destination.table, why, remedy)

    def _add(self, column: TargetColumn, metadata: Mapping[str, Any]) -> None:
        """Add a column, unless another member has added it; widen its type if it does not hold this member's values."""
        if column.name not in self._types:
            self._whole.follow(Add(replace(column, id=None, added=False, was=""), None), metadata)
            self._types[column.name] = column.type
            return
        held = self._types[column.name]
        wider = None if held is None else widened_type(held, column.type, self._rules)
        if wider is not None and wider != held:
            self._whole.follow(Widen(column.name, wider), metadata)
            self._types[column.name] = wider

    def _describe(self, own: TargetMember, metadata: Mapping[str, Any]) -> None:
        described = self._described
        if described is None:
            raise InvariantViolated(f"describing {self._source} in {self._destination.table}: it was not read")
        names = {c.name for c in described.columns}
        columns = [*described.columns, *(c for c in own.target.columns if c.name not in names)]
        members = {**described.members, self._member_name(described): own}
        self._described = replace(described, columns=_with_numbers(columns), members=members)
        self._whole.follow(Describe(self._described), metadata)

    def _member_name(self, described: Target) -> str:
        """Return the name of this member in the description: the name of the captured table, made unique if another log
        has a table of that name."""
        key = dict(self._destination.key)
        known = next((name for name, one in described.members.items() if dict(one.key) == key), None)
        name = str(self._source)
        return known or (name if name not in described.members else f"{name} of {self._log_id}")

    @property
    def _own(self) -> TargetMember:
        found = None if self._described is None else member_with(self._described, self._destination.key)
        if found is None:
            raise InvariantViolated(f"changing {self._source} in {self._destination.table}: it was not created")
        return found

    def begin(self, begun: int, metadata: Mapping[str, Any]) -> None:
        self._describe(replace(self._own, begun=begun), metadata)

    def follow(self, act: Act, metadata: Mapping[str, Any], app: str = "", version: int = 0) -> None:
        match act:
            case Describe(target):
                self._check_columns([c for c in target.columns if c.added])
                self._describe(replace(self._own, target=target), metadata)
            case Add(column):
                self._add(column, metadata)
            case Fill(_, _, only):
                both = [*([only] if only else []), reduce.only_with(self._destination.key)]
                self._whole.follow(replace(act, only=" AND ".join(both)), metadata, app, version)
            case Widen():
                self._whole.follow(act, metadata)
            case MissOnly() | MissAlso():
                pass  # no column is renamed
            case _:
                raise InvariantViolated(f"changing {self._source} in {self._destination.table}: {type(act).__name__}")

    def arrange(self, layout: FileLayout, recorded: str, metadata: Mapping[str, Any]) -> None:
        self._whole.arrange(layout, recorded, metadata)

    # ── its rows ────────────────────────────────────────────────────────────────────────────────────────────

    def standing(self, layout: ColumnLayout, changes: str, *, whole: bool = False) -> str:
        return self._whole.standing(layout, changes, whole=whole)

    def check_rows(
        self,
        table: TableId,
        contract: Contract,
        mode: ModeRules,
        quarantine: Callable[[], CurrentTable],
        result: ContractResult,
        metadata: Mapping[str, Any],
    ) -> None:
        self._whole.check_rows(table, contract, mode, quarantine, result, metadata)

    def fold(self, folding: Folding, metadata: Mapping[str, Any], app: str, version: int) -> None:
        is_empty = self._seen is None or self._seen.is_empty
        with self._with_others(folding if is_empty else replace(folding, empty=False)) as found:
            self._whole.fold(found, metadata, app, version)

    @contextmanager
    def _with_others(self, folding: Folding) -> Iterator[Folding]:
        """Yield the folding extended by the columns that only other members have; they are NULL in each row of this
        member."""
        names = {c.name for c in folding.layout.target.columns}
        others = [c for c in (() if self._described is None else self._described.columns) if c.name not in names]
        if not others:
            yield folding
            return
        target = folding.layout.target
        columns = (*target.columns, *(TargetColumn(c.name, OURS, c.type) for c in others))
        nulls = ", ".join(f"CAST(NULL AS {c.type}) AS c{i}" for i, c in enumerate(others, len(target.columns)))
        name = self.session.view("member", f"SELECT *, {nulls} FROM {folding.changes}")  # noqa: S608  cdcflow's own
        try:
            layout = replace(folding.layout, target=replace(target, columns=columns))
            yield replace(folding, layout=layout, changes=name)
        finally:
            self.session.drop([name])

    def sweep(
        self,
        before: int,
        metadata: Mapping[str, Any],
        app: str,
        version: int,
        ended: Sequence[str] = (),
        assigned: str = "",
        only: Mapping[str, str] = NO_VALUES,
    ) -> None:
        self._whole.sweep(before, metadata, app, version, ended, assigned, {**only, **self._destination.key})

    def rows_that_miss(
        self, ended: Sequence[str] = (), left: Collection[str] = (), only: Mapping[str, str] = NO_VALUES
    ) -> int:
        return self._whole.rows_that_miss(ended, left, {**only, **self._destination.key})

    # ── maintenance, which is of the whole ──────────────────────────────────────────────────────────────────

    def compact(self, order: Sequence[SortColumn] = ()) -> Compacted:
        return self._whole.compact(order)

    def let_go(self, kept: Kept) -> str:
        return self._whole.let_go(kept)

    def close(self) -> None:
        self._whole.close()


def _with_numbers(columns: Sequence[TargetColumn]) -> tuple[TargetColumn, ...]:
    """Return the columns in the form that a description of a table with members has: identified by name, numbered in
    this order."""
    return tuple(TargetColumn(c.name, number, c.type) for number, c in enumerate(columns, 1))


def _identity(source: str, table: TableId) -> str:
    """Return the identity of a table with members, which no captured table has."""
    found = {"log": json.loads(source)["log"], "schema": table.schema, "name": table.name, "of": "routes"}
    return json.dumps(found, separators=(",", ":"))


class PastMember(Generic[Rows]):
    """The rows of one captured table at a past version. Implements `tables.job.past_tables.PastTable`."""

    def __init__(self, whole: PastTable[Rows], source: TableId, key: Mapping[str, str]) -> None:
        self._whole = whole
        self._name = str(source)
        self._key = key
        self._base: list[str] = []

    @property
    def session(self) -> SqlSession:
        return self._whole.session

    def as_of(self, version: int) -> TableSnapshot:
        found = self._whole.as_of(version)
        described = described_members(found)
        part = None if described is None else snapshot_of(found, described, self._key)
        if part is None:
            raise InvariantViolated(f"reading {self._name}: version {version} of its table does not have it")
        return part

    def base(self) -> str:
        self._base.append(self._whole.base())
        only = reduce.only_with(self._key)
        return self.session.view("member", f"SELECT * FROM {self._base[-1]} WHERE {only}")  # noqa: S608  quoted

    def result(self, query: str, target: Target, mode: ModeRules = CURRENT) -> Rows:
        return self._whole.result(query, target, mode)

    def close(self) -> None:
        if self._base:
            self.session.drop(self._base)
        self._whole.close()
