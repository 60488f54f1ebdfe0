"""Health, metrics and status over HTTP, for those who watch the daemon. Nothing can be changed from here.

Unauthenticated on purpose, so it is kept harmless: GET only, loopback unless the settings say otherwise, no row
values. A web page in somebody's browser could still be made to ask us under a name of its own that points to
127.0.0.1 (DNS rebinding), so a request must name us by an address, `localhost`, or a name from the settings.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cdcflow.errors import ConfigurationError
from cdcflow.service import metrics

StatusOf = Callable[[], Mapping[str, Any]]


class HttpServer:
    """Serves `/health`, `/metrics` and `/status` until closed. `hosts` are names it may be asked by."""

    def __init__(self, listen: str, status: StatusOf, hosts: Collection[str] = ()) -> None:
        host, _, port = listen.rpartition(":")
        self._listen = listen
        self._address = (host.strip("[]"), int(port))
        self._names = frozenset({"localhost", host.strip("[]").lower(), *(h.lower() for h in hosts)})
        self._status = status
        self._server: ThreadingHTTPServer | None = None

    @property
    def port(self) -> int:
        """The port it listens on, once started (the settings may say 0: any that is free)."""
        if self._server is None:
            raise ValueError("not started")
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer.

        Raises:
            ConfigurationError: the address cannot be had.
        """
        try:
            self._server = _Server(self._address, self._routes())
        except OSError as error:
            raise ConfigurationError(
                f"service.listen {self._listen} cannot be had: {error.strerror}",
                remedy="choose another port, or leave service.listen out",
            ) from None
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _routes(self) -> type[BaseHTTPRequestHandler]:
        names, status = self._names, self._status

        class Routes(BaseHTTPRequestHandler):
            server_version = "cdcflow"
            sys_version = ""
            timeout = 10

            def do_GET(self) -> None:
                if not is_ours(self.headers.get("Host", ""), names):
                    self._answer(421, "text/plain; charset=utf-8", "this host name is not served here\n")
                    return
                match self.path.partition("?")[0]:
                    case "/health":
                        code, text = health(status())
                        self._answer(code, "application/json", json.dumps(text) + "\n")
                    case "/metrics":
                        self._answer(200, metrics.CONTENT_TYPE, metrics.exposition(status()))
                    case "/status":
                        self._answer(200, "application/json", json.dumps(status(), default=str) + "\n")
                    case _:
                        self._answer(404, "text/plain; charset=utf-8", "try /health, /metrics or /status\n")

            def _answer(self, code: int, content_type: str, text: str) -> None:
                body = text.encode()
                self.send_response(code)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
                """Say nothing: a scrape every few seconds is no event."""

        return Routes


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], routes: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, routes)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is no event either."""


def is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names us: by address, or by one of `names`."""
    name = host.lower().rpartition(":")[0] if _has_port(host) else host.lower()
    name = name.strip("[]")
    if name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdigit() and (host.count(":") == 1 or "]:" in host)


def health(status: Mapping[str, Any]) -> tuple[int, Mapping[str, object]]:
    """Healthy means that positions move from the source to the disk, not that a connection is open (O14).

    The source writes a heartbeat when nothing else happens, so a durable position that stands still for several of
    them says that nothing flows. A capture that somebody paused is healthy: it does what it was told.
    """
    age = status.get("heartbeat_age_seconds")
    limit = status.get("heartbeat_age_seconds_max")
    paused = status.get("state") == "paused"
    stalled = not paused and isinstance(age, int | float) and isinstance(limit, int | float) and age > limit
    failed = sorted(t for t, v in (status.get("tables") or {}).items() if v.get("state") == "failed")
    return (503 if stalled else 200), {
        "status": "paused" if paused else "stalled" if stalled else "ok",
        "heartbeat_age_seconds": age,
        "failed_tables": failed,
    }
