"""Reading a log while its writer runs: rows, shapes, points in time, feeds, and a check of the whole."""
