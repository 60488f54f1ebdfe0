"""The HTTP service as an ASGI application: probes, metrics, the API and the page.

    Guard            Host header, size of a body, headers that tell a browser what it must not do
      └─ routes      /healthz /readyz /health /metrics   open: no row values, nothing can be changed
                     / /page.js …                        open: the page without any data
                     /status /api/v1/…                   who may read; operations: who may operate

What asks the capture or reads files runs in a thread, never in the loop that answers the others.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cdcflow.errors import CdcflowError
from cdcflow.service import metrics, problems
from cdcflow.service.access import SESSION_S, Access, Caller, is_from_our_page, is_json
from cdcflow.service.consumers import LIMIT, LIMIT_MAX, WAIT_MAX_S, ConsumerDoor, Session
from cdcflow.service.explorer import ROWS_MAX, Explorer
from cdcflow.service.health import health, readiness
from cdcflow.service.history import History
from cdcflow.service.hosts import is_ours, port_of
from cdcflow.service.openapi import description
from cdcflow.service.operations import OPERATIONS

BODY_BYTES_MAX = 1 << 16
LOOK_EVERY_S = 0.25
STILL_THERE_EVERY_S = 15.0
PAGE = Path(__file__).parent / "page"
_FILES = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "words.js": "text/javascript",
    "plots.js": "text/javascript",
    "explorer.js": "text/javascript",
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

Endpoint = Callable[[Request], Awaitable[Response]]
Answer = Callable[[Mapping[str, Any], str], object]
"""Carries out a request of somebody, whose name comes second."""


@dataclass(frozen=True, slots=True)
class Doors:
    """What the service shows and does. `status` and `overview` are asked at every request, from several threads;
    `answer` carries out an operation, None: there are none."""

    status: Callable[[], Mapping[str, Any]]
    overview: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    access: Access
    history: History
    answer: Answer | None = None
    explorer: Explorer | None = None
    consumers: ConsumerDoor | None = None


def application(doors: Doors, names: Collection[str]) -> ASGIApp:
    """The application. `names`: what it may be asked by, besides addresses."""
    routes = [
        *(Route(f"/{name}".removesuffix("index.html"), _file(name, kind)) for name, kind in _FILES.items()),
        *(Route(path, endpoint) for path, endpoint in _open(doors).items()),
        *(Route(path, _reading(doors, endpoint)) for path, endpoint in _closed(doors).items()),
        *_consumer_routes(doors),
        Route("/api/v1/session", _Sessions(doors.access).open, methods=["POST"]),
        Route("/api/v1/session", _Sessions(doors.access).close, methods=["DELETE"]),
        Route("/api/v1/operations/{name}", _operating(doors), methods=["POST"]),
    ]
    handlers: Any = {HTTPException: refused, CdcflowError: failed, Exception: failed}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, names)


# ── what anybody may ask ────────────────────────────────────────────────────────────────────────────────────


def _open(doors: Doors) -> dict[str, Endpoint]:
    async def alive(request: Request) -> Response:
        return as_json({"status": "alive"})

    async def ready(request: Request) -> Response:
        code, text = readiness(await run_in_threadpool(doors.status))
        return as_json(text, code)

    async def well(request: Request) -> Response:
        code, text = health(await run_in_threadpool(doors.status))
        return as_json(text, code)

    async def measured(request: Request) -> Response:
        status = await run_in_threadpool(doors.status)
        text = await run_in_threadpool(metrics.exposition, status)
        return Response(text, headers={"Content-Type": metrics.CONTENT_TYPE})

    return {"/healthz": alive, "/readyz": ready, "/health": well, "/metrics": measured}


def _file(name: str, media_type: str) -> Endpoint:
    async def page(request: Request) -> Response:
        plain, packed = _read(name)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(
                packed, media_type=media_type, headers={"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
            )
        return Response(plain, media_type=media_type, headers={"Vary": "Accept-Encoding"})

    return page


@cache
def _read(name: str) -> tuple[bytes, bytes]:
    plain = (PAGE / name).read_bytes()
    return plain, gzip.compress(plain, mtime=0)


# ── what those may ask who may read ─────────────────────────────────────────────────────────────────────────


def _closed(doors: Doors) -> dict[str, Endpoint]:
    async def status(request: Request) -> Response:
        return as_json(await run_in_threadpool(doors.status))

    async def tables(request: Request) -> Response:
        found = await run_in_threadpool(doors.status)
        return as_json({"tables": found.get("tables") or {}, "left_out": found.get("left_out") or []})

    async def overview(request: Request) -> Response:
        def seen() -> Mapping[str, Any]:
            return doors.overview(doors.status())

        caller: Caller = request.state.caller
        may = [name for name, one in OPERATIONS.items() if doors.answer is not None and caller.may(one.role)]
        who: dict[str, object] = {"name": caller.name, "role": caller.role, "operations": may}
        who |= {"session": _session(request) is not None, "needs_token": doors.access.needs_token}
        return as_json({**await run_in_threadpool(seen), "caller": who})

    async def history(request: Request) -> Response:
        return as_json(doors.history.points())

    async def changes(request: Request) -> Response:
        asked = request.query_params
        found = await run_in_threadpool(
            _explorer(doors).changes,
            asked.get("table"),
            key=asked.getlist("key"),
            before=count_of(asked.get("before"), "before"),
            limit=count_of(asked.get("limit"), "limit") or 50,
            values=asked.get("values") == "true",
        )
        return as_json(found)

    async def row(request: Request) -> Response:
        asked = request.query_params
        table, key = _named(request), asked.getlist("key")
        return as_json(await run_in_threadpool(_explorer(doors).row, table, key, asked.get("as_of")))

    async def row_history(request: Request) -> Response:
        asked = request.query_params
        found = await run_in_threadpool(
            _explorer(doors).row_history,
            _named(request),
            asked.getlist("key"),
            asked.get("as_of"),
            count_of(asked.get("before"), "before"),
            count_of(asked.get("limit"), "limit") or 50,
        )
        return as_json(found)

    async def differences(request: Request) -> Response:
        asked = request.query_params
        if (first := asked.get("first")) is None:
            raise HTTPException(400, "first is missing: the earlier moment, such as 2026-11-25T10:00:00Z")
        limit = count_of(asked.get("limit"), "limit") or 50
        table = _named(request)
        found = await run_in_threadpool(_explorer(doors).differences, table, first, asked.get("last"), limit)
        return as_json(found)

    async def transaction(request: Request) -> Response:
        values = request.query_params.get("values") == "true"
        number = request.path_params["number"]
        return as_json(await run_in_threadpool(_explorer(doors).transaction, number, values=values))

    async def api(request: Request) -> Response:
        return as_json(description())

    return {
        "/status": status,
        "/api/v1/status": status,
        "/api/v1/tables": tables,
        "/api/v1/overview": overview,
        "/api/v1/history": history,
        "/api/v1/changes": changes,
        "/api/v1/row": row,
        "/api/v1/row/history": row_history,
        "/api/v1/differences": differences,
        "/api/v1/transactions/{number:int}": transaction,
        "/api/v1/openapi.json": api,
    }


def _reading(doors: Doors, endpoint: Endpoint) -> Endpoint:
    async def read(request: Request) -> Response:
        request.state.caller = await caller_of(doors.access, request)
        return await endpoint(request)

    return read


async def caller_of(access: Access, request: Request) -> Caller:
    """Who asks. A cookie counts only where our own page sent it.

    Raises:
        HTTPException: 401, nobody that we know.
    """
    session = _session(request)
    if session is not None and not is_from_our_page(_lower(request), request.url.scheme) and _is_from_a_page(request):
        session = None
    found = await run_in_threadpool(access.caller, request.headers.get("authorization"), session)
    if found is None:
        raise HTTPException(401, "this needs a token: send it as Authorization: Bearer …")
    return found


def _is_from_a_page(request: Request) -> bool:
    return "origin" in request.headers or "sec-fetch-site" in request.headers


def _explorer(doors: Doors) -> Explorer:
    if doors.explorer is None:
        raise HTTPException(404, "this daemon does not show its change log")
    return doors.explorer


def _named(request: Request) -> str:
    """The table that is asked for."""
    if (table := request.query_params.get("table")) is None:
        raise HTTPException(400, "table is missing: name it as schema.table")
    return table


def count_of(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not (text.isdecimal() and 0 < int(text) < 1 << 62):
        raise HTTPException(400, f"{name} must be a whole number from 1 on")
    return min(int(text), ROWS_MAX) if name == "limit" else int(text)


# ── consumers of the log ────────────────────────────────────────────────────────────────────────────────────


def _consumer_routes(doors: Doors) -> list[Route]:
    async def listed(request: Request) -> Response:
        return as_json({"consumers": await run_in_threadpool(_consumers(doors).listed)})

    async def create(request: Request) -> Response:
        asked = await _body(request)
        caller = await writer_of(doors.access, request)
        if not caller.may("operate"):
            raise HTTPException(403, _may_not(doors.access, caller, "making a consumer"))
        return as_json(await run_in_threadpool(_consumers(doors).create, asked))

    async def commit(request: Request) -> Response:
        asked = await _body(request)
        await writer_of(doors.access, request)
        if not doors.access.needs_token:
            raise HTTPException(
                403, "a commit needs a token, and none is configured: set service.tokens, or use the command line"
            )
        name = request.path_params["name"]
        return as_json(await run_in_threadpool(_consumers(doors).commit, name, asked.get("cursor")))

    async def changes(request: Request) -> Response:
        asked, name = request.query_params, request.path_params["name"]
        limit = min(count_of(asked.get("limit"), "rows") or LIMIT, LIMIT_MAX)
        wait_s = _seconds(asked.get("wait"))
        after = request.headers.get("last-event-id") or asked.get("after")
        session = await run_in_threadpool(_consumers(doors).open, name, after, limit)
        if "text/event-stream" in request.headers.get("accept", ""):
            first = await _first(session)
            return StreamingResponse(_events(session, first), media_type="text/event-stream")
        try:
            found = await _polled(request, session, wait_s)
            return as_json({"consumer": name, "changes": found, "cursor": session.cursor})
        finally:
            session.close()

    return [
        Route("/api/v1/consumers", _reading(doors, listed), methods=["GET"]),
        Route("/api/v1/consumers", create, methods=["POST"]),
        Route("/api/v1/consumers/{name}/changes", _reading(doors, changes), methods=["GET"]),
        Route("/api/v1/consumers/{name}/commit", commit, methods=["POST"]),
    ]


async def _first(session: Session) -> list[dict[str, Any]]:
    """What comes first: what cannot be read is an answer of its own, and no stream that breaks off."""
    try:
        return await run_in_threadpool(session.next)
    except BaseException:
        session.close()
        raise


async def _polled(request: Request, session: Session, wait_s: float) -> list[dict[str, Any]]:
    """What comes next, within so many seconds."""
    until = time.monotonic() + wait_s
    while True:
        found = await run_in_threadpool(session.next)
        if found or time.monotonic() >= until or await request.is_disconnected():
            return found
        await asyncio.sleep(LOOK_EVERY_S)


async def _events(session: Session, found: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Changes as server-sent events, until the other side leaves."""
    try:
        heard = time.monotonic()
        yield ": a consumer of the log\n\n"
        while True:
            for change in found:
                yield f"id: {change['cursor']}\nevent: change\ndata: {json.dumps(change)}\n\n"
            if found:
                heard = time.monotonic()
            else:
                await asyncio.sleep(LOOK_EVERY_S)
            if time.monotonic() - heard > STILL_THERE_EVERY_S:
                heard = time.monotonic()
                yield ": still there\n\n"
            try:
                found = await run_in_threadpool(session.next)
            except CdcflowError as error:
                yield f"event: problem\ndata: {json.dumps(problems.of_error(error))}\n\n"
                return
    finally:
        session.close()


def _consumers(doors: Doors) -> ConsumerDoor:
    if doors.consumers is None:
        raise HTTPException(404, "this daemon does not show its change log")
    return doors.consumers


def _seconds(text: str | None) -> float:
    try:
        found = float(text or 0)
    except ValueError:
        found = -1.0
    if not 0 <= found <= WAIT_MAX_S:
        raise HTTPException(400, f"wait must be a number of seconds up to {WAIT_MAX_S:.0f}")
    return found


# ── what those may do who may operate ───────────────────────────────────────────────────────────────────────


def _operating(doors: Doors) -> Endpoint:
    async def operate(request: Request) -> Response:
        name = request.path_params["name"]
        operation = OPERATIONS.get(name)
        if operation is None or doors.answer is None:
            raise HTTPException(404, f"there is no operation {name!r}; there are: {', '.join(sorted(OPERATIONS))}")
        arguments = await _body(request)
        caller = await writer_of(doors.access, request)
        if not caller.may(operation.role):
            raise HTTPException(403, _may_not(doors.access, caller, name))
        return as_json(await run_in_threadpool(doors.answer, {**arguments, "op": name}, f"HTTP, token {caller.name}"))

    return operate


def _may_not(access: Access, caller: Caller, name: str) -> str:
    if not access.needs_token:
        return f"{name} needs a token, and none is configured: set service.tokens, or use the command line"
    return f"{name} needs a token with the role operate; {caller.name} has the role {caller.role}"


async def writer_of(access: Access, request: Request) -> Caller:
    """Who asks for an operation: by a token, or by our own page in a session."""
    by_token = "authorization" in request.headers
    if not by_token and _session(request) is not None and not is_from_our_page(_lower(request), request.url.scheme):
        raise HTTPException(403, "a session counts only for requests of the page itself")
    return await caller_of(access, request)


async def _body(request: Request) -> dict[str, Any]:
    if not is_json(request.headers.get("content-type")):
        raise HTTPException(415, "send the arguments as Content-Type: application/json")
    try:
        found = json.loads(await request.body() or b"{}")
    except ValueError:
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(found, dict):
        raise HTTPException(400, "the body must be one JSON object")
    if "op" in found:
        raise HTTPException(400, "the operation is named in the path, not in the body")
    return found


class _Sessions:
    """The page trades a token for a session, whose cookie no script can read."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def open(self, request: Request) -> Response:
        token = (await _body(request)).get("token")
        if not is_from_our_page(_lower(request), request.url.scheme):
            raise HTTPException(403, "only the page itself opens a session; others send the token with each request")
        made = await run_in_threadpool(self._access.open_session, token) if isinstance(token, str) else None
        if made is None:
            raise HTTPException(401, "nobody has this token")
        answer = as_json({"ok": True})
        answer.set_cookie(_cookie(request), made, max_age=int(SESSION_S), httponly=True, samesite="strict")
        return answer

    async def close(self, request: Request) -> Response:
        if not is_from_our_page(_lower(request), request.url.scheme):
            raise HTTPException(403, "only the page itself closes a session")
        if (session := _session(request)) is not None:
            self._access.close_session(session)
        answer = as_json({"ok": True})
        answer.delete_cookie(_cookie(request), httponly=True, samesite="strict")
        return answer


def _session(request: Request) -> str | None:
    return request.cookies.get(_cookie(request))


def _cookie(request: Request) -> str:
    """Cookies know no ports: two daemons on one machine must not overwrite each other's."""
    return f"cdcflow_session_{port_of(request.headers.get('host', ''))}"


# ── around all of it ────────────────────────────────────────────────────────────────────────────────────────


class Guard:
    """Refuses requests under foreign names and bodies without end, and says to browsers what they must not do."""

    def __init__(self, app: ASGIApp, names: Collection[str], body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._app = app
        self._names = names
        self._body_bytes_max = body_bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        guarded = _with_headers(send)
        headers = dict(scope["headers"])
        if not is_ours(headers.get(b"host", b"").decode("latin-1"), self._names):
            await Response(
                "this daemon does not answer to this host name (see service.hosts or serve.hosts)\n",
                421,
                media_type="text/plain",
            )(scope, receive, guarded)
        elif b"transfer-encoding" in headers or _length(headers) > self._body_bytes_max:
            await problem_answer(413, "Content Too Large", "the body is too large, or of unknown length")(
                scope, receive, guarded
            )
        else:
            await self._app(scope, receive, guarded)


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


async def refused(request: Request, error: HTTPException) -> Response:
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
}


async def failed(request: Request, error: Exception) -> Response:
    found = problems.of_error(error)
    return Response(
        json.dumps(found) + "\n", int(str(found["status"])), headers={"Content-Type": problems.CONTENT_TYPE}
    )


def problem_answer(code: int, title: str, detail: str, remedy: str | None = None) -> Response:
    found = problems.problem(code, title, detail, remedy)
    return Response(json.dumps(found) + "\n", code, headers={"Content-Type": problems.CONTENT_TYPE})


def as_json(value: object, code: int = 200) -> Response:
    return Response(json.dumps(value, default=str) + "\n", code, media_type="application/json")


def _lower(request: Request) -> Mapping[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}
