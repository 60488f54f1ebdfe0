"""Secrets by reference: the settings name where a secret is stored, and it is read at each use."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qsl

from pydantic import BeforeValidator

from cdcflow.errors import ConfigurationError

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def by_reference(secret: object) -> object:
    """Return the value of a setting, if it is a reference or missing; otherwise raise ValueError."""
    # Before the type check: a password of digits alone is a number in YAML.
    if secret is not None and not (isinstance(secret, str) and _REFERENCE.fullmatch(secret)):
        raise ValueError("must be a reference, not the secret itself: ${env:NAME} or ${file:path}")
    return secret


SecretReference = Annotated[str | None, BeforeValidator(by_reference)]


def without_password(url: str) -> str:
    authority, _, query = url.partition("?")
    secrets = {n for n, _ in parse_qsl(query) if n.lower() in ("password", "sslpassword", "passwd")}
    if secrets or re.match(r"[^:]+://[^@]*:[^@]*@", authority):
        raise ValueError("holds a password; take it out and set source.password: ${env:NAME} or ${file:path}")
    return url


def is_reference(text: str) -> bool:
    """Whether a setting's text refers to a secret instead of being the value."""
    return _REFERENCE.fullmatch(text) is not None


def secret(reference: str | None) -> str | None:
    """Return the secret that a reference in the settings refers to, read at every call; `None` for `None`.

    Raises:
        ConfigurationError: it does not exist, or its file is readable by every user of the machine.
    """
    if reference is None:
        return None
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ConfigurationError(
            "the settings hold a secret itself; write a reference instead: ${env:NAME} or ${file:path}"
        )
    kind, name = match.groups()
    return _secret_from_environment(name) if kind == "env" else _secret_from_file(Path(name).expanduser())


def check_secrets(settings: object) -> None:
    """Check that every secret that these settings refer to can be read. `settings`: dictionaries and lists.

    Raises:
        ConfigurationError: as `secret`.
    """
    if isinstance(settings, str):
        if is_reference(settings):
            secret(settings)
    elif isinstance(settings, Mapping):
        check_secrets(list(settings.values()))
    elif isinstance(settings, Sequence):
        for each in settings:
            check_secrets(each)


def _secret_from_environment(name: str) -> str:
    try:
        return os.environ[name]
    except KeyError:
        raise ConfigurationError(
            f"the settings take a secret from the environment variable {name}, which is not set",
            remedy=f"set {name} where cdcflow is started",
        ) from None


def _secret_from_file(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
                raise ConfigurationError(
                    f"every user of this machine can read the secret in {path}", remedy=f"chmod o-rwx {path}"
                )
            return file.read().rstrip("\r\n")
    except OSError as error:
        raise ConfigurationError(f"the settings take a secret from {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"the secret in {path} is not UTF-8 text") from None
