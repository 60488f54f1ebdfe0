"""Histories of changes, the merge's expected result, and drivers that merge."""
