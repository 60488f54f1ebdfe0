"""PostgreSQL as a source: its log through a replication slot, its rows through COPY.

This package contains everything that uses psycopg (`connection`, `catalog`, `publication`, `slot`, `stream`, `chunks`,
`doctor`, `source`), and the decoders of the server's bytes, which need no connection (`types`, `wire`, `tuples`,
`pgoutput`, `copy`). It does not decide whether a log's transaction or a chunk comes first (see
`cdcflow.capture.interleave`).
"""
