"""The address of an object store, passed from one client to another."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """How a bucket of an S3-compatible store is reached. Without keys a client uses its own way of finding credentials.

    `endpoint`: a URL; None: AWS's endpoint for the region. `session_token`: belongs to temporary keys.
    """

    bucket: str
    endpoint: str | None = None
    region: str = "us-east-1"
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
