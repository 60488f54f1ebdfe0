"""What a change log is asked: a row at a moment, how it came to be, who changed it, what changed in between."""
