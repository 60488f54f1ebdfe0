"""Object stores, as one client of them is told by another."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """How a bucket of an S3-compatible store is reached. Without keys a client finds them in its own way.

    `endpoint`: as a URL; None: AWS's own of the region.
    """

    bucket: str
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)


__all__ = ["StoreAddress"]
