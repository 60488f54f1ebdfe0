"""Maintenance: expire old cuts and the files that only they need, and merge small files, in small steps between merges.

    cuts      10   20   30 │ 40   50   60        keep: cuts published since │
              └─ expired ──┘ └── kept ──┘        the latest is always kept
    a table    v3   v4   v4   v4   v7   v9       needed: v4, v7, v9, and everything newer

The rows of expired cuts are removed first, then what the tables kept for them: a run that dies at any point leaves more
than is needed, never less, and the next run continues. Versions that no cut ever showed, and everything younger than
`keep`, stay.

A merge has the tables to itself while it works: a step here never waits for one, and is skipped instead. Compaction may
run during a merge; of two concurrent commits the format accepts one, and a merge then repeats its table. The local
engine compacts in two steps, and a merge waits only for the second one:

    rewrite    reads files and writes new ones, which takes seconds for a large file
    finish     commits them, with what merges have deleted in the old ones in the meantime

A process that merges again and again rewrites in a thread, and finishes between two merges (`Compaction`). Another
thread lists cuts and chooses what is due; its steps have their turn between two merges, too.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any

import structlog

from cdcflow.errors import CdcflowError, HistoryLost, SinkUnavailable
from cdcflow.log.thread_priority import lower_thread_priority
from cdcflow.model.file_layout import SortColumn
from cdcflow.tables.cut import ListedCut
from cdcflow.tables.job.engines import Engines
from cdcflow.tables.job.failures import kinds
from cdcflow.tables.job.ranges import order_of
from cdcflow.tables.job.reports import TableMergeReport
from cdcflow.tables.paths import STATE
from cdcflow.tables.port import Compacted, CurrentTable, Cuts, Engine, HandOver, Kept, Later, TableSnapshot

Turn = Callable[[], AbstractContextManager[object]]
"""A lock that a thread which does not merge holds during a step that changes anything, so that this process begins no
merge."""

Step = Callable[[Engine, CurrentTable, TableSnapshot], str]
"""A step of maintenance of one table, which gets the table's current snapshot. Returns what was done."""

REWRITE_NICENESS = 15
"""The niceness of the thread that rewrites files during merges. No change should wait for a processor because of it."""

MERGE_WAIT_S, MERGE_POLL_S = 5.0, 0.02
"""How long the commit of a rewritten portion waits for a merge by another process."""

OUT_OF_TIME = "the budget was used up; its turn comes first the next time"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class UpkeepPolicy:
    """What maintenance of a warehouse may do. `keep_s`: how long cuts are kept (`None`: indefinitely). `every_s`: how
    often a table is maintained. `budget_s`: no step begins later than this after the first one. `compact`: merge small
    files. `after_merges`: a table is also maintained after this many merges of it (0: only by time). `cluster`: sort
    the rows of rewritten files by the table's key."""

    keep_s: float | None = None
    every_s: float = 3600.0
    budget_s: float = 60.0
    compact: bool = True
    after_merges: int = 100
    cluster: bool = False


@dataclass(frozen=True, slots=True)
class TableUpkeep:
    """What maintenance did to a table, and why it did not do the rest ("": it did everything)."""

    name: str
    done: tuple[str, ...] = ()
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    """What a maintenance run did. `expired`: number of expired cuts. `oldest`: the oldest kept cut (0 if none was
    published). `put_off`: tables for which the budget left no time."""

    expired: int = 0
    oldest: int = 0
    tables: tuple[TableUpkeep, ...] = ()
    put_off: tuple[str, ...] = ()
    skipped: str = ""


@dataclass(slots=True)
class _Turns:
    """When each table was last maintained, in seconds since 1970, as recorded in the warehouse."""

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
    """Maintenance of tables when it is due, in the process that merges.

    Each small merge leaves small files, and the next one reads them: a table that is merged every few seconds is due
    long before an hour is over. Merges are counted in this process, so another process starts again at 0.
    """

    def __init__(
        self, engines: Engines, policy: UpkeepPolicy, clock: Callable[[], float] = time.time, *, repeats: bool = False
    ) -> None:
        """`repeats`: the process merges again and again, so maintenance can work during its merges if the first engine
        merges in this process. Each of its merges must then be inside `merging`."""
        self._engines = engines
        self._policy = policy
        self._clock = clock
        self._merges: Counter[str] = Counter()
        self._runs_beside = runs_beside(engines, repeats=repeats)
        self._compaction = Compaction(engines, policy) if self._runs_beside and policy.compact else None
        self._later = engines.first.defer_checkpoints() if self._runs_beside else None
        self._doing_later: threading.Thread | None = None
        self._turn = threading.Lock()
        self._running: threading.Thread | None = None
        self._report = UpkeepReport()
        self._maintained: frozenset[str] = frozenset()

    def merging(self) -> AbstractContextManager[object]:
        """Return a context manager for the time of a merge. Entering it waits for the end of a maintenance step that
        has begun."""
        return self._turn

    def after(self, tables: Iterable[TableMergeReport]) -> UpkeepReport:
        """Run the maintenance that is due after a merge of these tables, and return what it did. An error postpones the
        maintenance; the merge never fails because of it.

        If maintenance works during merges, this only starts it and returns at once, with what the latest run did if it
        has ended.
        """
        policy, now = self._policy, self._clock()
        self._begin_later_work()
        self._merges.update({table.place or table.name for table in tables if table.changes})
        counted = policy.compact and policy.after_merges > 0
        report = self._ended_run()
        worn = {name for name, count in self._merges.items() if counted and count >= policy.after_merges}
        try:
            if self._compaction is not None:
                with self._turn:
                    self._compaction.proceed()
            if self._running is not None:
                return report
            turns = _Turns.of(self._engines.first)
            if not turns.began:  # nothing is due in a warehouse that is new, or new to maintenance
                turns.began = now
                turns.save()
            oldest = min((turns.last(name) for name in turns.tables), default=turns.began)
            if not worn and now - oldest < policy.every_s:
                return report
        except Exception as error:  # noqa: BLE001  the merge is done and stays done
            return _ended_early(error)
        if self._runs_beside:
            # Not a daemon: as that of a compaction.
            self._running = threading.Thread(target=self._run, args=(worn,), name="upkeep")
            self._running.start()
            return report
        self._run(worn)
        return self._close_run()

    def join(self) -> None:
        """Wait until the maintenance that works during merges has ended."""
        for thread in (self._running, self._doing_later):
            if thread is not None:
                thread.join()

    def _begin_later_work(self) -> None:
        """Begin one piece of the work that commits have left, to be done during the next merge; only one runs at a
        time."""
        is_busy = self._doing_later is not None and self._doing_later.is_alive()
        if self._later is not None and self._later.is_due and not is_busy:
            # Not a daemon: as that of a compaction.
            self._doing_later = threading.Thread(target=_do_next, args=(self._later,), name="later")
            self._doing_later.start()

    def _ended_run(self) -> UpkeepReport:
        """Return what a run during merges did, if it has ended since the last call."""
        if self._running is None or self._running.is_alive():
            return UpkeepReport()
        self._running = None
        return self._close_run()

    def _close_run(self) -> UpkeepReport:
        for name in self._maintained:
            self._merges.pop(name, None)
        return self._report

    def _run(self, worn: Collection[str]) -> None:
        turn = self._between_merges if self._runs_beside else nullcontext
        try:
            report = upkeep(
                self._engines,
                self._policy,
                self._clock,
                due_only=True,
                worn=worn,
                compaction=self._compaction,
                turn=turn,
            )
        except Exception as error:  # noqa: BLE001  as above
            self._report, self._maintained = _ended_early(error), frozenset()
            return
        asked = {table.name: table.skipped for table in report.tables}
        # A table that no kept cut shows is not in the report; its count is reset too.
        named = {*worn, *asked}
        done = (name for name in named if name not in report.put_off and asked.get(name) != OUT_OF_TIME)
        self._report, self._maintained = report, frozenset(done)

    def _between_merges(self) -> AbstractContextManager[object]:
        return self._turn


def _do_next(later: Later) -> None:
    try:
        later.do_next()
    except Exception as error:  # noqa: BLE001  nothing needs it
        _log.info("later work of a merge failed", reason=kinds(error))


def runs_beside(engines: Engines, *, repeats: bool) -> bool:
    """Return whether maintenance works in threads during the merges. `repeats`: the process merges again and again."""
    return repeats and not engines.first.compacts_concurrently


def _ended_early(error: Exception) -> UpkeepReport:
    reason = kinds(error)
    if isinstance(error, CdcflowError):  # other errors' texts may contain values of rows
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    _log.warning("upkeep ended early", reason=reason)
    return UpkeepReport(skipped=reason)


def upkeep(
    engines: Engines,
    policy: UpkeepPolicy,
    clock: Callable[[], float] = time.time,
    *,
    due_only: bool = False,
    worn: Collection[str] = (),
    compaction: Compaction | None = None,
    turn: Turn = nullcontext,
) -> UpkeepReport:
    """Maintain the cuts and tables of the warehouse in which `engines` work; the tables that have waited longest come
    first. `due_only`: only tables that are due, and the `worn` ones. `compaction`: compacts the tables later. `turn`:
    held during each step that changes anything; of compaction only with `compaction`.

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
        expired, oldest = _expire(engine, cuts, policy.keep_s, clock(), turn)
    except Exception as error:  # noqa: BLE001  raised again unless it is a reason to skip
        why_not = _passes(engine, error)
    known = cuts.tables_shown()
    names = sorted(known, key=lambda name: (turns.last(name), name))
    due = [n for n in names if not due_only or n in worn or clock() - turns.last(n) >= policy.every_s]
    reports: list[TableUpkeep] = []
    for name in due:
        if monotonic() >= deadline or not threading.main_thread().is_alive():
            break  # the process ends
        kept = Kept(known[name].ids, oldest, clock() - policy.keep_s if policy.keep_s is not None else None)
        if compaction is not None:
            compaction.add(name, known[name].path)
        now = policy if compaction is None else replace(policy, compact=False)
        reports.append(_looked_after(engines, name, known[name].path, kept, now, deadline, turn))
        if reports[-1].skipped != OUT_OF_TIME:
            turns.tables[name] = clock()
            turns.save()
    turns.tables, turns.began = {name: turns.last(name) for name in known}, clock()
    turns.save()
    put_off = tuple(due[len(reports) :])
    return UpkeepReport(expired, oldest, tuple(reports), put_off, why_not)


def first_kept(listed: list[ListedCut], keep_s: float | None, now: float) -> int:
    """Return the number of the oldest cut to keep: cuts no older than `keep_s` are kept, and always the latest one."""
    if keep_s is None:
        return listed[0].cut
    since = (now - keep_s) * 1e6
    return next((one.cut for one in listed if one.published >= since), listed[-1].cut)


def _expire(engine: Engine, cuts: Cuts, keep_s: float | None, now: float, turn: Turn) -> tuple[int, int]:
    """Expire old cuts. Return how many were expired, and the number of the oldest kept one."""
    listed = cuts.list_cuts()
    if not listed:
        return 0, 0
    oldest = first_kept(listed, keep_s, now)
    gone = sum(one.cut < oldest for one in listed)
    with turn(), engine.upkeep_lease():
        cuts.tidy(oldest)
    if gone:
        _log.info("cuts expired", cuts=gone, oldest=oldest)
    return gone, oldest


def _looked_after(
    engines: Engines, name: str, path: str, kept: Kept, policy: UpkeepPolicy, deadline: float, turn: Turn
) -> TableUpkeep:
    engine: Engine = engines.first
    done: list[str] = []
    compacted = _Compacted(deadline, clusters=policy.cluster)
    steps: list[Step] = []
    if policy.compact:
        steps.append(compacted.bit_by_bit)
    if kept.since is not None:
        steps.append(partial(_let_go, kept, turn))
    for step in steps:
        if monotonic() >= deadline:
            return TableUpkeep(name, tuple(done), OUT_OF_TIME)
        try:
            engine, what = _run_step(engines, engine, path, step)
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
    """A compaction of a table's files until a deadline (`monotonic`). `clusters`: sort the rows by the key. `is_late`:
    the deadline passed before everything was compacted."""

    deadline: float
    clusters: bool
    is_late: bool = False

    def bit_by_bit(self, engine: Engine, there: CurrentTable, found: TableSnapshot) -> str:
        """Compact in several commits; a merge can run between two of them."""
        if engine.compacts_concurrently:
            return str(there.compact(_order(found, by_key=self.clusters)))
        done = Compacted(has_more=True)
        while done.has_more and not self.is_late:
            done += self._portion(engine, there)
            self.is_late = done.has_more and monotonic() >= self.deadline
        return str(done)

    def _portion(self, engine: Engine, there: CurrentTable) -> Compacted:
        with engine.upkeep_lease():  # while another process merges, most likely it would do so again at the end
            order = _order(there.snapshot(), by_key=self.clusters)
        rewritten = there.rewrite_portion(order)
        if rewritten is None:
            return Compacted()
        with ExitStack() as stack:
            _enter_between_merges(engine, stack)
            there.snapshot()
            found = there.finish_portion(rewritten)
            return there.compact(order) if found is None else found


def _order(table: TableSnapshot | None, *, by_key: bool) -> Sequence[SortColumn]:
    return () if table is None else order_of(table, by_key=by_key)


def _enter_between_merges(engine: Engine, stack: ExitStack) -> None:
    """Take the lease of a maintenance step, and wait up to `MERGE_WAIT_S` for a merge that is running.

    Raises:
        SinkUnavailable: the merge took longer, or the store does not answer.
    """
    until = time.monotonic() + MERGE_WAIT_S
    while True:
        try:
            stack.enter_context(engine.upkeep_lease())
        except SinkUnavailable as error:
            if error.runbook != "busy" or time.monotonic() >= until:
                raise
            time.sleep(MERGE_POLL_S)
        else:
            return


class Compaction:
    """Compaction in a process that merges again and again: one table at a time is rewritten in a thread, and the
    rewritten files are committed between two merges. `add` tables, and call `proceed` after each merge.

    Merges of the same process only mark rows in files that are being rewritten. If another program has replaced one of
    them, the new files are abandoned; the table is then compacted at once, and the next merge waits.
    """

    def __init__(self, engines: Engines, policy: UpkeepPolicy) -> None:
        self._engines = engines
        self._clusters = policy.cluster
        self._waiting: dict[str, str] = {}
        self._done: dict[str, Compacted] = {}
        self._name = ""
        self._rewriting: threading.Thread | None = None
        self._rewritten: Any = None
        self._error: Exception | None = None

    def add(self, name: str, path: str) -> None:
        """Append this table to the queue of tables to be compacted."""
        self._waiting.setdefault(name, path)

    @property
    def is_idle(self) -> bool:
        """Whether no table is waiting or being compacted."""
        return not self._waiting

    def proceed(self) -> None:
        """Commit the rewritten files, and begin to rewrite the next portion; return at once if files are still being
        rewritten."""
        if self._rewriting is not None:
            if self._rewriting.is_alive():
                return
            self._rewriting = None
            self._end_portion(self._name, self._waiting[self._name])
        if self._waiting:
            self._name = list(self._waiting)[0]  # noqa: RUF015  another thread may add one
            # Not a daemon: Arrow's threads must not be in the middle of a file when the interpreter ends.
            self._rewriting = threading.Thread(
                target=self._rewrite, args=(self._waiting[self._name],), name="compaction"
            )
            self._rewriting.start()

    def join(self) -> None:
        """Wait until all files of the current portion are written."""
        if self._rewriting is not None:
            self._rewriting.join()

    def _rewrite(self, path: str) -> None:
        self._rewritten = self._error = None
        lower_thread_priority(REWRITE_NICENESS)
        try:
            with closing(self._engines.first.table(path.split("/"))) as there:
                order = _order(there.snapshot(), by_key=self._clusters)
                self._rewritten = there.rewrite_portion(order)
        except Exception as error:  # noqa: BLE001  raised again by `_end_portion`
            self._error = error

    def _end_portion(self, name: str, path: str) -> None:
        """Commit a portion. Remove the table from the queue unless it has more portions."""
        found, rewritten, error = Compacted(), self._rewritten, self._error
        self._rewritten = self._error = None
        try:
            if error is not None:
                raise error
            if rewritten is not None:
                found = self._finish(path, rewritten)
        except HandOver:
            self._compact_by_other(name, path)
        except Exception as error:  # noqa: BLE001  as in `upkeep`
            _log.info("table not compacted", table=name, reason=_passes(self._engines.first, error))
        done = self._done.pop(name, Compacted()) + found
        if found.has_more:
            self._done[name] = done
            return
        del self._waiting[name]
        if done.files:
            _log.info("table looked after", table=name, done=str(done))

    def _finish(self, path: str, rewritten: Any) -> Compacted:
        engine = self._engines.first
        with engine.upkeep_lease(), closing(engine.table(path.split("/"))) as there:
            snapshot = there.snapshot()
            found = there.finish_portion(rewritten)
            return there.compact(_order(snapshot, by_key=self._clusters)) if found is None else found

    def _compact_by_other(self, name: str, path: str) -> None:
        """Compact a table that only the other engine can compact, if that engine is running."""
        compacted = _Compacted(monotonic(), clusters=self._clusters)
        try:
            _, what = _run_step(self._engines, self._engines.first, path, compacted.bit_by_bit)
        except Exception as error:  # noqa: BLE001  as in `upkeep`
            what = _passes(self._engines.first, error)
        if what:
            _log.info("table looked after", table=name, done=what)


def _let_go(kept: Kept, turn: Turn, engine: Engine, there: CurrentTable, found: TableSnapshot) -> str:
    there.look_around(kept)
    # A merge that publishes at the same time would change what cuts need.
    with turn(), engine.upkeep_lease():
        there.snapshot()
        return there.let_go(kept)


def _run_step(engines: Engines, engine: Engine, path: str, step: Step) -> tuple[Engine, str]:
    """Run a step with the first engine, or with the other one if the first cannot do it and the other is already
    running."""
    try:
        with closing(engine.table(path.split("/"))) as there:
            found = there.snapshot()
            return engine, "" if found is None else step(engine, there, found)
    except HandOver:
        if (other := engines.other_if_started) is None or other is engine:
            raise
        return _run_step(engines, other, path, step)


def _passes(engine: Engine, error: Exception) -> str:
    """Return why a step was skipped because of an error; raise the error again if it is not a reason to skip a step."""
    if isinstance(error, HandOver | SinkUnavailable | HistoryLost) or engine.is_conflict(error):
        return str(error).splitlines()[0]
    # One damaged table, or any failure of an engine, must not keep the others from their turn.
    failure = None if isinstance(error, CdcflowError) else engine.failure(error)
    if failure is None:
        raise error
    return f"{failure.kind}: {failure.place or 'no file is named'} ({failure.what})"
