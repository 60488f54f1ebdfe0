"""Rows of a consumer as JSON: for lines of a command, and for HTTP."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from typing import Any

from cdcflow.log.query.consumer import Batch
from cdcflow.log.query.consumers import Listed
from cdcflow.model.change import DELETE, TRUNCATE
from cdcflow.model.table import BEFORE, COMMIT_TS, LOG_COLUMNS, OFFSET, OP, TRANSACTION, UNCHANGED


def batch_as_json(batch: Batch, limit: int | None = None) -> Iterator[dict[str, Any]]:
    r"""Yield each row of a batch (at most the first `limit`) with its cursor. Numbers are numbers, bytes hex as
    `\x0af3`; decimals, dates, times, and values that JSON numbers cannot represent (NaN) are texts. A delete has the
    values that the log has."""
    for number, row in enumerate(batch.rows.slice(0, limit).to_pylist(), 1):
        unchanged = list(row[UNCHANGED] or ())
        yield {
            "table": batch.table,
            "op": row[OP],
            "offset": row[OFFSET],
            "transaction": row[TRANSACTION],
            "commit_ts": plain(row[COMMIT_TS]),
            "backfill": batch.is_backfill,
            "values": {} if row[OP] == TRUNCATE else _values(batch, row, unchanged),
            "unchanged": unchanged,
            "before": None if row[BEFORE] is None else plain(row[BEFORE]),
            "cursor": batch.cursor_after(number),
        }


def consumer_as_json(one: Listed) -> dict[str, Any]:
    """Return a consumer and its progress."""
    state = one.state
    return {
        "name": state.name,
        "tables": state.definition.tables,
        "ops": state.definition.ops,
        "state": "backfill" if state.is_in_backfill else "changes",
        "offset": state.committed.offset,
        "cursor": str(state.committed),
        "behind_rows": one.behind,
        "behind_seconds": one.seconds,
        "held_by": one.held_by,
    }


def plain(value: Any) -> Any:  # Any: anything that a row can hold
    """Return a value in a form that JSON can represent."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return f"\\x{value.hex()}"
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if value.tzinfo else value.isoformat()
        case date() | time():
            return value.isoformat()
        case dict():
            return {str(name): plain(one) for name, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case _:
            return str(value)


def _values(batch: Batch, row: dict[str, Any], unchanged: list[str]) -> dict[str, Any]:
    keys = batch.shape.key_columns
    return {
        name: plain(value)
        for name, value in row.items()
        if name not in LOG_COLUMNS
        and name not in unchanged
        and (row[OP] != DELETE or name in keys or value is not None)
    }
