"""Sources of installed plug-ins, and errors that name what a source cannot do."""

from __future__ import annotations

from typing import cast

from cdcflow.capture.ports.plugin import SourcePlugin
from cdcflow.config.plugins import load_plugin
from cdcflow.config.sources import SourceSettings
from cdcflow.errors import ConfigurationError


def plugin_of(settings: SourceSettings) -> SourcePlugin:
    """The plug-in of these settings, which settings of its kind have imported already.

    Raises:
        ConfigurationError: it is no longer installed, or cannot be used.
    """
    try:
        return cast("SourcePlugin", load_plugin(settings.kind))
    except LookupError as error:
        raise ConfigurationError(f"source.kind {error}", runbook="settings") from error


def lacking(settings: SourceSettings, what: str, remedy: str) -> ConfigurationError:
    """The error of a command that needs an optional capability which sources of this kind do not have."""
    return ConfigurationError(f"a source of kind {settings.kind} {what}", remedy=remedy, runbook="source-lacks")
