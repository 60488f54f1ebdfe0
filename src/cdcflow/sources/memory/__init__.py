"""A database in memory with its source: what a dialect implements, without a server, a wire or a client library.

Read it before a new dialect is written (`docs/sources.md`), and use it where a test wants a source that behaves:

    database.py   the model database: tables, transactions, commits that are in the log before they can be seen
    stream.py     the log to events: runs in columns, spooled transactions, marks, what a statement means
    chunks.py     a `ChunkDialect` for `sources.engine`: plans, parts and keys, each in a snapshot
    source.py     positions in the log made and checked; what is captured; the doctor

It keeps the same contract as every other source (`cdcflow.testing.sources`), and the suite is known to find what is
wrong because bugs are planted here. Rows of the database are Python objects: they are the database, not the way from
it. From the log on they go in columns, as everywhere.
"""

from cdcflow.sources.memory.database import MemoryDatabase, MemoryTable, Transaction
from cdcflow.sources.memory.source import MemorySource

__all__ = ["MemoryDatabase", "MemorySource", "MemoryTable", "Transaction"]
