"""Files over HTTP that a test controls: a repository that refuses each n-th request the first time it is sent."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable
from pathlib import Path

from tests.servers.http_threads import ThreadedServer


class Repository(ThreadedServer):
    """Serves a folder on loopback. A context manager.

    `refuses` is what an n-th request gets instead of its answer, once for each path: an HTTP status, or 0 for a
    connection that ends without an answer. `asked` are all requests so far, `refused` those of them that were.
    """

    def __init__(self, folder: Path, *, every: int, refuses: int) -> None:
        self.asked: list[str] = []
        self.refused: list[str] = []
        self._folder, self._every, self._status = folder, every, refuses
        self._lock = threading.Lock()
        super().__init__(self._handler())
        self.url = f"{self.uri}/"

    def _refuses(self, request: str) -> bool:
        with self._lock:
            self.asked.append(request)
            refused = len(self.asked) % self._every == 0 and request not in self.refused
            if refused:
                self.refused.append(request)
            return refused

    def _handler(self) -> Callable[..., http.server.SimpleHTTPRequestHandler]:
        outer = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args: object) -> None:
                super().__init__(*args, directory=str(outer._folder))  # type: ignore[arg-type]  # the arguments of the server

            def send_head(self):  # type: ignore[no-untyped-def]  # what GET and HEAD both ask
                if not outer._refuses(f"{self.command} {self.path}"):
                    return super().send_head()
                if outer._status:
                    self.send_error(outer._status)
                else:
                    self.close_connection = True
                    self.connection.close()
                return None

            def log_message(self, *args: object) -> None:
                pass

        return Handler


__all__ = ["Repository"]
