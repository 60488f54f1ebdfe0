"""The base of all settings models."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

HOST_AND_PORT = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[^:\s]+):\d{1,5}")
"""The pattern of `host:port`; `is_host_and_port` checks the number too."""
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""The beginning of a URL, including one that lost a slash by being parsed as a path."""


def is_host_and_port(text: str) -> bool:
    return HOST_AND_PORT.fullmatch(text) is not None and int(text.rpartition(":")[2]) < 1 << 16


class Settings(BaseModel):
    # A ValidationError must not repeat the given value: it may be a secret in the wrong place (hard case S03).
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, serialize_by_alias=True)


def settings_of(model: type[Settings]) -> Mapping[str, FieldInfo]:
    """Return the settings of a model by their names in a file, some of which are words that Python keeps for itself."""
    return {field.alias or name: field for name, field in model.model_fields.items()}
