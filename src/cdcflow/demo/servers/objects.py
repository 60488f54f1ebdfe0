"""A private S3-compatible server on loopback: versitygw, which keeps objects as files.

Its program is the one that CDCFLOW_VERSITYGW names, one on PATH, or the one that a make target has built into the cache
(`cached`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from cdcflow.demo.servers.cached import cache
from cdcflow.demo.servers.processes import ServerProcess, Watcher, free_port
from cdcflow.errors import ConfigurationError, SinkUnavailable

VERSION = "v1.8.0"
PATIENCE_S = 120.0


def cached_program() -> Path:
    """Return the path where a make target builds the program."""
    return cache() / f"versitygw-{VERSION}" / "versitygw"


def installed_program() -> Path | None:
    """Return the program of the server; `None` if it is not on this machine."""
    named = os.environ.get("CDCFLOW_VERSITYGW") or shutil.which("versitygw")
    if named is not None:
        return Path(named)
    return cached_program() if cached_program().exists() else None


def program() -> Path:
    """Return the program of the server.

    Raises:
        ConfigurationError: it is not on this machine; the message explains how to get it.
    """
    found = installed_program()
    if found is None:
        raise ConfigurationError(
            "versitygw is not on this machine: name its program in CDCFLOW_VERSITYGW, or run `make demo WAREHOUSE=s3`"
            " in a checkout of cdcflow, which builds it if Go is installed"
        )
    return found


def command(program: Path, port: int, directory: Path) -> list[str]:
    """Return the command that starts the server: buckets are folders of `directory/buckets`."""
    # Attributes in files next to the objects: not every file system has extended ones, and without any the server has
    # no ETags and overwrites what a conditional write must leave alone.
    serving = [str(program), "--port", f"127.0.0.1:{port}", "--quiet", "posix"]
    return [*serving, "--sidecar", str(directory / "attributes"), str(directory / "buckets")]


class ObjectStore(ServerProcess):
    """A private store with one bucket, in a directory that stays. A context manager: the store runs inside the `with`
    block.

    Raises:
        ConfigurationError: there is no versitygw here.
        SinkUnavailable: it did not start; the message has the end of its log.
    """

    def __init__(self, directory: Path, bucket: str, keys: tuple[str, str]) -> None:
        """`keys`: the access key and the secret key that it takes."""
        self._program = program()
        self._directory = directory.absolute()
        self._bucket = bucket
        self._keys = keys
        self.port = free_port()
        self.log = self._directory / "store.log"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        for name in (f"buckets/{self._bucket}", "attributes"):
            (self._directory / name).mkdir(parents=True, exist_ok=True)
        access, secret = self._keys
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  fixed program, no shell
                command(self._program, self.port, self._directory),
                env={**os.environ, "ROOT_ACCESS_KEY": access, "ROOT_SECRET_KEY": secret},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self._directory,
            )
        self._watcher = Watcher(self._process.pid, "KILL", [])
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            time.sleep(0.05)
        raise SinkUnavailable(f"versitygw did not start; the end of {self.log}:\n{self.log_tail()}")

    def close(self) -> None:
        self.kill()
