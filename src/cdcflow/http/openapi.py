"""The API's description in OpenAPI 3.1, generated from the list of operations.

Other interfaces use parts of it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cdcflow.http.consumers import LIMIT, LIMIT_MAX
from cdcflow.http.operations import OPERATIONS, Operation
from cdcflow.version import __version__

KINDS: Mapping[str, dict[str, Any]] = {
    "tables": {"type": "array", "items": {"type": "string", "examples": ["public.orders"]}},
    "keys": {"type": "array", "items": {"type": "array", "items": {"type": "string"}, "minItems": 1}},
    "text": {"type": "string"},
    "count": {"type": "integer", "minimum": 0},
    "flag": {"type": "boolean"},
}
"""The schema of each kind of argument."""

_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string", "description": "The kind of the problem."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What was attempted, on what, and what was found."},
        "remedy": {"type": "string", "description": "What to do about it."},
    },
}
_CHANGE: dict[str, Any] = {
    "type": "object",
    "required": ["offset", "transaction", "commit_ts", "op", "table", "unchanged"],
    "properties": {
        "offset": {"type": "integer"},
        "transaction": {"type": "integer"},
        "commit_ts": {"type": "string", "format": "date-time"},
        "op": {"enum": ["c", "u", "d", "r", "t"], "description": "create, update, delete, read, truncate"},
        "table": {"type": "string"},
        "unchanged": {"type": "array", "items": {"type": "string"}, "description": "Columns that were not sent."},
        "values": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        "before": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
    },
}
_LIMIT = {
    "name": "limit",
    "in": "query",
    "description": "How many.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 500, "default": 50},
}
_VALUES = {
    "name": "values",
    "in": "query",
    "description": "Show row values as well, as texts.",
    "schema": {"type": "boolean", "default": False},
}


_PROBES = {
    "/healthz": "Is the daemon alive?",
    "/readyz": "Are changes being captured?",
    "/health": "Do positions move?",
    "/metrics": "Metrics for Prometheus.",
}


def description() -> dict[str, Any]:
    """Return the whole description of the daemon's API."""
    paths = {
        **probes(_PROBES),
        "/api/v1/status": get("status", "Tables, progress, lag and what the source keeps."),
        "/api/v1/tables": get("tables", "The captured tables, keyed by name, each with its state and progress."),
        "/api/v1/overview": get("overview", "What the page shows: status, findings, headroom, disk, merges."),
        "/api/v1/history": get("history", "Lag, speed and what the source keeps over the last hours."),
        "/api/v1/report": get("report", "What the daemon publishes for the page of a fleet."),
        **questions(),
        "/api/v1/openapi.json": get("openapi", "This description."),
        **consumers(),
        **{_path(one): {"post": _operation(one)} for one in OPERATIONS.values()},
    }
    without = "Without configured tokens it is read-only, and only for the same machine."
    return document(paths, "Watch a capture and control it.", without)


def document(paths: Mapping[str, Any], summary: str, text: str) -> dict[str, Any]:
    """Return a description with these paths."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "cdcflow", "version": __version__, "summary": summary, "description": text},
        "paths": dict(paths),
        "components": {
            "schemas": {"Problem": _PROBLEM, "Change": _CHANGE},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Problem": {
                    "description": "What went wrong, with its remedy.",
                    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
                }
            },
        },
        "security": [{"token": []}, {}],
    }


def _path(operation: Operation) -> str:
    return f"/api/v1/operations/{operation.name}"


def _operation(operation: Operation) -> dict[str, Any]:
    body = {
        "type": "object",
        "additionalProperties": False,
        "required": [one.name for one in operation.arguments if one.required],
        "properties": {one.name: {**KINDS[one.kind], "description": one.summary} for one in operation.arguments},
    }
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"Needs a token with the role {operation.role}.",
        "tags": ["operations"],
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": responses({"type": "object"}),
    }


def questions() -> dict[str, Any]:
    """Return the paths that answer queries of a log's rows (`http.query_routes`)."""
    changes = {"type": "array", "items": {"$ref": "#/components/schemas/Change"}}
    found = {
        "type": "object",
        "required": ["changes", "looked_back_to", "more"],
        "properties": {
            "changes": changes,
            "looked_back_to": {"type": "integer", "description": "The first offset that was searched."},
            "more": {"type": "boolean", "description": "There are older changes: ask with `before`."},
        },
    }
    transaction = {"type": "object", "required": ["number", "changes"], "properties": {"changes": changes}}
    row = {
        "type": "object",
        "required": ["state", "values", "last", "notes"],
        "properties": {
            "state": {"type": "string", "enum": ["there", "deleted", "emptied", "never there", "not known"]},
            "values": {"type": ["object", "null"], "description": "By column, as texts; null: NULL."},
            "notes": {"type": "array", "items": {"type": "string"}, "description": "What it does not cover."},
        },
    }
    number = {"name": "number", "in": "path", "required": True, "schema": {"type": "integer"}}
    return {
        "/api/v1/changes": get("changes", "The last changes, latest first.", found, _change_parameters()),
        "/api/v1/row": get("row", "A row with its values, now or at a point in time.", row, _row_parameters()),
        "/api/v1/row/history": get(
            "row_history",
            "The changes of a row, latest first, with their values.",
            parameters=[
                *_row_parameters(),
                query("before", "Only changes with a lower offset.", {"type": "integer", "minimum": 1}),
                _LIMIT,
            ],
        ),
        "/api/v1/differences": get(
            "differences",
            "The rows of a table that differ between two points in time.",
            parameters=[
                {**query("table", "As schema.table.", {"type": "string"}), "required": True},
                {**query("first", "The earlier point in time, as for as_of.", {"type": "string"}), "required": True},
                query("last", "The later one; without it now.", {"type": "string"}),
                _LIMIT,
            ],
        ),
        "/api/v1/transactions/{number}": get(
            "transaction", "A transaction with its rows.", transaction, [number, _VALUES]
        ),
    }


def consumers() -> dict[str, Any]:
    """Return the paths of `/api/v1/consumers`."""
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    known: Mapping[str, Any] = _CHANGE["properties"]
    change = {
        "type": "object",
        "required": ["table", "op", "offset", "transaction", "commit_ts", "backfill", "values", "unchanged", "cursor"],
        "properties": {
            **{name: known[name] for name in ("offset", "transaction", "commit_ts", "op", "table", "unchanged")},
            "backfill": {"type": "boolean", "description": "A row of the consumer's backfill out of the log."},
            "values": {"type": "object"},
            "before": {"type": ["object", "null"]},
            "cursor": {"type": "string", "description": "Store it with the result: `after` continues after it."},
        },
    }
    found = {
        "type": "object",
        "required": ["consumer", "changes", "cursor"],
        "properties": {
            "consumer": {"type": "string"},
            "changes": {"type": "array", "items": change},
            "cursor": {"type": "string", "description": "Everything up to this cursor was returned."},
        },
    }
    made = {
        "name": {"type": "string"},
        "tables": {**KINDS["tables"], "description": "Without it all, also those that are added later."},
        "ops": {"type": "string", "pattern": "^[crudt]+$", "description": "Only these changes."},
        "from": {"type": "string", "default": "current", "description": "current, now, beginning, or a point in time."},
    }
    parameters = [
        name,
        query("after", "After this cursor, not the last commit.", {"type": "string"}),
        query("limit", "How many rows.", {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT}),
        query("wait", "Wait at most N seconds for new changes.", {"type": "number", "minimum": 0, "maximum": 60}),
    ]
    changes = get("consumer_changes", "The next changes for a consumer, with its lease held.", found, parameters)
    events = {"schema": {"type": "string"}}
    changes["get"]["responses"]["200"]["content"]["text/event-stream"] = events
    cursor = {"cursor": {"type": "string"}}
    return {
        "/api/v1/consumers": {
            **get("consumers", "The consumers of the log, and how far each is."),
            "post": _post("create_consumer", "Make a consumer.", "a token with the role operate", made, ["name"]),
        },
        "/api/v1/consumers/{name}/changes": changes,
        "/api/v1/consumers/{name}/commit": {
            "post": _post(
                "commit",
                "Keep that everything up to a cursor was processed.",
                "a token with the role consume",
                cursor,
                ["cursor"],
            )
            | {"parameters": [name]}
        },
    }


def _post(
    name: str, summary: str, needs: str, properties: Mapping[str, Any], required: Sequence[str]
) -> dict[str, Any]:
    body = {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": dict(properties),
    }
    return {
        "operationId": name,
        "summary": summary,
        "description": f"Needs {needs}.",
        "tags": ["consumers"],
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": responses({"type": "object"}),
    }


def _change_parameters() -> list[dict[str, Any]]:
    key = {"type": "array", "items": {"type": "string"}}
    return [
        query("table", "Only this one, as schema.table.", {"type": "string"}),
        query("key", "Only the row with this key: repeat it for each key column, in their order.", key),
        query("before", "Only changes with a lower offset.", {"type": "integer", "minimum": 1}),
        _LIMIT,
        _VALUES,
    ]


def _row_parameters() -> list[dict[str, Any]]:
    key = {"type": "array", "items": {"type": "string"}}
    return [
        {**query("table", "As schema.table.", {"type": "string"}), "required": True},
        {**query("key", "The row's key: repeat it for each key column, in their order.", key), "required": True},
        query("as_of", "An offset, cut:52, a position, or a commit time.", {"type": "string"}),
    ]


def query(name: str, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": schema}


def get(
    name: str, summary: str, schema: Mapping[str, Any] | None = None, parameters: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": f"get_{name}",
        "summary": summary,
        "tags": ["reading"],
        "responses": responses(schema or {"type": "object"}),
    }
    return {"get": {**found, "parameters": list(parameters)} if parameters else found}


def probes(texts: Mapping[str, str]) -> dict[str, Any]:
    """Paths that are open to all; `texts` are their summaries."""
    return {
        path: {
            "get": {
                "operationId": f"get{path.replace('/', '_')}",
                "summary": text,
                "tags": ["probes"],
                "security": [],
                "responses": {"200": {"description": "Yes."}, "503": {"description": "No."}},
            }
        }
        for path, text in texts.items()
    }


def responses(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "200": {"description": "Done.", "content": {"application/json": {"schema": schema}}},
        "default": {"$ref": "#/components/responses/Problem"},
    }
