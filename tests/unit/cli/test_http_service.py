"""Health, metrics and status over HTTP: their contents, and who may read them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from tests.support.polling import wait_until

from cdcflow.config import AccessToken
from cdcflow.daemon.http_component import _HttpServing
from cdcflow.daemon.interfaces.health import health, readiness
from cdcflow.daemon.interfaces.http_server import LIBRARIES, HttpServer
from cdcflow.errors import ConfigurationError
from cdcflow.http.access import Access, is_ours
from cdcflow.http.connection import CONNECTIONS_MAX
from cdcflow.http.metrics import exposition
from cdcflow.http.responses import REQUESTS_MAX

THREADS = 40
"""Starlette's threads for all requests that may block (anyio's default)."""
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
    """A server on a free loopback port that serves STATUS."""
    made = HttpServer("127.0.0.1:0", lambda: STATUS, hosts=["cdc.internal"])
    made.start()
    yield made
    made.close()


def ask(server: HttpServer, path: str, *, method: str = "GET", host: str = "localhost") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
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
    """O14: a connection that is open while no position moves appears healthy everywhere but here."""
    code, text = health({**STATUS, "heartbeat_age_seconds": 31})
    assert (code, text["status"]) == (503, "stalled")


@pytest.mark.parametrize(("state", "code"), [("paused", 200), ("halted", 503)])
def test_capture_that_is_paused_or_halted_is_not_stalled(state: str, code: int) -> None:
    """O14: a pause is a command; what was halted needs an operator, and must not look like a condition that passes
    by itself."""
    found, text = health({**STATUS, "state": state, "heartbeat_age_seconds": 31, "reason": "the slot is gone"})
    assert (found, text["status"]) == (code, state)
    assert ("reason" in text) == (state == "halted")


def test_metrics_follow_the_text_format(server: HttpServer) -> None:
    """One bad line makes Prometheus drop the whole page; table names are chosen by others."""
    code, text = ask(server, "/metrics")
    lines = text.splitlines()
    assert code == 200
    assert "cdcflow_durable_offset 1234.0" in lines
    assert 'cdcflow_table_backfill_units_done{table="public.orders"} 4.0' in lines
    assert 'cdcflow_table_state{state="failed",table="odd.\\"na\\\\me\\n\\""} 1.0' in lines
    assert 'cdcflow_table_state{state="done",table="public.orders"} 0.0' in lines
    assert "lag_bytes" not in text
    for line in lines:
        assert line.startswith(("# HELP ", "# TYPE ")) or len(line.rsplit(" ", 1)) == 2


def test_metrics_of_a_capture_that_waits_are_a_page_too() -> None:
    """Between two attempts the status knows little; a scrape then must not fail."""
    assert 'cdcflow_state{state="waiting"} 1.0\n' in exposition({"state": "waiting", "reason": "starting"})


def test_health_of_a_halted_capture_names_what_halted_it() -> None:
    """It never recovers by itself, so it must not look like one that is only stalled."""
    code, text = health({**STATUS, "state": "halted", "kind": "HistoryLost", "reason": "slot gone"})
    assert (code, text["status"], text["kind"], text["reason"]) == (503, "halted", "HistoryLost", "slot gone")


@pytest.mark.parametrize("path", ["/metrics/", "/../etc/passwd", "/control", "/page/index.html", "/http.py"])
def test_other_paths_do_not_exist(server: HttpServer, path: str) -> None:
    """S07: no path leads to what is not meant to be seen."""
    assert ask(server, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_read_only_paths_accept_no_other_method(server: HttpServer, method: str) -> None:
    """S07: a path that only shows something changes nothing, whichever method is used."""
    assert ask(server, "/status", method=method)[0] == 405


@pytest.mark.parametrize("path", ["/", "/health", "/healthz", "/readyz", "/metrics", "/status", "/api/v1/openapi.json"])
def test_head_is_answered_like_get_without_a_body(server: HttpServer, path: str) -> None:
    """Load balancers and operators with curl -I use this method."""
    assert ask(server, path, method="HEAD") == (ask(server, path)[0], "")


def test_daemon_that_answers_is_alive_whatever_the_source_does() -> None:
    """A supervisor that restarts dead processes must not restart a daemon because its database is unavailable."""

    def away() -> dict[str, Any]:
        raise AssertionError("asked for")

    made = HttpServer("127.0.0.1:0", away)
    made.start()
    try:
        assert ask(made, "/healthz")[0] == 200
    finally:
        made.close()


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (STATUS, 200, "ready"),
        ({**STATUS, "heartbeat_age_seconds": 31}, 503, "stalled"),
        ({**STATUS, "state": "paused", "heartbeat_age_seconds": 31}, 200, "paused"),
        ({"state": "waiting", "reason": "no route\n  mend it"}, 503, "waiting"),
    ],
)
def test_ready_means_that_changes_are_captured(status: dict[str, Any], code: int, said: str) -> None:
    """O14: a capture that was paused on purpose is healthy and reports so; one that waits or stalls is not."""
    found, text = readiness(status)
    assert (found, text["status"]) == (code, said)


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/health", "/metrics", "/status", "/api/v1/changes"])
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


@pytest.mark.parametrize(
    "sent", [b"", b"GET /healthz HT", b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"]
)
def test_request_that_does_not_arrive_is_hung_up_on(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """A few silent connections must not take all slots from the probes, or a healthy daemon is restarted."""
    from cdcflow.http import connection as module

    monkeypatch.setattr(module, "ARRIVES_WITHIN_S", 0.2)
    made = HttpServer("127.0.0.1:0", lambda: STATUS)
    made.start()
    try:
        with socket.create_connection(("127.0.0.1", made.port), timeout=30) as slow:
            slow.sendall(sent)
            while slow.recv(1000):
                pass
        assert ask(made, "/healthz")[0] == 200
    finally:
        made.close()


def test_two_requests_of_one_connection_are_both_answered(server: HttpServer) -> None:
    """A scraper keeps its connection; a request that has arrived is not cut off."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for _ in range(2):
        connection.request("GET", "/healthz", headers={"Host": "localhost"})
        response = connection.getresponse()
        assert (response.status, bool(response.read())) == (200, True)
    connection.close()


def test_port_is_free_again_once_it_is_closed() -> None:
    """An operator who restarts a daemon needs the same address at once."""
    first = HttpServer("127.0.0.1:0", lambda: STATUS)
    first.start()
    port = first.port
    assert ask(first, "/status")[0] == 200
    first.close()
    second = HttpServer(f"127.0.0.1:{port}", lambda: STATUS)
    second.start()
    second.close()


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon needs no HTTP library unless it listens; then the message says what to install."""
    from cdcflow.daemon.interfaces import http_server as module
    from cdcflow.errors import ConfigurationError

    monkeypatch.setattr(module, "LIBRARIES", ("starlette", "no_such_library"))
    with pytest.raises(ConfigurationError, match="needs no_such_library") as found:
        HttpServer("127.0.0.1:0", lambda: STATUS).start()
    assert found.value.remedy == "pip install 'cdcflow[service]'"


def test_daemon_that_does_not_listen_loads_no_http_library() -> None:
    """Its memory is for the capture, and a base install has none of them."""
    script = """
import sys
sys.modules.update(dict.fromkeys(["starlette", "uvicorn", "anyio", "h11", "prometheus_client"]))  # an import fails
import cdcflow.daemon.daemon
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_extra_that_the_error_names_brings_what_is_missing() -> None:
    """A printed remedy is a promise."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    brought = " ".join(project["optional-dependencies"]["service"]).replace("-", "_")
    assert [name for name in LIBRARIES if name not in brought] == []


# ── silent connections ────────────────────────────────────────────────────────────────────────────────────

_SILENT = {
    "nothing": b"",
    "half a request": b"GET /healthz HT",
    "no body": b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
    "one that was answered": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("said", _SILENT)
@pytest.mark.parametrize("number", [64, 3 * CONNECTIONS_MAX])
def test_silent_connections_keep_no_probe_out(server: HttpServer, said: str, number: int) -> None:
    """Any client that reaches the port could have a healthy daemon restarted: no token is needed to connect."""
    with contextlib.ExitStack() as stack:
        for _ in range(number):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            idle.sendall(_SILENT[said])
            if said == "one that was answered":
                idle.recv(1)
        for path in ("/healthz", "/readyz", "/health", "/metrics", "/status"):
            assert ask(server, path)[0] == 200
        assert server._server is not None
        assert len(server._server.server_state.connections) <= CONNECTIONS_MAX + 1


class SlowAnswers:
    """A server that has begun; requests for `/slow` are answered once `let_go` is set."""

    def __init__(self) -> None:
        self._asked, self.let_go = threading.Semaphore(0), threading.Event()
        self.server = HttpServer("127.0.0.1:0", dict, application=lambda names: self._serve)
        self.server.start()

    def ask(self, stack: contextlib.ExitStack) -> socket.socket:
        """Send such a request, and return its connection once the server works on it."""
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", self.server.port), timeout=30))
        connection.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert self._asked.acquire(timeout=30)
        return connection

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            self._asked.release()
            while not self.let_go.is_set():
                await asyncio.sleep(0.01)
        await Response("done", 200)(scope, receive, send)


def test_probes_are_answered_while_others_wait_for_slow_answers() -> None:
    """A dashboard that sends too many requests gets a 503, and health probes of the daemon still succeed."""
    slow = SlowAnswers()
    try:
        with contextlib.ExitStack() as stack:
            waiting = [slow.ask(stack) for _ in range(REQUESTS_MAX)]
            assert [ask(slow.server, path)[0] for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 503]
            slow.let_go.set()
            assert all(connection.recv(100).startswith(b"HTTP/1.1 200") for connection in waiting)
        assert ask(slow.server, "/metrics")[0] == 200
    finally:
        slow.let_go.set()
        slow.server.close()


# ── one server after another ────────────────────────────────────────────────────────────────────────────────

TOKENS = [AccessToken.model_validate({"name": "ops", "token": "${env:OPS}"})]
EVERYWHERE = "0.0.0.0"  # noqa: S104  for the duration of a test


@pytest.mark.parametrize("host", ["127.0.0.1", EVERYWHERE])
def test_server_with_other_settings_inherits_the_port(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor must not find the port closed, nor may another daemon take it; a logged-in user stays logged in."""
    monkeypatch.setenv("OPS", "c4n4ry-of-sixteen")
    before = HttpServer("127.0.0.1:0", lambda: STATUS, access=Access(TOKENS))
    before.start()
    opened = before._access.open_session("c4n4ry-of-sixteen")
    after = HttpServer(f"{host}:{before.port}", lambda: {**STATUS, "cut": 8}, access=Access(TOKENS))
    after.start(before)
    try:
        before.close()
        assert after._access.caller(None, opened) is not None
        assert ask(after, "/healthz")[0] == 200
        with pytest.raises(ConfigurationError, match="cannot listen on"):
            HttpServer(f"127.0.0.1:{after.port}", lambda: STATUS).start()
    finally:
        after.close()


def test_replaced_server_answers_earlier_requests() -> None:
    """The request that replaces it is itself one: on a busy machine its answer took longer than a second."""
    slow = SlowAnswers()
    serving = _HttpServing(slow.server, lambda: None, lambda: None)
    with contextlib.ExitStack() as stack:
        connection = slow.ask(stack)
        serving.end(wait=False)
        time.sleep(1.5)  # more than a daemon that ends gives to its requests
        slow.let_go.set()
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("asks", [True, False])
def test_who_has_connected_just_before_a_server_ends_is_answered(monkeypatch: pytest.MonkeyPatch, asks: bool) -> None:
    """Settings are applied while a dashboard sends a request: the request is still answered. A silent connection is
    closed."""
    from cdcflow.http import connection as module

    monkeypatch.setattr(module, "FIRST_WITHIN_S", 60.0 if asks else 0.1)
    made = HttpServer("127.0.0.1:0", lambda: STATUS)
    made.start()
    assert made._server is not None
    state, port = made._server.server_state, made.port
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        wait_until(lambda: state.connections, "the connection")
        ending = threading.Thread(target=made.close)
        ending.start()
        (taken,) = state.connections
        wait_until(lambda: taken._ending, "the server to end")  # type: ignore[union-attr]
        if asks:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while got := connection.recv(10_000):
            answer += got
        ending.join()
    assert answer.startswith(b"HTTP/1.1 200") == asks


def test_required_token_is_required_by_the_server_that_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers listen briefly, and the old one must not answer a request without a token."""
    monkeypatch.setenv("OPS", "c4n4ry-of-sixteen")
    before = HttpServer("127.0.0.1:0", lambda: STATUS)
    before.start()
    after = HttpServer("127.0.0.1:0", lambda: STATUS, access=Access(TOKENS))
    after.start(before)
    try:
        assert ask(before, "/status")[0] == 200
        before.give_way_to(after)
        assert ask(before, "/status")[0] == 401
    finally:
        before.close()
        after.close()


def test_server_that_cannot_listen_leaves_the_previous_one_running() -> None:
    """The settings are refused, and the previous server keeps answering."""
    before = HttpServer("127.0.0.1:0", lambda: STATUS)
    before.start()
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(ConfigurationError, match=rf"cannot listen on 127.0.0.1:{port} \(service.listen\)"):
                HttpServer(f"127.0.0.1:{port}", lambda: STATUS).start(before)
        assert ask(before, "/healthz")[0] == 200
    finally:
        before.close()


def test_readiness_is_answered_while_every_thread_of_other_requests_is_busy() -> None:
    """Slow requests of a dashboard occupy their threads; an orchestrator must not take the daemon out of service."""
    released, busy = threading.Event(), threading.Semaphore(0)

    def overview(status: Any) -> Any:
        busy.release()
        released.wait()
        return status

    made = HttpServer("127.0.0.1:0", lambda: STATUS, overview=overview)
    made.start()
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(REQUESTS_MAX):
                slow = stack.enter_context(socket.create_connection(("127.0.0.1", made.port), timeout=60))
                slow.sendall(b"GET /api/v1/overview HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for _ in range(THREADS):
                assert busy.acquire(timeout=30)
            assert [ask(made, path)[0] for path in ("/healthz", "/readyz")] == [200, 200]
            released.set()
    finally:
        released.set()
        made.close()
