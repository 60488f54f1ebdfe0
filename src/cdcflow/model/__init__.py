"""The nouns that everything shares: tables, column types, change batches, positions.

In this package: frozen values and columns that do not depend on any database. Not in this package: bytes of a wire or a
file (see `sources`, `changelog`), decisions about order (see `interleave`), the meaning of a merge (see `merge`).
"""
