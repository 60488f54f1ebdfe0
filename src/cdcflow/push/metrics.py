"""The activity of `cdcflow serve` as Prometheus metrics. docs/serve.md is tested against the list."""

from __future__ import annotations

from typing import Any

from cdcflow.http.metrics import Listed, Metric
from cdcflow.http.status_samples import by_label, number_at
from cdcflow.push.writer import CollectionWriter

LISTED: Listed = (
    (
        Metric("serve_requests_total", "counter", "Requests to write, by what was answered.", ("answer",)),
        by_label("answers"),
    ),
    (
        Metric("serve_transactions_total", "counter", "Transactions that are durable, since the start."),
        number_at("written"),
    ),
    (Metric("serve_rows_total", "counter", "Rows of the log that they have, since the start."), number_at("rows")),
    (Metric("serve_offset", "gauge", "The last offset that is durable in the log."), number_at("offset")),
    (
        Metric("serve_waiting_bytes", "gauge", "Bytes of requests that are not answered yet."),
        number_at("waiting_bytes"),
    ),
    (
        Metric("serve_unindexed_bytes", "gauge", "Rows kept in memory because the log's index lacks them, in bytes."),
        number_at("unindexed_bytes"),
    ),
)


def status(writer: CollectionWriter) -> dict[str, Any]:
    """Return the values from which the metrics are computed."""
    return {
        "answers": dict(writer.answers),
        "written": writer.transactions,
        "rows": writer.rows,
        "offset": int(writer.checkpoint.next_offset) - 1,
        "waiting_bytes": writer.waiting_bytes,
        "unindexed_bytes": writer.unindexed_bytes,
    }
