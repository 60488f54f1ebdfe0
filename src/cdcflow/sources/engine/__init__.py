"""What every SQL source does alike, so that a rule stands once for all dialects.

    dialect   its wire, its decoder, its catalog's SQL, its fence, its codecs
    engine    connections, selection, chunks, changes, spooled rows

Lives here: keeping connections, which tables are selected and which are refused, the kinds of chunks and their parts,
how batches of one table become one, what is counted of a transaction that memory does not hold. Never here: a client
library, a statement of SQL, bytes of a protocol; those are each dialect's. What comes first is `cdcflow.interleave`.
"""
