"""A whole daemon, as `cdcflow run`, that kills itself at a step of a release: `budgeted_daemon.py CONFIG [POINT]`.

`POINT` is `before:NAME` or `after:NAME` of `STEPS`; it dies at the first call. While a file `full` exists next to
CONFIG, the disk of the log has no room.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdcflow.daemon.lean import without_luxuries

if __name__ == "__main__":
    without_luxuries()  # pandas takes a third of a start

from cdcflow.cli.app import main as command
from cdcflow.log.disk.layer import OsLayer
from cdcflow.sinks.files.log import FileLog
from cdcflow.sources.postgres import slot, slot_release

STEPS: dict[str, tuple[Any, str]] = {
    "note": (slot_release, "note"),
    "finish": (slot_release, "finish"),
    "drop": (slot_release, "_drop"),
    "new slot": (slot, "create"),
    "cut": (FileLog, "cut"),
    "sync": (FileLog, "sync"),
    "forget": (slot_release, "forget"),
}


def fill_disk_with(flag: Path) -> None:
    """Fail writes as a full disk does, while the file exists."""
    write = OsLayer.write

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if flag.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*args, **kwargs)

    OsLayer.write = wrapped  # type: ignore[method-assign]


def arm(point: str, steps: Mapping[str, tuple[Any, str]]) -> None:
    """Make the process die at its first call of a step."""
    when, name = point.split(":")
    owner, method = steps[name]
    original = getattr(owner, method)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, method, wrapped)


if __name__ == "__main__":
    fill_disk_with(Path(sys.argv[1]).with_name("full"))
    if len(sys.argv) > 2:
        arm(sys.argv[2], STEPS)
    sys.argv = ["cdcflow", "run", "--json", "--wait", "--config", sys.argv[1]]
    command()
