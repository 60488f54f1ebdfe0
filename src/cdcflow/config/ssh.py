"""The SSH server through which a source is reached."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from cdcflow.config.base import Settings


class Ssh(Settings):
    """An SSH server that is reachable from here, and from which the database is."""

    host: str
    """The SSH server's name or address. Every connection to the source goes through it; `source.url` is the database's
    address as the SSH server reaches it ([security.md](security.md#through-an-ssh-server))."""
    port: int = Field(22, ge=1, lt=1 << 16)
    """The SSH server's port."""
    user: str
    """The user to log in as."""
    key_file: Path
    """The file with the user's private key, without a passphrase; only the daemon's user may read it."""
    known_hosts: Path
    """The file with the SSH server's host key, as `ssh-keyscan` prints it. A server with a different key is refused."""

    @field_validator("host", "user")
    @classmethod
    def _one_word(cls, text: str) -> str:
        if not text or text.startswith("-") or any(c.isspace() for c in text):
            raise ValueError("must be one word, which does not begin with -")
        return text

    @field_validator("key_file", "known_hosts")
    @classmethod
    def _one_line(cls, path: Path) -> Path:
        if any(c in str(path) for c in '"\n'):
            raise ValueError("must be a path without quotes")
        return path

    def __str__(self) -> str:
        """Return the server for messages, without a secret."""
        return f"{self.user}@{self.host}:{self.port}"
