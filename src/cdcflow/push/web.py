"""The HTTP API of collections as an ASGI application.

    Guard            Host header, size of a body, headers that tell a browser what it must not do
      └─ routes      /healthz /readyz /metrics                 open
                     GET  /api/v1/collections /row /changes …  role read
                          /api/v1/consumers …                  as in the daemon's API
                     POST /api/v1/collections/<name>           role operate, with a token

A body is read and checked in a thread; the writer decides what happens, and makes it durable.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from cdcflow.http import metrics, responses
from cdcflow.http.access import Access, Caller, is_json
from cdcflow.http.callers import caller_of, reading
from cdcflow.http.consumer_routes import consumer_routes
from cdcflow.http.consumers import ConsumerDoor
from cdcflow.http.explorer import Explorer
from cdcflow.http.query_routes import questions
from cdcflow.http.responses import Endpoint, as_json, guard_routes
from cdcflow.push import columns, operations
from cdcflow.push import metrics as push_metrics
from cdcflow.push.openapi import description
from cdcflow.push.operations import OperationFailure, RowOperation
from cdcflow.push.remembered import Once
from cdcflow.push.schemas import CollectionShape, Wrong
from cdcflow.push.writer import CollectionWriter, Refused, Written
from cdcflow.push.writer import Request as Write

KEY_CHARACTERS_MAX = 255


@dataclass(frozen=True, slots=True)
class PushInterfaces:
    """The collections that the API serves, and to whom. `explorer` answers queries of rows, `consumers` hands out
    changes."""

    shapes: Mapping[str, CollectionShape]
    writer: CollectionWriter
    access: Access
    explorer: Explorer
    consumers: ConsumerDoor
    body_bytes_max: int


def application(doors: PushInterfaces, names: Collection[str]) -> ASGIApp:
    """Return the application. `names`: the host names that requests may use, other than addresses."""
    routes = [
        Route("/healthz", _alive),
        Route("/readyz", _ready(doors)),
        Route("/metrics", _metrics_endpoint(doors)),
        *(Route(path, reading(doors.access, endpoint)) for path, endpoint in _restricted_routes(doors).items()),
        *consumer_routes(doors.access, lambda: doors.consumers),
        Route("/api/v1/collections/{name}", _writing(doors), methods=["POST"]),
    ]
    return guard_routes(routes, names, doors.body_bytes_max)


async def _alive(request: Request) -> Response:
    return as_json({"status": "alive"})


def _ready(doors: PushInterfaces) -> Endpoint:
    async def ready(request: Request) -> Response:
        is_well = not doors.writer.wait(0)
        return as_json({"status": "ready" if is_well else "ended"}, 200 if is_well else 503)

    return ready


def _metrics_endpoint(doors: PushInterfaces) -> Endpoint:
    async def metrics_page(request: Request) -> Response:
        text = await run_in_threadpool(metrics.exposition, push_metrics.status(doors.writer), push_metrics.LISTED)
        return Response(text, headers={"Content-Type": metrics.CONTENT_TYPE})

    return metrics_page


# ── role read ───────────────────────────────────────────────────────────────────────────────────────────


def _restricted_routes(doors: PushInterfaces) -> dict[str, Endpoint]:
    async def collections(request: Request) -> Response:
        listed = [
            {
                "name": shape.name,
                "table": str(shape.table.id),
                "key": list(shape.table.key),
                "columns": {c.name: str(c.type.arrow) for c in shape.table.columns},
                "required": sorted(shape.required),
            }
            for shape in doors.shapes.values()
        ]
        newest = int(doors.writer.checkpoint.next_offset) - 1
        return as_json({"collections": listed, "offset": newest})

    async def api(request: Request) -> Response:
        return as_json(description(doors.shapes.values()))

    own = {"/api/v1/collections": collections, "/api/v1/openapi.json": api}
    return own | questions(lambda: doors.explorer)


# ── role operate ────────────────────────────────────────────────────────────────────────────────────────


def _writing(doors: PushInterfaces) -> Endpoint:
    async def write(request: Request) -> Response:
        caller = await caller_of(doors.access, request)
        if not caller.may("operate"):
            raise HTTPException(403, _may_not(doors.access, caller))
        shape = doors.shapes.get(request.path_params["name"])
        if shape is None:
            raise HTTPException(404, f"there is no such collection; there are: {', '.join(sorted(doors.shapes))}")
        wanted = await _requested_writes(request, shape, caller)
        if isinstance(wanted, Refused):
            return _refusal(wanted)
        answer = await asyncio.wrap_future(doors.writer.submit(wanted))
        return _refusal(answer) if isinstance(answer, Refused) else _answer(answer)

    return write


def _may_not(access: Access, caller: Caller) -> str:
    if not access.needs_token:
        return f"writing needs a token, but no token is configured: set {access.setting}"
    return f"writing needs a token with the role operate; {caller.name} has the role {caller.role}"


async def _requested_writes(request: Request, shape: CollectionShape, caller: Caller) -> Write | Refused:
    """Return the requested writes.

    Raises:
        HTTPException: the request cannot be parsed.
    """
    kind = request.headers.get("content-type")
    is_arrow = kind is not None and kind.partition(";")[0].strip().lower() == columns.CONTENT_TYPE
    if not is_arrow and not is_json(kind):
        raise HTTPException(415, f"send operations as application/json, or rows as {columns.CONTENT_TYPE}")
    if "content-encoding" in request.headers:
        raise HTTPException(415, "send the body unencoded, without Content-Encoding")
    atomic = request.query_params.get("atomic", "true")
    if atomic not in ("true", "false"):
        raise HTTPException(400, "atomic must be true or false")
    body = await request.body()
    once = _once(request, shape, caller, f"{is_arrow} {atomic}".encode(), body)
    read = partial(_of_columns if is_arrow else _of_json, shape, body, atomic == "true")
    try:
        found = await run_in_threadpool(read)
    except Wrong as error:
        raise HTTPException(400, error.reason) from None
    return found if isinstance(found, Refused) else Write(shape, found, len(body), atomic == "true", once)


def _once(request: Request, shape: CollectionShape, caller: Caller, *body: bytes) -> Once | None:
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= KEY_CHARACTERS_MAX:
        raise HTTPException(400, f"Idempotency-Key must have 1 to {KEY_CHARACTERS_MAX} characters")
    return Once.of(caller.name, shape.name, key, *body)


def _of_json(shape: CollectionShape, body: bytes, atomic: bool) -> list[RowOperation | OperationFailure]:
    try:
        given = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Wrong("the body is not JSON") from None
    return operations.parse_operations(shape, given)


def _no_number(name: str) -> None:
    raise ValueError(name)


def _of_columns(shape: CollectionShape, body: bytes, atomic: bool) -> pa.RecordBatch | Refused:
    rows, failures = columns.read(shape, body)
    if not atomic:
        raise Wrong("atomic=false is for operations; the rows of a stream are one transaction")
    return Refused("rows of the stream cannot be taken, and nothing was written", failures) if failures else rows


def _answer(answer: Written) -> Response:
    headers = {"Idempotency-Replayed": "true"} if answer.again else None
    return Response(f"{answer.answer}\n", media_type="application/json", headers=headers)


def _refusal(answer: Refused) -> Response:
    code, title = (409, "Conflict") if answer.conflict else (422, "Unprocessable Content")
    found = responses.problem(code, title, answer.detail)
    if answer.failures:
        found["errors"] = [failure.to_json() for failure in answer.failures]
    return Response(f"{json.dumps(found)}\n", code, headers={"Content-Type": responses.CONTENT_TYPE})
