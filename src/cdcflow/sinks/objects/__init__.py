"""Sealed segments in an S3-compatible store, under the names that they have on disk.

Contains the bounded cache of what was read (`store`), and the thread that uploads sealed segments (`uploads`). The
client is in `cdcflow.stores`. The journal never leaves the local disk. `cdcflow.changelog` defines what a segment is,
and which one counts; `cdcflow.log.maintenance.retention` does compaction and expiry of either kind of log.
"""
