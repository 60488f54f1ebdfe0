"""File operations that change a log, and the locks that protect them."""
