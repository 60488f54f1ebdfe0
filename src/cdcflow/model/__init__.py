"""The nouns that everything shares: tables, column types, change batches, positions.

Lives here: frozen values and columns, free of any database. Never here: bytes of a wire or a file (see `sources`,
`changelog`), decisions about order (see `interleave`), the meaning of a merge (see `merge`).
"""
