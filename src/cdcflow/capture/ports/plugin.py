"""What a package declares that brings a kind of source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cdcflow.capture.ports.source import Source
from cdcflow.config.sources import SourceSettings


def _nothing(settings: Any) -> Iterable[tuple[str, str]]:
    return ()


def _only_kind(settings: Any) -> str:
    return f"{settings.kind}"


@dataclass(frozen=True, slots=True)
class SourcePlugin:
    """A kind of source, which an entry point of the group `cdcflow.sources` names.

    `ports`: the version of `cdcflow.ports` that it is written for, as a number, not as the constant `PORTS_VERSION`,
    which would be that of the cdcflow that it runs in. `settings`: the model of `source:` in a settings file; relative
    paths and references to files in it are resolved against the file's folder. `open` gets these settings and returns a
    source that connects at its first query. `address`: what it connects to, for messages; never a secret. `leftovers`:
    what remains after `cdcflow drop`, and how to remove each.
    """

    ports: int
    settings: type[SourceSettings]
    open: Callable[[Any], Source]
    address: Callable[[Any], str] = _only_kind
    leftovers: Callable[[Any], Iterable[tuple[str, str]]] = _nothing
