"""PostgreSQL as a source: its log through a replication slot, its rows through COPY.

Lives here: everything that names psycopg (`connection`, `catalog`, `publication`, `slot`, `stream`, `chunks`,
`doctor`, `source`), and the decoders of the server's bytes, which know no connection (`types`, `wire`, `tuples`,
`pgoutput`, `copy`). Never here: which of log and chunk comes first (see `cdcflow.interleave`).
"""
