"""An HTTP server in threads of the test's process, on a free port of the loopback."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self


class ThreadedServer:
    """Serves while it is entered. `handler` makes the handler of a request, as `http.server` calls it."""

    def __init__(self, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.port: int = self._server.server_address[1]
        self.uri = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class Posted(NamedTuple):
    """A request: its path, and its body without compression."""

    path: str
    body: bytes


class PostReceiver(ThreadedServer):
    """Keeps the requests that it gets, in `got`. `answers` are its next status codes, 200 after them."""

    def __init__(self) -> None:
        self.got: list[Posted] = []
        self.answers: list[int] = []
        self._changed = threading.Condition()
        super().__init__(_receiving(self))

    def take(self, request: Posted) -> int:
        """Keep a request, and return the status code of the answer."""
        with self._changed:
            self.got.append(request)
            self._changed.notify_all()
            return self.answers.pop(0) if self.answers else 200

    def wait_for(self, wished: Callable[[], object]) -> None:
        """Wait until this holds of the requests; it is checked after each of them."""
        with self._changed:
            assert self._changed.wait_for(wished, 60), self.got


def _receiving(receiver: PostReceiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            self.send_response(receiver.take(Posted(self.path, body)))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return Handler
