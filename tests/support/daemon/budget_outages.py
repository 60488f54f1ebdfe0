"""Outages during which a source's log is released or purged while rows are written, each at a random time.

An outage is of the daemon (killed, or stopped without ending), of the network (cut, or silent), or of the log's disk
(full). The source is not part of it: a guard, or the daemon, releases the slot there, and binary logs are purged.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.servers.proxy import TcpProxy
from tests.support.daemon.bank import Branch
from tests.support.polling import PATIENCE_S

from cdcflow.capture.interleave.progress import Progress

PROGRAM = Path(__file__).parents[1] / "kill" / "budgeted_daemon.py"
LOAD = "SELECT pg_logical_emit_message(false, 'load', repeat('x', 1 << 20))"
"""A mebibyte of PostgreSQL's log, which has no rows."""
OUTAGES = ("killed", "stopped", "cut", "silent", "full")


class Operated:
    """A branch's daemon behind a proxy, and the outages that befall it."""

    def __init__(self, branch: Branch, proxy: TcpProxy) -> None:
        self.branch = branch
        self.proxy = proxy
        self.daemon: subprocess.Popen[bytes] | None = None

    @property
    def _full(self) -> Path:
        return self.branch.config_path.with_name("full")

    def start(self) -> None:
        command = [sys.executable, str(PROGRAM), str(self.branch.config_path)]
        with (self.branch.folder / "daemon.out").open("ab") as output:
            self.daemon = subprocess.Popen(command, stdout=output, stderr=output, cwd=self.branch.folder)

    def send(self, number: signal.Signals) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(number)

    @contextlib.contextmanager
    def outage(self, kind: str) -> Iterator[None]:
        """One that lasts as long as the block."""
        match kind:
            case "killed":
                assert self.daemon is not None
                self.daemon.kill()
                self.daemon.wait()
            case "stopped":
                self.send(signal.SIGSTOP)
            case "cut":
                self.proxy.cut()
            case "silent":
                self.proxy.hold()
            case "full":
                self._full.touch()
        yield
        match kind:
            case "killed":
                self.start()
            case "stopped":
                self.send(signal.SIGCONT)
            case "cut" | "silent":
                self.proxy.mend()
            case "full":
                self._full.unlink()

    def is_repaired(self, gaps: int) -> bool:
        """The log has this many gaps, and every table was read or compared since."""
        found = Progress.from_json(self.branch.reader.newest_checkpoint().progress)
        is_proven = all(not t.in_doubt and t.state in ("done", "forgotten") for t in found.tables.values())
        return len(found.gaps) >= gaps and is_proven

    def check(self, gaps: int) -> None:
        """Wait for the repair, and compare source and log, by `verify` and by code that shares nothing with it."""
        self.branch.wait_until(lambda: self.is_repaired(gaps), "the repair", self.daemon, patience_s=4 * PATIENCE_S)
        self.branch.stop_writing()
        self.branch.assert_verified(self.daemon)
        assert self.daemon is not None
        self.branch.catch_up_and_stop(self.daemon)
        self.branch.assert_log_equals_source()

    def end(self) -> None:
        if self.daemon is not None:
            with contextlib.suppress(ProcessLookupError):
                self.daemon.send_signal(signal.SIGCONT)
            self.daemon.kill()
            self.daemon.wait()


@contextlib.contextmanager
def repeated(act: Callable[[], object], every_s: float) -> Iterator[None]:
    """Do this again and again in a thread during the block."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(every_s):
            act()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def random_pause(dice: random.Random, most_s: float) -> None:
    time.sleep(dice.random() * most_s)
