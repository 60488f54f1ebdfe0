"""The change log's bytes: journal frames, sealed segments, what recovery keeps, schema history.

Lives here: our records turned into bytes and back, and the rules for how much of a file is whole. Never here: writing,
syncing or renaming files (see `cdcflow.sinks`), what the changes mean (see `cdcflow.merge`).
"""
