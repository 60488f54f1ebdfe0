"""A real Prometheus that watches daemons by the rules of docker/prometheus, with their times cut short."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path

from tests.support.polling import wait_for
from tests.wheels.build import ROOT

MISSING = "make test-ops needs Prometheus (Debian: apt install prometheus)"
WAIT_S = 120.0


class Prometheus:
    """A context manager. `alerts` are those that fire."""

    def __init__(self, room: Path, *targets: str) -> None:
        program = shutil.which("prometheus")
        if program is None:
            raise RuntimeError(MISSING)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        rules = (ROOT / "docker" / "prometheus" / "alerts.yaml").read_text()
        room.mkdir()
        # Minutes become a second, and five minutes of lag a few seconds: the expressions stay unchanged.
        rules = re.sub(r"for: \w+", "for: 1s", rules).replace("cdcflow_lag_seconds > 300", "cdcflow_lag_seconds > 6")
        (room / "alerts.yaml").write_text(rules)
        settings = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [{"job_name": "cdcflow", "static_configs": [{"targets": list(targets)}]}],
        }
        (room / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
        self._command = [
            program,
            f"--config.file={room / 'prometheus.yml'}",
            f"--storage.tsdb.path={room / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        self._log = room / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def alerts(self) -> set[str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/alerts", timeout=WAIT_S) as answer:
                found = json.load(answer)["data"]["alerts"]
        except OSError:
            return set()
        return {one["labels"]["alertname"] for one in found if one["state"] == "firing"}

    def until(self, name: str, *, fires: bool) -> None:
        """Wait until an alert fires, or no longer does."""
        wait_for(
            lambda: self.alerts,
            lambda alerts: (name in alerts) == fires,
            f"{name} to {'fire' if fires else 'end'}",
            patience_s=WAIT_S,
            more=lambda: self._log.read_text()[-2000:],
        )


if __name__ == "__main__":
    raise SystemExit(None if shutil.which("prometheus") else MISSING)
