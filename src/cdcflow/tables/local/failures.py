"""Classify errors of DuckDB, Arrow, PyIceberg and the operating system for the table at which they occurred."""

from __future__ import annotations

from cdcflow.tables.job.failures import kinds, of_system
from cdcflow.tables.port import Failure


def of_local(error: Exception) -> Failure | None:
    """See `cdcflow.tables.port.Engine.failure`."""
    if isinstance(error, MemoryError):
        return None
    return of_system(error) or Failure("fault", kinds(error))
