"""What the name of a Spark master implies."""

from __future__ import annotations


def runs_here(master: str | None) -> bool:
    """Return whether its executors are on this machine and see its disk: `local[2]`. False without a name."""
    return (master or "").startswith("local")
