"""The HTTP service as an ASGI application: probes, metrics, the API and the page.

    Guard            Host header, size of a body, headers that tell a browser what it must not do
      └─ routes      /healthz /readyz /health /metrics   open: no row values, nothing can be changed
                     / /page.js …                        open: the page without any data
                     /status /api/v1/…                   role read; operations: role operate

Whatever queries the capture or reads files runs in a thread, never in the loop that answers other requests.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from cdcflow.daemon.interfaces.fleet_report import capture_report
from cdcflow.daemon.interfaces.health import health, readiness
from cdcflow.daemon.interfaces.history import SampleHistory
from cdcflow.fleet.report import VERSION
from cdcflow.http import metrics
from cdcflow.http.access import SESSION_S, Access, Caller, is_from_our_page
from cdcflow.http.callers import body_of, caller_with, check_rate, cookie_of, headers_of, reading, session_of
from cdcflow.http.consumer_routes import consumer_routes
from cdcflow.http.consumers import ConsumerDoor
from cdcflow.http.explorer import Explorer
from cdcflow.http.openapi import description
from cdcflow.http.operations import OPERATIONS
from cdcflow.http.query_routes import questions
from cdcflow.http.responses import Endpoint, ProbeThreads, as_json, guard_routes

PAGE = Path(__file__).parent / "page"
_FILES = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "words.js": "text/javascript",
    "session.js": "text/javascript",
    "plots.js": "text/javascript",
    "explorer.js": "text/javascript",
}
Answer = Callable[[Mapping[str, Any], str], object]
"""Carries out a request of a caller, whose name is the second argument."""


@dataclass(frozen=True, slots=True)
class DaemonInterfaces:
    """The data that the service shows, and the operations that it offers.

    `status` and `overview` are called at every request, from several threads; `answer` carries out an operation, `None`
    if there are no operations.
    """

    status: Callable[[], Mapping[str, Any]]
    overview: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    access: Access
    history: SampleHistory
    answer: Answer | None = None
    explorer: Explorer | None = None
    consumers: ConsumerDoor | None = None


def application(doors: DaemonInterfaces, names: Collection[str]) -> ASGIApp:
    """Return the application. `names`: the host names that requests may use, other than addresses."""
    routes = [
        *(Route(f"/{name}".removesuffix("index.html"), page_file(name, kind)) for name, kind in _FILES.items()),
        *(Route(path, endpoint) for path, endpoint in _open(doors).items()),
        *(Route(path, reading(doors.access, endpoint)) for path, endpoint in _restricted_routes(doors).items()),
        *consumer_routes(doors.access, _consumers(doors)),
        Route("/api/v1/session", PageSessions(doors.access).open, methods=["POST"]),
        Route("/api/v1/session", PageSessions(doors.access).close, methods=["DELETE"]),
        Route("/api/v1/operations/{name}", _operating(doors), methods=["POST"]),
    ]
    return guard_routes(routes, names)


# ── open to all ─────────────────────────────────────────────────────────────────────────────────────────


def _open(doors: DaemonInterfaces) -> dict[str, Endpoint]:
    probes = ProbeThreads()

    async def alive(request: Request) -> Response:
        return as_json({"status": "alive"})

    async def ready(request: Request) -> Response:
        code, text = readiness(await probes.run(doors.status))
        return as_json(text, code)

    async def well(request: Request) -> Response:
        code, text = health(await probes.run(doors.status))
        return as_json(text, code)

    async def metrics_page(request: Request) -> Response:
        status = await run_in_threadpool(doors.status)
        text = await run_in_threadpool(metrics.exposition, status)
        return Response(text, headers={"Content-Type": metrics.CONTENT_TYPE})

    return {"/healthz": alive, "/readyz": ready, "/health": well, "/metrics": metrics_page}


def page_file(name: str, media_type: str, folder: Path = PAGE) -> Endpoint:
    """Serves a file of a page."""

    async def page(request: Request) -> Response:
        plain, packed = _read(folder / name)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(
                packed, media_type=media_type, headers={"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
            )
        return Response(plain, media_type=media_type, headers={"Vary": "Accept-Encoding"})

    return page


@cache
def _read(path: Path) -> tuple[bytes, bytes]:
    plain = path.read_bytes()
    return plain, gzip.compress(plain, mtime=0)


# ── role read ───────────────────────────────────────────────────────────────────────────────────────────


def _restricted_routes(doors: DaemonInterfaces) -> dict[str, Endpoint]:
    async def status(request: Request) -> Response:
        return as_json(await run_in_threadpool(doors.status))

    async def tables(request: Request) -> Response:
        found = await run_in_threadpool(doors.status)
        return as_json({"tables": found.get("tables") or {}, "left_out": found.get("left_out") or []})

    async def overview(request: Request) -> Response:
        def current_overview() -> Mapping[str, Any]:
            return doors.overview(doors.status())

        caller: Caller = request.state.caller
        may = [name for name, one in OPERATIONS.items() if doors.answer is not None and caller.may(one.role)]
        who: dict[str, object] = {"name": caller.name, "role": caller.role, "operations": may}
        who |= {"session": session_of(request) is not None, "needs_token": doors.access.needs_token}
        return as_json({**await run_in_threadpool(current_overview), "caller": who})

    async def report(request: Request) -> Response:
        def current_report() -> Mapping[str, Any]:
            return asdict(capture_report(doors.overview(doors.status()), ""))

        return as_json({"format": VERSION, **await run_in_threadpool(current_report)})

    async def history(request: Request) -> Response:
        return as_json(doors.history.points())

    async def api(request: Request) -> Response:
        return as_json(description())

    return {
        "/status": status,
        "/api/v1/status": status,
        "/api/v1/tables": tables,
        "/api/v1/overview": overview,
        "/api/v1/history": history,
        "/api/v1/report": report,
        **questions(_explorer(doors)),
        "/api/v1/openapi.json": api,
    }


def _explorer(doors: DaemonInterfaces) -> Callable[[], Explorer]:
    def explorer() -> Explorer:
        if doors.explorer is None:
            raise HTTPException(404, "this daemon does not show its change log")
        return doors.explorer

    return explorer


def _consumers(doors: DaemonInterfaces) -> Callable[[], ConsumerDoor]:
    def consumers() -> ConsumerDoor:
        if doors.consumers is None:
            raise HTTPException(404, "this daemon does not show its change log")
        return doors.consumers

    return consumers


# ── role operate ────────────────────────────────────────────────────────────────────────────────────────


def _operating(doors: DaemonInterfaces) -> Endpoint:
    async def operate(request: Request) -> Response:
        name = request.path_params["name"]
        operation = OPERATIONS.get(name)
        if operation is None or doors.answer is None:
            raise HTTPException(404, f"there is no operation {name!r}; there are: {', '.join(sorted(OPERATIONS))}")
        arguments = await body_of(request)
        caller = await caller_with(operation.role, doors.access, request, name)
        return as_json(await run_in_threadpool(doors.answer, {**arguments, "op": name}, f"HTTP, token {caller.name}"))

    return operate


class PageSessions:
    """Exchanges a token for a session of the page, whose cookie no script can read."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def open(self, request: Request) -> Response:
        token = (await body_of(request)).get("token")
        if not is_from_our_page(headers_of(request), request.url.scheme):
            raise HTTPException(403, "only the page itself opens a session; others send the token with each request")
        check_rate(self._access, request, None)
        made = await run_in_threadpool(self._access.open_session, token) if isinstance(token, str) else None
        if made is None:
            raise HTTPException(401, "this token is not known")
        answer = as_json({"ok": True})
        answer.set_cookie(cookie_of(request), made, max_age=int(SESSION_S), **_cookie_options(request))
        return answer

    async def close(self, request: Request) -> Response:
        if not is_from_our_page(headers_of(request), request.url.scheme):
            raise HTTPException(403, "only the page itself closes a session")
        if (session := session_of(request)) is not None:
            self._access.close_session(session)
        answer = as_json({"ok": True})
        answer.delete_cookie(cookie_of(request), **_cookie_options(request))
        return answer


def _cookie_options(request: Request) -> dict[str, Any]:
    return {"httponly": True, "samesite": "strict", "secure": request.url.scheme == "https"}
