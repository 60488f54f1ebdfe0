"""Logs in an object store."""
