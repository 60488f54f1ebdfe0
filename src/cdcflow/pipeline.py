"""The loop that waits, retries, reads clocks and obeys signals, and decides nothing."""
