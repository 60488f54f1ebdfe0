"""A real S3-compatible server for tests, on loopback: started, stopped, killed, halted.

    with ObjectServer() as server:
        log = FileLogSettings(path=…, objects=server.objects("bucket", "shop"))

The server is versitygw, which keeps objects as files: it is found by `CDCFLOW_VERSITYGW` or PATH, otherwise it is built
once into the user's cache with `go install` (`python -m tests.servers.objects`). Only where there is no Go either does
moto's server serve; that one forgets everything when it stops.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from functools import cache
from pathlib import Path
from types import TracebackType

from tests.servers import downloads
from tests.support.polling import wait_until

from cdcflow.config import Objects
from cdcflow.demo.servers import objects as demo_objects
from cdcflow.demo.servers.processes import Watcher, free_port

MODULE = "github.com/versity/versitygw/cmd/versitygw"
BUILT_WITHIN_S = 580
STARTED_WITHIN_S = 120
ACCESS_KEY, SECRET_KEY = "test", "test-secret"
ACCESS_VARIABLE, SECRET_VARIABLE = "CDCFLOW_TEST_ACCESS_KEY", "CDCFLOW_TEST_SECRET_KEY"


@cache
def versitygw() -> Path | None:
    """The server's program, built if it is missing; `None` without Go to build it with."""
    found = demo_objects.installed_program()
    if found is not None:
        return found
    program, go = demo_objects.cached_program(), shutil.which("go")
    if go is None:
        return None
    place = program.parent
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            command = [go, "install", f"{MODULE}@{demo_objects.VERSION}"]
            environment = {**os.environ, "GOBIN": str(place), "GOFLAGS": "-mod=mod"}
            downloads.run(command, "building versitygw", env=environment, timeout_s=BUILT_WITHIN_S)
    return program


class ObjectServer:
    """An S3-compatible server with its own directory. Use it as a context manager.

    With `conditional_writes` set to False its next `start` is that of a store that does not support them.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="cdcflow-objects-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None
        self._program = versitygw()
        self.conditional_writes = True

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_real(self) -> bool:
        """It keeps its objects, and its files may be changed directly on disk; moto offers neither."""
        return self._program is not None

    def __enter__(self) -> ObjectServer:
        os.environ[ACCESS_VARIABLE], os.environ[SECRET_VARIABLE] = ACCESS_KEY, SECRET_KEY
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        """Start it, with its previous content. Returns when it answers."""
        (self.directory / "buckets").mkdir(exist_ok=True)
        (self.directory / "attributes").mkdir(exist_ok=True)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                env={**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.directory,
            )
        self._watcher = Watcher(self._process.pid, "KILL", [self.directory])
        wait_until(self._answers, "the object server to answer", patience_s=STARTED_WITHIN_S, more=self._said)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the object server ended:\n{self._said()}"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False

    def _said(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._watcher is not None:
            self._watcher.dismiss()
            self._watcher = None

    def halt(self) -> None:
        """It keeps running and answers no request, as a store whose link is broken, until `go_on`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def objects(self, bucket: str, prefix: str = "", **settings: object) -> Objects:
        """Settings for a prefix of a bucket, which is created if it is missing. The keys are in the environment."""
        if self.is_real:
            (self.directory / "buckets" / bucket).mkdir(exist_ok=True)
        else:
            request = urllib.request.Request(f"{self.endpoint}/{bucket}", method="PUT")  # noqa: S310  loopback
            urllib.request.urlopen(request, timeout=10).close()  # noqa: S310  loopback
        return Objects.model_validate(
            {
                "url": f"s3://{bucket}/{prefix}".rstrip("/"),
                "endpoint": self.endpoint,
                "access_key": f"${{env:{ACCESS_VARIABLE}}}",
                "secret_key": f"${{env:{SECRET_VARIABLE}}}",
                **settings,
            }
        )

    def _command(self) -> list[str]:
        if self._program is None:
            return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        command = demo_objects.command(self._program, self.port, self.directory)
        if not self.conditional_writes:
            place = command.index("--sidecar")
            return [*command[:place], "--nometa", command[-1]]
        return command


def main() -> int:
    """Find or build the server that the tests start; print which."""
    found = versitygw()
    if found is None:
        sys.stdout.write(
            "object store: Go is missing, which builds versitygw (apt install golang-go); tests use moto\n"
        )
    else:
        sys.stdout.write(f"object store: {found}\n")
    return 0


__all__ = ["ObjectServer", "versitygw"]

if __name__ == "__main__":
    sys.exit(main())
