"""MySQL and MariaDB: bytes, decoders, and a source that a test controls."""
