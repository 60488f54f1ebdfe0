"""cdcflow: change data capture from PostgreSQL, MySQL and MariaDB into lakehouse tables, in columns."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from cdcflow.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cdcflow.config import Config
    from cdcflow.log.query.several_logs import Logs
    from cdcflow.log.query.subscribed import SubscribedLog

__all__ = ["__version__", "open", "open_logs"]


def open(log: Config | Path | str) -> SubscribedLog:  # noqa: A001  as in `gzip.open`
    """A change log, for questions: no daemon need run, and the database is not asked. `log`: the log's folder,
    `s3://bucket/prefix`, or a settings file, whatever kind of log it names.

    Raises:
        ConfigurationError: there is no log.
    """
    # Imported by its name: every module imports this one, and none may import all the others with it.
    opened: SubscribedLog = importlib.import_module("cdcflow.wiring.queries").open_for_queries(log)
    return opened


def open_logs(logs: Mapping[str, Config | Path | str], *, silent_after_s: float = 60.0) -> Logs:
    """Several change logs, to be read as one: their changes in one order, their tables as of one time. The keys are the
    logs' names; each value is as for `open`.

    `silent_after_s`: a log whose commit clock is so far behind this machine's time is called silent.

    Raises:
        ConfigurationError: there is no log.
    """
    opened: Logs = importlib.import_module("cdcflow.wiring.queries").open_several_logs(logs, silent_after_s)
    return opened
