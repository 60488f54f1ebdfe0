"""The HTTP server: the application of `web` on uvicorn, in a thread of the daemon.

The libraries come with the extra `service`, so a daemon that does not listen needs none of them.
"""

from __future__ import annotations

import importlib.util
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from cdcflow.daemon.interfaces.history import SampleHistory
from cdcflow.errors import ConfigurationError
from cdcflow.http.access import Access
from cdcflow.http.certificate import ServerCertificate

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from cdcflow.http.consumers import ConsumerDoor
    from cdcflow.http.explorer import Explorer

StatusOf = Callable[[], Mapping[str, Any]]
Overview = Callable[[Mapping[str, Any]], Mapping[str, Any]]
LIBRARIES = ("starlette", "uvicorn", "prometheus_client")


class HttpServer:
    """Serves probes, metrics, the API and the page until closed. `hosts` are the host names that requests may use.

    `answer` carries out an operation for a caller, whose name is the second argument; if it is `None`, there are no
    operations. `overview` adds to a status the other facts that the page shows, `sample` returns the plotted numbers;
    with `history` the samples are taken elsewhere. `application`: an application to serve instead, created for the
    allowed host names. `setting`: the name of the setting that `listen` is. `certificate`: serve HTTPS with it.
    """

    def __init__(
        self,
        listen: str,
        status: StatusOf,
        hosts: Collection[str] = (),
        *,
        access: Access | None = None,
        answer: Callable[[Mapping[str, Any], str], object] | None = None,
        overview: Overview | None = None,
        sample: StatusOf | None = None,
        explorer: Explorer | None = None,
        history: SampleHistory | None = None,
        consumers: ConsumerDoor | None = None,
        setting: str = "service.listen",
        application: Callable[[Collection[str]], ASGIApp] | None = None,
        certificate: ServerCertificate | None = None,
    ) -> None:
        host, _, port = listen.rpartition(":")
        self._listen = listen
        self._address = (host.strip("[]"), int(port))
        self._names = frozenset({"localhost", host.strip("[]").lower(), *(h.lower() for h in hosts)})
        self._status = status
        self._access = access or Access()
        self._answer = answer
        self._overview: Overview = overview or (lambda found: {"status": found})
        self._history = history or SampleHistory(sample or status)
        self._takes_samples = history is None and application is None
        self._setting = setting
        self._application = application
        self._explorer = explorer
        self._consumers = consumers
        self._certificate = certificate
        self._socket: socket.socket | None = None
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port it listens on, once started (the settings may say 0: any that is free)."""
        if self._socket is None:
            raise ValueError("not started")
        return int(self._socket.getsockname()[1])

    @property
    def history(self) -> SampleHistory:
        """The data of the page's plots."""
        return self._history

    def start(self, before: HttpServer | None = None) -> None:
        """Begin to answer.

        `before`: an earlier server of this process that answers until it is closed, perhaps at the same port; its
        sessions continue here.

        Raises:
            ConfigurationError: the address or a token is unavailable, or the libraries are not installed.
        """
        check_installed()
        self._access.check()
        self._socket = self._bind(None if before is None else before._socket)
        if before is not None:
            self._access.go_on_from(before._access)
        self._server = self._make_server()
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="http", daemon=True)
        self._thread.start()
        if self._takes_samples:
            self._history.start()

    def give_way_to(self, after: HttpServer) -> None:
        """Require `after`'s tokens from now on, until this server is closed."""
        self._access.give_way_to(after._access)

    def close(self, within_s: int = 1) -> None:
        """Close the server. Requests that are being answered have `within_s` seconds."""
        if self._takes_samples:
            self._history.close()
        if self._server is not None and self._thread is not None:
            self._server.config.timeout_graceful_shutdown = within_s
            self._server.should_exit = True
            self._thread.join(timeout=within_s + 4)
        if self._socket is not None:
            self._socket.close()

    def _bind(self, before: socket.socket | None) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        try:
            if before is None or before.getsockname()[1] != self._address[1]:
                return socket.create_server(self._address, family=family)
            return _sharing_a_port(self._address, family, before)
        except OSError as error:
            raise ConfigurationError(
                f"the daemon cannot listen on {self._listen} ({self._setting}): {error.strerror}",
                remedy=f"choose another port, or leave {self._setting} out",
            ) from None

    def _make_server(self) -> uvicorn.Server:
        import uvicorn

        from cdcflow.daemon.interfaces.web import DaemonInterfaces, application
        from cdcflow.http.connection import PromptConnection
        from cdcflow.http.responses import Bounded
        from cdcflow.http.tls_connection import SecuredConnections

        doors = DaemonInterfaces(
            self._status, self._overview, self._access, self._history, self._answer, self._explorer, self._consumers
        )
        make = self._application or partial(application, doors)
        config = uvicorn.Config(
            Bounded(make(self._names)),
            http=PromptConnection if self._certificate is None else SecuredConnections(self._certificate),  # type: ignore[arg-type]
            loop="asyncio",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,  # paths contain keys, which are values of rows
            log_level="critical",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=10,
        )
        # Outside the main thread uvicorn does not install signal handlers: signals are handled by the daemon.
        return uvicorn.Server(config)


def _sharing_a_port(address: tuple[str, int], family: int, before: socket.socket) -> socket.socket:
    """Return a second socket next to one of this process that listens at the same port and is closed soon.

    No client that connects in between is refused: at the same address both are one socket.
    """
    if before.family == family and before.getsockname()[:2] == address:
        return before.dup()
    before.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        # Another daemon does not request a shared port, and is still refused; the kernel shares only within the same
        # user.
        return socket.create_server(address, family=family, reuse_port=True)
    finally:
        before.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)


def check_installed() -> None:
    """Check that the extra's libraries are installed.

    Raises:
        ConfigurationError: one is missing.
    """
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"service.listen needs {', '.join(missing)}, which is not installed",
            remedy="pip install 'cdcflow[service]'",
        )
