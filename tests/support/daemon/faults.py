"""What happens to a daemon on any kind of source: it is killed at a step, or its disk is full."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import pytest
from tests.support.daemon.bank import Branch

from cdcflow.log.disk.layer import OsLayer


def check_killed_daemon(bank: Branch, *point: str, verified: bool = False) -> None:
    """Kill a daemon at a step while rows are written, start it again, and compare log and source. `verified`:
    `cdcflow verify` compares them as well."""
    bank.start_writing(seed=sum(point[0].encode()))
    killed = bank.daemon(*point)
    bank.assert_killed(killed, live=point[-1] != "start")
    again = bank.daemon()
    before = bank.transactions
    bank.wait_until(lambda: bank.transactions > before + 30, "the writer to continue", again)
    bank.stop_writing()
    if verified:
        bank.assert_verified(again)
    bank.catch_up_and_stop(again)
    bank.assert_log_equals_source()


def check_full_disk(bank: Branch, execute: Callable[[str], object], many: str, patch: pytest.MonkeyPatch) -> None:
    """Fill the disk of the log before a statement that changes many rows, make room, and compare log and source."""
    full = [False]
    original = OsLayer.write

    def write(self: OsLayer, fd: int, parts: Sequence[bytes | memoryview]) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(self, fd, parts)

    patch.setattr(OsLayer, "write", write)
    seen: list[str] = []
    with bank.capturing(on_event=lambda event, fields: seen.append(f"{event} {dict(fields).get('kind', '')}")):
        bank.wait_until(lambda: bank.has_reached(""), "the first backfill")
        full[0] = True
        execute(many)
        bank.wait_until(lambda: "capture interrupted SinkUnavailable" in seen, "the full disk to be noticed")
        full[0] = False
        fence = bank.fence()
        bank.wait_until(lambda: bank.has_reached(fence), "the log to continue")
    bank.assert_log_equals_source()
