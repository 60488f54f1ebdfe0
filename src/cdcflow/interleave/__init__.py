"""Which comes first: the log or the chunk. Decides the order of everything that enters the change log.

Contains the pure state machine of watermarks, windows and backfill progress, its inputs and its effects. Never here:
sockets, threads, clocks, SQL, files. Rows are only counted and queried for keys, never read. `cdcflow.pipeline` carries
out the effects; `cdcflow.log.fold.fold` defines what a fold of the result means.
"""
