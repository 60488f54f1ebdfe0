"""Settings that may be shown to others: references remain, possible secrets are removed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cdcflow.config.references import is_reference, secret
from cdcflow.config.whole import Config
from cdcflow.errors import ConfigurationError

LEFT_OUT = "(left out)"
_SECRET_NAME = re.compile(r"passw|secret|token|credential|access.?key|private.?key|jaas|webhook", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\{(?:env|file):[^}]+\}")
_URL_SECRET = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*@")


def redact(config: Config) -> dict[str, Any]:
    """Return the settings as JSON-able values. A text whose setting's name suggests a secret is replaced, unless it is
    a reference; so are a command's arguments, and users and passwords in URLs."""
    found = _without(config.model_dump(mode="json"), "")
    assert isinstance(found, dict)  # noqa: S101  a model is a mapping
    return found


def _without(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {k: _without(v, str(k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        if name == "command" and value:
            return [value[0], *(LEFT_OUT for _ in value[1:])]
        return [_without(v, name) for v in value]
    if not isinstance(value, str) or is_reference(value):
        return value
    return LEFT_OUT if _SECRET_NAME.search(name) else _URL_SECRET.sub(f"{LEFT_OUT}@", value)


def secrets_of(config: Config) -> set[str]:
    """Return the secrets that the settings refer to, as far as they can be resolved on this machine: to remove them
    from texts."""
    return {found for reference in _references(config.model_dump(mode="json")) if (found := _resolve(reference))}


def _resolve(reference: str) -> str | None:
    try:
        return secret(reference)
    except ConfigurationError:
        return None


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _references(inner)
    elif isinstance(value, str):
        yield from _REFERENCE.findall(value)
