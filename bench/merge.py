"""merge: what a cycle of the merge costs, compared with bare commits, a naive job and Spark's own read and write.

A base is created before the changes are, so that no party finds the changed rows side by side.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench import mergecluster, mergegrowth, mergemany, mergepeers, mergereduce, mergestored
from bench.harness import Budget, Failed, tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import CHANGES, FORMATS, SMALL_TABLES, Asked, Party, files_of, in_turn, parties, ratio
from bench.results import Line, alone, at_least, at_most

ROWS = 10_000_000
"""Rows of the large table; the small ones have a thousandth."""


SHARES = (
    (0.0001, "recent", 10),
    (0.001, "recent", 10),
    (0.0001, "random", 3),
    (0.001, "random", 3),
    (0.01, "random", 3),
    (0.1, "random", 3),
)
"""The share of the large table that changes at a time, the kind of its keys, and the aim relative to a naive job."""

PARTS = os.environ.get(
    "CDCFLOW_BENCH_PARTS", "small nothing reduce peers tables cycles large growth bytes stored workers"
).split()


def run(budget: Budget, transport: str) -> list[Line]:
    lines: list[Line] = []
    for table_format in FORMATS:
        tell(f"  merge: {table_format}")
        found: list[Line] = []
        with parties(table_format) as (ours, before, local):
            if "small" in PARTS:
                found += small_tables(ours, before, local, budget.rounds)
            if "nothing" in PARTS:
                found += nothing_new(ours, before, local, budget.rounds)
            if "reduce" in PARTS and table_format == FORMATS[0]:  # it is the same in every format
                found += mergereduce.reduced(ours, budget.rounds)
            if "peers" in PARTS:
                found += mergepeers.beside_peers(ours, local, table_format, budget.rounds)
            if "tables" in PARTS:
                for party in (ours, local):
                    found += mergemany.many_tables(party, budget.rounds)
            if "large" in PARTS:
                found += large_table(ours, before, budget)
        if "growth" in PARTS:
            found += mergegrowth.growth(table_format, budget.rows // 2, budget.rounds)
        if "bytes" in PARTS:
            found += mergestored.log_bytes(table_format, budget.rounds)
        if "stored" in PARTS and table_format == "delta":
            found += mergestored.small_tables(budget.rounds)
            found += mergestored.large_table(budget.rows, budget.rounds)
        if "workers" in PARTS:
            found += mergecluster.two_workers(table_format, budget.rows // 2, budget.rounds)
        if "cycles" in PARTS:
            # Sessions that have done nothing yet.
            with parties(table_format) as (ours, _, local):
                for party in (ours, local):
                    found += mergemany.many_cycles(party)
        lines += [replace(line, case=f"{table_format}: {line.case}") for line in found]
    return lines


def small_tables(ours: Party, before: Party | None, local: Party, count: int) -> list[Line]:
    """Five tables of ten thousand rows, a thousand changes each; warm."""
    tell(f"  merge: {SMALL_TABLES} tables, {CHANGES} changes each")
    shapes = [table(f"t{n}") for n in range(SMALL_TABLES)]
    cycles: dict[str, list[dict[str, Any]]] = {"ours": [], "bare": [], "before": [], "local": []}
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        log = SealedLog(room / "log")
        log.segment({t: rows(np.arange(10_000), 1) for t in shapes}, "r")
        chance = np.random.default_rng(7)

        def cycle(number: int) -> None:
            changed = {t: rows(np.sort(chance.choice(10_000, CHANGES, replace=False)), number) for t in shapes}
            log.segment(changed, "u")
            found = in_turn(
                number,
                **_merges(ours, before, log, room, local),
                bare=lambda: ours.ask("bare", warehouse=str(room / "bare"), tables=SMALL_TABLES),
            )
            if number > 2:
                for name, figures in found.items():
                    cycles[name].append(figures)

        for number in range(1, count + 3):
            cycle(number)
        tables = [str(room / "ours" / "shop" / t.id.name) for t in shapes]
        _same(ours, tables, room / "before" if before else None)
        _same(ours, tables, room / "local")
    case = f"{SMALL_TABLES} tables, {CHANGES:,} changes each"
    lines = [ratio(case, "s", cycles["ours"], cycles["bare"], "bare commits", at_most(1.5))]
    lines.append(alone("merge", case, "Spark jobs", [c["jobs"] for c in cycles["ours"]]))
    lines.append(alone("merge", case, "CPU s", [c["cpu_s"] for c in cycles["ours"]]))
    alike = f"{case}, without Spark"
    lines.append(ratio(alike, "s", cycles["local"], cycles["bare"], "bare commits", at_most(1.5)))
    lines.append(ratio(alike, "CPU s", cycles["local"], cycles["ours"], "Spark"))
    lines.append(alone("merge", alike, "CPU s", [c["cpu_s"] for c in cycles["local"]]))
    if before:
        lines.append(ratio(case, "CPU s", cycles["ours"], cycles["before"], "the other checkout", at_most(0.25)))
        lines.append(ratio(case, "s", cycles["ours"], cycles["before"], "the other checkout", at_most(0.25)))
    return lines


def nothing_new(ours: Party, before: Party | None, local: Party, count: int) -> list[Line]:
    """A merge that finds nothing, with few and with many cuts published."""
    tell("  merge: nothing new")
    lines = []
    shapes = [table(f"t{n}") for n in range(SMALL_TABLES)]
    for cuts in (10, 10_000):
        with tempfile.TemporaryDirectory() as folder:
            room = Path(folder)
            log = SealedLog(room / "log", cut=20_000)
            log.segment({t: rows(np.arange(1000), 1) for t in shapes}, "r")
            told: dict[str, list[dict[str, Any]]] = {"ours": [], "before": [], "local": []}
            for party, name in ((ours, "ours"), (before, "before"), (local, "local")):
                if party is not None:
                    party.ask("merge", log=str(log.root), warehouse=str(room / name))
                    (ours if party is local else party).ask("published", warehouse=str(room / name), cuts=cuts)
            log.segment({t: rows(np.arange(10), 2) for t in shapes}, "u")  # so that the latest cut is one of a merge
            for number in range(count + 1):
                found = in_turn(number, **_merges(ours, before, log, room, local))
                for name, figures in found.items() if number else ():
                    told[name].append(figures)
        case = f"nothing new, {cuts:,} cuts published"
        lines.append(alone("merge", case, "s", [c["seconds"] for c in told["ours"]]))
        lines.append(alone("merge", f"{case}, without Spark", "s", [c["seconds"] for c in told["local"]]))
        if before:
            lines.append(ratio(case, "s", told["ours"], told["before"], "the other checkout"))
    return lines


def large_table(ours: Party, before: Party | None, budget: Budget) -> list[Line]:
    """One table of many rows: its first load, then few changes on recent and on random keys."""
    size = budget.rows
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        tell(f"  merge: {size:,} rows, first load")
        shape = table("large")
        log = SealedLog(room / "log")
        step = 2_000_000
        for first in range(0, size, step):
            log.segment({shape: rows(np.arange(first, min(first + step, size)), first)}, "r")
        files = files_of(log)
        loads: dict[str, list[dict[str, Any]]] = {"ours": [], "limit": [], "before": []}
        above = room
        for number in range(budget.rounds + 1):  # one that warms up
            room = above / f"round-{number}"  # new warehouses: a session caches the catalog of an old one
            room.mkdir()
            by_spark = _merges(ours, before, log, room)
            del by_spark["auto"]
            found = in_turn(
                number,
                **by_spark,
                limit=lambda room=room: ours.ask("write", files=files, target=str(room / "naive")),
            )
            for name, figures in found.items() if number else ():
                loads[name].append(figures)
        lines.append(
            ratio(f"{size:,} rows, first load", "rows/s", loads["ours"], loads["limit"], "read and write by Spark",
                   at_least(0.7), rows=size)
        )  # fmt: skip
        if before:
            lines.append(
                ratio(f"{size:,} rows, first load", "rows/s", loads["ours"], loads["before"], "the other checkout",
                       rows=size)
            )  # fmt: skip
        _merges(ours, None, log, room)["auto"]()  # its first load is the one above: beyond its bounds auto takes Spark
        chance = np.random.default_rng(3)
        for share, keys, bound in SHARES:
            changed = max(1000, int(size * share))
            case = f"{size:,} rows, {share:.2%} changed, {keys} keys"
            tell(f"  merge: {case}")
            cycles: dict[str, list[dict[str, Any]]] = {"ours": [], "auto": [], "naive": [], "before": []}
            for number in range(budget.rounds + 1):
                low = size - changed * 2 if keys == "recent" else 0
                ids = np.sort(chance.choice(np.arange(low, size), changed, replace=False))
                log.segment({shape: rows(ids, number + 1000)}, "u")
                newest = files_of(log)[-1:]
                found = in_turn(
                    number,
                    **_merges(ours, before, log, room),
                    naive=lambda files=newest: ours.ask("naive", files=files, target=str(room / "naive")),
                )
                for name, figures in found.items() if number else ():
                    cycles[name].append(figures)
            lines.append(ratio(case, "rows/s", cycles["ours"], cycles["naive"], "a naive job", at_least(bound),
                                rows=changed))  # fmt: skip
            taken = ", ".join(sorted({c["engine"] for c in cycles["auto"]}))
            lines.append(ratio(f"{case}, merge.engine: auto ({taken})", "rows/s", cycles["auto"], cycles["naive"],
                                "a naive job", at_least(bound), rows=changed))  # fmt: skip
            if before:
                lines.append(
                    ratio(case, "rows/s", cycles["ours"], cycles["before"], "the other checkout", rows=changed)
                )
        tables = (room / "ours" / "shop" / "large", room / "auto" / "shop" / "large", room / "naive")
        told = [ours.ask("rows", table=str(path)) for path in tables]
        if len({(one["rows"], one["sum"]) for one in told}) > 1:
            raise Failed(f"the tables differ: {told}")
    return lines


def _merges(
    ours: Party, before: Party | None, log: SealedLog, room: Path, local: Party | None = None
) -> dict[str, Asked]:
    """A merge of this log by each party, into a separate warehouse."""
    given = {"log": str(log.root)}
    found: dict[str, Asked] = {"ours": lambda: ours.ask("merge", **given, warehouse=str(room / "ours"))}
    if local is None:
        found["auto"] = lambda: ours.ask("merge_auto", **given, warehouse=str(room / "auto"))
    if before is not None:
        found["before"] = lambda: before.ask("merge", log=str(log.root), warehouse=str(room / "before"))
    if local is not None:
        found["local"] = lambda: local.ask("merge", log=str(log.root), warehouse=str(room / "local"))
    return found


def _same(party: Party, tables: list[str], other: Path | None) -> None:
    """Raises Failed where two parties made different tables of the same log."""
    for path in tables if other is not None else ():
        assert other is not None
        mine, theirs = (party.ask("rows", table=p) for p in (path, str(other / "shop" / Path(path).name)))
        if (mine["rows"], mine["sum"]) != (theirs["rows"], theirs["sum"]):
            raise Failed(f"the tables differ: {mine} and {theirs}")
