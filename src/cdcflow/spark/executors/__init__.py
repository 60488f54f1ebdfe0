"""Work on Spark's executors: as processes that read parts of chunks for a capture, and as workers on a log."""
