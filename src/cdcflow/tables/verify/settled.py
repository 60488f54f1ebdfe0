"""Find which keys changed since a snapshot, so that a difference in them proves nothing.

    log     …──t──t──t──x──t──────c───────t──▶          x: the first transaction that the snapshot may not see
    source         snapshot                             c: the copy's cut
                        └──── changed ────┘

A key that no change of the log touches from x onwards is the same in the snapshot, in the copy, and now. So if such a
key differs, its rows really are different. All other keys have to be compared again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.capture.interleave.messages import Visibility
from cdcflow.capture.ports.comparison import Comparison
from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost
from cdcflow.log.read.log_reader import LogReader
from cdcflow.model.change import TRUNCATE, Kind
from cdcflow.model.position import Position, position_text
from cdcflow.model.table import OP, Table
from cdcflow.tables.verify.port import Columns, Comparer

BACK = 100_000
"""How many rows before a snapshot are checked first: a transaction can be in the log before it becomes visible."""

LOOK_AGAIN_S = 0.05
NUDGE_AFTER_S = 0.3


@dataclass(slots=True)
class Fences:
    """The transactions that the snapshots of some reads saw. `begun`: the log's next offset before the first snapshot;
    `end`: a position in the source's log after the last one."""

    begun: int
    seen: list[Visibility] = field(default_factory=list)
    end: Position | None = None


@dataclass(frozen=True, slots=True)
class SettledRange:
    """The part of the log after some snapshots, in a log that has everything that they saw. `first`: the first offset
    that they may not have seen; `position`: the position in the source's log before it; `newest`: the log's last
    offset."""

    first: int
    position: str
    newest: int


def wait_for_log(
    log: LogReader, comparison: Comparison, fences: Fences, wait_s: float, sleep: Callable[[float], None] = time.sleep
) -> SettledRange:
    """Wait until the log has everything that the snapshots saw.

    Raises:
        ConfigurationError: the log does not reach that position in time.
    """
    end = fences.end
    if end is None:
        raise ValueError("the fences have no end yet")
    began = time.monotonic()
    is_nudged = False
    while True:
        newest = log.newest_checkpoint()
        if newest.position is not None and comparison.covers(newest.position, end):
            break
        waited_s = time.monotonic() - began
        if waited_s > NUDGE_AFTER_S and not is_nudged:
            is_nudged = True
            # Concurrently: where commits wait for a replica, so does the heartbeat.
            threading.Thread(target=_nudge, args=(comparison,), name="nudge", daemon=True).start()
        if waited_s > wait_s:
            raise ConfigurationError(
                f"comparing with {log.name}: it has not reached {end}, where the source was read, in {wait_s:.0f} s",
                remedy="start the daemon (`cdcflow run`), wait until `cdcflow status` shows no lag, and verify again",
                runbook="verify",
            )
        sleep(LOOK_AGAIN_S)
    found = _first_unseen(log, comparison, fences, newest.next_offset - 1)
    if found is None:
        return SettledRange(newest.next_offset, position_text(newest.position) or "", newest.next_offset - 1)
    first, position = found
    return SettledRange(first, position or position_text(newest.position) or "", newest.next_offset - 1)


def _nudge(comparison: Comparison) -> None:
    """Write a heartbeat into the source's log after the position that was read, so that an otherwise idle change log
    reaches it. A mark would not do: if the daemon does not wait for it, it leaves nothing in an idle log."""
    with contextlib.suppress(CdcflowError):
        comparison.chunks.heartbeat()


def _first_unseen(log: LogReader, comparison: Comparison, fences: Fences, last: int) -> tuple[int, str] | None:
    """Return the first offset that one of the snapshots may not have seen, and the position before it; `None` if they
    saw everything."""
    back = BACK
    while True:
        begin = max(1, fences.begun - back)
        headers, begin = _headers(log, begin, fences.begun, last)
        if headers is None:
            return None
        at = headers.num_rows
        for seen in fences.seen:
            at = min(at, comparison.first_unseen(seen, headers.slice(0, at)))
        if at == 0 and begin > 1 and back < fences.begun:
            back *= 10  # a transaction that waits for a standby may be older
            continue
        if at == headers.num_rows:
            return None
        before = headers.column("position")[at - 1].as_py() if at else ""
        return int(headers.column("first_offset")[at].as_py()), before


def _headers(log: LogReader, begin: int, begun: int, last: int) -> tuple[pa.Table | None, int]:
    if last < begin:
        return None, begin
    try:
        found = list(log.read_transactions(begin, last))
    except HistoryLost:
        begin = begun  # older offsets have expired in the meantime
        found = list(log.read_transactions(begin, last)) if last >= begin else []
    if not found:
        return None, begin
    headers = pa.concat_tables(found)
    headers = headers.filter(pc.equal(headers.column("kind"), Kind.SOURCE.value))
    return (headers if headers.num_rows else None), begin


@dataclass(frozen=True, slots=True)
class Changed:
    """The keys of a table that changed. `None` instead of keys: any of its rows may have changed."""

    keys: pa.Table | None

    @property
    def is_empty(self) -> bool:
        return self.keys is not None and not self.keys.num_rows


def changed_keys(log: LogReader, comparer: Comparer, columns: Columns, shape: Table, first: int, last: int) -> Changed:
    """Return the keys of a table's rows in the log between two offsets, both inclusive.

    All rows may have changed if there is a truncate, or if the table had another shape than `shape` in between.
    """
    found: list[pa.Table] = []
    if first <= last:
        for then, _, rows in log.read_rows(first, last, {columns.table}):
            if then != shape or pc.any(pc.equal(rows.column(OP), TRUNCATE)).as_py():
                return Changed(None)
            found.append(comparer.keys(columns, then, rows))
    if not found:
        return Changed(pa.table({f"k{i}": pa.nulls(0) for i in range(len(columns.key))}))
    return Changed(pa.concat_tables(found))


def concat_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables with the same columns."""
    return pa.concat_tables(tables, promote_options="permissive")
