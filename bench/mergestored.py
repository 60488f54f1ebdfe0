"""merge: tables in an object store, and how much of a log there is read, relative to the size of what is new in it."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
from tests.servers.objects import ObjectServer

from bench.harness import tell
from bench.mergelog import SealedLog, rows, table
from bench.mergeparties import CHANGES as MADE
from bench.mergeparties import SMALL_TABLES, Party, in_turn, ratio
from bench.results import Line, at_most, compared
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.reader import list_segments
from cdcflow.stores.bucket import Bucket

ROWS, CHANGES = 1_000_000, 200_000

KEYS = (0.0001, "recent"), (0.0001, "random"), (0.001, "random")
"""Shares of a large table that change at a time, and the kind of their keys."""

LOADED = 2_000_000
"""Rows of a segment of a first load."""


def small_tables(count: int) -> list[Line]:
    """Five tables of ten thousand rows, a thousand changes each, in a folder and in a store; warm."""
    tell(f"  merge: {SMALL_TABLES} tables in a store")
    shapes = [table(f"t{n}") for n in range(SMALL_TABLES)]
    cycles: dict[str, list[dict[str, Any]]] = {"folder": [], "store": [], "spark": []}
    with tempfile.TemporaryDirectory() as folder, ObjectServer() as server, ExitStack() as parties:
        room = Path(folder)
        local = parties.enter_context(closing(Party("local", None, room / "l", "delta", engine="local")))
        spark = parties.enter_context(closing(Party("spark", None, room / "s", "delta", s3=True)))
        log = SealedLog(room / "log")
        given: dict[str, Any] = {"log": str(log.root), "objects": server.objects("lake").model_dump(mode="json")}
        log.segment({t: rows(np.arange(10_000), 1) for t in shapes}, "r")
        chance = np.random.default_rng(7)
        for number in range(1, count + 3):
            changed = {t: rows(np.sort(chance.choice(10_000, MADE, replace=False)), number) for t in shapes}
            log.segment(changed, "u")
            found = in_turn(
                number,
                folder=lambda: local.ask("merge_again", log=given["log"], warehouse=str(room / "lake")),
                store=lambda: local.ask("merge_again", **given, warehouse="s3a://lake/local"),
                spark=lambda: spark.ask("merge_into_store", **given, warehouse="s3a://lake/spark"),
            )
            for name, figures in found.items() if number > 2 else ():
                cycles[name].append(figures)
    case = f"{SMALL_TABLES} tables, {MADE:,} changes each, in a store, without Spark"
    return [
        ratio(case, "s", cycles["store"], cycles["folder"], "the same in a folder", at_most(2.5)),
        ratio(case, "s", cycles["store"], cycles["spark"], "Spark, in a store", at_most(1 / 5)),
        ratio(case, "CPU s", cycles["store"], cycles["spark"], "Spark, in a store", at_most(1 / 15)),
        ratio(case, "CPU s", cycles["store"], cycles["folder"], "the same in a folder"),
    ]


def large_table(size: int, count: int) -> list[Line]:
    """Few changes of one table of many rows, in a folder and in a store; warm."""
    lines = []
    with tempfile.TemporaryDirectory() as folder, ObjectServer() as server:
        room = Path(folder)
        with closing(Party("local", None, room / "l", "delta", engine="local")) as local:
            shape, log = table("large"), SealedLog(room / "log")
            objects = server.objects("lake").model_dump(mode="json")

            def merge_both(number: int) -> dict[str, dict[str, Any]]:
                given = {"log": str(log.root)}
                return in_turn(
                    number,
                    folder=lambda: local.ask("merge_again", **given, warehouse=str(room / "lake")),
                    store=lambda: local.ask("merge_again", **given, warehouse="s3a://lake/local", objects=objects),
                )

            for first in range(0, size, LOADED):
                tell(f"  merge: {size:,} rows in a store, load from {first:,}")
                log.segment({shape: rows(np.arange(first, min(first + LOADED, size)), first)}, "r")
                merge_both(0)
            chance = np.random.default_rng(3)
            for share, keys in KEYS:
                changed = max(1000, int(size * share))
                case = f"{size:,} rows, {share:.2%} changed, {keys} keys, in a store, without Spark"
                tell(f"  merge: {case}")
                cycles: dict[str, list[dict[str, Any]]] = {"folder": [], "store": []}
                for number in range(count + 1):
                    low = size - changed * 2 if keys == "recent" else 0
                    ids = np.sort(chance.choice(np.arange(low, size), changed, replace=False))
                    log.segment({shape: rows(ids, number + 1000)}, "u")
                    for name, figures in merge_both(number).items() if number else ():
                        cycles[name].append(figures)
                ours, theirs = cycles["store"], cycles["folder"]
                lines.append(ratio(case, "s", ours, theirs, "the same in a folder", at_most(1.5)))
                lines.append(ratio(case, "CPU s", ours, theirs, "the same in a folder"))
    return lines


def log_bytes(table_format: str, count: int) -> list[Line]:
    """A first load, then changes of whole rows, then such that leave a column unchanged."""
    tell("  merge: bytes of a log in a store")
    found: dict[str, tuple[list[float], list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder, ObjectServer() as server:
        room = Path(folder)
        objects = server.objects("logs", "bench")
        party = Party("this checkout", None, room / "scratch", table_format, s3=True)
        try:
            log, shape = SealedLog(room / "log"), table("large")
            chance = np.random.default_rng(17)
            log.segment({shape: rows(np.arange(ROWS), 1)}, "r")
            for number in range(2 * count + 1):
                if number:
                    ids = np.sort(chance.choice(ROWS, CHANGES, replace=False))
                    log.segment({shape: rows(ids, number)}, "u", unchanged=("doc",) if number % 2 else ())
                _put(log.root, Bucket(objects))
                told = party.ask(
                    "merge_stored",
                    objects=objects.model_dump(mode="json"),
                    room=str(room / "seen"),
                    warehouse=str(room / "lake"),
                )
                newest = list_segments(Layout(log.root))[-1]
                size = sum(f.bytes for f in newest.files if f.table is not None)
                what = "first load" if not number else "a column unchanged" if number % 2 else "whole rows"
                tell(f"    {what}: {told['read']:,} of {size:,} bytes")
                read, there = found.setdefault(what, ([], []))
                read.append(told["read"] / 1e6)
                there.append(size / 1e6)
        finally:
            party.close()
    return [
        compared("merge", f"log in a store, {what}", "MB read", read, there, "its size", at_most(1.05))
        for what, (read, there) in found.items()
    ]


def _put(root: Path, bucket: Bucket) -> None:
    """Upload the sealed part to a bucket, manifests last."""
    there = set(bucket.list_objects(""))
    for path in sorted(root.rglob("*"), key=lambda p: (p.name == "segment.json", str(p))):
        name = os.fspath(path.relative_to(root))
        if path.is_file() and name not in there:
            bucket.put(name, path.read_bytes())
