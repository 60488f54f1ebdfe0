"""What this process has cost so far, by its own account."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


def cpu_s() -> float:
    """Seconds of CPU of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_rss_bytes() -> int:
    """The most memory that was resident at once. Not `ru_maxrss`: that begins with the parent's value."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def written_bytes() -> int:
    """What went to files and sockets in write calls."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("wchar:"):
            return int(line.split()[1])
    return 0


class Clock:
    """Measures wall clock and CPU since its creation."""

    def __init__(self) -> None:
        self._cpu = cpu_s()
        self._written = written_bytes()
        self.begun = time.perf_counter()

    def stop(self) -> dict[str, float]:
        """The usage so far: seconds, CPU seconds and bytes written; and the current time, in monotonic nanoseconds."""
        ended_ns = time.monotonic_ns()
        seconds = time.perf_counter() - self.begun
        used = {"cpu_s": cpu_s() - self._cpu, "written_bytes": written_bytes() - self._written}
        return {"seconds": seconds, "ended_ns": ended_ns, **used}


class Syncs:
    """Counts fsyncs of this process since its creation."""

    def __init__(self) -> None:
        self.count = 0
        os.fsync = self._counted(os.fsync)  # type: ignore[assignment]  # counted, for this process only
        os.fdatasync = self._counted(os.fdatasync)  # type: ignore[assignment]

    def _counted(self, call: Callable[[FileDescriptorLike], None]) -> Callable[[FileDescriptorLike], None]:
        def counted(fd: FileDescriptorLike) -> None:
            self.count += 1
            call(fd)

        return counted


def given() -> dict[str, object]:
    """The object that the parent gave."""
    found = json.loads(sys.argv[1])
    assert isinstance(found, dict)
    return found


def tell(found: Mapping[str, object]) -> None:
    """Hand figures to the parent."""
    print(json.dumps({**found, "rss_bytes": peak_rss_bytes()}), flush=True)
