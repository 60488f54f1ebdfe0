"""A real Prometheus that watches daemons by the rules of docker/prometheus, with their times cut short."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.polling import wait_for
from tests.wheels.build import ROOT

MISSING = "make test-ops needs Prometheus (Debian: apt install prometheus)"
WAIT_S = 120.0
Points = tuple[tuple[float, float], ...]
"""Seconds since 1970, and values."""


class Prometheus:
    """A context manager. `alerts` are those that fire. `names`: the label `instance` of a target, if it has one."""

    scrape_s = 1

    def __init__(self, room: Path, *targets: str, names: Mapping[str, str] | None = None) -> None:
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
        configs = [{"targets": [one], "labels": {"instance": (names or {}).get(one, one)}} for one in targets]
        settings = {
            "global": {"scrape_interval": f"{self.scrape_s}s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [{"job_name": "cdcflow", "static_configs": configs}],
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
            found = self._get("alerts")["alerts"]
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

    # ── queries ─────────────────────────────────────────────────────────────────────────────────────────────

    def query(self, expression: str, at: float) -> list[tuple[Mapping[str, str], Points]]:
        """The series of an expression at a time, each with its labels and one point."""
        found = self._get("query", query=expression, time=str(at))["result"]
        return [(one["metric"], _points([one["value"]])) for one in found]

    def query_range(self, expression: str, begin: float, end: float) -> list[tuple[Mapping[str, str], Points]]:
        """The series of an expression, each with its labels and its points."""
        times = {"start": str(begin), "end": str(end), "step": str(self.step_s(begin, end))}
        found = self._get("query_range", query=expression, **times)["result"]
        return [(one["metric"], _points(one["values"])) for one in found]

    def step_s(self, begin: float, end: float) -> int:
        """The time between two points of a plot; not less than that between two scrapes."""
        return max(self.scrape_s, round((end - begin) / 300))

    def label_values(self, query: str) -> list[str]:
        """What Grafana's `label_values(selector, label)` gives, sorted."""
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert found is not None, query
        values = self._get(f"label/{found[2]}/values", **{"match[]": found[1]})
        return sorted(str(one) for one in values)

    def _get(self, path: str, **parameters: str) -> Any:  # Any: JSON
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return json.load(answer)["data"]


def _points(pairs: list[tuple[float, str]]) -> Points:
    return tuple((float(at), float(value)) for at, value in pairs)


if __name__ == "__main__":
    raise SystemExit(None if shutil.which("prometheus") else MISSING)
