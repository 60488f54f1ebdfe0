"""The one thread that writes the log of collections: it decides, appends, cuts, syncs, and only then answers.

    requests ──▶ queue ──▶ ┌ decide each in turn ─▶ one run of their transactions ─▶ cut ─▶ sync ┐ ──▶ answers
                           └────────────────── a group: whatever waited ─────────────────────────┘

One thread decides everything, so a request sees what earlier requests wrote, and the log's order is that of the
answers. While a group is synced the next requests wait and become the next group: they share one fsync.

A refused request has written nothing. If the log can no longer be written, every waiting request gets the answer that
its outcome is unknown, and the process ends: what was not synced may or may not exist after the next start, as a whole;
a retry with its Idempotency-Key finds out.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from cdcflow.capture.interleave.progress import TableProgress
from cdcflow.capture.ports.log import Log, Numbered
from cdcflow.errors import CdcflowError, OutcomeUnknown, SinkUnavailable
from cdcflow.log.format.segment import Segment
from cdcflow.log.index.keyhash import hashes
from cdcflow.log.query.log import ChangeLog
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.change import DELETE, INSERT, UPDATE, ChangeBatch, Run, commit_clock
from cdcflow.model.position import Checkpoint, Epoch, Offset
from cdcflow.model.table import BEFORE, UNCHANGED, Table
from cdcflow.push import remembered
from cdcflow.push.operations import OperationFailure, Row, RowOperation, apply_operation
from cdcflow.push.remembered import Once, Remembered, RememberedAnswers
from cdcflow.push.rows import CollectionRows, Key
from cdcflow.push.schemas import CollectionShape

OnEvent = Callable[[str, Mapping[str, object]], None]
WAITING_BYTES_MAX = 64 << 20
"""The limit on bytes that wait to be written: a request that exceeds it is refused."""
UNINDEXED_BYTES_MAX = 256 << 20
"""The limit on bytes in memory that are not indexed yet: above it no request is accepted."""
GROUP_BYTES_MAX = 16 << 20
GROUP_REQUESTS_MAX = 1000
LOOK_EVERY_S = 0.5
SEAL_AGAIN_S = 5.0


class PushLog(Log, Protocol):
    """A log that is sealed while it is written (`sinks.files.log.FileLog`)."""

    @property
    def epoch(self) -> Epoch: ...

    def seal_due(self, now_s: float) -> bool: ...

    def roll(self) -> bool: ...

    def seal_pending(self) -> Sequence[Segment]: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer that nothing was written. `conflict`: the rows, or an earlier request, contradict this one."""

    detail: str
    failures: Sequence[OperationFailure] = ()
    conflict: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """The answer to a durable write, as JSON. `again`: it was given before."""

    answer: str
    again: bool = False


Answer = Written | Refused


@dataclass(slots=True)
class Request:
    """A write of a program to one collection: operations, or whole rows in columns (`shape.table.row_schema`).

    `atomic`: all of it or nothing; otherwise every operation that can be done is done. `bytes`: the request's size.
    """

    shape: CollectionShape
    operations: Sequence[RowOperation | OperationFailure] | pa.RecordBatch
    bytes: int
    atomic: bool = True
    once: Once | None = None
    answer: Future[Answer] = field(default_factory=Future)


class CollectionWriter:
    """Writes the collections `shapes` to a log; `asked` is the same log, for queries of the writer's thread.

    Any thread may call `submit`; `failure` is the error that ended the writer. `transactions` and `rows` count what was
    written since the start, `answers` the kinds of answers.
    """

    def __init__(
        self,
        log: PushLog,
        reader: LogReader,
        asked: ChangeLog,
        memory: RememberedAnswers,
        shapes: Sequence[CollectionShape],
        tell: OnEvent,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._log = log
        self._asked = asked
        self._rows = CollectionRows(asked)
        self._memory = memory
        self._shapes = shapes
        self._tell = tell
        self._clock_us = clock_us
        self._reader = reader
        self._checkpoint = log.checkpoint
        self._waiting: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._counting = threading.Lock()
        self._closed = False
        self._seal = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cdcflow-push", daemon=True)
        self._sealer = threading.Thread(target=self._seal_again_and_again, name="cdcflow-seal", daemon=True)
        self.failure: BaseException | None = None
        self.transactions = 0
        self.rows = 0
        self.answers = {"written": 0, "again": 0, "refused": 0, "unavailable": 0}

    @property
    def checkpoint(self) -> Checkpoint:
        """The latest durable checkpoint."""
        return self._log.checkpoint

    @property
    def waiting_bytes(self) -> int:
        """The bytes of requests that were not answered yet."""
        return self._waiting_bytes

    @property
    def unindexed_bytes(self) -> int:
        """The bytes of rows kept in memory because they are not indexed yet."""
        return self._rows.bytes

    def start(self) -> None:
        """Record in the log that its tables are whole, and begin to accept requests."""
        if self._reader.exists():
            self._rows.begin(self._reader)
            self._memory.begin(self._reader, self._asked, self._clock_us())
        tables = [*(shape.table for shape in self._shapes), remembered.TABLE]
        self._cut(_progress(self._checkpoint.progress, tables, self._written_tables()))
        self._log.sync()
        self._thread.start()
        self._sealer.start()

    def submit(self, request: Request) -> Future[Answer]:
        """Queue a request. The future has the answer when the writes are durable.

        Raises:
            SinkUnavailable: too many bytes wait already, or the writer has ended. Nothing was written.
        """
        with self._counting:
            if (reason := self._unavailable(request)) is not None:
                self.answers["unavailable"] += 1
                raise reason
            self._waiting_bytes += request.bytes
            self._waiting.put(request)
        return request.answer

    def _unavailable(self, request: Request) -> SinkUnavailable | None:
        if self._closed:
            return SinkUnavailable("cdcflow serve is ending, and takes no more requests", remedy="send it again later")
        if self._waiting_bytes + request.bytes > WAITING_BYTES_MAX and self._waiting_bytes:
            return SinkUnavailable("more is waiting to be written than fits", remedy="send it again in a few seconds")
        if self._rows.bytes > UNINDEXED_BYTES_MAX:
            return SinkUnavailable(
                "the log's index is far behind, and what it lacks is kept in memory",
                remedy="see what keeps it: run `cdcflow log index`",
            )
        return None

    def wait(self, seconds: float) -> bool:
        """Wait at most this long for the writer's end; return whether it has ended."""
        return self._ended.wait(seconds)

    def stop(self) -> None:
        """Carry out the waiting requests, seal, and close the log."""
        with self._counting:
            if not self._closed:
                self._closed = True
                self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._seal.set()
        if self._sealer.is_alive():
            self._sealer.join()
        self._log.close()

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        group: list[Request] = []
        try:
            while not self._ended.is_set():
                group, is_last = self._next_group()
                if group:
                    self._write(group)
                    group = []
                if is_last:
                    break
                if self._log.seal_due(time.monotonic()):
                    self._log.roll()
                    self._seal.set()
                self._rows.forget_indexed()
        except BaseException as error:  # noqa: BLE001  reported by the main thread, which ends with it
            self.failure = self.failure or error
        finally:
            try:
                self._end(group)
            finally:
                self._ended.set()
                self._seal.set()

    def _next_group(self) -> tuple[list[Request], bool]:
        """Return the waiting requests, up to a bound; and whether no more will follow."""
        group: list[Request] = []
        size = 0
        try:
            one = self._waiting.get(timeout=LOOK_EVERY_S)
            while one is not None:
                group.append(one)
                size += one.bytes
                if size >= GROUP_BYTES_MAX or len(group) >= GROUP_REQUESTS_MAX:
                    break
                one = self._waiting.get_nowait()
        except queue.Empty:
            return group, False
        return group, one is None

    def _write(self, group: Sequence[Request]) -> None:
        run = _Group(self._checkpoint, self._rows, self._memory, self._clock_us())
        answers = [self._decide(run, request) for request in group]
        if run.rows:
            self._append(run)
            self._log.sync()
        with self._counting:
            self._waiting_bytes -= sum(request.bytes for request in group)
        for request, answer in zip(group, answers, strict=True):
            self.answers[_kind_of(answer)] += 1
            _give(request, answer)

    def _decide(self, run: _Group, request: Request) -> Answer | CdcflowError:
        try:
            return run.carry_out(request)
        except SinkUnavailable as error:  # the log could not be read, so nothing was decided
            return error

    def _append(self, group: _Group) -> None:
        at, run = self._checkpoint, group.run()
        clock = commit_clock(at.commit_clock, run.commit_ts)
        self._log.append(Numbered(run, at.next_offset, at.next_transaction, clock))
        self._checkpoint = replace(
            at,
            position=run.last_position,
            next_offset=Offset(at.next_offset + run.rows),
            next_transaction=at.next_transaction + run.transactions,
            commit_clock=int(clock[-1]),
        )
        self._cut(_progress(at.progress, [], {batch.table.id.name for batch in run.batches}))
        self.transactions += run.transactions
        self.rows += run.rows

    def _cut(self, progress: Mapping[str, object]) -> None:
        at = self._checkpoint
        self._checkpoint = replace(at, cut=at.cut + 1, epoch=self._log.epoch, progress=progress)
        self._log.cut(self._checkpoint)

    def _written_tables(self) -> set[str]:
        return {table.name for table in self._reader.table_shapes()} if self._reader.exists() else set()

    def _end(self, group: Sequence[Request]) -> None:
        with self._counting:
            self._closed = True
        left = [*group]
        while not self._waiting.empty():
            one = self._waiting.get_nowait()
            if one is not None:
                left.append(one)
        for number, request in enumerate(left):
            _give(request, _unknown() if number < len(group) else _not_begun())

    def _seal_again_and_again(self) -> None:
        said = ""
        while not self._ended.is_set():
            self._seal.wait()
            self._seal.clear()
            try:
                for segment in self._log.seal_pending():
                    self._tell("segment sealed", {"first": segment.first_offset, "last": segment.last_offset})
                said = ""
            except SinkUnavailable as error:
                reason = str(error).splitlines()[0]
                if reason != said:
                    said = reason
                    self._tell("seal put off", {"reason": reason})
                if not self._ended.wait(SEAL_AGAIN_S):
                    self._seal.set()
            except BaseException as error:  # noqa: BLE001  reported by the main thread, which ends with it
                self.failure = self.failure or error
                self._ended.set()


class _Group:
    """Transactions that become durable together: the results of requests, in their order, not appended yet."""

    def __init__(self, at: Checkpoint, rows: CollectionRows, memory: RememberedAnswers, now_us: int) -> None:
        self._rows = rows
        self._memory = memory
        self._now_us = now_us
        self._first_offset = int(at.next_offset)
        self._first_transaction = at.next_transaction
        self._ends: list[int] = []
        self._lists: dict[Table, _Lists] = {}
        self._batches: list[ChangeBatch] = []
        self.rows = 0

    def carry_out(self, request: Request) -> Answer:
        """Decide a request, and append its writes to the group.

        Raises:
            SinkUnavailable: the log could not be read; nothing was decided.
        """
        if request.once is not None:
            given = self._memory.answer(request.once, self._now_us)
            if given is not None and given.body != request.once.body:
                return Refused("this Idempotency-Key was used for another request", conflict=True)
            if given is not None:
                return Written(given.answer, again=True)
        if isinstance(request.operations, pa.RecordBatch):
            told = self._bulk(request.shape, request.operations)
        else:
            found = self._operations(request)
            if isinstance(found, Refused):
                return found
            told = found
        return self._finish(request, told)

    def run(self) -> Run:
        """Everything in the group, as a run for the log."""
        batches = sorted([*self._batches, *self._build_batches()], key=lambda batch: int(batch.index[0]))
        count, first = len(self._ends), self._first_transaction
        numbers = np.arange(first, first + count)
        return Run(
            xid=numbers.astype(np.uint64),
            position=pa.array([f"push/{number}" for number in numbers.tolist()], pa.string()),
            commit_ts=np.full(count, self._now_us, np.int64),
            ends=np.array(self._ends, np.int64),
            batches=tuple(batches),
        )

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _operations(self, request: Request) -> dict[str, Any] | Refused:
        shape = request.shape
        staged: dict[Key, Row | None] = {}
        written: list[tuple[RowOperation, str, Row]] = []
        results: list[dict[str, Any]] = []
        failures: list[OperationFailure] = []
        assert not isinstance(request.operations, pa.RecordBatch)  # noqa: S101 - checked by `carry_out`
        for one in request.operations:
            became = (
                one
                if isinstance(one, OperationFailure)
                else apply_operation(shape, one, self._staged_row(shape, staged, one.key))
            )
            if isinstance(became, OperationFailure) or isinstance(one, OperationFailure):
                assert isinstance(became, OperationFailure)  # noqa: S101 - it is `one` then
                failures.append(became)
                continue
            result: dict[str, Any] = {"number": one.number, "op": became.op}
            if became.op is not None and became.row is not None:
                staged[one.key] = None if became.op == DELETE else became.row
                result["offset"] = self._first_offset + self.rows + len(written)
                written.append((one, became.op, became.row))
                if became.told:
                    result["values"] = {name: became.row[name] for name in became.told}
            else:
                result["absent"] = True
            results.append(result)
        if failures and (request.atomic or not results):
            conflict = all(failure.code != "invalid" for failure in failures)
            return Refused(f"{len(failures)} operations cannot be done, and nothing was written", failures, conflict)
        for one, op, row in written:
            offset = self._put(shape.table, op, row)
            self._rows.record_row(shape, one.key, offset, None if op == DELETE else row)
        told: dict[str, Any] = {"rows": len(written), "results": results}
        return told | ({"errors": [failure.to_json() for failure in failures]} if failures else {})

    def _staged_row(self, shape: CollectionShape, staged: Mapping[Key, Row | None], key: Key) -> Row | None:
        return staged[key] if key in staged else self._rows.now(shape, key)

    def _bulk(self, shape: CollectionShape, rows: pa.RecordBatch) -> dict[str, Any]:
        count, table = rows.num_rows, shape.table
        found = hashes([rows.column(name) for name in table.key])
        is_update = self._rows.may_be_there(shape, found)
        again = np.ones(count, np.bool_)
        again[np.unique(found, return_index=True)[1]] = False  # the first row of each key
        ops = pa.array(np.where(is_update | again, UPDATE, INSERT), pa.string())
        columns = [*rows.columns, ops, *_nothing(table, count)]
        whole = pa.RecordBatch.from_arrays(columns, schema=table.change_schema)
        index = np.arange(self.rows, self.rows + count, dtype=np.int64)
        self._batches.append(ChangeBatch(table, index, whole))
        self._rows.written_in_bulk(shape, self._first_offset + self.rows, whole)
        self.rows += count
        return {"rows": count}

    def _finish(self, request: Request, told: Mapping[str, Any]) -> Written:
        """End the transaction, including its answer if it is to be remembered."""
        last = self._first_offset + self.rows - 1
        numbers: dict[str, Any] = {"transaction": None, "first_offset": None, "last_offset": None}
        if told["rows"]:
            transaction = self._first_transaction + len(self._ends)
            numbers = {"transaction": transaction, "first_offset": last - told["rows"] + 1, "last_offset": last}
        answer = json.dumps({**numbers, **told}, separators=(",", ":"))
        if request.once is not None:
            given = Remembered(self._now_us, request.once.body, answer)
            self._put(remembered.TABLE, INSERT, given.to_row(request.once.key))
            for key, gone in self._memory.remember(request.once, answer, self._now_us):
                self._put(remembered.TABLE, DELETE, gone.to_row(key))
        if self.rows > (self._ends[-1] if self._ends else 0):
            self._ends.append(self.rows)
        return Written(answer)

    def _put(self, table: Table, op: str, row: Row) -> int:
        """Append a change; return its offset."""
        lists = self._lists.setdefault(table, _Lists([], [], []))
        lists.index.append(self.rows)
        lists.ops.append(op)
        lists.rows.append(row)
        self.rows += 1
        return self._first_offset + self.rows - 1

    def _build_batches(self) -> list[ChangeBatch]:
        made: list[ChangeBatch] = []
        for table, lists in self._lists.items():
            count = len(lists.index)
            columns = [pa.array([row.get(f.name) for row in lists.rows], f.type) for f in table.row_schema]
            columns += [pa.array(lists.ops, pa.string()), *_nothing(table, count)]
            rows = pa.RecordBatch.from_arrays(columns, schema=table.change_schema)
            made += _apart(ChangeBatch(table, np.array(lists.index, np.int64), rows), self._batches)
        return made


@dataclass(frozen=True, slots=True)
class _Lists:
    index: list[int]
    ops: list[str]
    rows: list[Row]


def _apart(batch: ChangeBatch, others: Sequence[ChangeBatch]) -> list[ChangeBatch]:
    """Return a batch, split into pieces before, between and after the bulk requests of the same table."""
    ends = [0, *(int(other.index[0]) for other in others if other.table == batch.table), int(batch.index[-1]) + 1]
    pieces = []
    for first, last in pairwise(ends):
        a, b = np.searchsorted(batch.index, (first, last))
        if a < b:
            pieces.append(ChangeBatch(batch.table, batch.index[a:b], batch.rows.slice(a, b - a)))
    return pieces


def _nothing(table: Table, count: int) -> list[pa.Array]:
    """`_unchanged` and `_before` of changes that contain all columns."""
    schema = table.change_schema
    return [pa.nulls(count, schema.field(UNCHANGED).type), pa.nulls(count, schema.field(BEFORE).type)]


def _progress(before: Mapping[str, object], tables: Sequence[Table], written: set[str]) -> Mapping[str, object]:
    """Return a checkpoint's progress for the collections: each is whole since the first offset.

    For one without a row it contains the shape; `written` are those that have rows.
    """
    known = before.get("tables", {})
    assert isinstance(known, Mapping)  # noqa: S101 - cdcflow's own progress JSON
    entries: dict[str, Any] = dict(known)
    changed = not before
    for table in tables:
        entry = TableProgress("done", 1, Offset(1), 1, whole_since=Offset(1), shape=table.to_text()).to_json(table.id)
        changed |= entries.get(str(table.id)) != entry
        entries[str(table.id)] = entry
    for name, entry in list(entries.items()):
        if entry["name"] in written and "shape" in entry:
            entries[name] = {member: value for member, value in entry.items() if member != "shape"}
            changed = True
    return {**before, "version": 1, "tables": entries} if changed else before


def _kind_of(answer: Answer | CdcflowError) -> str:
    match answer:
        case Written(again=again):
            return "again" if again else "written"
        case Refused():
            return "refused"
        case _:
            return "unavailable"


def _give(request: Request, answer: Answer | CdcflowError) -> None:
    # The client may have gone, and if the writer ends some of its group may have been answered.
    if request.answer.done() or not request.answer.set_running_or_notify_cancel():
        return
    if isinstance(answer, CdcflowError):
        request.answer.set_exception(answer)
    else:
        request.answer.set_result(answer)


def _unknown() -> OutcomeUnknown:
    return OutcomeUnknown(
        "cdcflow serve ended while it wrote this request",
        remedy="send it again when cdcflow serve runs; with the same Idempotency-Key it is carried out once",
    )


def _not_begun() -> SinkUnavailable:
    return SinkUnavailable(
        "cdcflow serve ended before it wrote this request", remedy="send it again when cdcflow serve runs"
    )
