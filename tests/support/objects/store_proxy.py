"""An HTTP proxy of an object store: counts requests, and does to each what a test decides."""

from __future__ import annotations

import http.client
import http.server
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from tests.servers.http_threads import ThreadedServer

Fault = Literal["cut", "lost", "busy", "slow"]
"""`cut`: the connection ends before the store gets the request; `lost`: the store does it, and the answer is lost;
`busy`: 503; `slow`: it is done after `SLOW_S`."""

SLOW_S = 0.05
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A request: its number from 1, its method, and the object's name in its bucket, or a list's query."""

    number: int
    method: str
    name: str

    @property
    def is_list(self) -> bool:
        return self.method == "GET" and "list-type" in self.name


class StoreProxy(ThreadedServer):
    """Forwards the requests to a store on a port. A context manager. `fault` decides about each."""

    def __init__(self, port: int) -> None:
        self.requests: list[StoreRequest] = []
        self.fault: Callable[[StoreRequest], Fault | None] = lambda _: None
        self._target = port
        self._lock = threading.Lock()
        super().__init__(self._handler())
        self.endpoint = self.uri

    def forget(self) -> None:
        """Count from 1 again, without faults."""
        with self._lock:
            self.requests.clear()
            self.fault = lambda _: None

    def _decide(self, method: str, path: str) -> Fault | None:
        parts = urlsplit(path)
        name = unquote(parts.path).lstrip("/").partition("/")[2] or parts.query
        with self._lock:
            request = StoreRequest(len(self.requests) + 1, method, f"?{parts.query}" if "list-type" in path else name)
            self.requests.append(request)
            return self.fault(request)

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._store = http.client.HTTPConnection("127.0.0.1", outer._target, timeout=60)

            def finish(self) -> None:
                self._store.close()
                super().finish()

            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fault = outer._decide(self.command, self.path)
                if fault == "cut":
                    self._end()
                    return
                if fault == "busy":
                    self.send_response(503)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if fault == "slow":
                    time.sleep(SLOW_S)
                self._store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in ("connection", "expect"):
                        self._store.putheader(name, value)
                self._store.endheaders(body or None)
                answer = self._store.getresponse()
                content = answer.read()
                if fault == "lost":
                    self._end()
                    return
                self.send_response(answer.status, answer.reason)
                for name, value in answer.getheaders():
                    if name.lower() not in _HOP or (self.command == "HEAD" and name.lower() == "content-length"):
                        self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def _end(self) -> None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward  # noqa: N815  as the server calls them

            def send_response(self, code: int, message: str | None = None) -> None:
                self.send_response_only(code, message)

            def log_message(self, *args: object) -> None:
                pass

        return Handler


def gone_since(number: int, how: Fault) -> Callable[[StoreRequest], Fault | None]:
    """The process ends at this request: nothing that follows reaches the store."""
    return lambda request: None if request.number < number else how if request.number == number else "cut"


__all__ = ["Fault", "StoreProxy", "StoreRequest", "gone_since"]
