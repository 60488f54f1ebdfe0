"""The interface between a log in a directory and the peers that store its journals on other machines."""

from __future__ import annotations

from typing import Protocol

from cdcflow.log.disk.layer import FileLayer
from cdcflow.log.disk.lease import Lease
from cdcflow.log.files.layout import Layout


class Replication(Protocol):
    """The peers of one log, for one opening of it (see `quorum.takeover`)."""

    def begin(self, layout: Layout, lease: Lease) -> FileLayer:
        """Bring the folder to the state of the peers, and return the operations that write to both. The caller holds
        the lock."""
        ...

    def check(self) -> None:
        """Raise an error if another process has taken the log over, or no majority of the peers answers."""
        ...

    def close(self) -> None: ...
