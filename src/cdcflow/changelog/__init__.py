"""The change log's bytes: journal frames, sealed segments, what recovery keeps, schema history.

In this package: cdcflow's records encoded as bytes and decoded again, and the rules for how much of a file is whole.
Not in this package: writing, syncing or renaming files (see `cdcflow.sinks`), the meaning of changes (see
`cdcflow.merge`).
"""
