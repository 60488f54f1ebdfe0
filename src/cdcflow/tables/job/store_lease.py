"""The lease of a merge in an object store, the same for each engine.

The lease is an object. Its content names the merge that holds the lease, and the time at which it was written, by the
store's clock, is that of the last renewal. A store has no lock that ends with its process, so the lease only saves
work; what is committed is decided by the commits of the tables. The lease of a killed merge blocks others for a minute.

The object's content begins with `upkeep` while a maintenance step holds the lease: a merge waits for that step, as it
does in a folder.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import structlog

from cdcflow.errors import CdcflowError, SinkUnavailable
from cdcflow.tables.job import lease
from cdcflow.tables.paths import LEASE

RENEWED_EVERY_S, LEASED_FOR_S = 15.0, 60.0

LOOK_S = 0.5
"""How often a merge that waits for a maintenance step checks whether it is done: a few requests each time."""

_UPKEEP = b"upkeep "

_log = structlog.get_logger()


class LeaseFolder(Protocol):
    """The methods of `cdcflow.tables.folders.WarehouseFolder` that a lease needs."""

    location: str

    def create(self, name: str, content: bytes) -> None: ...

    def replace(self, name: str, content: bytes) -> None: ...

    def read_each(self, names: Sequence[str]) -> list[bytes | None]: ...

    def modified_at(self, name: str) -> float: ...

    def delete(self, names: Sequence[str]) -> None: ...


@contextmanager
def store_lease(warehouse: LeaseFolder) -> Iterator[None]:
    """Hold the lease that lets one merge at a time work in a warehouse.

    Raises:
        SinkUnavailable: another merge holds it, or a maintenance step takes longer than `lease.UPKEEP_WAIT_S`.
    """
    held = _StoredLease(warehouse, lease.MERGE)
    held.take(lease.UPKEEP_WAIT_S)
    with _renewing(held):
        yield


@contextmanager
def upkeep_store_lease(warehouse: LeaseFolder) -> Iterator[None]:
    """Hold the lease for one maintenance step, during which no merge runs.

    Raises:
        SinkUnavailable: a merge or another maintenance run holds it.
    """
    held = _StoredLease(warehouse, lease.UPKEEP, _UPKEEP)
    held.take(0.0)
    with _renewing(held):
        yield


@contextmanager
def _renewing(held: _StoredLease) -> Iterator[None]:
    stop = threading.Event()
    renewing = threading.Thread(target=held.renew_until, args=(stop,), name="cdcflow lease", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        stop.set()
        renewing.join()
        held.release()


class _StoredLease:
    def __init__(self, warehouse: LeaseFolder, attempted: str, kind: bytes = b"") -> None:
        self._warehouse = warehouse
        self._attempted = attempted
        self._holder = kind + uuid.uuid4().hex.encode()

    def take(self, wait_s: float) -> None:
        """Take the lease. `wait_s`: how long to wait for a maintenance step that holds it."""
        until = time.monotonic() + wait_s
        while not self._try():
            (holder,) = self._warehouse.read_each([LEASE])
            by_upkeep = holder is None or holder.startswith(_UPKEEP)  # `None`: its holder has released it
            if not by_upkeep or time.monotonic() >= until:
                raise self._busy(lease.held_by(self._attempted, by_upkeep=by_upkeep))
            time.sleep(LOOK_S)

    def _try(self) -> bool:
        """Take the lease unless another process holds it; return whether it was taken."""
        held_s = self._held_s()
        if held_s is not None and held_s < LEASED_FOR_S:
            return False
        if held_s is not None:
            self._warehouse.replace(LEASE, self._holder)
            return True
        try:
            self._warehouse.create(LEASE, self._holder)
        except FileExistsError:
            return False
        return True

    def _busy(self, found: str) -> SinkUnavailable:
        return SinkUnavailable(
            f"{self._attempted} {self._warehouse.location}: {found} there, or did within the last {LEASED_FOR_S:.0f} s",
            remedy=f"try again when it is done; the lease of a process that was killed expires after"
            f" {LEASED_FOR_S:.0f} s",
            runbook="busy",
        )

    def renew_until(self, stop: threading.Event) -> None:
        while not stop.wait(RENEWED_EVERY_S):
            try:
                if self._is_held():
                    self._warehouse.replace(LEASE, self._holder)
            except CdcflowError as error:  # the merge is correct without the lease
                _log.warning("the lease on the warehouse was not renewed", reason=str(error).splitlines()[0])

    def release(self) -> None:
        try:
            if self._is_held():
                self._warehouse.delete([LEASE])
        except CdcflowError as error:  # the lease expires by itself
            _log.warning("the lease on the warehouse was not given back", reason=str(error).splitlines()[0])

    def _held_s(self) -> float | None:
        """Return the time since the lease was last renewed; `None` if no process holds it."""
        try:
            renewed = self._warehouse.modified_at(LEASE)
        except FileNotFoundError:
            return None
        name = f"{LEASE}.{uuid.uuid4()}"
        self._warehouse.replace(name, self._holder)
        try:
            return self._warehouse.modified_at(name) - renewed
        finally:
            self._warehouse.delete([name])

    def _is_held(self) -> bool:
        """Return whether this process still holds the lease; another process may have taken it when it was old."""
        return self._warehouse.read_each([LEASE]) == [self._holder]
