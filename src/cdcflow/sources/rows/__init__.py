"""Row rules: which rows of a table leave a source, and columns that are computed from others. Pure.

    settings ──▶ config.expressions.parse ──▶ tree ──▶ compiled ──▶ functions over Arrow columns
                                                                        │
    changes as the source has them ──▶ RowRules.changes ◀───────────────┘ ──▶ policies (`sources.privacy`) ──▶ log

A filter is applied to the row before a change and to the row after it: if it no longer holds, the row is deleted, and
if it begins to hold, the row is inserted. Three-valued logic as in SQL: NULL is not true. A value that an expression
cannot be applied to stops the table; it never becomes NULL.
"""
