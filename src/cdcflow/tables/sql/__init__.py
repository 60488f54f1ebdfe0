"""SQL in settings: the parts that a query or a condition may have, checked in the tree that DuckDB makes of its text.
Pure."""
