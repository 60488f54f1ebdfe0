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
    from cdcflow.tables.query_answer import QueryAnswer

__all__ = ["__version__", "open", "open_logs", "sql"]


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


def sql(
    query: str,
    settings: Config | Path | str = "cdcflow.yaml",
    *,
    live: bool = False,
    as_of: str | None = None,
    at_least: str | None = None,
    wait_s: float = 60.0,
    incomplete: bool = False,
) -> QueryAnswer:
    """The answer to one SELECT in DuckDB's SQL over the tables of a pipeline, which all show the same point in time:
    the latest published cut. Any library that takes Arrow streams takes it; its `rows` are a `pyarrow.Table`.

    `live`: the latest sealed cut of the log, without a merge. `as_of`: the latest published cut at or before a cut's
    number, a position or a time, or the first one that shows a transaction (`transaction:512`). `at_least`: wait up to
    `wait_s` seconds until everything up to this position of the source (an LSN, `binlog.000003:77` or GTIDs) is in the
    tables. `incomplete`: also tables that lack rows.

    Raises:
        ConfigurationError: the query is refused, or a table cannot be read as of then; the message says why.
        HistoryLost: it has expired.
        SinkUnavailable: the tables did not reach `at_least` in time.
    """
    config = importlib.import_module("cdcflow.config")
    queries = importlib.import_module("cdcflow.wiring.table_queries")
    whole = settings if isinstance(settings, config.Config) else config.load(settings)
    asked = queries.AskedPoint(live, as_of, at_least, wait_s, incomplete)
    answer: QueryAnswer = queries.ask(whole, query, asked)
    return answer
