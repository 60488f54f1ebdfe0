"""Which comes first: the log or the chunk. Decides the order of everything that enters the change log.

Lives here: the pure state machine of watermarks, windows and backfill progress, its inputs and its effects. Never
here: sockets, threads, clocks, SQL, files; rows are only counted and asked about, never looked at. To carry out an
effect see `cdcflow.pipeline`; for what a fold of the result means see `cdcflow.merge.fold`.
"""
