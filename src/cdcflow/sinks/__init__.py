"""Places where the change log is kept. They do not know the sources."""
