"""Collections that programs push rows into over HTTP: their writes become transactions of a change log.

web ──▶ operations (checked by `schemas`) ──▶ writer: one thread decides, appends, cuts, syncs, answers
                                                ├── rows           what a key has now: the log, and what is newer
                                                └── remembered     answers by Idempotency-Key
"""
