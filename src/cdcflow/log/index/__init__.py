"""The index of keys: which offsets of the log may have a row of a key."""
