"""Remedies for a log that is opened with another source than it belongs to."""

from __future__ import annotations

from cdcflow.model.position import SourceIdentity

MOVING = ("postgres",)
"""The kinds of sources whose logs `cdcflow move` moves."""


def if_replaced(known: SourceIdentity, identity: SourceIdentity) -> str:
    """Return the rest of a remedy, if the source may have replaced the one that is `known`; "" if it cannot."""
    found = []
    if known.kind == identity.kind and known.kind in MOVING:
        found.append("run `cdcflow move`, which continues there and compares the tables where it must")
    if identity.is_source_of(known, replaced=True):
        found.append("run `cdcflow run --accept-history-loss`, which reads all tables again")
    if not found:
        return ""
    return "; if the server was upgraded, restored from a dump, or replaced by a copy, " + "; or ".join(found)
