"""What a log in a directory needs from the uploader of its segments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cdcflow.errors import CdcflowError
from cdcflow.log.maintenance.retention import RemoteStore
from cdcflow.model.position import Checkpoint


class Uploading(Protocol):
    """Copies sealed segments elsewhere, in its own time (see `objects.uploads`)."""

    def start(self, lease_check: Callable[[], None]) -> None: ...
    def wake(self) -> None:
        """Something was sealed."""
        ...

    def on_durable(self, checkpoint: Checkpoint) -> None:
        """The log is durable up to this checkpoint."""
        ...

    @property
    def remote(self) -> RemoteStore:
        """The uploaded part."""
        ...

    @property
    def error(self) -> CdcflowError | None:
        """Why the log must not continue; None if it may."""
        ...

    def close(self) -> None: ...
