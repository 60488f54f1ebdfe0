"""The log that the configured source keeps, for the process that holds its budget."""

from __future__ import annotations

import contextlib
from functools import partial

from cdcflow.capture.ports.budgeted_log import BudgetedLog
from cdcflow.config import Config, MySQL, Postgres
from cdcflow.errors import CdcflowError, ConfigurationError
from cdcflow.model.log_budget import LogBudget, LogLimit
from cdcflow.sources.engine.passwords import secret_of
from cdcflow.sources.postgres.kept_log import PostgresKeptLog
from cdcflow.sources.postgres.slot_names import Names
from cdcflow.wiring.logs import log_id, newest_checkpoint


def budget(config: Config) -> LogBudget:
    """Return the budget for the log that the configured source keeps; an empty one if the settings have none."""
    settings = config.database
    return settings.budget if isinstance(settings, Postgres | MySQL) else LogBudget()


def budgeted_log(config: Config, slot: str | None = None) -> BudgetedLog | None:
    """Return the log that the source keeps for the configured capture; `None` if this kind of source keeps none.

    `slot`: the slot's name, for a process that cannot read the change log, which names it otherwise.
    """
    settings = config.database
    if isinstance(settings, Postgres):
        return PostgresKeptLog(settings, secret_of(settings.password), SlotName(config, slot or settings.slot))
    if not isinstance(settings, MySQL):
        return None
    # Imported here, so that a capture from one database does not load the library of the other.
    from cdcflow.sources.mysql.kept_log import MySQLKeptLog

    return MySQLKeptLog(settings, secret_of(settings.password), partial(newest_checkpoint, config))


def log_limits(config: Config) -> tuple[LogLimit, ...] | None:
    """Return the limits on the log that the configured source keeps: the settings' and the server's. None if this kind
    of source keeps none.

    Raises:
        SourceUnavailable: the server cannot be queried.
    """
    log = budgeted_log(config)
    if log is None:
        return None
    own = budget(config)
    of_settings = (LogLimit("source.log_budget", own.bytes), LogLimit("source.log_budget_age", age_s=own.age_s))
    with contextlib.closing(log):
        return (*(one for one in of_settings if one.bytes or one.age_s), *log.limits())


def known_slot(config: Config, slot: str | None) -> str:
    """Return the name of the configured slot, for a process that must know it now. `slot`: as for `budgeted_log`.

    Raises:
        ConfigurationError: it is unknown: neither the settings nor a log have it.
    """
    settings = config.database
    found = SlotName(config, slot or (settings.slot if isinstance(settings, Postgres) else None))()
    if found is None:
        raise ConfigurationError(
            f"the slot's name is unknown: there is no log at {config.log.folder}",
            remedy="set source.slot, or give --slot NAME (`SELECT slot_name FROM pg_replication_slots` lists them)",
        )
    return found


class SlotName:
    """The name of the configured slot: the one in the settings, or one derived from the id of the log."""

    def __init__(self, config: Config, name: str | None) -> None:
        self._config = config
        self._name = name

    def __call__(self) -> str | None:
        if self._name is None and (known := self._log_id()):
            assert isinstance(self._config.database, Postgres)  # noqa: S101 - see `budgeted_log`
            self._name = Names.of(self._config.database, known).slot
        return self._name

    def _log_id(self) -> str:
        try:
            return log_id(self._config)
        except CdcflowError:
            return ""  # there is no log yet, or it cannot be read
