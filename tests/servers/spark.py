"""A standalone Spark cluster on loopback for tests: a master and workers that do not share the driver's disk.

    with SparkCluster(hidden=[folder]) as cluster:
        session = … .master(cluster.url)

Each worker, and so each of its executors, runs in a mount namespace in which the `hidden` folders are empty: what
reads the driver's folders there finds nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import pyspark
from tests.support.polling import wait_for

from cdcflow.demo.servers.processes import Watcher, free_port

STARTED_WITHIN_S = 90
_WAYS = (("unshare", "--mount"), ("unshare", "--map-root-user", "--mount"))
_HIDE = (
    'n=$1; shift; while [ "$n" -gt 0 ]; do mount -t tmpfs -o size=64k tmpfs "$1"; shift; n=$((n - 1)); done; exec "$@"'
)


class SparkCluster:
    """Use it as a context manager. `url` is what `spark.master` is set to."""

    def __init__(self, *, hidden: Sequence[Path], workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="cdcflow-spark-"))
        self._page = free_port()
        self._hidden = [str(path) for path in hidden]
        self._workers, self._cores, self._memory = workers, cores, memory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._watchers: list[Watcher] = []

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def __enter__(self) -> SparkCluster:
        way = next((way for way in _WAYS if _allowed(way)), None)
        if way is None:
            raise RuntimeError("hiding the driver's disk from Spark's workers needs unshare and mount namespaces")
        page = ["--webui-port", str(self._page)]
        self._start("master", [], ["Master", "--host", "127.0.0.1", "--port", str(self.port), *page])
        hiding = [*way, "/bin/sh", "-ec", _HIDE, "sh", str(len(self._hidden)), *self._hidden]
        for number in range(self._workers):
            work = ["--work-dir", str(self.directory / f"worker-{number}"), "--webui-port", "0", "--host", "127.0.0.1"]
            size = ["--cores", str(self._cores), "--memory", self._memory]
            self._start(f"worker-{number}", hiding, ["Worker", *work, *size, self.url])
        wait_for(
            self._alive,
            lambda alive: alive >= self._workers,
            f"the workers of the Spark cluster; see {self.directory}",
            patience_s=STARTED_WITHIN_S,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process, watcher in zip(reversed(self._processes), reversed(self._watchers), strict=True):
            process.kill()
            process.wait()
            watcher.dismiss()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self, name: str, before: Sequence[str], words: Sequence[str]) -> None:
        home = Path(pyspark.__file__).parent
        first, *rest = words
        (self.directory / name).mkdir()
        environment = {
            **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(self.directory / name),
            "SPARK_NO_DAEMONIZE": "1",
        }
        command = [
            *before,
            str(home / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{first.lower()}.{first}",
            *rest,
        ]
        with (self.directory / f"{name}.log").open("wb") as said:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                cwd=self.directory,
            )
        self._processes.append(process)
        self._watchers.append(Watcher(process.pid, "KILL", [self.directory]))

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=5) as answer:
                text: str = answer.read().decode()
        except OSError:
            return 0
        return text.count('"state" : "ALIVE"')


def _allowed(way: Sequence[str]) -> bool:
    try:
        return subprocess.run([*way, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


__all__ = ["SparkCluster"]
