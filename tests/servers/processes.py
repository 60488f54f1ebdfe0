"""A test's private server that is one process: started, stopped, started again, and removed at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.polling import wait_until

from cdcflow.demo.servers.processes import Started, Watcher, free_port

STARTED_WITHIN_S = 120


class Server(Started):
    """A process that listens on a loopback port, with its own folder. Inside a `with` block it answers."""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="cdcflow-server-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def process_options(self) -> Mapping[str, Any]:
        """More arguments of `subprocess.Popen`."""
        return {}

    def start(self) -> None:
        """Start it, with its previous content. Returns when it answers."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(),
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
                **self.process_options(),
            )
        self._watcher = Watcher(self._process.pid, "KILL", [self.folder])
        what = f"{type(self).__name__} to answer"
        wait_until(self._answers, what, patience_s=STARTED_WITHIN_S, more=self._said)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"{type(self).__name__} ended:\n{self._said()}"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """It answers no more."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(60)
            self._process = None
        if self._watcher is not None:
            self._watcher.dismiss()
            self._watcher = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"


__all__ = ["Server"]
