"""A bank whose backfill is read by separate processes, which die at chosen points."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from tests.support.daemon.bank import Branch
from tests.support.kill.chunk_reader import begin

from cdcflow import wiring
from cdcflow.config import MySQL, Postgres, load
from cdcflow.log.read.reader import list_segments
from cdcflow.sources.engine.passwords import secret_of
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.spark.executors.readers import Processes
from cdcflow.wiring.executors import _part_reader

WITHIN_S = 60.0


@contextmanager
def reading(
    bank: Branch, count: int, *, away: bool = False
) -> Iterator[tuple[Processes, Callable[..., subprocess.Popen[bytes]]]]:
    """Processes for a bank, and what starts one of them; all that were started are ended. `away`: they do not see the
    log's folder."""
    config = load(bank.config_path)
    settings = config.database
    assert isinstance(settings, Postgres | MySQL)
    opened = partial(_part_reader, settings, secret_of(settings.password)(), PolicyRules(config.tables))
    started: list[subprocess.Popen[bytes]] = []
    bank.log.mkdir(exist_ok=True)
    try:
        with Processes(count, "127.0.0.1", bank.log) as processes:

            def start(number: int, *point: str) -> subprocess.Popen[bytes]:
                invitation = processes.invitation(opened)
                if away:
                    invitation = replace(invitation, probe=bank.log / "on another machine")
                started.append(begin(number, invitation, *point))
                return started[-1]

            yield processes, start
    finally:
        for process in started:
            process.kill()
            process.wait()


def read_while_one_dies(bank: Branch, point: str, *, away: bool = False) -> None:
    """Capture once, read by two processes, one of which dies at a step and is replaced."""
    with reading(bank, 2, away=away) as (processes, start):
        dying = start(0, point, "1")
        start(1)
        processes.wait(WITHIN_S)
        with ThreadPoolExecutor(1) as beside:
            replaced = beside.submit(lambda: (dying.wait(WITHIN_S), start(0)))
            capture = wiring.capture(load(bank.config_path), backfill=(), once=True, readers=processes)
            patience = threading.Timer(WITHIN_S, capture.stop)
            patience.start()
            capture.run()
            patience.cancel()
        assert replaced.result()[0] == -signal.SIGKILL
        assert processes.lost >= 1
        assert processes.answered > 6


def run_backfill(bank: Branch, on: str) -> None:
    """`cdcflow backfill --on …` in a separate process, as a user runs it: another Spark may run in this one."""
    command = [sys.executable, "-m", "cdcflow.cli", "backfill", "--on", on, "--config", str(bank.config_path)]
    subprocess.run(command, check=True)


def assert_equal_after_all(bank: Branch) -> None:
    """The log is the source, once an ordinary daemon has caught up."""
    bank.stop_writing()
    bank.catch_up_and_stop(bank.daemon())
    bank.assert_log_equals_source()


def rows_in_files(bank: Branch) -> int:
    """Rows of files that contain only what a backfill reads."""
    segments = list_segments(bank.log)
    return sum(file.rows for segment in segments for file in segment.files if set(file.ops or ()) == {"r"})
