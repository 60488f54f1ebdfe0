"""What all settings have in common."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict

HOST_AND_PORT = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[^:\s]+):\d{1,5}")
"""How `host:port` is written; `is_host_and_port` looks at the number too."""
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How a URL begins, also one that lost a slash as a path."""


def is_host_and_port(text: str) -> bool:
    return HOST_AND_PORT.fullmatch(text) is not None and int(text.rpartition(":")[2]) < 1 << 16


class Settings(BaseModel):
    # A ValidationError must not repeat what was given: it may be a secret in the wrong place (hard case S03).
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


__all__ = ["HOST_AND_PORT", "URL", "Settings", "is_host_and_port"]
