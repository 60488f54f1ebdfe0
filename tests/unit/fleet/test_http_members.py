"""Members that are queried over HTTP: a real daemon's server, with its tokens."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.fleet.simulated import report

from cdcflow.config import AccessToken, FleetMember
from cdcflow.daemon.interfaces.http_server import HttpServer
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.fleet.http_member import HttpMember
from cdcflow.fleet.pipelines import pipelines
from cdcflow.fleet.watch import FleetWatch
from cdcflow.http.access import Access

TOKEN = "c4n4ry-of-a-token-0123456789"  # noqa: S105


def member(port: int, token: str | None = None, name: str = "shop") -> HttpMember:
    return HttpMember(FleetMember(name=name, url=f"http://127.0.0.1:{port}/", token=token), 15)


@contextmanager
def daemon(access: Access | None = None) -> Iterator[int]:
    """A daemon's server, whose capture does nothing."""
    status = {"state": "capturing", "lag_seconds": 0.5, "tables": {}}
    server = HttpServer("127.0.0.1:0", lambda: status, access=access)
    server.start()
    yield server.port
    server.close()


@contextmanager
def answering(code: int, content: bytes, **headers: str) -> Iterator[tuple[int, list[str]]]:
    """A server that always gives this answer, and the paths that were requested."""
    asked: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.path} {self.headers.get('Authorization')}")
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Be quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], asked
    server.shutdown()
    server.server_close()


def test_daemon_reports_what_its_page_shows() -> None:
    """A daemon on a machine without the register needs nothing but its page."""
    with daemon() as port:
        found = member(port).report()
    assert (found.name, found.kind, found.state, found.numbers["lag_seconds"]) == ("shop", "capture", "capturing", 0.5)
    assert found.page == f"http://127.0.0.1:{port}/"


def test_token_is_read_at_each_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotated one counts at once; a wrong one is an error that does not show it."""
    monkeypatch.setenv("TOKEN", TOKEN)
    held = tmp_path / "token"
    held.write_text("x" * 24)
    held.chmod(0o600)
    with daemon(Access([AccessToken(name="fleet", token="${env:TOKEN}")])) as port:  # noqa: S106
        asked = member(port, f"${{file:{held}}}")
        with pytest.raises(ConfigurationError, match=r"refuses this token \(401\)") as error:
            asked.report()
        assert "x" * 24 not in str(error.value)
        held.write_text(TOKEN)
        assert asked.report().state == "capturing"


def test_member_that_does_not_answer_has_a_row_with_the_reason() -> None:
    """A closed port is not a pipeline less."""
    with daemon() as port:
        pass
    watch = FleetWatch([], [member(port)], 15)
    watch.refresh()
    (found,) = pipelines(watch.members.current(), 0.0)
    assert (found.name, found.state, found.level) == ("shop", "unknown", "error")
    assert "does not answer: Connection refused" in found.findings[0].text
    assert watch.members.outages()[0].place == f"http://127.0.0.1:{port}/"


def test_redirect_is_not_followed() -> None:
    """It would take the token to another host."""
    with (
        answering(200, report().to_bytes()) as (other, asked),
        answering(302, b"", Location=f"http://127.0.0.1:{other}/") as (
            port,
            _,
        ),
        pytest.raises(SourceUnavailable, match="answers 302"),
    ):
        member(port).report()
    assert asked == []


@pytest.mark.parametrize(
    ("code", "content", "why"),
    [
        (200, b"<html>", "it is not JSON"),
        (200, b"x" * 100_000, "it has more than"),
        (404, b"", "it is an older cdcflow, or another program"),
        (421, b"", "does not answer under this name"),
    ],
)
def test_answer_that_is_no_report_is_an_error_with_the_reason(code: int, content: bytes, why: str) -> None:
    """Another program may listen there."""
    with answering(code, content) as (port, _), pytest.raises(ConfigurationError, match=why):
        member(port).report()


def test_report_has_the_name_of_the_settings() -> None:
    """A member does not choose which row it is."""
    with answering(200, report("evil").to_bytes()) as (port, asked):
        assert member(port, name="shop").report().name == "shop"
    assert asked == ["/api/v1/report None"]
