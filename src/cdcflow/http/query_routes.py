"""Queries of a log's rows over HTTP, the same at every interface that has a log."""

from __future__ import annotations

from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cdcflow.http.explorer import ROWS_MAX, Explorer
from cdcflow.http.responses import Endpoint, as_json


def questions(explorer: Callable[[], Explorer]) -> dict[str, Endpoint]:
    """Return the endpoint of each path. `explorer` may raise HTTPException if the interface has none."""

    async def changes(request: Request) -> Response:
        asked = request.query_params
        found = await run_in_threadpool(
            explorer().changes,
            asked.get("table"),
            key=asked.getlist("key"),
            before=count_of(asked.get("before"), "before"),
            limit=count_of(asked.get("limit"), "limit") or 50,
            values=asked.get("values") == "true",
        )
        return as_json(found)

    async def row(request: Request) -> Response:
        asked = request.query_params
        table, key = table_of(request), asked.getlist("key")
        return as_json(await run_in_threadpool(explorer().row, table, key, asked.get("as_of")))

    async def row_history(request: Request) -> Response:
        asked = request.query_params
        found = await run_in_threadpool(
            explorer().row_history,
            table_of(request),
            asked.getlist("key"),
            asked.get("as_of"),
            count_of(asked.get("before"), "before"),
            count_of(asked.get("limit"), "limit") or 50,
        )
        return as_json(found)

    async def differences(request: Request) -> Response:
        asked = request.query_params
        if (first := asked.get("first")) is None:
            raise HTTPException(400, "first is missing: the earlier point in time, such as 2026-11-25T10:00:00Z")
        limit = count_of(asked.get("limit"), "limit") or 50
        table = table_of(request)
        found = await run_in_threadpool(explorer().differences, table, first, asked.get("last"), limit)
        return as_json(found)

    async def transaction(request: Request) -> Response:
        values = request.query_params.get("values") == "true"
        number = request.path_params["number"]
        return as_json(await run_in_threadpool(explorer().transaction, number, values=values))

    return {
        "/api/v1/changes": changes,
        "/api/v1/row": row,
        "/api/v1/row/history": row_history,
        "/api/v1/differences": differences,
        "/api/v1/transactions/{number:int}": transaction,
    }


def table_of(request: Request) -> str:
    """Return the requested table."""
    if (table := request.query_params.get("table")) is None:
        raise HTTPException(400, "table is missing: name it as schema.table")
    return table


def count_of(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not (text.isdecimal() and 0 < int(text) < 1 << 62):
        raise HTTPException(400, f"{name} must be a whole number, at least 1")
    return min(int(text), ROWS_MAX) if name == "limit" else int(text)
