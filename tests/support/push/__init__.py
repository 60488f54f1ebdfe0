"""Collections that clients push rows into."""
