"""Logs for work that other processes do: their contents, and what must be the same in whichever process it was done."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table

from cdcflow.log.files import states
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.segment import manifest_hash
from cdcflow.log.index import index_files, keyindex
from cdcflow.log.read.reader import list_segments
from cdcflow.log.workers import Here

ORDERS = make_table("orders", id="int64", v="string")
ITEMS = make_table("items", id="int64")


def made(folder: Path, segments: int = 40) -> HandLog:
    log = HandLog(folder, has_transactions=True)
    for table in (ORDERS, ITEMS):
        log.state(table)
    for number in range(segments):
        rows = [(ORDERS, "c" if number < 9 else "u", {"id": number % 9, "v": f"v{number}"})]
        log.segment([*rows, (ITEMS, "c", {"id": number})])
    chain(Layout(log.root))
    return log


def chain(layout: Layout) -> None:
    """Each segment names the one before it, as the sinks have it."""
    previous, offset = "", 0
    for bounds in layout.segment_offsets():
        segment, _ = layout.manifest(*bounds)
        text = replace(segment, previous=previous, previous_offset=offset).to_json().encode()
        (layout.segment(*bounds) / "segment.json").write_bytes(text)
        previous, offset = manifest_hash(text), bounds[0]


def told_of(layout: Layout, state: int) -> list[Any]:
    """A log's content, independent of the names of its files: its segments, its index, its state at an offset."""
    segments = [(s.first_offset, s.last_offset, [f.sha256 for f in s.files], s.seams) for s in list_segments(layout)]
    index = [
        keyindex.IndexFile.to_bytes(index_files.open_index(layout, bounds))
        for bounds in index_files.index_bounds(layout)
    ]
    kept = [(entry.sha256, entry.rows) for entry in states.open_state(layout, state).tables.values()]
    return [segments, index, kept]


class AsMany(Here):
    """This process, in as large turns as others."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once


def dying(work: Callable[[Any], Any], once: Path, how: str) -> Callable[[Any], Any]:
    """A piece of work that fails or kills its process the first time that it is done."""

    def done(piece: Any) -> Any:
        result = work(piece)
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return result
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("out of luck")

    return done
