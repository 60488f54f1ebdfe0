"""Who may access the daemon over HTTP, and for what."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from pydantic import field_validator

from cdcflow.config.base import Settings
from cdcflow.config.references import SecretReference

Role = Literal["read", "consume", "operate"]
ROLES: tuple[Role, ...] = get_args(Role)
"""Each role may do what the ones before it may."""


class AccessToken(Settings):
    """One token of the HTTP API."""

    name: str
    """A token's name, which refusals and the daemon's log use; with `serve` an `Idempotency-Key` belongs to it.
    `tokens` is a list: `[{name: ops, role: operate, token: "${env:CDCFLOW_HTTP_TOKEN}"}]`. Without tokens only reading
    works, and only on loopback."""
    role: Role = "read"
    """`read` sees everything, row values too; `consume` also commits cursors of consumers; `operate` also changes
    things."""
    token: SecretReference
    """A reference, read again at each request; at least 16 characters."""

    @field_validator("token")
    @classmethod
    def _is_given(cls, token: str | None) -> str | None:
        if token is None:
            raise ValueError("must be a reference to the token: ${env:NAME} or ${file:path}")
        return token


class ServerTls(Settings):
    """The certificate of the HTTP API."""

    cert: Path
    """The file with the server's certificate and the chain below it, in PEM; with it the API and the page use HTTPS.
    A renewed file counts from the next connection, without a restart. Default: plain HTTP."""
    key: Path | None = None
    """The file with the certificate's private key, without a passphrase; only the daemon's user may read it. Default:
    the key is in `cert`."""


def is_loopback(listen: str) -> bool:
    """Whether a server that listens at `host:port` is reachable from this machine only."""
    host = listen.rpartition(":")[0].strip("[]").lower()
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_tokens(listen: str | None, tokens: Sequence[AccessToken], setting: str = "service.tokens") -> None:
    """Check that anything reachable from other machines requires a token, and that token names are unique.

    Raises:
        ValueError: no token is required, or names are not unique.
    """
    names = [token.name for token in tokens]
    if len(set(names)) < len(names):
        raise ValueError("has two tokens with the same name: give each its own")
    if listen is not None and not tokens and not is_loopback(listen):
        raise ValueError(
            f"listens on {listen}, which other machines can reach, and has no token: listen on 127.0.0.1, or set "
            f"{setting}: [{{name: ops, role: operate, token: '${{env:CDCFLOW_HTTP_TOKEN}}'}}]"
        )
