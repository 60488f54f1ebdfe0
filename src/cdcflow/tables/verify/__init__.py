"""Comparisons: whether a copy equals its source while both keep running, with three things at one place in the log.

    source     rows, read in chunks; each snapshot knows which transactions of the log it does not see
    log        its fold, by the same rules as a merge into nothing
    tables     the warehouse's, with the log's changes since their latest cut folded over them

    port       what an engine implements: the copy's rows, and comparing them with the source's
    live_copy  a copy that the live view shows, whichever engine reads it
    settled    which keys changed since a snapshot, so that a difference in them proves nothing yet
    source_rows reads the source's rows, all or those with some keys, with fences
    buckets    the same rows as digests that the server computes and adds up; rows of buckets that differ
    job        a pass over a table, then rounds over its unverified rows
    report     the results

This package never contains: a client library, an engine's SQL (`model.digest`), a source's SQL
(`capture.ports.comparison`).
"""

from cdcflow.tables.verify.job import verify
from cdcflow.tables.verify.report import Report, RowDifference, TableReport

__all__ = ["RowDifference", "Report", "TableReport", "verify"]
