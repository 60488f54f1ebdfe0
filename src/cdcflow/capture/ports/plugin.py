"""The declarations of packages that add a kind of source, of receivers of notifications, or of transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cdcflow.capture.ports.findings import Finding
from cdcflow.capture.ports.source import Source
from cdcflow.config.notify import NotifierSettings
from cdcflow.config.sources import SourceSettings
from cdcflow.config.transforms import TransformSettings


def _nothing(settings: Any) -> Iterable[tuple[str, str]]:
    return ()


def _only_kind(settings: Any) -> str:
    return f"{settings.kind}"


def _no_findings(settings: Any) -> Iterable[Finding]:
    return ()


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


@dataclass(frozen=True, slots=True)
class NotifierPlugin:
    """A kind of receiver of notifications, which an entry point of the group `cdcflow.notifiers` names.

    `ports`, `settings` and `address`: as of a `SourcePlugin`; `settings` is the model of an element of
    `service.notify`. `send` gets these settings and one notification, as the JSON object that a webhook gets, and
    returns when the receiver has it. It runs in a thread of this receiver alone, and is called again later if it
    raises. The text of a `CdcflowError` that it raises is shown to operators; of other errors, only the type. `doctor`:
    what is wrong with the settings or the receiver; it sends no notification.
    """

    ports: int
    settings: type[NotifierSettings]
    send: Callable[[Any, Mapping[str, object]], None]
    address: Callable[[Any], str] = _only_kind
    doctor: Callable[[Any], Iterable[Finding]] = _no_findings


@dataclass(frozen=True, slots=True)
class TransformPlugin:
    """A function that computes a column, which an entry point of the group `cdcflow.transforms` names.

    `ports` and `settings`: as of a `SourcePlugin`; `settings` is the model of an element of `computed`. `type_of` gets
    these settings and the schema of the chosen columns, and returns the type of the result. `apply` gets these settings
    and the chosen columns, of equal length, perhaps 0, by their names at the source. It returns an array of that type
    and length. It depends on nothing else: equal columns give equal results, at any time and in any process. An error
    that it raises stops the capture before the row; only the error's type is shown.

    `version`: a text that changes when the function gives other results for the same columns. Tables are then read
    again. `doctor`: what is wrong with the settings.
    """

    ports: int
    settings: type[TransformSettings]
    apply: Callable[[Any, Mapping[str, pa.Array]], pa.Array]
    type_of: Callable[[Any, pa.Schema], pa.DataType]
    version: str = "1"
    doctor: Callable[[Any], Iterable[Finding]] = _no_findings
