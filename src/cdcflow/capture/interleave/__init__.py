"""The order of log and chunks: decides in which order everything enters the change log. Pure.

Contains the state machine of watermarks, windows and backfill progress, its inputs and its effects. Never here:
sockets, threads, clocks, SQL, files. Rows are only counted and queried for keys, never read. `cdcflow.capture` carries
out the effects; `cdcflow.log.fold.fold` defines what a fold of the resulting log means.
"""
