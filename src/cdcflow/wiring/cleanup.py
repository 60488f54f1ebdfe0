"""The end of a pipeline: removes what it created at the source, and lists what else remains of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote, urlsplit

from cdcflow.capture.ports.findings import Dropped
from cdcflow.config import Config, FileLog, KafkaLog, MySQL, Postgres
from cdcflow.errors import ConfigurationError
from cdcflow.fleet.registers import PLACE_CHARACTERS, SUFFIX
from cdcflow.fleet.report import KINDS
from cdcflow.wiring.captures import open_source
from cdcflow.wiring.logs import log_id, log_reader
from cdcflow.wiring.plugged import plugin_of


def drop(config: Config) -> Sequence[Dropped]:
    """Remove what was created at the source for the configured log (see `cdcflow.ports.Source.drop`).

    Raises:
        ConfigurationError: there is no log, so it is unknown what belongs to it at the source.
    """
    reader = log_reader(config)
    if not reader.exists():
        raise ConfigurationError(
            f"there is no change log at {reader.name}, and cdcflow needs its id to find what it created at the source",
            remedy="correct `log` in the settings; if the log is lost permanently, `cdcflow doctor` of a new log "
            "lists the slots that other logs left, each with the SQL that removes it",
        )
    source = open_source(config)
    try:
        return source.drop(log_id(config), reader.newest_checkpoint())
    finally:
        source.close()


def leftovers(config: Config) -> list[tuple[str, str]]:
    """Return the objects that `drop` does not remove, each with how to remove it."""
    settings = config.database
    of_source: Iterable[tuple[str, str]]
    if isinstance(settings, Postgres | MySQL):
        of_source = (*_of_control(settings), *_of_role(settings))
    else:
        of_source = plugin_of(settings).leftovers(settings)
    return [*_of_log(config.log), *_of_tables(config), *_of_fleet(config), *of_source]


def _of_log(log: FileLog | KafkaLog) -> Iterator[tuple[str, str]]:
    if isinstance(log, KafkaLog):
        topic = log.kafka.topic
        for name in (topic, f"{topic}.checkpoint"):
            yield f"topic {name}", f"kafka-topics.sh --bootstrap-server {log.kafka.brokers} --delete --topic {name}"
        yield f"folder {log.folder}", f"rm -r '{log.folder}'"
        if log.history_url is not None:
            yield f"sealed segments in {log.history_url}", _of_store(log.history_url)
        elif not log.history.is_relative_to(log.folder):
            yield f"sealed segments in {log.history}", f"rm -r '{log.history}'"
        return
    if log.has_directory:
        yield f"change log {log.path}", f"rm -r '{log.path}'"
    if log.objects is not None:
        yield f"sealed segments in {log.objects.url}", _of_store(log.objects.url)


def _of_tables(config: Config) -> Iterator[tuple[str, str]]:
    warehouse, catalog = config.merge.warehouse, config.merge.catalog
    by_name = "" if catalog is None else "DROP TABLE each table in its catalog, then "
    remove = _of_store(warehouse) if isinstance(warehouse, str) else f"rm -r '{warehouse}'"
    yield f"tables in {warehouse}", f"{by_name}{remove}"
    if config.publish is not None:
        kafka = config.publish.kafka
        server = f"kafka-topics.sh --bootstrap-server {kafka.brokers}"
        yield f"published topics {kafka.topic_prefix}.*", f"{server} --delete --topic '{kafka.topic_prefix}[.].*'"


def _of_control(settings: Postgres | MySQL) -> Iterator[tuple[str, str]]:
    table = settings.control_table
    if table is not None:
        yield f"control table {table}", f"if nothing else uses it, run DROP TABLE {table};"


def _of_role(settings: Postgres | MySQL) -> Iterator[tuple[str, str]]:
    user = unquote(urlsplit(settings.url).username or "")
    if not user:
        return
    if isinstance(settings, Postgres):
        name = '"' + user.replace('"', '""') + '"'
        # DROP OWNED alone would drop the tables that the role owns.
        sql = f"REASSIGN OWNED BY {name} TO CURRENT_USER; DROP OWNED BY {name}; DROP ROLE {name};"
        yield f"role {user} and its grants", f"if nothing else uses it, run {sql}"
    else:
        name = "'" + user.replace("\\", "\\\\").replace("'", "''") + "'"
        yield f"account {user} and its grants", f"if nothing else uses it, run DROP USER {name}@'…' with its host"


def _of_fleet(config: Config) -> Iterator[tuple[str, str]]:
    if (fleet := config.service.fleet) is None:
        return
    names = [f"{fleet.name}.{kind}.{'?' * PLACE_CHARACTERS}{SUFFIX}" for kind in KINDS]
    if isinstance(fleet.at, str):
        how = f"remove {' and '.join(names)} below {fleet.at}/ with the store's own tool"
    else:
        how = " ".join(("rm -f", *(f"'{fleet.at}'/{name}" for name in names)))
    yield f"its reports in the fleet's register {fleet.at}", how


def _of_store(url: str) -> str:
    return f"remove everything below {url.rstrip('/')}/ with the store's own tool"
