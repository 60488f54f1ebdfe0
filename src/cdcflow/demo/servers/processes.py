"""Common to private servers: an ordinary user to run as, a free port, and an end with their owner.

A server must not outlive the process that started it, however that process ends. So each one has a watcher: a small
shell that reads from a pipe which only this process holds open. When the pipe closes without a message (this process
crashed, or was killed), the watcher kills the server and removes its directories.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from cdcflow.errors import ConfigurationError

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OrdinaryUser:
    """The user as whom a server runs; `ids` is `None` if that is the current user."""

    name: str
    ids: tuple[int, int] | None

    @classmethod
    def choose(cls, server: str) -> OrdinaryUser:
        """Return the current user, or under root a different one.

        `server` (its name, for the message) refuses to run as root.
        """
        if os.geteuid() != 0:
            return cls(pwd.getpwuid(os.geteuid()).pw_name, None)
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(name, (entry.pw_uid, entry.pw_gid))
        raise ConfigurationError(
            f"{server} does not run as root, and there is no user `postgres` or `nobody` to run it as; "
            "start it as an ordinary user"
        )

    def process(self) -> dict[str, Any]:  # Any: keyword arguments of subprocess differ in type
        return {} if self.ids is None else {"user": self.ids[0], "group": self.ids[1], "extra_groups": []}

    def own(self, path: Path) -> None:
        if self.ids is not None:
            os.chown(path, *self.ids)


class Templates(ABC, Generic[K, T]):
    """One initialised data directory per installation and process; every server starts from a copy of it."""

    server: ClassVar[str]

    def __init__(self) -> None:
        self._root: Path | None = None
        self._made: dict[K, T] = {}

    def of(self, installed: K, user: OrdinaryUser) -> T:
        if installed not in self._made:
            if self._root is None:
                self._root = Path(tempfile.mkdtemp(prefix=f"cdcflow-{self.server}-template-"))
                self._root.chmod(0o755)
                atexit.register(shutil.rmtree, self._root, ignore_errors=True)
            place = self._root / str(len(self._made))
            place.mkdir(mode=0o755)
            user.own(place)
            self._made[installed] = self._make(installed, user, place)
        return self._made[installed]

    def places(self) -> list[Path]:
        """Return the directories to remove when this process is gone."""
        return [] if self._root is None else [self._root]

    @abstractmethod
    def _make(self, installed: K, user: OrdinaryUser, place: Path) -> T:
        """Initialise the directory `data` in a place of `user`."""


class Started(ABC):
    """A server that runs inside a `with` block, and leaves nothing if it fails to start."""

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def open(self) -> None:
        """Start the server. Called at the beginning of the block."""
        self.start()

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class ServerProcess(Started):
    """A server that is one process and writes a log."""

    log: Path
    _process: subprocess.Popen[bytes] | None = None
    _watcher: Watcher | None = None

    def kill(self) -> None:
        """End the server by SIGKILL: nothing in its memory reaches the disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
        self._forget()

    def log_tail(self, lines: int = 30) -> str:
        """Return the last lines of the server's own log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def _forget(self) -> None:
        self._process = None
        if self._watcher is not None:
            self._watcher.dismiss()
            self._watcher = None


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Watcher:
    """Ends a process with `signal` (as `kill` names it) and removes `directories` once this process is gone."""

    def __init__(self, pid: int, signal: str, directories: Sequence[Path]) -> None:
        remove = "".join(f"; rm -rf '{path}'" for path in directories)
        self._shell = subprocess.Popen(  # noqa: S603  fixed program
            ["/bin/sh", "-c", f'read -r word; [ -n "$word" ] || {{ kill -{signal} {pid}; sleep 2{remove}; }}'],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    def dismiss(self) -> None:
        """End the watcher, because the process has ended in good order."""
        self._shell.kill()
        self._shell.communicate()
