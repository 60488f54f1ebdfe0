"""The contents of `docker/`: read by Docker's own parsers, confined, started as processes."""
