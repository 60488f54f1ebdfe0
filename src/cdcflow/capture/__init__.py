"""The capture: the loop between source and log, which waits, retries and reads clocks; it does not decide order.

    ┌ stream thread (the loop) ────────────────────────────────┐      ┌ sync thread ┐    ┌ seal thread ┐
    │ poll ─▶ Interleave.step ─▶ append, cut ─▶ ask for a sync ─┼────▶ │ fsync       │    │ Parquet     │
    │   ▲ acknowledge ◀──────────────── durable checkpoint ◀────┼───── │             │    │             │
    └───┼──────────────────────────────────────────────────────┘      └─────────────┘    └─────────────┘
        └── answers of tasks: plans, marks, chunks, snapshots (a few threads, one connection each)

Contains one attempt at capturing (`attempt`), its threads (`threads`, `source_tasks`, `durability`), and the retry
around it (`capture`). Never here: the order of log and chunks (`cdcflow.capture.interleave`), SQL (`cdcflow.sources`),
bytes (`cdcflow.log.format`).
"""
