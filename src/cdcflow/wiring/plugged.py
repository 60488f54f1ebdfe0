"""Installed plug-ins with their types, doctor's findings about them, and errors that name what a source cannot do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from pydantic import Field, SkipValidation

from cdcflow.capture.ports.findings import Finding
from cdcflow.capture.ports.plugin import NotifierPlugin, SourcePlugin, TransformPlugin
from cdcflow.config import Config, NotifierSettings, TargetSettings
from cdcflow.config.plugins import NOTIFIERS, SOURCES, TARGETS, TRANSFORMS, PluginGroup, load_plugin
from cdcflow.config.references import check_secrets
from cdcflow.config.sources import SourceSettings
from cdcflow.config.transforms import TransformSettings
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.targets.port import TargetPlugin

Part = TypeVar("Part", NotifierSettings, TargetSettings, TransformSettings)


class ProgramSource(SourceSettings):
    """The settings of a source that this program brings itself. `plugin` opens it; no settings file can name it."""

    kind: str = "program"
    plugin: SkipValidation[SourcePlugin] = Field(exclude=True)


def plugin_of(settings: SourceSettings) -> SourcePlugin:
    """Return the plug-in of these settings, which settings of its kind have imported already.

    Raises:
        ConfigurationError: it is no longer installed, or cannot be used.
    """
    if isinstance(settings, ProgramSource):
        return settings.plugin
    return cast("SourcePlugin", _load(SOURCES, settings.kind, "source.kind"))


def notifier_of(settings: NotifierSettings) -> NotifierPlugin:
    """Return the plug-in of these settings of a receiver of notifications, like `plugin_of`."""
    return cast("NotifierPlugin", _load(NOTIFIERS, settings.kind, "service.notify: kind"))


def target_of(settings: TargetSettings) -> TargetPlugin:
    """Return the plug-in of these settings of a target, like `plugin_of`."""
    return cast("TargetPlugin", _load(TARGETS, settings.kind, "targets: kind"))


def transform_of(settings: TransformSettings) -> TransformPlugin:
    """Return the plug-in of these settings of a transform, like `plugin_of`."""
    return cast("TransformPlugin", _load(TRANSFORMS, settings.kind, "computed: kind"))


def _load(group: PluginGroup, kind: str, setting: str) -> object:
    try:
        return load_plugin(group, kind)
    except LookupError as error:
        raise ConfigurationError(f"{setting} {error}", runbook="settings") from error


def part_findings(config: Config) -> Iterator[Finding]:
    """Yield doctor's findings about receivers of notifications, targets and transforms that packages bring. Nothing is
    sent to them."""
    for number, settings in enumerate(config.service.notify):
        if isinstance(settings, NotifierSettings):
            yield from _findings_of(notifier_of, settings, f"service.notify[{number}]")
    for name, target in config.targets.items():
        yield from _findings_of(target_of, target, f"targets.{name}")
    for table, rules in config.tables.items():
        for column, transform in rules.computed.items():
            if isinstance(transform, TransformSettings):
                yield from _findings_of(transform_of, transform, f"tables.{table}.computed.{column}")


def _findings_of(
    plugin_of: Callable[[Part], NotifierPlugin | TargetPlugin | TransformPlugin], settings: Part, subject: str
) -> list[Finding]:
    try:
        plugin = plugin_of(settings)
        check_secrets(settings.model_dump(mode="json"))
        address = f"kind {settings.kind}" if isinstance(plugin, TransformPlugin) else plugin.address(settings)
        return list(plugin.doctor(settings)) or [Finding("ok", subject, f"{address}: its settings can be used")]
    except CdcflowError as error:
        return [Finding("error", subject, str(error).split("\n")[0], error.remedy)]
    except Exception as error:  # noqa: BLE001  a plug-in's; its text may hold a secret
        text = f"the check of kind {settings.kind} raised {type(error).__name__}"
        return [Finding("error", subject, text, "report this to the authors of its package")]


def lacking(settings: SourceSettings, what: str, remedy: str) -> ConfigurationError:
    """Return the error of a command that needs an optional capability which sources of this kind do not have."""
    return ConfigurationError(f"a source of kind {settings.kind} {what}", remedy=remedy, runbook="source-lacks")
