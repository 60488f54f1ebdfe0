"""What a whole capture does when its disk fails, or its folder goes."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.servers.disks import Failing
from tests.support.capture.memory_source import OrdersSource

from cdcflow.capture.attempt import LoopIntervals, Orders
from cdcflow.capture.capture import Capture
from cdcflow.capture.interleave.limits import Limits
from cdcflow.cli.failure import exit_code
from cdcflow.errors import LogGone, SyncFailed
from cdcflow.log.disk.layer import FileLayer, OsLayer
from cdcflow.sinks.files.log import FileLog
from cdcflow.sources.memory_database import number_of


def capturing(path: Path, of: OrdersSource, layer: FileLayer, at_done: Callable[[], None]) -> Capture:
    """A capture that meets `at_done` once its table is read, and then another transaction."""

    def told(event: str, fields: object) -> None:
        if event == "table done":
            at_done()
            of.insert(7)

    return Capture(
        open_source=lambda: of,
        open_log=lambda identity, _: FileLog.open(path, identity, layer=layer),
        limits=Limits(),
        orders=Orders(),
        pace=LoopIntervals(),
        on_event=told,
    )


def test_failed_sync_ends_the_capture_with_the_code_that_has_it_started_again(tmp_path: Path) -> None:
    """The page cache is not to be trusted, so the process must end (L07); a new process can continue. The recommended
    unit file does not restart after exit code 70."""
    of, broken = OrdersSource(1), [False]

    def fails(call: str, path: Path) -> OSError | None:
        return OSError(errno.EIO, "Input/output error") if broken[0] and call == "fsync" else None

    with pytest.raises(SyncFailed, match="Input/output error") as error:
        capturing(tmp_path / "log", of, Failing(fails), lambda: broken.__setitem__(0, True)).run()
    assert exit_code(error.value) == 74


def test_log_folder_that_vanishes_stops_the_capture_with_an_error_that_names_it(tmp_path: Path) -> None:
    """It was reported as another process, or retried with a new log in its place, and the loss was not reported."""
    of, log = OrdersSource(1), tmp_path / "log"
    with pytest.raises(LogGone, match=r"log's folder.*is gone.*\n.*restore the folder") as error:
        capturing(log, of, OsLayer(), lambda: shutil.rmtree(log)).run()
    assert exit_code(error.value) == 78
    assert not log.exists()


def test_capture_continues_when_the_log_folder_is_restored(tmp_path: Path) -> None:
    """The remedy of the test above, to the letter."""
    of, log, away = OrdersSource(1), tmp_path / "log", tmp_path / "away"
    with pytest.raises(LogGone):
        capturing(log, of, OsLayer(), lambda: (log.rename(away), None)[1]).run()
    away.rename(log)
    opened = FileLog.open(log, of.identity())
    assert opened.checkpoint.position is not None
    (acknowledged,) = of.database.slots.values()
    assert acknowledged <= number_of(opened.checkpoint.position)
    opened.close()
