"""PostgreSQL: bytes, decoders, and a source that a test controls."""
