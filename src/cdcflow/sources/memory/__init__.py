"""A database in memory with its source: an example of what a dialect implements, without server or client library.

Read it before you write a new dialect (`docs/sources.md`), and use it where a test needs a well-behaved source:

    stream.py     the log to events: runs in columns, spooled transactions, marks, what a statement means
    chunks.py     a `ChunkDialect` for `sources.engine`: plans, parts and keys, each in a snapshot
    source.py     creating and checking positions in the log; which tables are captured; the doctor

Its server is `sources.memory_database`: tables, transactions, commits that are in the log before they can be seen.

It satisfies the same contract as every other source (`cdcflow.testing.sources`). Tests plant bugs in it to show that
the suite finds them. Rows of the database are Python objects, since they are the database itself. After they are read
from it they are in columns, as everywhere.
"""

from cdcflow.sources.memory.source import MemorySource
from cdcflow.sources.memory_database import MemoryDatabase, MemoryTable, Transaction

__all__ = ["MemoryDatabase", "MemorySource", "MemoryTable", "Transaction"]
