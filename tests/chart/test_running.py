"""What docs/deploy.md says for a cluster, followed as far as it goes without one: the pod's containers as processes.

The settings and values are those of the page; the database's address and the mounted folders are replaced.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.rendering import find, pods, render
from tests.servers.postgres import PostgresServer
from tests.support.docker.confinement import confinement
from tests.support.docs.pages import DOCS, blocks
from tests.support.polling import wait_until

from cdcflow import local
from cdcflow.demo.servers.processes import free_port

pytestmark = [pytest.mark.long, pytest.mark.postgres]
PAGE = DOCS / "deploy.md"


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


class Pod:
    """A container of a rendered pod as a process, with its volumes as folders and a read-only root."""

    def __init__(self, folder: Path, objects: list[dict[str, Any]], url: str) -> None:
        self.pod = pods(objects)["shop"]
        self.folder = folder
        self.port = free_port()
        for name in ("log", "tmp", "secrets/shop", "etc"):
            (folder / name).mkdir(parents=True)
        for name, text in (("password", "unused"), ("http-token", "x" * 32)):
            (folder / "secrets" / "shop" / name).write_text(text)
            (folder / "secrets" / "shop" / name).chmod(0o440)
        text = find(objects, "ConfigMap", "shop")["data"]["cdcflow.yaml"]
        settings = yaml.safe_load(self.mounted(text))
        settings["source"]["url"] = url
        settings["service"]["listen"] = f"127.0.0.1:{self.port}"
        self.config = folder / "etc" / "cdcflow.yaml"
        self.config.write_text(yaml.safe_dump(settings))
        self.process: subprocess.Popen[bytes] | None = None

    def mounted(self, text: str) -> str:
        """With the folders that are mounted here."""
        for place in ("/log", "/secrets"):
            text = text.replace(f"{place}/", f"{self.folder}{place}/")
        return text.replace("/etc/cdcflow/cdcflow.yaml", str(self.folder / "etc" / "cdcflow.yaml"))

    def start(self) -> None:
        container = self.pod["containers"][0]
        arguments = [self.mounted(word) for word in container.get("args", ())]
        command = container.get("command") or [sys.executable, "-m", "cdcflow", *arguments]
        self.run(command)

    def run(self, command: list[str]) -> None:
        writable = [self.folder / "log", self.folder / "tmp"]
        with (self.folder / "tmp" / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [*confinement(writable), *command],
                stdout=output,
                stderr=output,
                env={**os.environ, "TMPDIR": str(self.folder / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )

    def probe(self, name: str) -> int:
        """The status of a probe of the container; 0 without an answer."""
        return status_of(self.port, self.pod["containers"][0][name]["httpGet"]["path"])

    def output(self) -> str:
        return (self.folder / "tmp" / "output").read_text(errors="replace")[-3000:]

    def end(self) -> float:
        """Stop it as Kubernetes does. Return how long that took."""
        assert self.process is not None
        began = time.monotonic()
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(60)
        return time.monotonic() - began

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)


def status_of(port: int, path: str) -> int:
    """The status of an answer; 0 without one."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def of_the_page() -> dict[str, Any]:
    """The settings and the values of the page's section about clusters."""
    (settings,) = [one.text for one in blocks(PAGE) if one.language == "yaml" and "/log/cdcflow" in one.text]
    (values,) = [one.text for one in blocks(PAGE) if one.language == "text"]
    return {**yaml.safe_load(values), "settings": settings}


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    database = postgres.create_database("shop")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1), (2)")
    yield database.url
    database.drop()


def test_daemon_of_the_page_captures_merges_and_stops_within_its_time(tmp_path: Path, url: str) -> None:
    """The page's pod: probes, rows in tables, and a stop that needs no SIGKILL."""
    objects = render(of_the_page())
    pod = Pod(tmp_path, objects, url)
    try:
        pod.start()
        wait_until(lambda: pod.probe("livenessProbe") == 200, "the daemon to answer", more=pod.output)
        wait_until(lambda: pod.probe("readinessProbe") == 200, "the daemon to be ready", more=pod.output)

        def rows() -> int:
            with contextlib.suppress(Exception):
                return int(local.read_cut(tmp_path / "log" / "warehouse")["public.orders"].num_rows)
            return 0

        wait_until(lambda: rows() == 2, "the rows in a published cut", patience_s=180, more=pod.output)
        assert pod.end() < pod.pod["terminationGracePeriodSeconds"]
    finally:
        pod.kill()


def test_maintenance_leaves_the_log_to_commands_and_ends_at_once(tmp_path: Path, url: str) -> None:
    """`cdcflow drop` refuses while a daemon runs, so a pod without one has to exist; and it must not be waited for."""
    objects = render({**of_the_page(), "maintenance": True})
    pod = Pod(tmp_path, objects, url)
    assert not {"livenessProbe", "readinessProbe", "startupProbe"} & pod.pod["containers"][0].keys()
    try:
        pod.start()
        command = [sys.executable, "-m", "cdcflow"]
        # The pipeline that ran before.
        started = subprocess.Popen([*command, "run", "-c", str(pod.config)], stdout=subprocess.DEVNULL)
        wait_until(lambda: status_of(pod.port, "/readyz") == 200, "the daemon to capture")
        started.terminate()
        started.wait(60)
        done = subprocess.run(
            [*command, "drop", "--yes", "-c", str(pod.config)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "removed: slot" in done.stdout
        assert pod.end() < 5
    finally:
        pod.kill()
