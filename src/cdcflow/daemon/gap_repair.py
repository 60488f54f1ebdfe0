"""Repairs tables after a gap automatically: runs `cdcflow repair` for unverified tables, until they are proven.

The log has the remaining work: a table is unverified until a comparison has found it equal, or a backfill is done. So a
daemon that is killed continues at its next start. If the limits on reading change, another repair begins: one that
waits for the night must not continue to wait after they are lifted. A table that repeated repairs do not make equal is
read again.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cdcflow import wiring
from cdcflow.capture.capture import Capture
from cdcflow.capture.interleave.progress import Gap
from cdcflow.config import Config
from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.running_components import Running
from cdcflow.errors import CdcflowError

REPAIRS_MAX = 3
"""After this many repairs that did not prove a table, all of its rows are read again."""
LOOK_EVERY_S = 2.0
PAUSE_S = 10.0
"""The pause after a repair that did not prove every table."""
TEMPORARY = frozenset((69, 74, 75, 130, -15, -9))
"""Exit codes of a repair that was interrupted, or that found source or log unavailable, so that it can be tried
again."""
ASKED_BY = "the daemon, after a gap"
_REPAIR = """
from cdcflow.daemon.supervised_process import end_with_parent
end_with_parent()
from cdcflow.cli.app import main
main()
"""
"""Python code that runs `cdcflow repair`, and ends when the daemon does: otherwise a repair that waits for the night
would continue after its daemon was killed."""


class GapRepairComponent:
    """The repairs of a daemon: after a move of its log, and after any gap if the settings have `source.log_budget_then:
    release`. `file`: the settings file."""

    def __init__(self, capture: Capture, file: Path | None, tell: OnEvent) -> None:
        self._capture = capture
        self._file = file
        self._tell = tell

    def made_of(self, config: Config) -> object:
        return wiring.releases(config), wiring.reading_limits(config)

    def prepare(self, config: Config) -> Running | None:
        if self._file is None:
            return None
        gaps = partial(gaps_to_prove, only_moves=not wiring.releases(config))
        return GapRepairs(lambda: gaps(self._capture.status()), self._read_again, self._file.absolute(), self._tell)

    def _read_again(self, tables: Sequence[str]) -> None:
        self._capture.request("backfill", tables, asked_by=ASKED_BY)


class GapRepairs:
    """A thread that runs repairs, each in a separate process, so that a large comparison needs none of the capture's
    memory."""

    def __init__(
        self,
        gaps: Callable[[], Mapping[str, int]],
        read_again: Callable[[Sequence[str]], None],
        file: Path,
        tell: OnEvent,
    ) -> None:
        self._gaps = gaps
        self._read_again = read_again
        self._file = file
        self._tell = tell
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._repairs: Counter[tuple[str, int]] = Counter()
        self._thread = threading.Thread(target=self._run, name="gap-repair", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self, *, wait: bool) -> None:
        self._stop.set()
        if (process := self._process) is not None:
            process.terminate()
        if wait and self._thread.ident is not None:
            self._thread.join(2.0)

    def _run(self) -> None:
        pause_s = LOOK_EVERY_S
        while not self._stop.wait(pause_s):
            pause_s = LOOK_EVERY_S
            gaps = self._gaps()
            too_often = [name for name, offset in gaps.items() if self._repairs[name, offset] >= REPAIRS_MAX]
            rest = {name: offset for name, offset in gaps.items() if name not in too_often}
            if too_often:
                self._backfill(too_often)
            if rest and not self._repair(rest):
                pause_s = PAUSE_S

    def _backfill(self, tables: Sequence[str]) -> None:
        self._tell("gap not repaired", {"tables": ", ".join(tables), "then": "all of their rows are read again"})
        try:
            self._read_again(tables)
        except CdcflowError as error:
            self._tell("gap repair postponed", {"reason": str(error).splitlines()[0]})

    def _repair(self, gaps: Mapping[str, int]) -> bool:
        """Run one repair of these tables, and return whether it proved all of them."""
        names, began = ", ".join(gaps), time.monotonic()
        self._tell("gap repair begun", {"tables": names})
        # Its output may name keys, so it is not among the daemon's lines.
        self._process = subprocess.Popen(  # noqa: S603  a module of cdcflow
            [sys.executable, "-c", _REPAIR, "repair", *gaps, "--config", str(self._file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if self._stop.is_set():  # `end` may have been called before the process existed
            self._process.terminate()
        code = self._process.wait()
        self._process = None
        left = self._gaps()
        if code not in TEMPORARY:
            self._repairs.update((name, offset) for name, offset in gaps.items() if left.get(name) == offset)
        seconds = round(time.monotonic() - began, 1)
        self._tell(
            "gap repair ended", {"tables": names, "left": ", ".join(left), "exit_code": code, "seconds": seconds}
        )
        return not left


def gaps_to_prove(status: Mapping[str, Any], *, only_moves: bool = False) -> dict[str, int]:
    """Return the tables of a running capture that a gap left unverified, each with the offset of its gap. Tables that
    are being read again are not included, nor are attached ones, which an operator repairs. `only_moves`: only gaps
    that a move of the log made; an operator repairs the others."""
    found: dict[str, int] = {}
    if status.get("state") != "capturing":
        return found
    for name, known in (status.get("tables") or {}).items():
        gap = None if known.get("gap") is None else Gap(**known["gap"])
        if known.get("state") == "done" and gap is not None and gap.is_repaired_by_daemon(after_any_gap=not only_moves):
            found[name] = int(gap.offset)
    return found
