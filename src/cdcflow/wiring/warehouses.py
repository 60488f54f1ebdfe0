"""Creates the engines that merge a log into tables, and their warehouse."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cdcflow.config import Config, FileLog, KafkaLog, is_reference, secret
from cdcflow.errors import ConfigurationError
from cdcflow.log.files.layout import Layout
from cdcflow.log.tier import Tier
from cdcflow.model.file_layout import PartitionField, SortColumn
from cdcflow.model.table import OFFSET, TableId
from cdcflow.wiring.logs import history_bucket, history_layout, log_layout, log_reader, topics

if TYPE_CHECKING:
    from cdcflow.tables.job.engines import Engines
    from cdcflow.tables.job.maintenance import UpkeepPolicy
    from cdcflow.tables.job.several_logs import Merged
    from cdcflow.tables.merge.policy import Policies, TablePolicy
    from cdcflow.tables.paths import Warehouse
    from cdcflow.tables.port import Engine


def engines(config: Config, spark: Any = None) -> Engines:
    """Return the engines that merge into the configured warehouse. Spark is started when it is first needed, unless
    `spark` is a running session.

    Raises:
        ConfigurationError: the warehouse has tables of another format, or a package that the engine needs is not
            installed.
    """
    # Imported here, so that a capture does not load the packages of a merge.
    from cdcflow import local
    from cdcflow.spark.engine import SparkEngine
    from cdcflow.spark.runtime.java import missing_for_spark
    from cdcflow.spark.session import session_for
    from cdcflow.tables.formats import format_for
    from cdcflow.tables.job.engines import Engines

    settings, place = config.merge, warehouse(config)
    chosen = format_for(place, settings.format)

    def begin() -> SparkEngine:
        return SparkEngine(spark or session_for(config), place, chosen, settings.memory_max)

    here = partial(local.local_engine, place, chosen, memory_max=settings.memory_max)
    if settings.engine == "local":
        if (why := local.only_for_spark(place)) is not None:
            raise ConfigurationError(
                f"merging without Spark into {place}: {why}",
                remedy="set merge.engine to auto or spark",
                runbook="merge-session",
            )
        return Engines(here(), remedy=local.NEEDS_SPARK)
    if settings.engine == "auto" and is_merged_here(config, place) and local.is_installed(chosen, place):
        if spark is None and (missing := missing_for_spark()) is not None:
            return Engines(here(), remedy=local.needs_spark(missing))
        return Engines(here(bounded=True), begin)
    return Engines(begin())


def reading_engine(config: Config) -> Engine:
    """Return the engine that reads the published cuts of the configured warehouse: without Spark if possible.

    Raises:
        ConfigurationError: a package that it needs is not installed.
    """
    from cdcflow import local
    from cdcflow.tables.formats import format_for

    place = warehouse(config)
    chosen = format_for(place, config.merge.format)
    if is_merged_here(config, place) and local.is_installed(chosen, place):
        return local.local_engine(place, chosen)
    return engines(config).first


def is_in_quarantine(config: Config, table: TableId, offset: int) -> bool:
    """Whether the quarantine of a captured table has the row whose latest change has this offset."""
    import pyarrow.compute as pc

    from cdcflow import local
    from cdcflow.tables.formats import format_for
    from cdcflow.tables.merge.contract import quarantine_of
    from cdcflow.tables.paths import table_path

    place = warehouse(config)
    if not policies(config).of(str(table)).contract or not is_merged_here(config, place):
        return False
    with (
        closing(local.local_engine(place, format_for(place, config.merge.format))) as engine,
        closing(engine.table(table_path(quarantine_of(table)))) as there,
    ):
        if there.snapshot() is None:
            return False
        parts = [there.read(file, [OFFSET]).column(OFFSET) for file in there.files()]
        return any(pc.any(pc.equal(part, offset)).as_py() for part in parts)


def is_merged_here(config: Config, place: Warehouse) -> bool:
    """Whether the local engine reaches the configured warehouse. If only Spark's settings describe how its bucket is
    reached, it does not, unless `merge.engine` demands it."""
    from cdcflow import local

    if not local.reaches(place):
        return False
    if place.is_local or place.store is not None or config.merge.engine == "local":
        return True
    # Only the names of S3's settings are known here; how Spark reaches another store may be described anywhere.
    return place.bucket is not None and not any("fs.s3a." in name for name in config.merge.spark)


def warehouse(config: Config) -> Warehouse:
    """Return the configured warehouse, with the credentials and catalog that access requires."""
    from cdcflow.tables.paths import Metastore, Unity, Warehouse

    settings = config.merge
    found = Warehouse.of(settings.warehouse)
    catalog = None
    if settings.catalog is not None and settings.format == "iceberg":
        catalog = {k: secret(v) or "" if is_reference(v) else v for k, v in settings.catalog.items()}
    unity = None
    if settings.catalog is not None and settings.catalog["type"] == "unity":
        given = settings.catalog
        replace_ = given.get("replace") == "true"
        unity = Unity(
            given["uri"].rstrip("/"), given["catalog"], secret(given.get("token")), given.get("prefix", ""), replace_
        )
    store = None if settings.objects is None or found.place is None else settings.objects.address_of(found.place)
    metastore = Metastore.from_settings(settings)
    return replace(found, store=store, catalog=catalog, metastore=metastore, unity=unity)


def policies(config: Config) -> Policies:
    """Return the policies for the tables in the warehouse, from the settings."""
    from cdcflow.tables.merge.contract import ColumnPromise
    from cdcflow.tables.merge.policy import DerivedQuery, Policies

    given = config.merge.tables
    of_all = given.model_dump(exclude={"each", "routes", "constants"}, exclude_none=True)
    each = {name: {**of_all, **one.model_dump(exclude_none=True)} for name, one in given.each.items()}
    contracts = {
        name: tuple(ColumnPromise(column, **one.model_dump(), setting=name) for column, one in columns.items())
        for name, columns in config.contracts.items()
    }
    listed = {name: _policy(one) for name, one in each.items()}
    derived = {
        name: DerivedQuery(one.key, one.sql or "", one.from_ or "", one.transform or "", one.version)
        for name, one in config.merge.derive.items()
    }
    return Policies(_policy(of_all), listed, given.routing, derived, contracts)


def _policy(settings: Mapping[str, Any]) -> TablePolicy:
    from cdcflow.tables.merge.policy import TablePolicy

    layout: dict[str, Any] = {}
    if "partition_by" in settings:
        layout["partition_by"] = tuple(map(PartitionField.parse, settings["partition_by"]))
    if "sort_by" in settings:
        layout["sort_by"] = tuple(map(SortColumn.parse, settings["sort_by"]))
    effects = {**dict.fromkeys(settings.get("purge_origins", ()), "remove"), **settings.get("purges", {})}
    layout["purge_origins"] = tuple(name for name, effect in effects.items() if effect == "remove")
    layout["kept_purges"] = tuple(name for name, effect in effects.items() if effect == "keep")
    given = {name: value for name, value in settings.items() if name != "purges"}
    return TablePolicy(**{**given, **layout})


def upkeep_policy(config: Config, budget_s: float | None = None) -> UpkeepPolicy:
    """Return the maintenance policy of the configured warehouse; `budget_s` overrides the settings."""
    from cdcflow.tables.job.maintenance import UpkeepPolicy

    chosen = config.merge.upkeep
    return UpkeepPolicy(
        config.merge.keep,
        chosen.every,
        chosen.budget if budget_s is None else budget_s,
        chosen.compact,
        chosen.after_merges,
        chosen.cluster,
    )


def check_logs_to_merge(configs: Mapping[str, Config]) -> None:
    """Check that the logs of these settings, keyed by log name, can be merged into one warehouse.

    Raises:
        ConfigurationError: they name different warehouses, or have different queries for a derived table; or there is
            no log.
    """
    attempted = f"merging {', '.join(configs)}"
    for config in configs.values():
        reader = log_reader(config)
        if not reader.exists():
            raise ConfigurationError(
                f"{attempted}: there is no change log at {reader.name}",
                remedy="start `cdcflow run` with its settings first, or correct `log` in them",
                runbook="no-log",
            )
    from cdcflow.tables.job.several_logs import derived_queries

    derived_queries({name: policies(config) for name, config in configs.items()})
    places = {name: (warehouse(config), config.merge.format, config.merge.engine) for name, config in configs.items()}
    first = next(iter(places))
    if others := [name for name, place in places.items() if place != places[first]]:
        raise ConfigurationError(
            f"{attempted}: {', '.join(others)} and {first} have different settings of merge.warehouse, merge.format or"
            " merge.engine",
            remedy="make these three the same in all of the files",
        )


def logs_to_merge(configs: Mapping[str, Config], spark: Any = None) -> list[Merged]:
    """Return the logs of these settings, keyed by log name, for a merge into one warehouse. This Spark session seals
    the new part of those in Kafka.

    Raises:
        HistoryLost, SinkUnavailable: a topic cannot be sealed; see `cdcflow.ports.Tier.open`.
    """
    return [_merge_input(name, config, spark) for name, config in configs.items()]


def _merge_input(name: str, config: Config, spark: Any) -> Merged:
    if isinstance(config.log, KafkaLog):
        from cdcflow.spark.kafka import log_to_merge

        return log_to_merge(spark, name, tier(config), policies(config))
    from cdcflow.tables.job.several_logs import Merged

    return Merged(name, merge_layout(config.log, config.merge.spark.get("spark.master")), policies(config))


def merge_layout(log: FileLog, master: str | None) -> Layout:
    """Return a log in files as a merge by this Spark master reads it. Executors on other machines cannot access this
    machine's disk: for them a log with an object store consists of the segments that the store has."""
    from cdcflow.spark.runtime.masters import runs_here

    layout = log_layout(log)
    if layout.store is None or master is None or runs_here(master):
        return layout
    return replace(layout, root=layout.store.room)


def tier(config: Config) -> Tier:
    """Return the configured log in Kafka with its history, for the merge.

    Raises:
        ConfigurationError: the log is not in Kafka.
    """
    if not isinstance(config.log, KafkaLog):
        raise ConfigurationError("the log is not in Kafka", remedy="merge the folder that log.path names")
    from cdcflow.sinks.kafka.tier import KafkaTier

    layout = history_layout(config.log)
    if layout.store is None:
        return KafkaTier(topics(config.log.kafka), layout)
    from cdcflow.sinks.objects.history import StoredHistory

    opening = partial(StoredHistory.open, layout, history_bucket(config.log))
    return KafkaTier(topics(config.log.kafka), layout, open_history=opening)
