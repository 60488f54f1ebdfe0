"""Catalogs of tables on loopback, for tests: Hive's metastore, of pyspark's jars, and Iceberg's REST catalog.

Iceberg publishes the REST catalog that it tests its own client with as a jar of its tests; the newest that has one is
older than the client here, as a service in use may be. Both run as small programs in `java/`, and need a JDK.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from tests.servers import ivy

from cdcflow.cli.demo.servers.cached import cache
from cdcflow.cli.demo.servers.processes import Started, Watcher, free_port
from cdcflow.spark.jars import iceberg_jars

ICEBERG = "1.10.1"
STARTED_WITHIN_S = 90
_ARTIFACTS = (
    ivy.artifacts(f"org.apache.iceberg:iceberg-core:{ICEBERG}", "", "tests"),
    ivy.artifacts(f"org.apache.iceberg:iceberg-api:{ICEBERG}"),
    ivy.artifacts(f"org.apache.iceberg:iceberg-common:{ICEBERG}"),
    ivy.artifacts(f"org.apache.iceberg:iceberg-bundled-guava:{ICEBERG}"),
    ivy.artifacts("com.github.ben-manes.caffeine:caffeine:2.9.3"),
    ivy.artifacts("org.apache.httpcomponents.core5:httpcore5:5.3.4"),
)
_OPENED = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "net", "util")]
"""What Hive's classes reach into."""


def rest_jars() -> list[Path]:
    """The jars of Iceberg's REST catalog, fetched unless they are there. Whole or not at all.

    Raises:
        SourceUnavailable: they could not be had.
    """
    target = cache() / f"iceberg-rest-{ICEBERG}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="cdcflow-iceberg-", dir=cache()) as room:
            ivy.fetch("Iceberg's REST catalog", _ARTIFACTS, Path(room)).rename(target)
    return sorted(target.glob("*.jar"))


class _JavaServer(Started):
    """A program of `java/` with a folder of its own. Inside a `with` block it answers."""

    def __init__(self) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="cdcflow-catalog-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: Watcher | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """What Java is told after its own options."""

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [ivy.java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
            )
        self._watcher = Watcher(self._process.pid, "KILL", [self.folder])
        until = time.monotonic() + STARTED_WITHIN_S
        while time.monotonic() < until and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise RuntimeError(f"{type(self).__name__} did not start:\n{self._log.read_text(errors='replace')[-2000:]}")

    def stop(self) -> None:
        """It answers no more; `start` brings it back with what it had."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(60)
            self._process = None
        if self._watcher is not None:
            self._watcher.dismiss()
            self._watcher = None

    def close(self) -> None:
        self.stop()
        subprocess.run(["rm", "-rf", str(self.folder)], check=False)

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"


class HiveMetastore(_JavaServer):
    """A standalone metastore, its tables in Derby."""

    @property
    def uri(self) -> str:
        return f"thrift://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={self.folder}/db;create=true",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"{self.folder}/warehouse",
            "derby.system.home": str(self.folder),
            "datanucleus.connectionPoolingType": "HikariCP",  # which pyspark has
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        program = Path(__file__).parent / "java" / "Metastore.java"
        return [*_OPENED, *options, "-cp", f"{ivy.pyspark_jars()}/*", str(program), str(self.port)]


class RestCatalog(_JavaServer):
    """Iceberg's REST catalog, its tables in SQLite. Files of tables lie where `warehouse` is."""

    def __init__(self, warehouse: str) -> None:
        super().__init__()
        self._warehouse = warehouse

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        sqlite = [jar for jar in iceberg_jars() if "sqlite" in Path(jar).name]
        classpath = [f"{ivy.pyspark_jars()}/*", *map(str, rest_jars()), *sqlite]
        program = Path(__file__).parent / "java" / "RestCatalog.java"
        database = str(self.folder / "catalog.db")
        return ["-cp", ":".join(classpath), str(program), str(self.port), database, self._warehouse]


def main() -> int:
    rest_jars()
    return 0


__all__ = ["HiveMetastore", "RestCatalog", "rest_jars"]


if __name__ == "__main__":
    sys.exit(main())
