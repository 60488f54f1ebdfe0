"""A lease for two daemons on one machine: the lock of a file, which the system releases when the process that holds it
ends.

A suspended process keeps it, so no standby replaces one.
"""

from __future__ import annotations

import math
import os
import socket
from pathlib import Path

from cdcflow.capture.ports.lease import Holder
from cdcflow.errors import CdcflowError
from cdcflow.log.disk.lease import Held, holder, lock_file

WATCHED_EVERY_S = 0.2


class FileLease:
    """Implements `cdcflow.capture.ports.lease.DaemonLease`."""

    ttl_s = math.inf
    renewed_every_s = 1.0
    watched_every_s = WATCHED_EVERY_S

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._was_held = False

    def hold(self) -> bool:
        if self._fd is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._fd = lock_file(self._path, _refusal)
            except Held:
                return False
        self._was_held = True
        return True

    def holder(self) -> Holder | None:
        """Return the process that took the lease last, which may have ended. None if that is this process, and it
        released the lease."""
        if not self._path.exists():
            return None
        found = holder(self._path)
        is_given_back = (
            self._was_held and self._fd is None and found == f"process {os.getpid()} on {socket.gethostname()}"
        )
        return None if is_given_back else Holder(found)

    def release(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


def _refusal(path: Path, who: str) -> CdcflowError:
    return Held(f"taking the lease {path}: {who} holds it")
