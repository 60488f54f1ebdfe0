"""A real schema registry on loopback, for tests: Apicurio Registry, with Confluent's interface.

Its program is not a jar among others but an archive, so Ivy itself (part of pyspark, as for the other jars) fetches it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

from cdcflow.cli.demo.servers.cached import cache
from cdcflow.cli.demo.servers.processes import Watcher, free_port
from cdcflow.errors import SourceUnavailable

VERSION = "2.6.13.Final"
PATIENCE_S = 120.0
_ASKED = f"""
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="cdcflow" module="registry"/>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{VERSION}" transitive="false">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def program() -> Path:
    """The folder with the registry's program, fetched unless it is there. Whole or not at all.

    Raises:
        SourceUnavailable: it could not be had.
    """
    target = cache() / f"apicurio-{VERSION}"
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix="cdcflow-registry-", dir=cache()) as room:
            archive = _fetched(Path(room))
            with tarfile.open(archive) as content:
                content.extractall(Path(room) / "whole", filter="data")
            (Path(room) / "whole").rename(target)
    return target


def _fetched(room: Path) -> Path:
    (room / "ivy.xml").write_text(_ASKED)
    command = [_java(), "-jar", str(_ivy()), "-ivy", "ivy.xml", "-cache", str(room / "cache")]
    command += ["-retrieve", str(room / "out" / "[artifact].[ext]")]
    settings = os.environ.get("CDCFLOW_IVY_SETTINGS")
    command += ["-settings", settings] if settings else []
    made = subprocess.run(command, cwd=room, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise SourceUnavailable(f"could not fetch Apicurio Registry with Ivy: {made.stdout[-500:]}")
    return room / "out" / "apicurio-registry-app.tar.gz"


def _ivy() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SourceUnavailable("fetching Apicurio Registry needs pyspark, whose Ivy does it")
    return next((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin/java") if home else "java"


class SchemaRegistry:
    """A registry of one's own, in memory. A context manager: inside it answers, afterwards it is gone."""

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
                    *(_java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
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
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/subjects", timeout=1):  # noqa: S310  loopback
                    return
            except (OSError, urllib.error.HTTPError):
                time.sleep(0.1)
        raise RuntimeError(f"the schema registry did not start:\n{self._log.read_text(errors='replace')[-2000:]}")

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
