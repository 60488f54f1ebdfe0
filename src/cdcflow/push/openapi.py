"""The description of the API of collections in OpenAPI 3.1; each collection is described by its own schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cdcflow.http import openapi
from cdcflow.push.columns import CONTENT_TYPE
from cdcflow.push.operations import OPERATIONS_MAX
from cdcflow.push.schemas import CollectionShape, Property

_WRITTEN = {
    "type": "object",
    "required": ["transaction", "first_offset", "last_offset", "rows"],
    "properties": {
        "transaction": {"type": ["integer", "null"]},
        "first_offset": {"type": ["integer", "null"]},
        "last_offset": {"type": ["integer", "null"]},
        "rows": {"type": "integer"},
        "results": {"type": "array", "items": {"type": "object"}, "description": "One for each operation."},
    },
}
_ONCE = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same request under the same key is carried out once, and gets the same answer.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
_PROBES = {
    "/healthz": "Is the service alive?",
    "/readyz": "Does it take requests?",
    "/metrics": "Metrics for Prometheus.",
}


def description(shapes: Iterable[CollectionShape]) -> dict[str, Any]:
    """Return the whole description."""
    listed = openapi.get("collections", "The collections, their keys and columns, and the latest offset.")
    paths = {
        **openapi.probes(_PROBES),
        "/api/v1/collections": listed,
        **{f"/api/v1/collections/{shape.name}": {"post": _post(shape)} for shape in shapes},
        **openapi.questions(),
        **openapi.consumers(),
        "/api/v1/openapi.json": openapi.get("openapi", "This description."),
    }
    return openapi.document(
        paths, "Write rows to collections, and read them.", "Writing needs a token with the role operate."
    )


def _post(shape: CollectionShape) -> dict[str, Any]:
    row = {
        "type": "object",
        "additionalProperties": False,
        "required": sorted(shape.required),
        "properties": {name: _property(one) for name, one in shape.properties.items()},
    }
    operations = {"oneOf": _operations(shape, row)}
    many = {"type": "array", "items": operations, "minItems": 1, "maxItems": OPERATIONS_MAX}
    atomic = openapi.query("atomic", "false: what can be done is done.", {"type": "boolean", "default": True})
    return {
        "operationId": f"write_{shape.name}",
        "summary": f"Write rows of {shape.name}, in one transaction.",
        "description": "The answer comes when it is on the disk.",
        "tags": ["writing"],
        "security": [{"token": []}],
        "parameters": [atomic, _ONCE],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"oneOf": [operations, many]}},
                CONTENT_TYPE: {"schema": {"type": "string", "format": "binary", "description": "Each row is a put."}},
            },
        },
        "responses": openapi.responses(_WRITTEN),
    }


def _operations(shape: CollectionShape, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    known: Mapping[str, Any] = row["properties"]
    columns = {name: known[name] for name in shape.table.key}
    by_columns = {
        "type": "object",
        "additionalProperties": False,
        "required": list(columns),
        "properties": columns,
    }
    key = {"oneOf": [*columns.values(), by_columns]} if len(columns) == 1 else by_columns
    part = {"type": "object", "additionalProperties": False, "properties": known}
    numbers = {name: {"type": one.kind} for name, one in shape.properties.items() if one.kind in ("integer", "number")}
    added = {"type": "object", "additionalProperties": False, "minProperties": 1, "properties": numbers}
    expected = {"oneOf": [part, {"type": "null"}]}
    return [
        _operation("put", {"value": row}),
        _operation("delete", {"key": key}),
        _operation("increment", {"key": key, "value": added}),
        _operation("compare_and_set", {"key": key, "value": part, "expect": expected}),
    ]


def _operation(name: str, members: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["op", *members],
        "properties": {"op": {"const": name}, **members},
    }


def _property(one: Property) -> dict[str, Any]:
    is_time = one.kind in ("date", "date-time")
    kind = "string" if is_time else one.kind
    return {
        "type": [kind, "null"] if one.nullable else kind,
        **({"format": one.kind} if is_time else {}),
        **one.checks,
    }
