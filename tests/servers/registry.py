"""A real schema registry on loopback, for tests: Apicurio Registry, with Confluent's interface.

Its program is not a jar among others but an archive, so Ivy itself (part of pyspark, as for the other jars) fetches it.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from tests.servers import ivy
from tests.support.polling import wait_until

from cdcflow.demo.servers.cached import cache
from cdcflow.demo.servers.processes import Watcher, free_port

VERSION = "2.6.13.Final"
PATIENCE_S = 120.0


def program() -> Path:
    """The folder with the registry's program, fetched if it is missing. Whole or not at all.

    Raises:
        SourceUnavailable: it could not be fetched.
    """
    target = cache() / f"apicurio-{VERSION}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="cdcflow-registry-", dir=cache()) as room:
            asked = ivy.artifacts(f"io.apicurio:apicurio-registry-app:{VERSION}", "all", kind="tar.gz")
            (archive,) = ivy.fetch("Apicurio Registry", [asked], Path(room)).iterdir()
            with tarfile.open(archive) as content:
                content.extractall(Path(room) / "whole", filter="data")
            (Path(room) / "whole").rename(target)
    return target


class SchemaRegistry:
    """A private registry, in memory. A context manager: inside it the registry answers, afterwards it is removed."""

    def __init__(self) -> None:
        self.port = free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="cdcflow-registry-")
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def __enter__(self) -> SchemaRegistry:
        place = program()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(ivy.java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                    *("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}"),
                    *("-jar", str(next(place.glob("*-runner.jar")))),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._folder.name,
            )
        self._watcher = Watcher(self._process.pid, "KILL", [])
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _log(self) -> Path:
        return Path(self._folder.name) / "registry.log"

    def _wait(self) -> None:
        assert self._process is not None
        wait_until(self._answers, "the schema registry to answer", patience_s=PATIENCE_S, more=self._said)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the schema registry ended:\n{self._said()}"
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/subjects", timeout=1):  # noqa: S310  loopback
            return True
        return False

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(60)
            self._process = None
        if self._watcher is not None:
            self._watcher.dismiss()
            self._watcher = None
        self._folder.cleanup()


def main() -> int:
    program()
    return 0


__all__ = ["SchemaRegistry", "program"]


if __name__ == "__main__":
    sys.exit(main())
