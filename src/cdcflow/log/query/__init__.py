"""Queries on a change log: a row at a point in time, its history, who changed it, what changed in between."""
