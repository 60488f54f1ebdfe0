"""merge, and other tools on the same changes: Debezium's JSON merged by a Spark stream, delta-rs, PyIceberg."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.harness import Failed, tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import CHANGES, SMALL_TABLES, Asked, Party, files_of, in_turn, ratio
from bench.peers import deltalake_path
from bench.results import Line, at_most

STREAM = "Debezium JSON, a stream's MERGE"


def beside_peers(ours: Party, local: Party, table_format: str, count: int) -> list[Line]:
    """Five small tables, as in the first bench. Each party keeps its own, and in the end all have the same rows."""
    tell(f"  merge: {SMALL_TABLES} tables next to peers")
    with ExitStack() as stack:
        room = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        peer = _peer(table_format, room)
        if peer is not None:
            stack.callback(peer.close)
        shapes = [table(f"t{n}") for n in range(SMALL_TABLES)]
        log, events, target = SealedLog(room / "log"), room / "events", room / "stream" / "shop"
        events.mkdir()
        target.parent.mkdir()
        chance = np.random.default_rng(11)
        cycles: dict[str, list[dict[str, Any]]] = {}
        for number in range(count + 2):
            ids = np.sort(chance.choice(10_000, CHANGES, replace=False)) if number else np.arange(10_000)
            changed = {shape: rows(ids, number + 1) for shape in shapes}
            lsn = log.next_offset
            log.segment(changed, "u" if number else "r")
            _as_debezium(events / f"{number:04}.json", {s.id.name: b for s, b in changed.items()}, lsn)
            asked: dict[str, Asked] = {
                "ours": lambda: ours.ask("merge", log=str(log.root), warehouse=str(room / "ours")),
                "local": lambda: local.ask("merge", log=str(log.root), warehouse=str(room / "local")),
                "stream": lambda: ours.ask("stream", events=str(events), target=str(target), tables=SMALL_TABLES),
            }
            if peer is not None:
                files = files_of(log)[-SMALL_TABLES:]
                asked["peer"] = lambda files=files: peer.ask("merge", files=files, target=str(room / "peer"))
            for name, figures in in_turn(number, **asked).items() if number > 1 else _warm(asked):
                cycles.setdefault(name, []).append(figures)
        mine = [ours.ask("rows", table=str(room / "ours" / "shop" / s.id.name)) for s in shapes]
        others = [ours.ask("rows", table=str(target / s.id.name)) for s in shapes]
        told = [others] if peer is None else [others, [peer.ask("rows", table=s.id.name) for s in shapes]]
        for found in told:
            if [(f["rows"], f["sum"]) for f in found] != [(m["rows"], m["sum"]) for m in mine]:
                raise Failed(f"the tables differ: {mine} and {found}")
    case = f"{SMALL_TABLES} tables, {CHANGES:,} changes each"
    lines = [ratio(case, unit, cycles["ours"], cycles["stream"], STREAM, at_most(1)) for unit in ("s", "CPU s")]
    alike = f"{case}, without Spark"
    lines += [ratio(alike, unit, cycles["local"], cycles["stream"], STREAM, at_most(1)) for unit in ("s", "CPU s")]
    if peer is not None:
        lines += [ratio(alike, unit, cycles["local"], cycles["peer"], peer.name) for unit in ("s", "CPU s")]
    return lines


def _warm(asked: Mapping[str, Asked]) -> list[Any]:
    for ask in asked.values():
        ask()
    return []


def _peer(table_format: str, room: Path) -> Party | None:
    """The library that writes the format without Spark; `None` if it is unavailable here."""
    if table_format == "iceberg":
        return Party("PyIceberg upsert", None, room / "scratch", table_format, module="mergepeers")
    sources = deltalake_path()
    if sources is None:
        return None
    return Party("delta-rs", sources, room / "scratch", table_format, module="mergepeers")


def _as_debezium(path: Path, changed: Mapping[str, pa.RecordBatch], lsn: int) -> None:
    """What Debezium's JSON converter writes for the changes, one line each."""
    with path.open("w") as file:
        for name, batch in changed.items():
            for row in batch.to_pylist():
                after = row | {"at": row["at"].isoformat()}
                source = {"table": name, "lsn": lsn}
                file.write(json.dumps({"before": None, "after": after, "op": "u", "source": source}) + "\n")
                lsn += 1
