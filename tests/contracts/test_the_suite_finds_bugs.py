"""The suite for sources can fail: bugs are planted in the source in memory, and a scenario finds each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.support.capture.memory_kit import MemoryKit

from cdcflow.capture.interleave.messages import Advanced, Chunk, KnownRows, MarkSeen, RowsCompared
from cdcflow.errors import CdcflowError
from cdcflow.model.change import ChangeBatch, KeySet, Run
from cdcflow.model.position import Checkpoint
from cdcflow.model.table import Table
from cdcflow.sources.engine import chunks
from cdcflow.sources.memory import MemoryDatabase, MemorySource, Transaction
from cdcflow.sources.memory import stream as memory_stream
from cdcflow.sources.memory.chunks import MemoryChunks, OpenTable
from cdcflow.sources.memory.stream import MemoryStream
from cdcflow.sources.memory_database import (
    MemoryCommit,
    MemoryMark,
    MemorySnapshot,
    MemoryTable,
    RewritesKnownBy,
    Statement,
    number_of,
    position_of,
)
from cdcflow.testing.sources import SourceContract, reading, scenarios

Plant = Callable[[pytest.MonkeyPatch], None]


class Conforming(SourceContract):
    """The whole suite, to be called one scenario at a time."""

    __test__ = False
    kit = MemoryKit


def replaced(owner: Any, name: str, made: Callable[[Any], Any]) -> Plant:
    """Replace a function by what `made` returns for it."""
    return lambda patch: patch.setattr(owner, name, made(getattr(owner, name)))


def both(*plants: Plant) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        for each in plants:
            each(patch)

    return plant


def one_incarnation(patch: pytest.MonkeyPatch) -> None:
    """A table is not distinguished from an earlier one of the same name."""
    patch.setattr(MemoryTable, "shape", property(lambda t: Table(t.id, 1, t.columns, t.key)))


def commits(change: Callable[[MemoryCommit], MemoryCommit]) -> Plant:
    """The stream sees other commits than the log has."""
    return replaced(MemoryStream, "_commit_events", lambda real: lambda self, record: real(self, change(record)))


def merges_key_changes(self: Transaction, table: Any, values: Any, where: Any) -> None:
    for number, old in list(self._of(table).items()):
        if where(old):
            new = {**old, **values}
            self._put(table, number, new)
            self._log(table, "u", new)


def deletes_first(record: MemoryCommit) -> MemoryCommit:
    return replace(record, changes=tuple(sorted(record.changes, key=lambda c: c.op != "d")))


def reads_in_order_of_tables(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda changes: real(sorted(changes, key=lambda c: c.shape.id))


def without_old_keys(record: MemoryCommit) -> MemoryCommit:
    return replace(record, changes=tuple(replace(c, before=None) for c in record.changes))


def without_truncates(record: MemoryCommit) -> MemoryCommit:
    return replace(record, changes=tuple(c for c in record.changes if c.op != "t"))


def marks_first(real: Callable[..., Any]) -> Callable[..., Any]:
    def poll(self: MemoryStream) -> Sequence[Any]:
        return sorted(real(self), key=lambda event: not isinstance(event, MarkSeen))

    return poll


def takes_any_mark(real: Callable[..., Any]) -> Callable[..., Any]:
    def events(self: MemoryStream, record: Any) -> list[Any]:
        if isinstance(record, MemoryMark) and record.token is not None:
            return [MarkSeen(record.token, position_of(record.position), 0)]
        return list(real(self, record))

    return events


def without_advancing(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: [e for e in real(self) if not isinstance(e, Advanced)]


def drops_what_fills(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, record: real(self, replace(record, filled=()) if isinstance(record, Statement) else record)


def drops_what_empties(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, record: real(self, replace(record, emptied=()) if isinstance(record, Statement) else record)


def sees_all(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: MemorySnapshot(1 << 31)


def plans_without_fence(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *asked: replace(real(self, *asked), visibilities=())


def pins_nothing(real: Callable[..., Any]) -> Callable[..., Any]:
    """The chunk's plan always follows the table, and its bound stays."""

    def opened(self: MemoryChunks, connection: Any, chunk: Chunk, part: Any) -> Any:
        found = self._database.tables[chunk.table]
        now = {**json.loads(chunk.plan), "incarnation": found.incarnation, "file": found.file}
        return real(self, connection, replace(chunk, plan=json.dumps(now)), part)

    return opened


def forgets_the_key(real: Callable[..., Any]) -> Callable[..., Any]:
    def rows_with(self: OpenTable, keys: Any, bytes_max: int) -> Any:
        first = min(keys.keys["id"].to_pylist())
        return [self._batch([row for row in self.rows.values() if row["id"] >= first])], None

    return rows_with


def skips_last(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, chunk, found: replace(real(self, chunk, found), exhausted=True)


def keeps_the_shape(real: Callable[..., Any]) -> Callable[..., Any]:
    def batch(self: OpenTable, rows: list[Any]) -> pa.RecordBatch:
        return real(self, [{k: v for k, v in row.items() if k in ("id", "name")} for row in rows])

    return batch


def one_too_early(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, position, most: real(self, position - 1, most)


def one_too_late(real: Callable[..., Any]) -> Callable[..., Any]:
    def stream(self: MemorySource, checkpoint: Checkpoint, open_spool: Any) -> Any:
        assert checkpoint.position is not None
        begin = number_of(checkpoint.position)
        behind = [r for r in self._database.after(begin, 2) if isinstance(r, MemoryCommit)]
        late = behind[0].position if behind else begin
        return real(self, replace(checkpoint, position=position_of(late)), open_spool)

    return stream


def forgets_too_much(real: Callable[..., Any]) -> Callable[..., Any]:
    def acknowledge(self: MemoryDatabase, slot: str, position: int) -> None:
        real(self, slot, self.end)

    return acknowledge


def checks_nothing(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, position, back: None


def trusts_positions(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, position, back: real(self, position, None)


def ignores_rights(real: Callable[..., Any]) -> Callable[..., Any]:
    def readable(self: MemoryDatabase, table: Any, is_closed: Any) -> Any:
        self.unreadable.clear()
        return real(self, table, is_closed)

    return readable


def waits_for_ever(real: Callable[..., Any]) -> Callable[..., Any]:
    def readable(self: MemoryDatabase, table: Any, is_closed: Any) -> Any:
        return real(self, table, lambda: False)

    return readable


def always_changed(real: Callable[..., RowsCompared]) -> Callable[..., Any]:
    def compare(self: MemorySource, known: Any) -> RowsCompared:
        before = {t: KnownRows(rows.generation, f"before {rows.version}") for t, rows in known.items()}
        return real(self, before)

    return compare


def behind_the_rows(real: Callable[..., Run]) -> Callable[..., Run]:
    def after(run: Run, table: Table, keys: pa.Table) -> Run:
        first, *rest = real(run, table, keys).batches
        count = len(first.index)
        moved = ChangeBatch(table, first.index + (run.rows if rest else 0), first.rows)
        return replace(run, ends=run.ends + count, batches=(*run.batches, moved))

    return after


def takes_every_row(real: Callable[..., KeySet]) -> Callable[..., Any]:
    def keys_where(self: MemoryChunks, connection: Any, table: Any, predicate: str, keys_max: int) -> KeySet:
        ids = [row["id"] for row in self._database.tables[table].rows.values()]
        return KeySet(pa.table({"id": pa.array(ids, pa.int32())}))

    return keys_where


def no_lag(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, at: replace(real(self, at), lag_bytes=0)


def fits_every_log(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, checkpoint, log_id: real(self, replace(checkpoint, source={}), log_id)


def every_slot(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, log_id: real(self, "another")


def drops_nothing(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, log_id, checkpoint: ()


def drops_everything(real: Callable[..., Any]) -> Callable[..., Any]:
    def drop(self: Any, log_id: str, checkpoint: Any) -> Any:
        self._database.slots.clear()
        return ()

    return drop


def drops_again(real: Callable[..., Any]) -> Callable[..., Any]:
    def drop(self: Any, log_id: str, checkpoint: Any) -> Any:
        return [replace(dropped, outcome="removed") for dropped in real(self, log_id, checkpoint)]

    return drop


PLANTED: dict[str, tuple[RewritesKnownBy, Plant, str]] = {
    "key change as an update": ("log", replaced(Transaction, "update", lambda _: merges_key_changes), "key_change_is"),
    "deletes before inserts": ("log", commits(deletes_first), "keys_that_two_rows_exchange"),
    "old key not reported": ("log", commits(without_old_keys), "key_that_moves_on_along_a_chain"),
    "savepoints ignored": ("log", commits(lambda c: replace(c, aborted=frozenset())), "what_was_rolled_back"),
    "inner savepoint ignored": (
        "log",
        commits(lambda c: replace(c, aborted=frozenset(sorted(c.aborted)[:1]))),
        "savepoints_inside_savepoints",
    ),
    "table by table": ("log", replaced(memory_stream, "batches_of", reads_in_order_of_tables), "several_tables_keep"),
    "no truncate": ("log", commits(without_truncates), "truncate_is_between"),
    "spool without its last piece": (
        "log",
        commits(lambda c: replace(c, changes=c.changes[:-500]) if len(c.changes) > 1000 else c),
        "large_transaction_comes_through",
    ),
    "spooled parts not taken back": (
        "log",
        commits(lambda c: replace(c, aborted=frozenset())),
        "parts_of_a_large_transaction",
    ),
    "mark before its time": ("log", replaced(MemoryStream, "poll", marks_first), "mark_returns_between"),
    "another log's mark": ("log", replaced(MemoryStream, "_events", takes_any_mark), "marks_of_another_log"),
    "no position while idle": ("log", replaced(MemoryStream, "poll", without_advancing), "idle_source_still"),
    "plan without a fence": ("log", replaced(MemoryChunks, "plan", plans_without_fence), "bound_of_a_plan"),
    "fence that sees all": ("log", replaced(MemoryDatabase, "snapshot", sees_all), "chunk_reports_a_change"),
    "keys with a blind fence": ("log", replaced(MemoryDatabase, "snapshot", sees_all), "keys_tell_of_a_change"),
    "keys as a range": ("log", replaced(OpenTable, "rows_with", forgets_the_key), "keys_give_the_rows"),
    "no deletes of rows that are gone": (
        "log",
        replaced(chunks, "absent", lambda real: lambda asked, found: asked.slice(0, 0)),
        "missing_in_the_log_are_right",
    ),
    "deletes after the rows": (
        "log",
        replaced(chunks, "after_deletes", behind_the_rows),
        "missing_in_the_log_are_right",
    ),
    "predicate left out": ("log", replaced(MemoryChunks, "keys_where", takes_every_row), "predicate_gives_the_keys"),
    "ends after one chunk": (
        "log",
        replaced(MemoryChunks, "progress_after", skips_last),
        "chunks_bring_every_row_once",
    ),
    "truncated table read on": ("log", replaced(MemoryChunks, "open_table", pins_nothing), "chunk_after_a_truncate"),
    "other table of the name": (
        "log",
        replaced(MemoryChunks, "open_table", pins_nothing),
        "chunk_of_a_recreated_table",
    ),
    "chunk in the old shape": ("log", replaced(OpenTable, "_batch", keeps_the_shape), "added_between_two_chunks"),
    "filled rows not reported": ("log", replaced(MemoryStream, "_events", drops_what_fills), "values_has_them"),
    "filled rows not compared": (
        "catalog",
        replaced(MemorySource, "compare_rows", lambda _: lambda self, known: RowsCompared(())),
        "values_written_while_no_capture",
    ),
    "retyped rows not reported": ("log", replaced(MemoryStream, "_events", drops_what_fills), "column_of_another_type"),
    "swapped rows stay": (
        "log",
        both(one_incarnation, replaced(MemoryStream, "_events", drops_what_fills)),
        "exchange_their_names",
    ),
    "dropped rows stay": (
        "log",
        both(one_incarnation, replaced(MemoryStream, "_events", drops_what_empties)),
        "dropped_and_recreated_has",
    ),
    "rename unnoticed": ("log", replaced(MemoryStream, "_events", drops_what_fills), "renamed_and_back"),
    "truncate lost on the way": ("log", commits(without_truncates), "truncate_leaves_only"),
    "delivered again": ("log", replaced(MemoryDatabase, "after", one_too_early), "restart_continues_after"),
    "one lost at a restart": ("log", replaced(MemorySource, "stream", one_too_late), "restart_after_any"),
    "acknowledged too far": ("log", replaced(MemoryDatabase, "acknowledge", forgets_too_much), "acknowledged_history"),
    "hole not noticed": ("log", replaced(MemorySource, "_check_whole", checks_nothing), "older_than_what_it"),
    "copy not noticed": (
        "log",
        replaced(MemorySource, "_check_whole", trusts_positions),
        "restored_copy_is_distinguished",
    ),
    "rights not asked": ("log", replaced(MemoryDatabase, "readable", ignores_rights), "right_that_was_taken_away"),
    "waits for a lock": ("log", replaced(MemoryDatabase, "readable", waits_for_ever), "closing_wakes"),
    "version of each check": ("catalog", replaced(MemorySource, "compare_rows", always_changed), "compare_as_equal"),
    "lag of nothing": ("log", replaced(MemorySource, "status", no_lag), "lag_grows"),
    "preview of another log": ("log", replaced(MemorySource, "preview", fits_every_log), "preview_names"),
    "drop leaves the slot": ("log", replaced(MemorySource, "drop", drops_nothing), "drop_leaves_nothing"),
    "drop takes every slot": ("log", replaced(MemorySource, "drop", drops_everything), "drop_leaves_nothing"),
    "drop that is never done": ("log", replaced(MemorySource, "drop", drops_again), "drop_leaves_nothing"),
    "own slot not dropped": ("log", replaced(MemorySource, "left_behind", every_slot), "reported_as_leftovers"),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite that passes with any source would be worth nothing to the author of the next one."""
    told, plant, words = PLANTED[bug]
    (name,) = [name for name in scenarios(SourceContract) if words in name]
    monkeypatch.setattr(reading, "PATIENCE_S", 1.0)
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, CdcflowError, TimeoutError)):
        getattr(Conforming(), name)(MemoryKit(told))
