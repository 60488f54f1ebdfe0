"""Locks on a warehouse folder: one merge at a time, and no maintenance step during a merge."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from cdcflow.errors import SinkUnavailable
from cdcflow.tables.paths import LEASE, UPKEEP_LEASE

UPKEEP_WAIT_S = 60.0
"""How long a merge waits for a maintenance step, which is short."""
_LOOK_S = 0.05

MERGE, UPKEEP = "merging into", "upkeep of"
"""The beginnings of messages about a lease: what the process does that takes it."""


def held_by(attempted: str, *, by_upkeep: bool) -> str:
    """Return a text for messages that names the kind of process that holds a lease."""
    if attempted == UPKEEP:
        return "a merge or another maintenance run works"
    return "upkeep works" if by_upkeep else "another merge works"


@contextmanager
def folder_lease(warehouse: Path) -> Iterator[None]:
    """Hold the lock that lets one merge at a time work in a warehouse (hard case G13). The lock is released when the
    process ends, however it ends.

    Raises:
        SinkUnavailable: another merge holds it, or a maintenance step takes longer than `UPKEEP_WAIT_S`.
    """
    with (
        _lock(warehouse, LEASE, MERGE, held_by(MERGE, by_upkeep=False)),
        _lock(warehouse, UPKEEP_LEASE, MERGE, held_by(MERGE, by_upkeep=True), UPKEEP_WAIT_S),
    ):
        yield


@contextmanager
def upkeep_folder_lease(warehouse: Path) -> Iterator[None]:
    """Hold the lock for one maintenance step, during which no merge runs.

    Raises:
        SinkUnavailable: a merge or another maintenance run holds it.
    """
    with _lock(warehouse, UPKEEP_LEASE, UPKEEP, held_by(UPKEEP, by_upkeep=False)):
        yield


@contextmanager
def _lock(warehouse: Path, name: str, attempted: str, found: str, wait_s: float = 0.0) -> Iterator[None]:
    warehouse.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + wait_s
    with (warehouse / name).open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise SinkUnavailable(
                        f"{attempted} {warehouse}: {found} there{_holder(file)}",
                        remedy="try again when it is done",
                        runbook="busy",
                    ) from None
                time.sleep(_LOOK_S)
        _sign(file)
        yield


def _sign(file: IO[str]) -> None:
    """Write the process that holds the lock into the lock's file. The text is for messages only; the lock itself is
    what counts."""
    what = {"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"}
    with suppress(OSError):  # a full disk
        file.truncate(0)
        file.write(json.dumps(what))
        file.flush()


def _holder(file: IO[str]) -> str:
    """Return the process that holds a lock, as part of a sentence; "" if unknown."""
    try:
        file.seek(0)
        what = json.loads(file.read())
        return f" (process {what['pid']:d} on {what['host']}, since {what['since']})"
    except (OSError, ValueError, KeyError, TypeError):  # an older cdcflow's lock has no text
        return ""
