"""What all SQL sources share, so that each rule is written once for all dialects.

    dialect   its wire, its decoder, its catalog's SQL, its fence, its codecs
    engine    starts, connections, selection, chunks, ranges of keys, digests, changes, spooled rows

This package decides which tables are captured and which are refused, keeps connections, defines the kinds of chunks and
their parts, reads numbers and cells from buffers, turns row images into changes, and counts the rows of a transaction
that does not fit into memory. It contains no client library, no message of a protocol, and only SQL that every server
understands alike; the rest belongs to the dialects. `cdcflow.capture.interleave` decides the order of log and chunks.
"""
