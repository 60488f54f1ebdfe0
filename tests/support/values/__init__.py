"""The edge values of every type, and their digests."""
