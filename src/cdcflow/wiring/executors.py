"""Start other processes that read a backfill, and give them access to the source."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from cdcflow.capture.ports.part_readers import PartReader, Readers
from cdcflow.config import Config, FileLog, MySQL, Postgres
from cdcflow.errors import ConfigurationError
from cdcflow.sources.engine.passwords import secret_of
from cdcflow.sources.postgres.stored_state import PostgresState
from cdcflow.sources.postgres.table_numbers import TableNumbers
from cdcflow.sources.privacy.chunks import PrivatePartReader
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.wiring.logs import log_reader
from cdcflow.wiring.plugged import lacking


@contextlib.contextmanager
def readers(config: Config, master: str) -> Iterator[Readers]:
    """Executors of a Spark cluster (`master`, as spark.master) that read chunks of the configured source: as many as
    `source.backfill.ranges_at_once`, each through one connection. Spark's settings are those of merge.spark.

    Raises:
        ConfigurationError: as `check_readers` and `spark.executors.tasks.executors`.
        SourceUnavailable: no executor started.
    """
    settings = check_readers(config)
    from cdcflow.spark.executors.tasks import executors  # imported here because a daemon never uses it

    folder = config.log.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # The current password and the keys of policies are sent along: executors have neither this machine's environment
    # nor its files.
    password, rules = secret_of(settings.password), PolicyRules(config.tables)

    def opener() -> Callable[[], PartReader]:
        return partial(_part_reader, settings, password(), rules, _numbers(config))

    with executors(master, settings.backfill.ranges_at_once, folder, opener, config.merge.spark) as found:
        yield found


def check_readers(config: Config) -> Postgres | MySQL:
    """Return the settings of a source that executors can read into the configured log.

    Raises:
        ConfigurationError: they cannot; the log is not in a folder, for example.
    """
    if not isinstance(config.log, FileLog):
        raise ConfigurationError(
            "reading with executors: they write files into the log's folder, and a log in Kafka has none",
            remedy="run the same command without --on",
            runbook="settings",
        )
    if config.log.replicate is not None:
        raise ConfigurationError(
            "reading with executors: they write files into the log's folder, which its peers would not have",
            remedy="run the same command without --on",
            runbook="settings",
        )
    by_person = [name for name, rules in config.tables.items() if any(r.key_by for r in rules.columns.values())]
    if by_person:
        raise ConfigurationError(
            f"reading with executors: {by_person[0]} in tables has key_by, and executors have no keys of persons",
            remedy="run the same command without --on",
            runbook="person-keys",
        )
    settings = config.database
    if not isinstance(settings, Postgres | MySQL):
        raise lacking(settings, "is not read by executors", "run the same command without --on")
    return settings


def _numbers(config: Config) -> TableNumbers | None:
    """Return the numbers of PostgreSQL's tables in the configured log; `None` if it has not begun."""
    reader = log_reader(config)
    if not isinstance(config.database, Postgres) or not reader.exists():
        return None
    state = PostgresState.read(reader.newest_checkpoint().source)
    return None if state is None else state.numbers


def _part_reader(
    settings: Postgres | MySQL, password: str | None, rules: PolicyRules, numbers: TableNumbers | None = None
) -> PartReader:
    reader = _raw_part_reader(settings, password, numbers)
    return PrivatePartReader(reader, rules) if rules else reader


def _raw_part_reader(settings: Postgres | MySQL, password: str | None, numbers: TableNumbers | None) -> PartReader:
    if isinstance(settings, Postgres):
        from cdcflow.sources.postgres.source import PostgresSource

        return PostgresSource(settings, lambda: password, numbers=numbers).part_reader()
    from cdcflow.sources.mysql.source import MySQLSource

    return MySQLSource(settings, lambda: password).part_reader()
