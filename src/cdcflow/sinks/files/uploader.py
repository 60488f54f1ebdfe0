"""The interface between a log in a directory and the uploader of its segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cdcflow.errors import CdcflowError
from cdcflow.log.maintenance.retention import RemoteStore
from cdcflow.model.position import Checkpoint


class Uploading(Protocol):
    """Copies sealed segments to another place, without making the log wait (see `objects.uploads`)."""

    def start(self, lease_check: Callable[[], None]) -> None: ...
    def wake(self) -> None:
        """Wake the uploader, because a segment was sealed."""
        ...

    def on_durable(self, checkpoint: Checkpoint) -> None:
        """Note that the log is durable up to this checkpoint."""
        ...

    @property
    def remote(self) -> RemoteStore:
        """The uploaded part of the log."""
        ...

    @property
    def error(self) -> CdcflowError | None:
        """The reason why the log must not continue; None if it may."""
        ...

    def close(self) -> None: ...
