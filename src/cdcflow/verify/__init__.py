"""Whether a copy equals its source, shown while both go on: three things are compared at one place in the log.

    source     rows, read in chunks; each snapshot says which transactions of the log it does not see
    log        its fold, by the same rules as a merge into nothing
    tables     the warehouse's, with what the log has since their newest cut folded over them

    port       what is asked of an engine: the copy's rows, and comparing them with the source's
    asking     a copy that the live view shows, whichever engine reads it
    settled    which keys changed since a snapshot, so that nothing is known of them yet
    reading    the source's rows, all or those with some keys, and the fences around them
    buckets    the same rows as digests that the server works out and adds up, and those of buckets that differ
    job        a pass over a table, then over what is in doubt, until nothing is
    report     what was found

What never lives here: a client library, an engine's SQL (`merge.digest`), a source's words (`ports.comparing`).
"""

from cdcflow.verify.job import verify
from cdcflow.verify.report import Difference, Report, TableReport

__all__ = ["Difference", "Report", "TableReport", "verify"]
