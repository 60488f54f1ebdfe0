"""Kinds of sources that other packages bring: which are installed, and the settings of the one that a file names.

A package declares a kind by an entry point of the group `cdcflow.sources`: the kind's name, and where its
`cdcflow.ports.SourcePlugin` is. The names of all installed kinds are read from the packages' metadata. A plug-in is
imported only when a settings file names its kind, so a broken one does not affect pipelines of other kinds.
"""

from __future__ import annotations

import difflib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

from pydantic_core import PydanticCustomError

from cdcflow.config.sources import SourceSettings

GROUP = "cdcflow.sources"
OWN_KINDS = ("postgres", "mysql", "mariadb")
SOURCE_KIND = "source_kind"
"""The type of a mistake in `source.kind` that the message describes completely."""
PORTS_VERSION = 1
"""The version of `cdcflow.ports` that this cdcflow has, and what a plug-in for it declares."""
PORTS_OLDEST = 1
"""The oldest version for which plug-ins still work here (docs/api.md)."""


class DeclaredSource(Protocol):
    """The part of a `cdcflow.ports.SourcePlugin` that settings depend on."""

    @property
    def ports(self) -> int: ...

    @property
    def settings(self) -> type[SourceSettings]: ...


def plugged_settings(kind: str) -> type[SourceSettings]:
    """The settings model of an installed kind.

    Raises:
        PydanticCustomError: the mistake, of type SOURCE_KIND.
    """
    try:
        return load_plugin(kind).settings
    except LookupError as error:
        raise PydanticCustomError(SOURCE_KIND, "{why}", {"why": str(error)}) from error


def settings_if_plugged(document: object) -> type[SourceSettings] | None:
    """The settings model of the source in a settings file; None if it is of one of cdcflow's kinds, or unusable."""
    source = document.get("source") if isinstance(document, dict) else None
    kind = source.get("kind") if isinstance(source, dict) else None
    if not isinstance(kind, str) or kind in OWN_KINDS or kind not in installed_kinds():
        return None
    try:
        return load_plugin(kind).settings
    except LookupError:
        return None


def installed_kinds() -> dict[str, list[EntryPoint]]:
    """The kinds that installed packages declare, each with its declarations, sorted. Imports none of them."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        declared = found.setdefault(entry.name, [])
        # A checkout that is also installed has its metadata twice; that is one package.
        if all((_package(other), other.value) != (_package(entry), entry.value) for other in declared):
            declared.append(entry)
    return dict(sorted(found.items()))


def load_plugin(kind: str) -> DeclaredSource:
    """Import the plug-in of a kind.

    Raises:
        LookupError: no such kind is installed, or the plug-in cannot be used; with what to do.
    """
    declared = installed_kinds().get(kind, [])
    if not declared:
        raise LookupError(_unknown(kind, [*OWN_KINDS, *installed_kinds()]))
    if len(declared) > 1:
        packages = " and ".join(sorted(map(_package, declared)))
        raise LookupError(f"is declared by {packages}: uninstall one of them (pip uninstall PACKAGE)")
    return _import(declared[0])


@cache
def _import(entry: EntryPoint) -> DeclaredSource:
    package = _package(entry)
    try:
        found: Any = entry.load()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise LookupError(
            f"is of a plug-in that cannot be imported: {package} ({entry.value}) raised {type(error).__name__}:"
            f" {_one_line(error)}; install another version of it (pip install --upgrade {package}), or report this to"
            " its authors"
        ) from error
    _check(found, entry)
    return cast("DeclaredSource", found)


def _check(found: object, entry: EntryPoint) -> None:
    package = _package(entry)
    ports = getattr(found, "ports", None)
    settings = getattr(found, "settings", None)
    if not isinstance(ports, int) or not isinstance(settings, type) or not callable(getattr(found, "open", None)):
        raise LookupError(
            f"is of a plug-in that is not one: {entry.value} of {package} is not a cdcflow.ports.SourcePlugin; install"
            f" another version of it (pip install --upgrade {package}), or report this to its authors"
        )
    if not PORTS_OLDEST <= ports <= PORTS_VERSION:
        newer = ports > PORTS_VERSION
        remedy = "pip install --upgrade cdcflow" if newer else f"pip install --upgrade {package}"
        raise LookupError(
            f"is of a plug-in for version {ports} of cdcflow.ports ({package}), and this cdcflow has"
            f" {_versions()}: run {remedy}"
        )
    if not issubclass(settings, SourceSettings):
        raise LookupError(
            f"is of a plug-in whose settings are not a cdcflow.ports.SourceSettings ({package}); install another"
            f" version of it (pip install --upgrade {package}), or report this to its authors"
        )


def _versions() -> str:
    return (
        f"version {PORTS_VERSION}" if PORTS_OLDEST == PORTS_VERSION else f"versions {PORTS_OLDEST} to {PORTS_VERSION}"
    )


def _unknown(kind: str, known: list[str]) -> str:
    names = ", ".join(f"'{name}'" for name in known[:-1]) + f" or '{known[-1]}'"
    close = difflib.get_close_matches(kind, known, n=1, cutoff=0.5)
    meant = f"; did you mean {close[0]}?" if close else ";"
    return f"must be {names}{meant} Another kind needs its package here: pip install PACKAGE (docs/own-source.md)"


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
