"""A process that exchanges lines with the daemon: its start, its memory and that of its descendants, and the end of
them all.

Merges run Java, which reserves far more addresses than it uses, so limits on addresses (RLIMIT_AS, RLIMIT_DATA) would
fail a healthy merge, and in Java or Arrow in ways that leave no reason. The memory that counts is memory that the
kernel cannot take back: pages of no file, and those that it has swapped out. Only Linux reports it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_PROC = Path("/proc")
_HELD = re.compile(r"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB$", re.MULTILINE)
EXIT_WITHIN_S = 2.0
EXIT_POLL_S = 0.02
_CGROUPS = Path("/sys/fs/cgroup")


class ChildProcess:
    """A process that this one starts. It has a new session, so that Ctrl-C in a terminal reaches the daemon alone.

    When this process ends, however it does, the child's stdin ends. As a context manager it ends the child.
    """

    def __init__(self, command: Sequence[str]) -> None:
        its_input, self._input = os.pipe()
        self._output, its_output = os.pipe()
        os.set_blocking(self._output, False)
        try:
            self._process = subprocess.Popen(  # noqa: S603  a module of cdcflow
                command, stdin=its_input, stdout=its_output, start_new_session=True
            )
        except BaseException:
            os.close(self._input)
            os.close(self._output)
            raise
        finally:
            os.close(its_input)
            os.close(its_output)
        self.pid = self._process.pid
        self._partial = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.wait()
        os.close(self._input)
        os.close(self._output)

    @property
    def output(self) -> int:
        """The descriptor that is readable when a line may have arrived, or the process has ended."""
        return self._output

    def send(self, line: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended, and `lines` will return None
            os.write(self._input, line + b"\n")

    def lines(self) -> list[bytes] | None:
        """Return the lines that have arrived; `None` if the process has closed its end. Does not wait."""
        try:
            arrived = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return []
        if not arrived:
            return None
        *whole, self._partial = (self._partial + arrived).split(b"\n")
        return whole

    def terminate(self) -> None:
        """Ask the child to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End the child, its descendants and its group at once. After `wait` this does nothing."""
        if self._process.returncode is not None:
            return  # its number may be another process's
        tree = list_tree(self.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for one in tree:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)

    def wait(self) -> int:
        """Give the child a little time to end, then end what is left of it and of its descendants.

        Return its exit code, or minus the number of the signal that ended it.
        """
        until = time.monotonic() + EXIT_WITHIN_S
        while self._process.returncode is None and not self._has_ended() and time.monotonic() < until:
            time.sleep(EXIT_POLL_S)
        self.kill()
        return self._process.wait()

    def _has_ended(self) -> bool:
        """Return whether the child has ended, without taking its exit code. Until that is taken, no other process gets
        its number."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def list_tree(pid: int) -> tuple[int, ...]:
    """Return the process and its descendants, itself first. Without `/proc` the result has only the process."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in (_PROC / str(one) / "task").iterdir():
                with contextlib.suppress(OSError):
                    found += [int(child) for child in (task / "children").read_text().split()]
    return tuple(dict.fromkeys(found))


def memory_bytes(pids: Iterable[int]) -> int | None:
    """Return the memory of these processes that the kernel cannot take back, in bytes; those that have ended count as
    0.

    None: this system does not report it.
    """
    if not _PROC.is_dir():
        return None
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += sum(map(int, _HELD.findall((_PROC / str(pid) / "status").read_text()))) << 10
    return total


def machine_bytes() -> int:
    """Return the memory of this machine, or of the container or service that this process is in, in bytes."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for place in _cgroup_files():
        with contextlib.suppress(OSError, ValueError):  # "max"
            limits.append(int(place.read_text()))
    return min(limits)


def _cgroup_files() -> list[Path]:
    """Return the files that may limit the memory of this process: its cgroup's and those above it."""
    found = [_CGROUPS / "memory.max", _CGROUPS / "memory" / "memory.limit_in_bytes"]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):
                inside = _CGROUPS / line[4:]
                found += [folder / "memory.max" for folder in (inside, *inside.parents) if _CGROUPS in folder.parents]
    return found
