"""Calls of Delta's private Java classes, only from here: a table's versions, and changes of its rows without MERGE.

    formats/delta ──▶ DeltaVersions      the versions of a table, as Delta reads them from its log
                  └─▶ DeltaTransaction   changes of rows, in a third of the jobs of Delta's commands

Both use classes of `org.apache.spark.sql.delta`, which are not a public interface. Without `DeltaVersions` there is no
merge into Delta tables. Changes without MERGE are optional: with `merge.fast_delta: false`, or with an untested version
of Delta, SQL statements do the same. They will be removed, with `transaction`, with the first release of Delta that
breaks them, or that makes row changes by transaction a public interface (docs/decisions/0014).
"""

from cdcflow.spark.private_delta.files import COMPACTED
from cdcflow.spark.private_delta.transaction import DeltaTransaction, may_change_rows, may_write
from cdcflow.spark.private_delta.versions import DeltaVersions

__all__ = ["COMPACTED", "DeltaTransaction", "DeltaVersions", "may_change_rows", "may_write"]
