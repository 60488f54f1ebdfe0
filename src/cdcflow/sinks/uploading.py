"""What a log in a directory asks of whoever puts its segments into an object store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cdcflow.errors import CdcflowError
from cdcflow.model.position import Checkpoint
from cdcflow.sinks.retention import RemoteStore


class Uploading(Protocol):
    """Takes sealed segments somewhere else, in its own time (see `objects.uploads`)."""

    def start(self, lease_check: Callable[[], None]) -> None: ...
    def wake(self) -> None:
        """Something was sealed."""
        ...

    def reached(self, checkpoint: Checkpoint) -> None:
        """The log is durable up to this checkpoint."""
        ...

    @property
    def remote(self) -> RemoteStore:
        """What it has put there."""
        ...

    @property
    def error(self) -> CdcflowError | None:
        """Why the log must not go on; None: nothing of that kind."""
        ...

    def close(self) -> None: ...
