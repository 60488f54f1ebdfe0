"""Upkeep: cuts that are old enough go, and what only they needed; small files become one. Beside merges, bit by bit.

    cuts      10   20   30 │ 40   50   60        keep: cuts published since │
              └─ expired ──┘ └── kept ──┘        the newest is kept in any case
    a table    v3   v4   v4   v4   v7   v9       needed of it: v4, v7, v9, and whatever is newer

First the rows of expired cuts go, then what the tables kept for them: a run that dies anywhere leaves more than is
needed, never less, and the next one goes on. What nobody ever published, and what is younger than `keep`, stays.

A merge has the tables to itself while it works: each step here waits for none, and is left out then. Files are made
larger beside a merge; of two commits at once the format takes one, and a merge does its table again.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

import structlog

from cdcflow.errors import CdcflowError, HistoryLost, SinkUnavailable
from cdcflow.warehouse.cut import ListedCut
from cdcflow.warehouse.engines import Engines
from cdcflow.warehouse.failures import kinds
from cdcflow.warehouse.paths import STATE
from cdcflow.warehouse.port import Compacted, CurrentTable, Cuts, Engine, HandOver, Kept, Snapshot
from cdcflow.warehouse.ranges import order_of
from cdcflow.warehouse.reports import TableReport

Step = Callable[[Engine, CurrentTable, Snapshot], str]
"""Something that is done to a table, which looked so just now. Returns what was done."""

OUT_OF_TIME = "the budget was used up; its turn comes first the next time"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class UpkeepPolicy:
    """What a warehouse's upkeep may do. `keep_s`: cuts are kept so long (None: for ever). `every_s`: how often a table
    is looked after. `budget_s`: no step begins later than so long after the first. `compact`: make small files one.
    `after_merges`: a table's turn comes after so many merges of it, too (0: by the time alone). `cluster`: files that
    are made have their rows in the order of the table's key."""

    keep_s: float | None = None
    every_s: float = 3600.0
    budget_s: float = 60.0
    compact: bool = True
    after_merges: int = 100
    cluster: bool = False


@dataclass(frozen=True, slots=True)
class TableUpkeep:
    """What was done to a table, and why the rest was not ("": all was)."""

    name: str
    done: tuple[str, ...] = ()
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    """What an upkeep did. `expired`: how many cuts went. `oldest`: the oldest that is kept (0: none was published).
    `put_off`: tables whose turn did not come within the budget."""

    expired: int = 0
    oldest: int = 0
    tables: tuple[TableUpkeep, ...] = ()
    put_off: tuple[str, ...] = ()
    skipped: str = ""


@dataclass(slots=True)
class _Turns:
    """When each table was looked after last, as the warehouse says. Seconds since 1970."""

    engine: Engine
    began: float = 0.0
    tables: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: Engine) -> _Turns:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            found = json.loads(engine.read_text(STATE) or "{}")
            tables = {str(name): float(at) for name, at in found["tables"].items()}
            return cls(engine, float(found["began"]), tables)
        return cls(engine)

    def last(self, name: str) -> float:
        return self.tables.get(name, self.began)

    def save(self) -> None:
        self.engine.write_text(STATE, json.dumps({"began": self.began, "tables": self.tables}) + "\n")


class UpkeepWhenDue:
    """The upkeep of tables whose turn it is, beside the merges of one process.

    Each small merge leaves small files, and the next one reads them: a table that is merged every few seconds has its
    turn long before an hour is over. Those merges are counted here, so another process begins anew.
    """

    def __init__(self, engines: Engines, policy: UpkeepPolicy, clock: Callable[[], float] = time.time) -> None:
        self._engines = engines
        self._policy = policy
        self._clock = clock
        self._merges: Counter[str] = Counter()

    def after(self, tables: Iterable[TableReport]) -> UpkeepReport:
        """What is due after a merge of these tables. What is in its way puts it off; a merge never fails by it."""
        policy, now = self._policy, self._clock()
        self._merges.update(table.name for table in tables if table.changes)
        counted = policy.compact and policy.after_merges > 0
        worn = {name for name, count in self._merges.items() if counted and count >= policy.after_merges}
        try:
            turns = _Turns.of(self._engines.first)
            if not turns.began:  # a warehouse that is new, or new to upkeep, has nothing to be done yet
                turns.began = now
                turns.save()
            oldest = min((turns.last(name) for name in turns.tables), default=turns.began)
            if not worn and now - oldest < policy.every_s:
                return UpkeepReport()
            report = upkeep(self._engines, policy, self._clock, due_only=True, worn=worn)
        except Exception as error:  # noqa: BLE001  the merge before it is done, and stays done
            reason = kinds(error)
            if isinstance(error, CdcflowError):  # others' texts may have values of rows
                reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            _log.warning("upkeep ended early", reason=reason)
            return UpkeepReport(skipped=reason)
        asked = {table.name: table.skipped for table in report.tables}
        for name in worn | asked.keys():  # one that no kept cut shows is not asked, and is counted anew, too
            if name not in report.put_off and asked.get(name) != OUT_OF_TIME:
                del self._merges[name]
        return report


def upkeep(
    engines: Engines,
    policy: UpkeepPolicy,
    clock: Callable[[], float] = time.time,
    *,
    due_only: bool = False,
    worn: Collection[str] = (),
) -> UpkeepReport:
    """Look after the cuts and tables of the warehouse in which `engines` work; those that waited longest come first.
    `due_only`: only after those whose time has come, and the `worn` ones.

    Raises:
        SinkUnavailable: the warehouse's store does not answer.
    """
    engine = engines.first
    deadline = monotonic() + policy.budget_s
    turns = _Turns.of(engine)
    turns.began = turns.began or clock()
    cuts = engine.cuts()
    expired, oldest, why_not = 0, 0, ""
    try:
        with engine.upkeep_lease():
            expired, oldest = _expire(cuts, policy.keep_s, clock())
    except Exception as error:  # noqa: BLE001  raised again where it is not one of those
        why_not = _passes(engine, error)
    known = cuts.shown()
    names = sorted(known, key=lambda name: (turns.last(name), name))
    due = [n for n in names if not due_only or n in worn or clock() - turns.last(n) >= policy.every_s]
    reports: list[TableUpkeep] = []
    for name in due:
        if monotonic() >= deadline:
            break
        kept = Kept(known[name].ids, oldest, clock() - policy.keep_s if policy.keep_s is not None else None)
        reports.append(_looked_after(engines, name, known[name].path, kept, policy, deadline))
        if reports[-1].skipped != OUT_OF_TIME:
            turns.tables[name] = clock()
            turns.save()
    turns.tables, turns.began = {name: turns.last(name) for name in known}, clock()
    turns.save()
    put_off = tuple(due[len(reports) :])
    return UpkeepReport(expired, oldest, tuple(reports), put_off, why_not)


def first_kept(listed: list[ListedCut], keep_s: float | None, now: float) -> int:
    """The number of the oldest cut that is kept: cuts as young as `keep_s`, and always the newest."""
    if keep_s is None:
        return listed[0].cut
    since = (now - keep_s) * 1e6
    return next((one.cut for one in listed if one.published >= since), listed[-1].cut)


def _expire(cuts: Cuts, keep_s: float | None, now: float) -> tuple[int, int]:
    """Let go of old cuts. Returns how many, and the oldest that is kept."""
    listed = cuts.listed()
    if not listed:
        return 0, 0
    oldest = first_kept(listed, keep_s, now)
    gone = sum(one.cut < oldest for one in listed)
    cuts.tidy(oldest)
    if gone:
        _log.info("cuts expired", cuts=gone, oldest=oldest)
    return gone, oldest


def _looked_after(
    engines: Engines, name: str, path: str, kept: Kept, policy: UpkeepPolicy, deadline: float
) -> TableUpkeep:
    engine: Engine = engines.first
    done: list[str] = []
    compacted = _Compacted(deadline, clusters=policy.cluster)
    steps: list[Step] = []
    if policy.compact:
        steps.append(compacted.bit_by_bit)
    if kept.since is not None:
        steps.append(partial(_let_go, kept))
    for step in steps:
        if monotonic() >= deadline:
            return TableUpkeep(name, tuple(done), OUT_OF_TIME)
        try:
            engine, what = _asked(engines, engine, path, step)
        except Exception as error:  # noqa: BLE001  as above
            return TableUpkeep(name, tuple(done), _passes(engine, error))
        done += [what] if what else []
        if compacted.is_late:
            return TableUpkeep(name, tuple(done), OUT_OF_TIME)
    if done:
        _log.info("table looked after", table=name, done=", ".join(done))
    return TableUpkeep(name, tuple(done))


@dataclass(slots=True)
class _Compacted:
    """The files of a table, made larger until a time (`monotonic`). `clusters`: with their rows in the order of the
    key. `is_late`: that was too early for all of it."""

    deadline: float
    clusters: bool
    is_late: bool = False

    def bit_by_bit(self, engine: Engine, there: CurrentTable, found: Snapshot) -> str:
        """A merge gets its turn between two commits."""
        if engine.compacts_beside:
            return str(there.compact(self._order(found)))
        done = Compacted(has_more=True)
        while done.has_more and not self.is_late:
            with engine.upkeep_lease():
                done += there.compact(self._order(there.snapshot()))
            self.is_late = done.has_more and monotonic() >= self.deadline
        return str(done)

    def _order(self, table: Snapshot | None) -> Sequence[str]:
        return order_of(table) if self.clusters and table is not None else ()


def _let_go(kept: Kept, engine: Engine, there: CurrentTable, found: Snapshot) -> str:
    # A merge that publishes says meanwhile what a cut needs.
    with engine.upkeep_lease():
        there.snapshot()
        return there.let_go(kept)


def _asked(engines: Engines, engine: Engine, path: str, step: Step) -> tuple[Engine, str]:
    """A step by the engine that is asked first, or by the other one where that works already."""
    try:
        with closing(engine.table(path.split("/"))) as there:
            found = there.snapshot()
            return engine, "" if found is None else step(engine, there, found)
    except HandOver:
        if (other := engines.begun) is None or other is engine:
            raise
        return _asked(engines, other, path, step)


def _passes(engine: Engine, error: Exception) -> str:
    """Why a step was left out; it is raised again where that is no reason."""
    if isinstance(error, HandOver | SinkUnavailable | HistoryLost) or engine.is_conflict(error):
        return str(error).splitlines()[0]
    # One table that is damaged, or whatever an engine fails at, does not keep the others from their turn.
    failure = None if isinstance(error, CdcflowError) else engine.failure(error)
    if failure is None:
        raise error
    return f"{failure.kind}: {failure.place or 'no file is named'} ({failure.what})"


__all__ = ["TableUpkeep", "UpkeepPolicy", "UpkeepReport", "UpkeepWhenDue", "first_kept", "upkeep"]
