"""Common to all HTTP interfaces: JSON answers, problems, and the checks before the routes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost, SinkUnavailable, SourceUnavailable
from cdcflow.http.access import is_ours

CONTENT_TYPE = "application/problem+json"

_CODES: tuple[tuple[type[CdcflowError], int], ...] = (
    (SourceUnavailable, 503),
    (SinkUnavailable, 503),
    (HistoryLost, 410),
    (ConfigurationError, 400),
)


BODY_BYTES_MAX = 1 << 16
REQUESTS_MAX = 64
PROBES = ("/healthz", "/readyz")
PROBE_THREADS = 4
T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Bounded:
    """Answers at most `REQUESTS_MAX` requests at the same time, and the probes always.

    A service that queries the probes restarts a daemon that does not answer. A request counts once its whole body has
    arrived, so that slow bodies do not block other requests.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._answering: set[int] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in PROBES:
            await self._app(scope, receive, send)
        elif len(self._answering) >= REQUESTS_MAX:
            answer = problem_answer(503, "Service Unavailable", f"{REQUESTS_MAX} requests are being answered already")
            answer.headers["Retry-After"] = "1"
            await answer(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counting() -> Message:
            message = await receive()
            if not message.get("more_body"):
                self._answering.add(id(scope))
            return message

        if b"content-length" not in dict(scope["headers"]):
            self._answering.add(id(scope))
        try:
            await self._app(scope, counting, send)
        finally:
            self._answering.discard(id(scope))


class ProbeThreads:
    """Threads for the probes of one server; other requests, which may be slow, have separate threads."""

    def __init__(self) -> None:
        self._limiter: CapacityLimiter | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """Return the result of a function that may block."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(PROBE_THREADS)  # belongs to the event loop that runs now
        return await to_thread.run_sync(function, limiter=self._limiter)


def guard_routes(routes: Sequence[Route], names: Collection[str], body_bytes_max: int = BODY_BYTES_MAX) -> ASGIApp:
    """Return an application with these routes, whose requests pass a `Guard` first."""
    handlers: Any = {HTTPException: refusal, CdcflowError: failure, Exception: failure}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, names, body_bytes_max)


class Guard:
    """Refuses requests with foreign host names or too large bodies, and adds security headers for browsers."""

    def __init__(self, app: ASGIApp, names: Collection[str], body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._app = app
        self._names = names
        self._body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        guard_routes = _with_headers(send)
        headers = dict(scope["headers"])
        if not is_ours(headers.get(b"host", b"").decode("latin-1"), self._names):
            await Response(
                "this daemon does not answer to this host name (see hosts in the settings)\n",
                421,
                media_type="text/plain",
            )(scope, receive, guard_routes)
        elif b"transfer-encoding" in headers or _length(headers) > self._body_bytes_max:
            await problem_answer(413, "Content Too Large", "the body is too large, or of unknown length")(
                scope, receive, guard_routes
            )
        else:
            await self._app(scope, receive, guard_routes)


def _length(headers: Mapping[bytes, bytes]) -> int:
    text = headers.get(b"content-length", b"0")
    return int(text) if text.isdigit() else 1 << 62


def _with_headers(send: Send) -> Send:
    added = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *added]
        await send(message)

    return sending


async def refusal(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404 and not request.url.path.startswith("/api/"):
        hint = "try /, /healthz, /readyz, /metrics, /status or /api/v1/openapi.json\n"
        return Response(hint, 404, media_type="text/plain")
    remedy = "configure one in service.tokens or serve.tokens, and send it" if error.status_code == 401 else None
    answer = problem_answer(error.status_code, _TITLES.get(error.status_code, "Refused"), error.detail, remedy)
    answer.headers.update(error.headers or {})
    if error.status_code == 401:
        answer.headers["WWW-Authenticate"] = "Bearer"
    return answer


_TITLES = {
    400: "Bad Request",
    401: "Token Needed",
    403: "Not Allowed",
    404: "Not Found",
    405: "Method Not Allowed",
    415: "Not JSON",
    429: "Too Many Requests",
}


async def failure(request: Request, error: Exception) -> Response:
    found = of_error(error)
    return Response(json.dumps(found) + "\n", int(str(found["status"])), headers={"Content-Type": CONTENT_TYPE})


def problem_answer(code: int, title: str, detail: str, remedy: str | None = None) -> Response:
    found = problem(code, title, detail, remedy)
    return Response(json.dumps(found) + "\n", code, headers={"Content-Type": CONTENT_TYPE})


def as_json(value: object, code: int = 200) -> Response:
    return Response(json.dumps(value, default=str) + "\n", code, media_type="application/json")


def problem(code: int, title: str, detail: str, remedy: str | None = None) -> dict[str, object]:
    """Return a problem's fields (RFC 9457), with the remedy in a separate one. `title` names the kind of problem and is
    the same for all of that kind; `detail` describes this case."""
    found: dict[str, object] = {"type": "about:blank", "title": title, "status": code, "detail": detail}
    return found if remedy is None else {**found, "remedy": remedy}


def of_error(error: Exception) -> dict[str, object]:
    """Return the problem for an error that ended an operation. It has no text of unexpected errors, which may hold row
    values."""
    if isinstance(error, CdcflowError):
        code = next((code for kind, code in _CODES if isinstance(error, kind)), 500)
        detail = str(error).removesuffix(f"\n  {error.remedy}")
        return problem(code, type(error).__name__, detail, error.remedy)
    return problem(500, "InvariantViolated", f"the daemon could not answer: {type(error).__name__}")
