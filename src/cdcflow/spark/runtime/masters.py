"""Facts that follow from the name of a Spark master."""

from __future__ import annotations


def runs_here(master: str | None) -> bool:
    """Return whether the executors are on this machine and see its disk, as for `local[2]`. False without a name."""
    return (master or "").startswith("local")
