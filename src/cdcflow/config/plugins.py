"""Kinds of parts that other packages bring: which are installed, and the settings of those that a file names.

A package declares a kind by an entry point of a group such as `cdcflow.sources`: the kind's name, and where its
declaration is, such as a `cdcflow.ports.SourcePlugin`. The names of all installed kinds are read from the packages'
metadata. A plug-in is imported only when a settings file names its kind, so a broken one does not affect pipelines of
other kinds.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

from pydantic_core import PydanticCustomError

from cdcflow.config.base import Settings
from cdcflow.config.notify import NotifierSettings
from cdcflow.config.setting_paths import SettingPath
from cdcflow.config.sources import SourceSettings
from cdcflow.config.targets import TargetSettings
from cdcflow.config.transforms import TransformSettings

OWN_KINDS = ("postgres", "mysql", "mariadb")
PLUGIN_KIND = "plugin_kind"
"""The type of a mistake in a `kind` that the message describes completely."""
PORTS_VERSION = 1
"""The version of `cdcflow.ports` that this cdcflow has, and what a plug-in for it declares."""
PORTS_OLDEST = 1
"""The oldest version for which plug-ins still work here (docs/api.md)."""


@dataclass(frozen=True, slots=True)
class PluginGroup:
    """One sort of parts that packages bring: the group of their entry points, and what a declaration consists of.

    `declaration`: its class in `cdcflow.ports`. `function`: the field of it that does the work. `base`: what its
    settings inherit from, and `setting`: where they are in a settings file. `page`: how to write one. `own`: the
    kinds of cdcflow itself.
    """

    name: str
    declaration: str
    function: str
    base: type[Settings]
    setting: str
    page: str
    own: tuple[str, ...] = ()


SOURCES = PluginGroup(
    "cdcflow.sources", "SourcePlugin", "open", SourceSettings, "source.", "docs/own-source.md", OWN_KINDS
)
NOTIFIERS = PluginGroup(
    "cdcflow.notifiers", "NotifierPlugin", "send", NotifierSettings, "service.notify.", "docs/notifications.md"
)
TARGETS = PluginGroup("cdcflow.targets", "TargetPlugin", "open", TargetSettings, "targets.NAME.", "docs/own-target.md")
TRANSFORMS = PluginGroup(
    "cdcflow.transforms", "TransformPlugin", "apply", TransformSettings, "tables.TABLE.computed.COLUMN.", "docs/rows.md"
)
GROUPS = (SOURCES, NOTIFIERS, TARGETS, TRANSFORMS)


class DeclaredPlugin(Protocol):
    """The part of a declaration that settings depend on."""

    @property
    def ports(self) -> int: ...

    @property
    def settings(self) -> type[Settings]: ...


def plugged_settings(group: PluginGroup, kind: str) -> type[Settings]:
    """Return the settings model of an installed kind.

    Raises:
        PydanticCustomError: the mistake, of type PLUGIN_KIND.
    """
    try:
        return load_plugin(group, kind).settings
    except LookupError as error:
        raise PydanticCustomError(PLUGIN_KIND, "{why}", {"why": str(error)}) from error


def plugged_models(document: object) -> dict[SettingPath, type[Settings]]:
    """Return the settings models of the plug-ins that a settings file uses, keyed by the place of their settings in
    the file. Kinds of cdcflow itself, and plug-ins that cannot be used, are omitted."""
    found: dict[SettingPath, type[Settings]] = {}
    for place, group, settings in _places(document):
        kind = settings.get("kind") if isinstance(settings, dict) else None
        if isinstance(kind, str) and kind not in group.own and kind in installed_kinds(group):
            try:
                found[place] = load_plugin(group, kind).settings
            except LookupError:
                continue
    return found


def _places(document: object) -> Iterator[tuple[SettingPath, PluginGroup, object]]:
    """Yield each place in a settings file where a kind may be a plug-in's."""
    if not isinstance(document, dict):
        return
    yield ("source",), SOURCES, document.get("source")
    service = document.get("service")
    receivers = service.get("notify") if isinstance(service, dict) else None
    for number, receiver in enumerate(receivers if isinstance(receivers, list) else []):
        yield ("service", "notify", number), NOTIFIERS, receiver
    targets = document.get("targets")
    for name, target in targets.items() if isinstance(targets, dict) else ():
        yield ("targets", str(name)), TARGETS, target
    tables = document.get("tables")
    for table, rules in tables.items() if isinstance(tables, dict) else ():
        computed = rules.get("computed") if isinstance(rules, dict) else None
        for name, transform in computed.items() if isinstance(computed, dict) else ():
            yield ("tables", str(table), "computed", str(name)), TRANSFORMS, transform


def installed_kinds(group: PluginGroup) -> dict[str, list[EntryPoint]]:
    """Return the kinds that installed packages declare, each with its declarations, sorted. Imports none of them."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group.name):
        declared = found.setdefault(entry.name, [])
        # A checkout that is also installed has its metadata twice; that is one package.
        if all((package_of(other), other.value) != (package_of(entry), entry.value) for other in declared):
            declared.append(entry)
    return dict(sorted(found.items()))


def load_plugin(group: PluginGroup, kind: str) -> DeclaredPlugin:
    """Import the plug-in of a kind.

    Raises:
        LookupError: no such kind is installed, or the plug-in cannot be used; the message contains what to do.
    """
    declared = installed_kinds(group).get(kind, [])
    if not declared:
        raise LookupError(_unknown(kind, group))
    if len(declared) > 1:
        packages = " and ".join(sorted(map(package_of, declared)))
        raise LookupError(f"is declared by {packages}: uninstall one of them (pip uninstall PACKAGE)")
    return _import(group, declared[0])


@cache
def _import(group: PluginGroup, entry: EntryPoint) -> DeclaredPlugin:
    package = package_of(entry)
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
    _check(group, found, entry)
    return cast("DeclaredPlugin", found)


def _check(group: PluginGroup, found: object, entry: EntryPoint) -> None:
    package = package_of(entry)
    ports = getattr(found, "ports", None)
    settings = getattr(found, "settings", None)
    function = getattr(found, group.function, None)
    if not isinstance(ports, int) or not isinstance(settings, type) or not callable(function):
        raise LookupError(
            f"is of a plug-in that is not one: {entry.value} of {package} is not a cdcflow.ports.{group.declaration};"
            f" install another version of it (pip install --upgrade {package}), or report this to its authors"
        )
    if not PORTS_OLDEST <= ports <= PORTS_VERSION:
        newer = ports > PORTS_VERSION
        remedy = "pip install --upgrade cdcflow" if newer else f"pip install --upgrade {package}"
        raise LookupError(
            f"is of a plug-in for version {ports} of cdcflow.ports ({package}), and this cdcflow has"
            f" {_versions()}: run {remedy}"
        )
    if not issubclass(settings, group.base):
        raise LookupError(
            f"is of a plug-in whose settings are not a cdcflow.ports.{group.base.__name__} ({package}); install"
            f" another version of it (pip install --upgrade {package}), or report this to its authors"
        )


def _versions() -> str:
    return (
        f"version {PORTS_VERSION}" if PORTS_OLDEST == PORTS_VERSION else f"versions {PORTS_OLDEST} to {PORTS_VERSION}"
    )


def _unknown(kind: str, group: PluginGroup) -> str:
    known = [*group.own, *installed_kinds(group)]
    needs = f"needs its package here: pip install PACKAGE ({group.page})"
    if not known:
        return f"is not installed, and no package brings another kind: it {needs}"
    names = " or ".join(filter(None, (", ".join(f"'{name}'" for name in known[:-1]), f"'{known[-1]}'")))
    close = difflib.get_close_matches(kind, known, n=1, cutoff=0.5)
    meant = f"; did you mean {close[0]}?" if close else ";"
    return f"must be {names}{meant} Another kind {needs}"


def package_of(entry: EntryPoint) -> str:
    """Return the package that declares a kind."""
    return entry.dist.name if entry.dist is not None else entry.module


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
