"""What runs in processes of its own: each takes one JSON object as its argument and prints one as its last line.

The clock of each runs from before its first connection. Nothing here imports the rest of the benchmarks: what a child
imports is in its memory.
"""
