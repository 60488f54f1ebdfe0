"""Reading a log while its writer runs: rows, shapes, moments, feeds, and a check of the whole."""
