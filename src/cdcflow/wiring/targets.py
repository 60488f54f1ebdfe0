"""Delivers the configured log to the targets that packages bring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from cdcflow.config import Config, FileLog
from cdcflow.errors import ConfigurationError
from cdcflow.log.disk.fsync_reads import settle
from cdcflow.model.suggestions import did_you_mean
from cdcflow.sources.engine.selection import Selection
from cdcflow.targets.delivery import TargetDelivery
from cdcflow.wiring.logs import log_id
from cdcflow.wiring.plugged import target_of
from cdcflow.wiring.queries import open_for_queries


@contextmanager
def open_delivery(config: Config, name: str) -> Iterator[TargetDelivery]:
    """The delivery of the log to the target of this name, which is closed at the end of the block.

    Raises:
        ConfigurationError: the settings have no such target, or there is no log.
    """
    if name not in config.targets:
        raise ConfigurationError(
            f"the settings have no target {name}",
            remedy=f"{did_you_mean(name, config.targets)}set targets.{name} (docs/own-target.md)",
            runbook="settings",
        )
    settings = config.targets[name]
    log = open_for_queries(config)

    def sync() -> None:
        if isinstance(config.log, FileLog) and config.log.has_directory:
            settle(log.layout)

    with closing(target_of(settings).open(settings)) as target:
        yield TargetDelivery(log, log_id(config), target, Selection.parse(settings.tables), sync)
