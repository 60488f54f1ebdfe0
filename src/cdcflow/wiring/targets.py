"""Delivers the configured log to the targets that packages bring."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cdcflow.config import Config, FileLog, TargetSettings
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.log.disk.fsync_reads import settle
from cdcflow.log.disk.layer import storing
from cdcflow.log.disk.lease import lock_file
from cdcflow.log.disk.maintenance_lock import Busy
from cdcflow.log.maintenance.state_files import target_file
from cdcflow.model.suggestions import did_you_mean
from cdcflow.sources.engine.selection import Selection
from cdcflow.targets.comparison import ComparedTarget, TargetComparison
from cdcflow.targets.delivery import TargetDelivery
from cdcflow.targets.port import TargetPlugin, TargetTables
from cdcflow.wiring.logs import log_id
from cdcflow.wiring.plugged import target_of
from cdcflow.wiring.queries import open_for_queries


class TargetHeld(Busy):
    """The error when another process delivers to a target. `holder`: a text that names it."""

    section = "target-stopped"

    def __init__(self, name: str, holder: str) -> None:
        super().__init__(
            f"delivering to {name}: {holder} delivers to it already",
            remedy="that one continues: `cdcflow status` shows how far it is; to deliver here instead, end it"
            " (`cdcflow run`: start it with --no-deliver)",
        )
        self.holder = holder


@contextmanager
def hold_target(config: Config, name: str) -> Iterator[None]:
    """Make this the only process of this log on this machine that delivers to a target, during the block.

    Raises:
        TargetHeld: another process does.
    """
    if isinstance(config.log, FileLog) and not config.log.has_directory:
        yield  # this machine has no folder of the log; the target's places keep two deliveries apart
        return

    def refusal(path: Path, who: str) -> TargetHeld:
        return TargetHeld(name, who)

    file = target_file(config.log.folder, name, "lock")
    with storing(f"creating the folder {file.parent}"):
        file.parent.mkdir(mode=0o750, exist_ok=True, parents=True)
    held = lock_file(file, refusal)
    try:
        yield
    finally:
        os.close(held)


@contextmanager
def open_delivery(config: Config, name: str) -> Iterator[TargetDelivery]:
    """Yield the delivery of the log to the target of this name, which is closed at the end of the block.

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
    plugin = target_of(settings)
    log = open_for_queries(config)

    def sync() -> None:
        if isinstance(config.log, FileLog) and config.log.has_directory:
            settle(log.layout)

    with closing(_open(plugin, settings, name)) as target:
        yield TargetDelivery(log, log_id(config), target, Selection.parse(settings.tables), sync)


def verify_targets(config: Config, tables: Collection[str] = ()) -> tuple[TargetComparison, ...]:
    """Compare these tables of all configured targets with the log, each at the place that the target has. `tables`
    empty: all tables.

    Raises:
        ConfigurationError: there is no log, no target, or no target has one of the tables.
    """
    if not config.targets:
        raise ConfigurationError("the settings have no targets", remedy="set targets (docs/own-target.md)")
    found = [one for name in config.targets for one in _compare(config, name, tables)]
    if missing := sorted(set(tables) - {one.table for one in found}):
        raise ConfigurationError(
            f"comparing {', '.join(missing)}: no target has such a table",
            remedy="name tables as schema.table, and as `targets.NAME.tables` selects them",
            runbook="table-not-found",
        )
    return tuple(found)


def _compare(config: Config, name: str, tables: Collection[str]) -> Iterator[TargetComparison]:
    from cdcflow.tables.local.row_difference import count_differences

    settings = config.targets[name]
    selection = Selection.parse(settings.tables)
    log = open_for_queries(config)
    try:
        with closing(_open(target_of(settings), settings, name)) as target:
            compared = ComparedTarget(name, log, log_id(config), target, selection, count_differences)
            yield from (compared.compare(table) for table in compared.tables() if not tables or str(table) in tables)
    except CdcflowError as error:
        reason = str(error).split("\n")[0]
        yield TargetComparison(name, "", "not compared", reason=reason, remedy=error.remedy or "")


def _open(plugin: TargetPlugin, settings: TargetSettings, name: str) -> TargetTables:
    try:
        return plugin.open(settings)
    except CdcflowError:
        raise
    except Exception as error:  # noqa: BLE001  a plug-in's; its text may hold a secret
        raise ConfigurationError(
            f"opening the target {name}: kind {settings.kind} raised {type(error).__name__}",
            remedy="correct the target's settings; if they are right, report this to the authors of its package",
            runbook="target-stopped",
        ) from None
