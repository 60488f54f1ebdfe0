"""The daemon's status as Prometheus text, written by hand: a dozen gauges need no client library.

Names keep the unit last (`_bytes`, `_seconds`) and say `_total` where they only grow within one run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GAUGES = {
    "rows_per_second": ("rows_per_second", "gauge", "Rows written to the change log a second, lately."),
    "durable_offset": ("durable_offset", "gauge", "The newest offset that is safe on disk."),
    "cut": ("cut", "gauge", "The number of the newest durable cut."),
    "held_rows": ("held_rows", "gauge", "Rows held back because a backfill window is open."),
    "held_bytes": ("held_bytes", "gauge", "Bytes held back because a backfill window is open."),
    "lag_bytes": ("lag_bytes", "gauge", "How far the source's log is ahead of what is durable here."),
    "lag_seconds": ("lag_seconds", "gauge", "Age of the newest durable position, by the source's commit time."),
    "heartbeat_age_seconds": ("heartbeat_age_seconds", "gauge", "Seconds since the durable position last moved."),
    "retained_bytes": ("retained_bytes", "gauge", "Log that the source keeps for us."),
}
_TABLE_GAUGES = {
    "units": ("table_backfill_units", "gauge", "Units (PostgreSQL: pages) of the table's backfill."),
    "units_done": ("table_backfill_units_done", "gauge", "Units of the table's backfill that are read."),
    "rows": ("table_backfill_rows", "gauge", "Rows of the table's backfill that are in the log."),
    "generation": ("table_generation", "gauge", "The number of the table's backfill."),
}
STATES = ("waiting", "reading", "done", "paused", "cancelled", "failed", "forgotten")


def exposition(status: Mapping[str, Any]) -> str:
    """The metrics page for one status. Fields that the status leaves out or has as None are left out here."""
    return "".join(f"{line}\n" for line in _lines(status))


def _lines(status: Mapping[str, Any]) -> Iterator[str]:
    for field, (name, kind, text) in _GAUGES.items():
        yield from _metric(name, kind, text, [("", status.get(field))])
    tables: Mapping[str, Mapping[str, Any]] = status.get("tables") or {}
    for field, (name, kind, text) in _TABLE_GAUGES.items():
        yield from _metric(name, kind, text, [(_labels(table=t), v.get(field)) for t, v in tables.items()])
    states = [
        (_labels(table=table, state=state), int(fields.get("state") == state))
        for table, fields in tables.items()
        for state in STATES
    ]
    yield from _metric("table_state", "gauge", "1 for the state that the table's backfill is in.", states)


def _metric(name: str, kind: str, text: str, samples: Iterable[tuple[str, object]]) -> Iterator[str]:
    numbers = [(labels, v) for labels, v in samples if isinstance(v, int | float)]
    if numbers:
        yield f"# HELP cdcflow_{name} {text}"
        yield f"# TYPE cdcflow_{name} {kind}"
        for labels, value in numbers:
            yield f"cdcflow_{name}{labels} {float(value):.17g}"


def _labels(**labels: str) -> str:
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
