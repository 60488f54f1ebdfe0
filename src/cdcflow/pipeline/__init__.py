"""The loop that waits, retries, reads clocks and handles signals, and decides nothing.

    ┌ stream thread (the loop) ────────────────────────────────┐      ┌ sync thread ┐    ┌ seal thread ┐
    │ poll ─▶ Interleave.step ─▶ append, cut ─▶ ask for a sync ─┼────▶ │ fsync       │    │ Parquet     │
    │   ▲ acknowledge ◀──────────────── durable checkpoint ◀────┼───── │             │    │             │
    └───┼──────────────────────────────────────────────────────┘      └─────────────┘    └─────────────┘
        └── answers of tasks: plans, marks, chunks, snapshots (a few threads, one connection each)

Contains one attempt at capturing (`attempt`), its threads (`threads`, `source_tasks`, `durability`), and the retry
around it (`capture`). Never here: the order of log and chunks (`cdcflow.interleave`), SQL (`cdcflow.sources`), bytes
(`cdcflow.changelog`).
"""

from cdcflow.pipeline.capture import Capture

__all__ = ["Capture"]
