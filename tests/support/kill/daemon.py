"""A capture daemon that kills itself with SIGKILL at a named point: `daemon.py CONFIG [POINT COUNT [start]]`.

The points are method calls of the product, of any source, wrapped here and only here. `POINT` is `before:NAME` or
`after:NAME`. The process dies at the COUNT-th call once its capture is live, that is, once a source change that this
process delivered is durable in its log. With `start` all calls count, for points that a process passes before that.
Either way it records in a file `killed` next to CONFIG which of the two it was.

Without a point it is the plain daemon, which SIGTERM stops; SIGHUP makes it reload CONFIG.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdcflow.daemon.lean import end_loading, lean

if __name__ == "__main__":
    lean()  # as `cdcflow run` does; pandas takes a third of a start

from cdcflow import wiring
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.capture.interleave.window_sequence import WindowSequence
from cdcflow.config import load
from cdcflow.model.change import Kind
from cdcflow.sinks.files.log import FileLog
from cdcflow.sinks.kafka import log as kafka_log
from cdcflow.sinks.kafka.log import KafkaLog
from cdcflow.sinks.kafka.producer import Sender
from cdcflow.sinks.kafka.topics import Topics
from cdcflow.sources.engine.chunks import Chunks
from cdcflow.sources.mysql.binlog import BinlogDecoder
from cdcflow.sources.mysql.stream import BinlogStream
from cdcflow.sources.postgres.catch_up import Advance, CatchingUp, Windows
from cdcflow.sources.postgres.lsn import START, Lsn
from cdcflow.sources.postgres.pgoutput import PgoutputDecoder
from cdcflow.sources.postgres.source import PostgresSource
from cdcflow.sources.postgres.stream import PostgresStream
from cdcflow.stores.bucket import Bucket

Counts = Callable[..., bool]


def always(*_: object) -> bool:
    return True


def is_mark(end: str) -> Counts:
    return lambda _self, token: token.text.endswith(end)


def appends_rows_of(kind: Kind) -> Counts:
    return lambda _self, numbered: numbered.run.kind == kind


Point = tuple[Any, str, Counts]

POINTS: dict[str, Point | tuple[Point, Point]] = {
    "decode": ((PgoutputDecoder, "decode", always), (BinlogDecoder, "decode", always)),
    "step": (Interleave, "step", always),
    "append": ((FileLog, "append", appends_rows_of(Kind.SOURCE)), (KafkaLog, "append", appends_rows_of(Kind.SOURCE))),
    "release": ((FileLog, "append", appends_rows_of(Kind.READ)), (KafkaLog, "append", appends_rows_of(Kind.READ))),
    "cut": ((FileLog, "cut", always), (KafkaLog, "cut", always)),
    "sync": ((FileLog, "sync", always), (KafkaLog, "sync", always)),
    "feedback": ((PostgresStream, "acknowledge", always), (BinlogStream, "acknowledge", always)),
    "roll": ((FileLog, "roll", always), (KafkaLog, "roll", always)),
    "topics made": (Topics, "make", always),
    "taken over": (Sender, "__init__", always),
    "transaction begun": (Sender, "begin", always),
    "record put": (Sender, "put", always),
    "records sent": (Sender, "settle", always),
    "head sent": (KafkaLog, "_send_head", always),
    "commit": (Sender, "commit", always),
    "seal": (FileLog, "seal_pending", always),
    "low mark": (Chunks, "write_mark", is_mark("low")),
    "high mark": (Chunks, "write_mark", is_mark("high")),
    "chunk read": (Chunks, "read_chunk", always),
    "plan": (Chunks, "plan", always),
    "upload": (Bucket, "put_new", always),
    "rename": (os, "rename", always),
    "fsync": (os, "fsync", always),
    "window asked": (CatchingUp, "_ask", always),
    "window read": (CatchingUp, "_end_window", always),
    "advance": (Advance, "_ask", always),
    "window feedback": (CatchingUp, "acknowledge", always),
    "change over": (CatchingUp, "_change_over", always),
    "changes refused": (WindowSequence, "lose_changes", always),
}
NEED_DURABLE_WINDOWS = {"advance", "window asked", "window read", "window feedback"}
SMALL_WINDOWS = Windows(backlog_min=1 << 14, rest_min=1 << 14, messages_max=300, advance_min=1)
SMALL_RANGE = 1 << 18


class Live:
    """Whether the capture of this process has made a change of the source durable."""

    def __init__(self) -> None:
        self.delivered = self.durable = False
        for log in (FileLog, KafkaLog):
            self._watch(log)

    def _watch(self, log: Any) -> None:
        append, sync = log.append, log.sync

        def appended(self_: Any, numbered: Any) -> Any:
            result = append(self_, numbered)
            self.delivered = self.delivered or numbered.run.kind == Kind.SOURCE
            return result

        def synced(self_: Any, *args: Any) -> Any:
            delivered = self.delivered
            result = sync(self_, *args)
            self.durable = self.durable or delivered
            return result

        log.append, log.sync = appended, synced


@dataclass
class Trigger:
    """Counts the calls of a point, and kills at the last one."""

    left: int
    live: Live
    counts_all: bool
    note: Path

    def pull(self) -> None:
        if not (self.counts_all or self.live.durable):
            return
        self.left -= 1
        if self.left == 0:
            self.note.write_text("live" if self.live.durable else "start")
            os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, trigger: Trigger) -> None:
    """Make the process die at the matching call that is the trigger's last."""
    when, name = point.split(":")
    found = POINTS[name]
    for one in found if isinstance(found[0], tuple) else (found,):
        _arm(when, one, trigger)  # type: ignore[arg-type]  # mypy does not tell a pair from a triple


def _arm(when: str, point: Point, trigger: Trigger) -> None:
    owner, method, counts = point
    original = getattr(owner, method)

    def die_if_last(*args: Any) -> None:
        if counts(*args):
            trigger.pull()

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            die_if_last(*args)
        result = original(*args, **kwargs)
        if when == "after":
            die_if_last(*args)
        return result

    setattr(owner, method, wrapped)


def wait_for_each_window() -> None:
    """No window is read before something of the last one is acknowledged: otherwise all of a small backlog may be read
    before the first is durable, and the slot is never advanced."""
    read = CatchingUp._read
    seen: list[tuple[int, Lsn]] = [(0, START)]

    def read_later(self: CatchingUp) -> Any:
        windows, acknowledged = seen[-1]
        if windows == self.windows and self._acknowledged == acknowledged:
            return []
        events = read(self)
        if self.windows != windows:
            seen.append((self.windows, self._acknowledged))
        return events

    CatchingUp._read = read_later  # type: ignore[method-assign]


def main(path: str, point: str | None = None, count: str = "1", begins: str = "") -> None:
    if point is not None:
        if point.split(":")[1] in NEED_DURABLE_WINDOWS:
            wait_for_each_window()
        arm(point, Trigger(int(count), Live(), begins == "start", Path(path).with_name("killed")))
    # Every backlog of a test is small; windows must be the same in a daemon without a point as in one that died in one.
    (PostgresSource.__init__.__kwdefaults__ or {})["windows"] = SMALL_WINDOWS
    kafka_log.RANGE_BYTES_MAX = SMALL_RANGE
    capture = wiring.capture(load(path))
    end_loading()
    signal.signal(signal.SIGTERM, lambda *_: capture.stop())

    def take_the_file_up() -> None:
        capture.reload(wiring.capture_settings(load(path), reopened=True), in_place=False)

    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=take_the_file_up).start())
    capture.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
