"""The description of the fleet's API in OpenAPI 3.1."""

from __future__ import annotations

from typing import Any

from cdcflow.fleet.pipelines import STATES
from cdcflow.http import openapi

_PROBES = {
    "/healthz": "Is the process alive?",
    "/readyz": "Was every register read, and every member asked, at least once?",
    "/metrics": "Metrics for Prometheus.",
}
_TIME = {"type": "number", "description": "In seconds since 1970."}
_ROW: dict[str, Any] = {
    "type": "object",
    "required": ["name", "state", "level"],
    "properties": {
        "name": {"type": "string"},
        "state": {"type": "string", "enum": list(STATES)},
        "level": {"type": "string", "enum": ["error", "warning", "note", "good"]},
        "text": {"type": "string", "description": "The worst finding."},
        "remedy": {"type": "string", "description": "What to do about it."},
        "more": {"type": "integer", "description": "How many other findings there are."},
        "reported_at": {**_TIME, "description": "When it last reported, in seconds since 1970."},
        "place": {"type": "string", "description": "The machine of its daemon."},
        "page": {"type": "string", "description": "The daemon's own page."},
        "lag_seconds": {"type": "number"},
        "lag_bytes": {"type": "number"},
        "budget_used": {"type": "number", "description": "The share of the log that the source may keep."},
        "fresh_as_of": _TIME,
        "merge_ended_at": _TIME,
        "merge_behind_rows": {"type": "number", "description": "Rows of the log that the latest cut does not show."},
        "verified_at": _TIME,
    },
}


def description() -> dict[str, Any]:
    """Return the whole description."""
    outage = {
        "type": "object",
        "properties": {"place": {"type": "string"}, "since": _TIME, "reason": {"type": "string"}},
    }
    found = {
        "type": "object",
        "required": ["pipelines", "counts", "outages"],
        "properties": {
            "pipelines": {"type": "array", "items": _ROW},
            "counts": {"type": "object", "description": "How many pipelines have each state, without the filters."},
            "outages": {"type": "array", "items": outage},
        },
    }
    filters = [
        openapi.query("state", "Only pipelines in this state.", {"type": "string", "enum": list(STATES)}),
        openapi.query("level", "Only pipelines with this level.", {"type": "string"}),
        openapi.query("name", "Only names that contain this text.", {"type": "string"}),
    ]
    name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    paths = {
        **openapi.probes(_PROBES),
        "/api/v1/fleet": openapi.get("fleet", "All pipelines, those that need an operator first.", found, filters),
        "/api/v1/fleet/{name}": openapi.get(
            "pipeline", "One pipeline with all its findings and members.", parameters=[name]
        ),
        "/api/v1/openapi.json": openapi.get("openapi", "This description."),
    }
    return openapi.document(paths, "Watch many pipelines.", "It is read-only.")
