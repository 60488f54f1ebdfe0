"""The log's journal on several machines: peers that store it, and the majority that a writer waits for."""
