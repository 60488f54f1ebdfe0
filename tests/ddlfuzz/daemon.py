"""The capture as a separate process that can be killed; forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cdcflow import wiring
from cdcflow.capture.attempt import LoopIntervals, Orders
from cdcflow.capture.capture import Capture
from cdcflow.capture.ports.source import Source
from cdcflow.config import load
from cdcflow.errors import CdcflowError
from cdcflow.model.table import Table
from cdcflow.sources.postgres.catch_up import Windows
from cdcflow.sources.postgres.source import PostgresSource

SMALL = Windows(backlog_min=1 << 14, rest_min=1 << 14, messages_max=300, advance_min=1)
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["tests.ddlfuzz.preloaded"])


@dataclass(frozen=True)
class Stop:
    """How a daemon ended by itself. `kind`: the error's, or "broken" for one that is not cdcflow's."""

    kind: str
    message: str
    remedy: str


@dataclass
class Status:
    position: str = ""
    tables: dict[str, Any] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    interrupted: str = ""
    left_out: tuple[str, ...] = ()
    list_reads: int = 0
    """How often the list of tables was read since the process was started."""


class Daemon:
    """A running capture. Ends by `stop`, by `kill`, or by itself (`ended`)."""

    def __init__(self, config: Path, *, look_s: float, small: bool, accept: bool, backfill: tuple[str, ...]) -> None:
        self.backfill = backfill
        self._here, there = _FORKING.Pipe()
        orders = Orders(accept_history_loss=accept, backfill=backfill or None)
        # The forked one finds its modules where this one found them.
        self._process = _FORKING.Process(target=_run, args=(there, str(config), look_s, small, orders), daemon=True)
        self._process.start()
        there.close()
        self._ended: Stop | None = None
        self._is_over = False

    def status(self) -> Status | None:
        """`None` if it has ended."""
        try:
            self._here.send("status")
            while not self._is_over:
                found = self._here.recv()
                if isinstance(found, Status):
                    return found
                self._ended, self._is_over = found, True
        except (EOFError, OSError):
            self._drain()
        return None

    def ended(self) -> Stop | None:
        """Why it ended, when `status` gave None."""
        self._process.join()
        return self._ended or Stop("broken", f"the process ended with {self._process.exitcode} and no word", "")

    def stop(self) -> Stop | None:
        """Stop it in good order; raise the error that it ended with."""
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGTERM)
        self._process.join(60)
        if self._process.is_alive():
            self.kill()
            return Stop("broken", "it did not stop within 60 s of SIGTERM", "")
        self._drain()
        return self._ended

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._here.close()

    def _drain(self) -> None:
        try:
            while self._here.poll(1):
                found = self._here.recv()
                if not isinstance(found, Status):
                    self._ended, self._is_over = found, True
        except (EOFError, OSError):
            pass


class ListReads:
    """Counts how often a capture reads its source's list of tables."""

    def __init__(self) -> None:
        self.count = 0

    def counted(self, source: Source) -> Source:
        read = source.tables

        def tables() -> Sequence[Table]:
            found = read()
            self.count += 1
            return found

        source.tables = tables  # type: ignore[method-assign]
        return source


def _run(pipe: Connection, path: str, look_s: float, small: bool, orders: Orders) -> None:
    config = load(path)
    if small:
        (PostgresSource.__init__.__kwdefaults__ or {})["windows"] = SMALL
    interrupted: list[str] = [""]
    list_reads = ListReads()

    def on_event(event: str, fields: Any) -> None:
        if event == "capture interrupted":
            interrupted[0] = str(fields.get("reason"))

    capture = Capture(
        open_source=lambda: list_reads.counted(wiring.open_source(config)),
        open_log=lambda identity, accept: wiring.open_log(config, identity, accept_history_loss=accept),
        limits=wiring.limits(config, backfill_new=not orders.backfill),
        orders=orders,
        pace=LoopIntervals(heartbeat_s=0.1, tables_look_s=look_s),
        on_event=on_event,
    )
    signal.signal(signal.SIGTERM, lambda *_: capture.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lock = threading.Lock()

    def answer() -> None:
        while True:
            try:
                pipe.recv()
            except (EOFError, OSError):
                os._exit(3)  # the result is no longer read
            now: dict[str, Any] = dict(capture.status())
            status = Status(interrupted=interrupted[0], list_reads=list_reads.count)
            if now.get("position"):
                told = {name: now[name] for name in ("position", "tables", "events")}
                status = replace(status, **told, left_out=tuple(now["left_out"]))
            with lock:
                pipe.send(status)

    threading.Thread(target=answer, daemon=True).start()
    ended: Stop | None = None
    try:
        capture.run()
    except CdcflowError as error:
        ended = Stop(type(error).__name__, str(error), error.remedy or "")
    except BaseException:  # noqa: BLE001 - reported to the process that started it
        ended = Stop("broken", traceback.format_exc(), "")
    with lock:
        pipe.send(ended)
    sys.stdout.flush()
    time.sleep(0)
    os._exit(0)


__all__ = ["Daemon", "Status", "Stop"]
