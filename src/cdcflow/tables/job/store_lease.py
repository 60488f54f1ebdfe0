"""The lease of a merge in an object store, for each engine.

An object names the merge that holds the lease, and when it was written is the last renewal, by the store's clock. A
store has no lock that ends with its process, so the lease only saves work: the commits of the tables decide. The lease
of a killed merge blocks others for a minute.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import structlog

from cdcflow.errors import CdcflowError, SinkUnavailable
from cdcflow.tables.paths import LEASE

RENEWED_EVERY_S, LEASED_FOR_S = 15.0, 60.0

_log = structlog.get_logger()


class LeaseFolder(Protocol):
    """What the lease needs of a warehouse: see the methods of `cdcflow.tables.folders.WarehouseFolder`."""

    location: str

    def create(self, name: str, content: bytes) -> None: ...

    def replace(self, name: str, content: bytes) -> None: ...

    def read_each(self, names: Sequence[str]) -> list[bytes | None]: ...

    def modified_at(self, name: str) -> float: ...

    def delete(self, names: Sequence[str]) -> None: ...


@contextmanager
def store_lease(warehouse: LeaseFolder, attempted: str = "merging into") -> Iterator[None]:
    """Hold the lease that lets one merge, or one maintenance step, at a time work in a warehouse.

    Raises:
        SinkUnavailable: another process holds it.
    """
    held = _StoredLease(warehouse, attempted)
    held.take()
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
    def __init__(self, warehouse: LeaseFolder, attempted: str) -> None:
        self._warehouse = warehouse
        self._attempted = attempted
        self._holder = uuid.uuid4().hex.encode()

    def take(self) -> None:
        held_s = self._held_s()
        if held_s is not None and held_s < LEASED_FOR_S:
            raise self._busy(f"another merge works there, or did {held_s:.0f} s ago")
        if held_s is not None:
            self._warehouse.replace(LEASE, self._holder)
            return
        try:
            self._warehouse.create(LEASE, self._holder)
        except FileExistsError as error:
            raise self._busy("another merge has begun there") from error

    def _busy(self, found: str) -> SinkUnavailable:
        return SinkUnavailable(
            f"{self._attempted} {self._warehouse.location}: {found}",
            remedy=f"try again when it is done; the lease of a merge that was killed expires after"
            f" {LEASED_FOR_S:.0f} s",
            runbook="busy",
        )

    def renew_until(self, stop: threading.Event) -> None:
        while not stop.wait(RENEWED_EVERY_S):
            try:
                if self._is_held():
                    self._warehouse.replace(LEASE, self._holder)
            except CdcflowError as error:  # the merge is just as correct
                _log.warning("the lease on the warehouse was not renewed", reason=str(error).splitlines()[0])

    def release(self) -> None:
        try:
            if self._is_held():
                self._warehouse.delete([LEASE])
        except CdcflowError as error:  # as above
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
        """Return whether this process still holds the lease; a different one takes an old lease."""
        return self._warehouse.read_each([LEASE]) == [self._holder]
