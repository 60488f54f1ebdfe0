"""Sealed segments in an S3-compatible store, under the names that they have on disk.

What lives here: the client library (`bucket`), the bounded cache of what was read (`store`), and the thread that puts
sealed segments there (`uploads`). The journal never leaves the local disk. What a segment is, and which one counts, is
`cdcflow.changelog`'s; compaction and expiry of either kind of log are `cdcflow.sinks.retention`'s.
"""
