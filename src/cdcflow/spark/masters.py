"""What the name of a Spark master says."""

from __future__ import annotations


def runs_here(master: str | None) -> bool:
    """Whether its executors are on this machine and see its disk: `local[2]`. Without a name nobody knows."""
    return (master or "").startswith("local")


__all__ = ["runs_here"]
