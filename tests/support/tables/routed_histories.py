"""Random histories of three tables that are merged into one, and the rows that the one must have.

Each table has its own source rows in plain Python: whatever a merge does, the rows with its number in the one table are
these, and those of the others are theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import Step, make_table
from tests.support.merge.several_logs import MergeLogs

from cdcflow import local
from cdcflow.model.routes import Routes
from cdcflow.model.table import Table
from cdcflow.tables.job.member_tables import MemberTable
from cdcflow.tables.job.reports import MergeReport
from cdcflow.tables.merge.policy import Mode, Policies, TablePolicy

TARGET = "shop.orders"
ROUTED = Policies(routes=Routes.of({r"shard_(?P<shard>\d+)\.orders": TARGET}))
SHARDS = (1, 2, 3)

Row = dict[str, Any]


class Shard:
    """One source table, and the entry of its backfill in the log."""

    def __init__(self, number: int, chance: Random) -> None:
        self.number = number
        self.chance = chance
        self.incarnation = 1
        self.columns: dict[str, Any] = {"id": "int64", "doc": "string", "n": "int32"}
        self.numbers = {"id": 1, "doc": 2, "n": 3}
        self.missing: dict[str, str] = {}
        self.rows: dict[int, Row] = {}
        self.entry: dict[str, Any] = {"state": "done", "generation": 1, "since": 1, "whole_since": 1}

    @property
    def shape(self) -> Table:
        return make_table(
            "orders",
            schema=f"shard_{self.number}",
            incarnation=self.incarnation,
            numbers=self.numbers,
            missing=self.missing,
            **self.columns,
        )

    @property
    def is_reading(self) -> bool:
        return str(self.entry["state"]) != "done"

    def event(self, offset: int) -> tuple[str, list[Step]]:
        """What happens next in this table: its kind, and the changes in the log, the first at this offset."""
        kinds = {
            "insert": 6,
            "update": 5,
            "partial": 4,
            "delete": 3,
            "move": 3,
            "truncate": 0.7,
            "read_again": 1,
            "add": 0.6,
            "widen": 0.4,
            "drop": 0.4,
            "make_again": 0.4,
        }
        if self.is_reading:
            kinds = {**kinds, "finish": 4, "read_again": 0, "make_again": 0}
        kind = self.chance.choices([*kinds], [*kinds.values()])[0]
        steps: list[tuple[str, Row]] = getattr(self, f"_{kind}")(offset)
        return kind, [(self.shape, op, values) for op, values in steps]

    def _value(self, column: str) -> Any:
        number = self.chance.choice([None, *range(20)])
        is_text = self.columns[column] == "string"
        return number if number is None or not is_text else f"{self.number}:{number}"

    def _new(self, id_: int) -> Row:
        return {"id": id_, **{name: self._value(name) for name in self.columns if name != "id"}}

    def _insert(self, offset: int) -> list[tuple[str, Row]]:
        row = self._new(self.chance.randrange(6))
        if row["id"] in self.rows:
            return self._update(offset)
        self.rows[row["id"]] = row
        return [("c", row)]

    def _update(self, offset: int) -> list[tuple[str, Row]]:
        if not self.rows:
            return []
        row = self._new(self.chance.choice([*self.rows]))
        self.rows[row["id"]] = row
        return [("u", row)]

    def _partial(self, offset: int) -> list[tuple[str, Row]]:
        if not self.rows:
            return []
        id_ = self.chance.choice([*self.rows])
        row = {**self._new(id_), "doc": self.rows[id_]["doc"]}
        self.rows[id_] = row
        return [("u", {**{k: v for k, v in row.items() if k != "doc"}, "_unchanged": ["doc"]})]

    def _delete(self, offset: int) -> list[tuple[str, Row]]:
        if not self.rows:
            return []
        id_ = self.chance.choice([*self.rows])
        del self.rows[id_]
        return [("d", {"id": id_})]

    def _move(self, offset: int) -> list[tuple[str, Row]]:
        free = [id_ for id_ in range(8) if id_ not in self.rows]
        if not self.rows or not free:
            return []
        old, new = self.chance.choice([*self.rows]), self.chance.choice(free)
        row = {**self.rows.pop(old), "id": new}
        self.rows[new] = row
        sent = {**{k: v for k, v in row.items() if k != "doc"}, "_unchanged": ["doc"], "_before": {"id": old}}
        return [("d", {"id": old}), ("c", sent)]

    def _truncate(self, offset: int) -> list[tuple[str, Row]]:
        self.rows.clear()
        return [("t", {})]

    def _read_again(self, offset: int) -> list[tuple[str, Row]]:
        """A backfill begins; before it, rows were deleted that the log does not know of."""
        for id_ in [id_ for id_ in self.rows if self.chance.random() < 0.4]:
            del self.rows[id_]
        self.entry = {"state": "reading", "generation": self.entry["generation"] + 1, "since": offset}
        self.entry["whole_since"] = None
        return []

    def _finish(self, offset: int) -> list[tuple[str, Row]]:
        self.entry |= {"state": "done", "whole_since": self.entry["since"]}
        return [("r", row) for row in self.rows.values()]

    def _add(self, offset: int) -> list[tuple[str, Row]]:
        name = self.chance.choice(["extra", f"only_{self.number}"])
        if name not in self.columns:
            has_default = self.chance.random() < 0.5
            self.columns = {**self.columns, name: "int32"}
            self.numbers = {**self.numbers, name: max(self.numbers.values()) + 1}
            self.missing = {**self.missing, name: "7"} if has_default else dict(self.missing)
            for row in self.rows.values():
                row[name] = 7 if has_default else None
        return self._insert(offset)

    def _widen(self, offset: int) -> list[tuple[str, Row]]:
        self.columns = {**self.columns, "n": "int64"}
        return self._insert(offset)

    def _drop(self, offset: int) -> list[tuple[str, Row]]:
        """A column that no other event adds again."""
        name = f"only_{self.number}"
        if name in self.columns and self.chance.random() < 0.5:
            self.columns = {k: v for k, v in self.columns.items() if k != name}
            self.columns[f"{name}_{offset}"] = "string"
            self.numbers = {**self.numbers, f"{name}_{offset}": max(self.numbers.values()) + 1}
            self.numbers.pop(name)
            self.missing = {k: v for k, v in self.missing.items() if k != name}
            for row in self.rows.values():
                row.pop(name)
                row[f"{name}_{offset}"] = None
        return self._insert(offset)

    def _make_again(self, offset: int) -> list[tuple[str, Row]]:
        """It is dropped, and created with other numbers of its columns; then it is read."""
        self.incarnation += 1
        self.missing = {}
        self.numbers = {name: number for number, name in enumerate(self.columns, 1)}
        self.rows = {n: self._new(n) for n in range(self.chance.choice([0, 2]))}
        self._read_again(offset)
        return []


class RoutedHistories:
    """The three tables in one log, or those with other numbers."""

    def __init__(self, log: HandLog, seed: int, shards: Sequence[int] = SHARDS) -> None:
        self.log = log
        self.chance = Random(seed)
        self.shards = [Shard(number, self.chance) for number in shards]
        self.covered: Counter[str] = Counter()

    def segment(self, *, ends: bool = False) -> None:
        """Seal some events of all of them. `ends`: every backfill is done at the end."""
        steps: list[Step] = []
        for _ in range(self.chance.choice([1, 4, 10, 20])):
            shard = self.chance.choice(self.shards)
            self._take(steps, *shard.event(self.log.next_offset + len(steps)))
        for shard in self.shards:
            if ends and shard.is_reading:
                found = shard._finish(0)
                self._take(steps, "finish", [(shard.shape, op, values) for op, values in found])
            self.log.progress[f"shard_{shard.number}.orders"] = dict(shard.entry)
        self.log.segment(steps)

    def _take(self, steps: list[Step], kind: str, found: list[Step]) -> None:
        self.covered[kind] += bool(found) or kind in ("add", "widen", "drop", "read_again", "make_again")
        steps += found

    def differences(self, rows: list[Row]) -> list[str]:
        """What differs from the sources, one line per row. Columns that a row's own source does not have are NULL."""
        there: dict[tuple[str, int], Row] = {}
        found = []
        for row in rows:
            key = row["shard"], row["id"]
            if key in there:
                found.append(f"{key} exists twice")
            there[key] = row
        for shard in self.shards:
            for id_, wanted in shard.rows.items():
                got = there.pop((str(shard.number), id_), None)
                others = [] if got is None else [n for n in got if n.startswith("only_") and n[5] != str(shard.number)]
                if got is None:
                    found.append(f"({shard.number}, {id_}) is missing")
                elif {name: got.get(name) for name in wanted} != wanted or got["_missing"]:
                    found.append(f"({shard.number}, {id_}): {got} in place of {wanted}")
                elif any(got[name] is not None for name in others):
                    found.append(f"({shard.number}, {id_}): {got} has values of other tables")
        return [*found, *(f"{key} is not at its source" for key in there)]

    def live_differences(self, live: Mapping[str, list[Row]]) -> list[str]:
        """The same for the live view, which shows each source under its own name."""
        rows = []
        for number in SHARDS:
            rows += [{**row, "shard": str(number)} for row in live.get(f"shard_{number}.orders", [])]
        return self.differences(rows)


class Killed(BaseException):
    """As if the process ended there."""


@contextmanager
def dying(chance: Random, commits: int) -> Iterator[None]:
    """End a merge before or after one of its folds."""
    right, left = MemberTable.fold, iter(range(commits))
    is_after = chance.random() < 0.5

    def fold(table: MemberTable, *given: Any) -> None:
        is_last = next(left, None) is None
        if is_last and not is_after:
            raise Killed
        right(table, *given)
        if is_last:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemberTable, "fold", fold)
        with suppress(Killed):
            yield


def differences(
    root: Path,
    seed: int,
    merge: Callable[..., MergeReport],
    rows_of_cut: Callable[[Path], Mapping[str, list[Row]]],
    rows_now: Callable[[Path, Path], Mapping[str, list[Row]]],
    segments: int = 6,
) -> list[str]:
    """What the table of a random history has that its sources do not have, or the other way round. Merges die at times.
    `rows_of_cut`: the rows of every table in the latest cut of a warehouse; `rows_now`: the same of a live view."""
    histories = RoutedHistories(HandLog(root / "log"), seed)
    log, warehouse = root / "log", root / "warehouse"
    for number in range(segments):
        is_last = number == segments - 1
        histories.segment(ends=is_last)
        if histories.chance.random() < 0.3 and not is_last:
            continue
        if histories.chance.random() < 0.5:
            with dying(histories.chance, histories.chance.randrange(3)):
                merge(log, warehouse, policies=ROUTED)
        report = merge(log, warehouse, policies=ROUTED)
        if refused := [t.left_out for t in report.tables if t.left_out]:
            return refused
        if any(shard.is_reading for shard in histories.shards):
            continue
        if found := histories.differences(rows_of_cut(warehouse).get(TARGET, [])):
            return [f"after segment {number}", *found]
    histories.segment(ends=True)
    if found := histories.live_differences(rows_now(log, warehouse)):
        return ["in the live view", *found]
    return []


def differences_from_separate(
    root: Path, seed: int, merge: Callable[..., MergeReport], mode: Mode, segments: int = 6
) -> list[str]:
    """What the one table of a random history has that separate tables of the same mode do not have, or the other way
    round; also in the live views. Merges into the one die at times."""
    histories = RoutedHistories(HandLog(root / "log", has_transactions=True), seed)
    log, places = root / "log", {"one": root / "one", "separate": root / "separate"}
    policies = {
        "one": Policies(TablePolicy(mode=mode), routes=ROUTED.routes),
        "separate": Policies(TablePolicy(mode=mode)),
    }
    for number in range(segments):
        histories.segment(ends=number == segments - 1)
        if histories.chance.random() < 0.3 and number < segments - 1:
            continue
        if histories.chance.random() < 0.5:
            with dying(histories.chance, histories.chance.randrange(3)):
                merge(log, places["one"], policies=policies["one"])
        reports = [merge(log, place, policies=policies[which]) for which, place in places.items()]
        if refused := [t.left_out for report in reports for t in report.tables if t.left_out]:
            return [] if all(map(_is_as_documented, refused)) else refused
        one = local.read_cut(places["one"]).get(TARGET)
        for name, rows in local.read_cut(places["separate"]).items():
            found = None if one is None else one.filter(pc.equal(one["shard"], name[6]))
            if one is not None and (text := _difference(found, rows)):
                return [f"after segment {number}: {name}: {text}"]
    histories.segment(ends=True)
    live = [local.read_live(log, place, policies=policies[which]) for which, place in places.items()]
    return [f"in the live view: {name}: {text}" for name in live[1] if (text := _difference(*(v[name] for v in live)))]


def _is_as_documented(refusal: str) -> bool:
    """Where the rows of a dropped table stay, a new one may have a column of a dropped column's name."""
    return "and it has a different one of that name now, and other tables are merged" in refusal


def _difference(one: pa.Table, separate: pa.Table) -> str:
    names = separate.column_names
    found, wanted = (Counter(map(repr, rows.select(names).to_pylist())) for rows in (one, separate))
    return "" if found == wanted else f"{found - wanted} in place of {wanted - found}"


def differences_of_pipelines(root: Path, seed: int, merge_logs: MergeLogs, mode: Mode, rounds: int = 7) -> list[str]:
    """What the one table that two random logs are merged into has that a table for each log does not have, or the other
    way round, whenever merges into the one die. Both logs have a table of the same name."""
    chance = Random(seed)
    route = {r"shard_(?P<shard>\d+)\.orders": TARGET}
    logs: dict[str, HandLog] = {}
    policies: dict[str, dict[str, Policies]] = {"one": {}, "separate": {}}
    histories: dict[str, RoutedHistories] = {}
    for name, shards in (("eu", (1, 2)), ("us", (1,))):
        logs[name] = HandLog(root / name, log_id=f"log-{name}", has_transactions=True)
        histories[name] = RoutedHistories(logs[name], seed, shards)
        histories[name].chance = chance
        apart = dict.fromkeys(route, f"{name}.orders")
        one = Routes.of(route, {TARGET: {"region": name}})
        policies["one"][name] = Policies(TablePolicy(mode=mode), routes=one)
        policies["separate"][name] = Policies(TablePolicy(mode=mode), routes=Routes.of(apart))
    roots = {name: log.root for name, log in logs.items()}
    compared = 0
    for number in range(rounds):
        for name in logs:
            if number in (0, rounds - 1) or chance.random() < 0.7:
                histories[name].segment(ends=chance.random() < 0.5)
        if chance.random() < 0.5:
            with dying(chance, chance.randrange(4)):
                merge_logs(roots, root / "one", policies=policies["one"])
        for which, known in policies.items():
            report = merge_logs(roots, root / which, policies=known)
            if refused := [t.left_out for t in report.tables if t.left_out]:
                return [] if all(map(_is_as_documented, refused)) else refused
        found, wanted = (local.read_cut(root / which) if report.cut else {} for which in policies)
        for name in logs:
            if (rows := wanted.get(f"{name}.orders")) is not None and TARGET in found:
                own = found[TARGET].filter(pc.equal(found[TARGET]["region"], name))
                compared += 1
                if text := _difference(own, rows):
                    return [f"round {number}: {name}: {text}"]
        for name, log in logs.items():
            if report.cut:
                views = [local.read_live(log.root, root / which, policies=p[name]) for which, p in policies.items()]
                for table in views[1]:
                    if text := _difference(views[0][table], views[1][table]):
                        return [f"round {number}: live view of {name}: {table}: {text}"]
    return [] if compared > 2 else ["nothing was compared"]
