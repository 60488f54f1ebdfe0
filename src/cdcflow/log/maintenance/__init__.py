"""Log maintenance: compaction, expiry, states, the index of keys, and files that other processes leave."""
