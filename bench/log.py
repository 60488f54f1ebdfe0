"""log: questions about one row, of a log with many segments.

    lookup   the latest values of random keys, with a warm index: compared with reading one row group whose place is
             known (no index can be quicker), and with DuckDB over the same files without an index
    growth   the same of a tenth of the segments
    index    what it takes to build it, and its share of the log's bytes
    watch    from the sync of a commit to the change at a reader that watches the row
    peers    reading all changes, compared with a Kafka consumer and Delta's change data feed (`bench.logpeers`)

`--rows`: changes; keys are a tenth of them, segments one for each 20,000 changes, and at least 5,000.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq

import cdcflow
from bench import logpeers
from bench.harness import Budget, Failed, tell
from bench.mergelog import SealedLog, rows, table
from bench.results import Line, alone, at_most, compared
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.schema_history import SchemaHistory
from cdcflow.log.maintenance.index import Indexing
from cdcflow.log.query.log import ChangeLog
from cdcflow.log.read.reader import list_segments
from cdcflow.model.position import SourceIdentity
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, Writer, changes, transactions

ROWS = 100_000_000
BENCH = "log"
NAME = "shop.large"
SEGMENT_ROWS, SEGMENTS_MIN = 20_000, 5_000
LOOKUPS, SCANS, COMMITS = 1000, 3, 200
P50_MS, P99_MS, WATCH_MS = 10.0, 50.0, 100.0
BYTES_SHARE = 0.03


def run(budget: Budget, transport: str) -> list[Line]:
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        return [*_questions(room, budget), *_watched(room / "watched"), *logpeers.beside_peers(room, budget)]


def _questions(room: Path, budget: Budget) -> list[Line]:
    keys, segments = budget.rows // 10, max(SEGMENTS_MIN, budget.rows // SEGMENT_ROWS)
    each = budget.rows // segments
    log = SealedLog(room / "log")
    small = _grown(log, keys, segments // 10, each)
    tell(f"  log: {segments // 10} of {segments} segments of {each:,} changes")
    few = _indexed(log)
    few_ms, few_files = _looked_up(cdcflow.open(log.root), keys, small)
    newest = _grown(log, keys, segments, each, small)
    tell(f"  log: {segments} segments, {budget.rows:,} changes, {keys:,} keys")
    made = _indexed(log)
    asked = cdcflow.open(log.root)
    _looked_up(asked, keys, newest, 20)
    found = [_looked_up(asked, keys, newest) for _ in range(budget.rounds)]
    bare = [_one_group(log, each) for _ in range(budget.rounds)]
    scan = [_scanned(log, keys) for _ in range(min(budget.rounds, SCANS))]
    p50, p99 = ([float(np.percentile(ms, q)) for ms, _ in found] for q in (50, 99))
    said = f"{budget.rows:,} changes, {segments} segments"
    files, size = Indexing(Layout(log.root)).size()
    total = sum(s.size for s in list_segments(log.root))
    share = [size / total]
    return [
        compared(BENCH, f"lookup, p50, {said}", "ms", p50, [P50_MS] * len(p50), "the aim", at_most(1)),
        compared(BENCH, f"lookup, p99, {said}", "ms", p99, [P99_MS] * len(p99), "the aim", at_most(1)),
        compared(BENCH, f"lookup, p50, {said}", "ms", p50, bare, "one row group, its place known"),
        compared(BENCH, f"lookup, p50, {said}", "ms", p50, scan, "DuckDB over the same files, no index"),
        compared(
            BENCH,
            "lookup, p50, ten times the segments",
            "ms",
            p50,
            [float(np.percentile(few_ms, 50))] * len(p50),
            f"{segments // 10} segments",
        ),
        alone(BENCH, f"files read for a lookup, {segments // 10} segments", "files", [few_files]),
        alone(BENCH, f"files read for a lookup, {said}", "files", [files_read for _, files_read in found]),
        compared(BENCH, f"index, share of the bytes, {said}", "of 1", share, [BYTES_SHARE], "the aim", at_most(1)),
        alone(BENCH, f"index, bytes for a change, {said}", "bytes", [size / budget.rows]),
        alone(BENCH, f"index, files, {said}", "files", [files]),
        alone(BENCH, "index, made", "changes/s", [(budget.rows - segments // 10 * each) / made]),
        alone(BENCH, "index, made, a tenth", "changes/s", [segments // 10 * each / few]),
    ]


def _grown(log: SealedLog, keys: int, segments: int, each: int, newest: Any = None) -> Any:
    """Segments of changes of random keys, up to a number of rows; the latest offset of each key (0: no change)."""
    newest = np.zeros(keys, np.int64) if newest is None else newest
    shape = table("large")
    for number in range(log.cut, segments):
        ids = np.random.default_rng(number).integers(0, keys, each)
        newest[ids] = np.arange(log.next_offset, log.next_offset + each)
        log.segment({shape: rows(ids, number)}, "u")
    schemas = SchemaHistory()
    schemas.learn(shape, 1)
    Layout(log.root).schemas.write_text(schemas.to_json())
    return newest


def _indexed(log: SealedLog) -> float:
    begun = time.monotonic()
    Indexing(Layout(log.root)).step()
    return time.monotonic() - begun


def _looked_up(asked: ChangeLog, keys: int, newest: Any, count: int = LOOKUPS) -> tuple[list[float], float]:
    """Milliseconds of each lookup, and files read for one. Every answer is checked."""
    chosen = np.random.default_rng(count).integers(0, keys, count).tolist()
    took, before = [], asked.files_read
    for key in chosen:
        begun = time.perf_counter()
        found = asked.get(NAME, key)
        took.append((time.perf_counter() - begun) * 1e3)
        if (0 if found.last is None else found.last.offset) != newest[key]:
            raise Failed("a lookup found another change than the latest one")
    return took, (asked.files_read - before) / count


def _one_group(log: SealedLog, each: int) -> float:
    """The middle of some readings of a row group, key column and then a row, whose place is known."""
    layout, took = Layout(log.root), []
    bounds = layout.segment_offsets()
    for number in np.random.default_rng(each).integers(0, len(bounds), 100).tolist():
        path = next(layout.segment(*bounds[number]).glob("shop.*.parquet"))
        begun = time.perf_counter()
        with pq.ParquetFile(path, memory_map=True) as parquet:
            parquet.read_row_group(0, columns=["id"], use_threads=False).column("id").to_numpy()
            parquet.read_row_group(0, use_threads=False).slice(0, 1).to_pylist()
        took.append((time.perf_counter() - begun) * 1e3)
    return float(np.median(took))


def _scanned(log: SealedLog, keys: int) -> float:
    files = str(log.root / "segments" / "*" / "shop.*.parquet")
    key = int(np.random.default_rng(keys).integers(0, keys))
    begun = time.perf_counter()
    duckdb.execute("SELECT * FROM read_parquet(?) WHERE id = ? ORDER BY _offset DESC LIMIT 1", [files, key]).fetchall()
    return (time.perf_counter() - begun) * 1e3


def _watched(root: Path) -> list[Line]:
    """A commit at a time; how long after its sync it was seen."""
    log = FileLog.open(root, SourceIdentity("postgres", "1", "shop"))
    writer = Writer.of(log)
    writer.checkpoint = replace(
        writer.checkpoint,
        progress={"tables": {str(ORDERS.id): {"state": "done", "generation": 1, "since": 1, "whole_since": 1}}},
    )
    writer.put(transactions([1], [1], changes(ORDERS, [{"id": 1, "note": "0"}])))
    seen: dict[str, float] = {}
    stop = threading.Event()
    wait: Callable[[float], bool] = stop.wait

    def look() -> None:
        for change in cdcflow.open(root).watch(str(ORDERS.id), 1, after=1, wait=wait):
            seen[change.values["note"]] = time.perf_counter()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    synced = {}
    for number in range(COMMITS):
        writer.put(transactions([number + 2], [1], changes(ORDERS, [{"id": 1, "note": f"n{number}", "_op": "u"}])))
        synced[f"n{number}"] = time.perf_counter()
        time.sleep(0.03)
    time.sleep(1.0)
    stop.set()
    thread.join()
    log.close()
    if synced.keys() - seen.keys():
        raise Failed("a change was not seen")
    took = [float(np.percentile([max(0.0, seen[n] - synced[n]) * 1e3 for n in synced], 99))]
    return [compared(BENCH, "watch, p99 after the sync", "ms", took, [WATCH_MS], "the aim", at_most(1))]
