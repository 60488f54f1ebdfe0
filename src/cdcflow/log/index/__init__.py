"""The index of keys: the offsets of the log that may have a row of a key."""
