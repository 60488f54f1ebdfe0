"""The project's words: phrases that prose should not use, counted over all text that people read."""
