"""Work on Spark's executors: processes that read parts of chunks for a capture, and workers on a log."""
