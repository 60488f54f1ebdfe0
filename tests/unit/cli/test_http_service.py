"""Health, metrics and status over HTTP: what they say, and to whom."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from cdcflow.service.http import HttpServer, health, is_ours
from cdcflow.service.metrics import exposition

STATUS: dict[str, Any] = {
    "state": "capturing",
    "cut": 7,
    "durable_offset": 1234,
    "rows_per_second": 12.5,
    "lag_bytes": None,
    "heartbeat_age_seconds": 1.0,
    "heartbeat_age_seconds_max": 30.0,
    "tables": {
        "public.orders": {"state": "reading", "units": 10, "units_done": 4, "rows": 99, "generation": 1},
        'odd."na\\me\n"': {"state": "failed", "units": 0, "units_done": 0, "rows": 0, "generation": 2},
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[HttpServer]:
    """A server on a free loopback port that tells STATUS."""
    made = HttpServer("127.0.0.1:0", lambda: STATUS, hosts=["cdc.internal"])
    made.start()
    yield made
    made.close()


def ask(server: HttpServer, path: str, *, method: str = "GET", host: str = "localhost") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, headers={"Host": host})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_status_is_the_status(server: HttpServer) -> None:
    """Dashboards read the same fields as `cdcflow status --json`."""
    code, text = ask(server, "/status")
    assert code == 200
    assert json.loads(text) == STATUS


def test_health_is_ok_while_positions_move(server: HttpServer) -> None:
    """A failed table is named, but is no reason to restart the daemon."""
    code, text = ask(server, "/health")
    assert code == 200
    assert json.loads(text)["failed_tables"] == ['odd."na\\me\n"']


def test_health_fails_when_nothing_flows() -> None:
    """O14: a connection that is open while no position moves looks healthy everywhere but here."""
    code, text = health({**STATUS, "heartbeat_age_seconds": 31})
    assert (code, text["status"]) == (503, "stalled")


def test_health_of_a_paused_capture_is_ok() -> None:
    """It does what somebody told it; restarting the daemon would change nothing."""
    code, text = health({**STATUS, "heartbeat_age_seconds": 31, "state": "paused"})
    assert (code, text["status"]) == (200, "paused")


def test_metrics_follow_the_text_format(server: HttpServer) -> None:
    """One bad line makes Prometheus drop the whole page; table names come from outside."""
    code, text = ask(server, "/metrics")
    lines = text.splitlines()
    assert code == 200
    assert "cdcflow_durable_offset 1234" in lines
    assert 'cdcflow_table_backfill_units_done{table="public.orders"} 4' in lines
    assert 'cdcflow_table_state{table="odd.\\"na\\\\me\\n\\"",state="failed"} 1' in lines
    assert 'cdcflow_table_state{table="public.orders",state="done"} 0' in lines
    assert "lag_bytes" not in text
    for line in lines:
        assert line.startswith(("# HELP cdcflow_", "# TYPE cdcflow_")) or len(line.rsplit(" ", 1)) == 2


def test_metrics_of_a_capture_that_waits_are_a_page_too() -> None:
    """Between two attempts the status knows little; a scrape then must not fail."""
    assert exposition({"state": "waiting", "reason": "starting"}) == ""


@pytest.mark.parametrize("path", ["/", "/metrics/", "/../etc/passwd", "/control"])
def test_other_paths_are_not_there(server: HttpServer, path: str) -> None:
    """S07: three read-only pages and nothing else."""
    assert ask(server, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_nothing_but_get_is_answered(server: HttpServer, method: str) -> None:
    """S07: nothing can be changed over HTTP, so nothing else is understood."""
    assert ask(server, "/status", method=method)[0] == 501


@pytest.mark.parametrize("path", ["/health", "/metrics", "/status"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.nip.io", ""])
def test_foreign_host_name_is_refused_on_every_page(server: HttpServer, path: str, host: str) -> None:
    """S07: DNS rebinding makes a browser ask 127.0.0.1 under the attacker's name."""
    code, text = ask(server, path, host=host)
    assert code == 421
    assert "public.orders" not in text


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8079",
        "127.0.0.1",
        "127.0.0.1:8079",
        "[::1]:8079",
        "[::1]",
        "10.0.0.7:80",
        "cdc.internal:1",
    ],
)
def test_addresses_and_known_names_are_served(host: str) -> None:
    """An address in the Host header cannot be an attacker's name; others are listed in service.hosts."""
    assert is_ours(host, {"localhost", "cdc.internal"})


def test_taken_port_is_a_setting_to_change(server: HttpServer) -> None:
    """The message names the setting, because that is what has to change."""
    from cdcflow.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match=r"service\.listen"):
        HttpServer(f"127.0.0.1:{server.port}", lambda: STATUS).start()
