"""Row rules: which rows of a table leave a source, and columns that are computed from others. Pure.

    settings ──▶ config.expressions.parse ──▶ tree ──▶ compiled ──▶ functions over Arrow columns
                                                                        │
    changes as the source has them ──▶ RowRules.changes ◀───────────────┘ ──▶ policies (`sources.privacy`) ──▶ log

A filter decides by the row before and the row after a change: a row that leaves it is deleted, one that enters it is
inserted. Three-valued logic as in SQL: NULL is not true. A value that an expression cannot be applied to stops the
table; it never becomes NULL.
"""
