"""The whole of a settings file, with its small parts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    Field,
    SerializeAsAny,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from cdcflow.config.access import AccessToken, ServerTls, check_tokens
from cdcflow.config.base import URL, Settings, is_host_and_port
from cdcflow.config.collections import Push, Serve
from cdcflow.config.columns import TableRules
from cdcflow.config.contracts import ColumnContract
from cdcflow.config.fleet import FleetMembership
from cdcflow.config.lease import LeaseSettings
from cdcflow.config.logs import TOPIC_EXPIRES, FileLog, KafkaLog
from cdcflow.config.notify import NotifierSettings, Notify, Subscription
from cdcflow.config.plugins import NOTIFIERS, OWN_KINDS, SOURCES, TARGETS, plugged_settings
from cdcflow.config.publish import Publish
from cdcflow.config.references import is_reference
from cdcflow.config.sources import PATTERN, MySQL, Postgres, SourceSettings, one_table
from cdcflow.config.targets import TargetSettings
from cdcflow.config.units import Bytes, Seconds
from cdcflow.config.warehouse_stores import WarehouseStore
from cdcflow.errors import ConfigurationError
from cdcflow.model.file_layout import PartitionField, SortColumn, check_order, check_partitions
from cdcflow.model.routes import Routes
from cdcflow.model.stores import place_in_store

_THRIFT = re.compile(r"thrift://[^\s,/]+:\d+(,thrift://[^\s,/]+:\d+)*")
_Part = TypeVar("_Part", PartitionField, SortColumn)
_SECRET_PROPERTY = re.compile(r"password|secret|(token|credential)$")


class TableSettings(Settings):
    """The policy for a table in the warehouse (see `cdcflow.tables.merge.policy`). A setting that is not set for one
    table has the value for all tables, in `merge.tables`."""

    mode: Literal["current", "soft_delete", "append", "history"] | None = None
    """What the rows of every table represent: `current`, `soft_delete`, `append` or `history`
    ([tables.md](tables.md#modes)). A table that was created with another mode is excluded from the cuts, and the
    reason says what to do. Default: as in the existing table; `current` for a new one."""
    history_columns: Literal["cdcflow", "auto_cdc"] | None = None
    """The names of a version's ends in a history: `_valid_from` and `_valid_to`, or with `auto_cdc` `__START_AT` and
    `__END_AT` ([tables.md](tables.md#history)). Default: as in the existing table; `cdcflow` for a new one."""
    evolve: Literal["evolve", "add_only", "freeze"] | None = None
    """Which changes of the source's shape every table follows: `evolve` (all), `add_only` (new columns), `freeze`
    (none) ([tables.md](tables.md#evolution)). Default: `evolve`."""
    incompatible: Literal["stop", "new_column"] | None = None
    """A column whose new type does not hold the old values: `stop` excludes the table, `new_column` gives the new type
    a separate column. Default: `stop`."""
    readable: Literal["fast", "wide"] | None = None
    """What new tables are optimized for: `fast` changes, or `wide`: as many readers as possible can open them
    ([tables.md](tables.md#wide-tables)). Default: `fast`."""
    partition_by: tuple[str, ...] | None = None
    """The values by which the rows of every table are divided into separate files: `[day(created_at), bucket(16,
    id)]`, with `year`, `month`, `day`, `hour`, `bucket`, `truncate` or a column alone; `[]` for none
    ([tables.md](tables.md#partitions-and-order)). Default: as in the existing table; none for a new one."""
    sort_by: tuple[str, ...] | None = None
    """The order of the rows in each file: `[customer_id, created_at desc]`; `[]` for none
    ([tables.md](tables.md#partitions-and-order)). Default: as in the existing table; none for a new one."""

    purge_origins: tuple[str, ...] | None = None
    """In `soft_delete`: the origins of transactions whose deletes remove rows of every table, instead of marking
    them; the same as `remove` in `purges` ([tables.md](tables.md#purges)). Default: empty."""
    purges: dict[str, Literal["keep", "remove"]] | None = None
    """In `soft_delete`: what deletes do to rows of every table instead of marking them, by the origin of their
    transaction: `{archive: keep}` leaves them unmarked, `{erasure: remove}` removes them. A transaction has its
    origin from a purge mark, a replication origin, or a GTID's tag ([tables.md](tables.md#purges)). Default: empty.
    """

    @field_validator("partition_by")
    @classmethod
    def _partitions(cls, given: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return _spell(given, PartitionField.parse, check_partitions)

    @field_validator("sort_by")
    @classmethod
    def _order(cls, given: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return _spell(given, SortColumn.parse, check_order)


def _spell(
    given: tuple[str, ...] | None, parse: Callable[[str], _Part], check: Callable[[tuple[_Part, ...]], None]
) -> tuple[str, ...] | None:
    """Return the parts of a layout as cdcflow writes them."""
    if given is None:
        return None
    found = tuple(map(parse, given))
    check(found)
    return tuple(map(str, found))


class MergeTables(TableSettings):
    """The policy for all tables, and in `each` the exceptions, keyed by table name (`public.orders`)."""

    each: dict[str, TableSettings] = Field(default_factory=dict)
    routes: dict[str, str] = Field(default_factory=dict)
    """Tables under other names, and many tables in one ([routes.md](routes.md)): `{public.orders: shop.orders}`, or a
    regular expression, `{'shard_(?P<shard>\\d+)\\.orders': shop.orders}`, whose groups become columns of the key."""
    constants: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Several pipelines into one table ([routes.md](routes.md#several-pipelines)): for a table that a route leads
    to, more columns of its key, with the value that this pipeline's rows have: `{shop.orders: {region: eu}}`."""

    @field_validator("routes")
    @classmethod
    def _each_is_whole(cls, routes: dict[str, str]) -> dict[str, str]:
        for route in Routes.of(routes).listed:
            route.check()
        return routes

    @model_validator(mode="after")
    def _constants_fit(self) -> Self:
        try:
            self.routing.check()
        except ValueError as error:
            raise ValueError(f"merge.tables.constants {error}") from None
        return self

    @property
    def routing(self) -> Routes:
        """The routes that the tables of the source take into the warehouse."""
        return Routes.of(self.routes, self.constants)


class Derive(Settings):
    """A table that a query, or a function, computes from others, published in the same cut
    ([derived.md](derived.md))."""

    key: tuple[str, ...] = Field(min_length=1)
    """The columns of the result that identify a row."""
    sql: str | None = None
    """One SELECT over captured and derived tables, in DuckDB's SQL. It may call functions that depend on nothing but
    their arguments ([which](derived.md#what-a-query-may-have)). Default: required, unless `transform` is set."""
    from_: str | None = Field(None, alias="from")
    """The table whose rows `transform` gets, as `schema.name`. Default: empty."""
    transform: str | None = None
    """Instead of `sql`: a Python function of an installed package, `package.module:function`, or the name of an entry
    point of the group `cdcflow.transforms`. It gets Arrow batches of rows
    ([example](derived.md#a-function-in-python)). Default: empty."""
    version: str = ""
    """Any text. Change it when `transform` gives other results: the table is then computed again. Default:
    empty."""

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Derive:
        if (self.sql is None) == (self.transform is None):
            raise ValueError("must have either sql or transform")
        if (self.from_ is None) != (self.transform is None):
            raise ValueError("must have from if it has transform, and not otherwise")
        if self.version and self.transform is None:
            raise ValueError("has version, which only transform uses: a changed query is noticed")
        return self


class Upkeep(Settings):
    """Table maintenance that `cdcflow merge` does after it has published, all of it within `budget`."""

    every: Seconds = 3600.0
    """How often `cdcflow merge` maintains a table ([tables.md](tables.md#maintenance))."""
    after_merges: int = Field(100, ge=0)
    """With `merge.every` a table is also maintained after this number of merges that changed it; `0`: by time alone."""
    budget: Seconds = 60.0
    """Maximum time for maintenance after a merge; the tables that waited longest come first, the others after a later
    merge. With Spark the merge process of `cdcflow run` begins no further step after `merge.every`, or after half a
    second."""
    compact: bool = True
    """Combine small files, and rewrite files with many dead rows."""
    cluster: bool = False
    """Maintenance writes the rows of files in the order of the table's key
    ([tables.md](tables.md#in-the-order-of-the-key))."""


class Merge(Settings):
    """How the log becomes tables. `objects` specifies how the store of a warehouse is reached."""

    engine: Literal["auto", "spark", "local"] = "auto"
    """The engine: `spark`, `local` (in this process, without Java), or `auto`: `local` for small ranges and tables, and
    for everything if pyspark or Java is not installed ([merge.md](merge.md#without-spark))."""
    format: Literal["delta", "iceberg"] = "delta"
    """The format of the current-state tables: `delta` or `iceberg` ([merge.md](merge.md#delta-or-iceberg))."""
    warehouse: Path | str = Path("warehouse")
    """Where the tables are: a folder, a bucket (`s3a://bucket/path`, `gs://bucket/path`,
    `abfss://container@account.dfs.core.windows.net/path`), or another URL that Hadoop knows
    ([merge.md](merge.md#in-an-object-store))."""
    objects: WarehouseStore | None = None
    catalog: dict[str, str] | None = None
    """Where the tables have names ([merge.md](merge.md#catalogs)). Iceberg: properties of the catalog, as Iceberg names
    them: `{type: rest, uri: "https://…", token: "${env:TOKEN}"}`; secrets are references; without it the warehouse's
    folder has its own catalog. Delta: a Hive metastore, `{type: hive, uri: "thrift://host:9083", prefix: lake_}`;
    without it the tables have paths only. `uri` may name several with commas; without it Spark's own settings name the
    metastore. `prefix` begins the name of each database, so that several warehouses can use one metastore. Or a Unity
    Catalog, `{type: unity, uri: "https://host", catalog: main, token: "${env:TOKEN}"}`, with `prefix` as for Hive
    ([catalogs](catalogs.md#unity-catalog))."""
    every: Seconds | None = None
    """How often `cdcflow run` merges, in a separate process ([merge.md](merge.md#with-the-capture)), and `cdcflow
    merge` without `--every`. Default: `cdcflow run` does not merge, and `cdcflow merge` merges once."""
    memory_max: Bytes | None = None
    """How much memory the merge process of `cdcflow run` may have, including Spark if it runs. A process that has
    more is ended, and replaced. A merge without Spark writes what does not fit into temporary files, as far as DuckDB
    needs it. Default: half of the machine's, or of its container's; DuckDB then uses what the machine has."""
    progress_timeout: Seconds = 1800.0
    """The merge process of `cdcflow run` is ended if a merge makes no progress for this long, for example at one
    table; the next try gets twice the time. A shorter time than `15s` counts as `15s`."""
    spark: dict[str, str] = Field(default_factory=dict)
    """Spark's own settings, which win over those of cdcflow: `{spark.master: "spark://host:7077"}` runs the merge on a
    cluster ([merge.md](merge.md#on-a-cluster)); `spark.jars` are added to those of cdcflow."""
    fast_delta: bool = True
    """Spark changes rows of Delta tables through Delta's internal Java classes, in a third of the jobs of its SQL
    statements, with the versions of Delta that cdcflow was tested with
    ([why](decisions/0014-delta-without-merge.md)); `false`: by SQL statements only, which cannot sort the rows of files
    (`upkeep.cluster`)."""
    tables: MergeTables = MergeTables()
    derive: dict[str, Derive] = Field(default_factory=dict)
    """Tables that queries compute from others, keyed by name; a name without a schema is in the schema `derived`
    ([derived.md](derived.md))."""
    keep: Seconds | None = None
    """How long published cuts stay readable (`7d`); the latest always does. Then [maintenance](tables.md#maintenance)
    removes what only they needed. Default: unlimited."""
    upkeep: Upkeep = Upkeep()

    @field_validator("warehouse", mode="before")
    @classmethod
    def _folder_or_url(cls, warehouse: object) -> object:
        # A Path would lose one of a URL's slashes and become a folder of that name.
        if isinstance(warehouse, str) and not URL.match(warehouse):
            return Path(warehouse)
        if isinstance(warehouse, str) and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*://[^?#\s]+", warehouse) is None:
            raise ValueError("must be a folder or a URL such as s3a://bucket/path")
        return warehouse

    @field_validator("derive")
    @classmethod
    def _in_a_schema(cls, derive: dict[str, Derive]) -> dict[str, Derive]:
        found = {name if "." in name else f"derived.{name}": one for name, one in derive.items()}
        if len(found) < len(derive):
            raise ValueError("has a table twice: with the schema derived, and without a schema")
        for name in found:
            if not all(name.partition(".")[::2]):
                raise ValueError(f'has "{name}", which is not the name of a table: write name, or schema.name')
        return found

    @field_validator("catalog")
    @classmethod
    def _by_reference(cls, catalog: dict[str, str] | None) -> dict[str, str] | None:
        for name, value in (catalog or {}).items():
            if _SECRET_PROPERTY.search(name) and not is_reference(value):
                raise ValueError(f"has {name}: it must be a reference, ${{env:NAME}} or ${{file:path}}")
        if catalog is not None and not catalog.keys() & {"type", "catalog-impl"}:
            raise ValueError(
                "must have a type: rest, jdbc, hive or glue (or catalog-impl); for Delta tables hive or unity"
            )
        return catalog

    @model_validator(mode="after")
    def _local_is_here(self) -> Self:
        if self.engine == "local" and isinstance(self.warehouse, str) and place_in_store(self.warehouse) is None:
            raise ValueError(
                "engine: local writes into a folder or a bucket (s3a://bucket/path); set merge.engine to auto"
            )
        if self.engine == "local" and self.format == "delta" and (self.catalog or {}).get("type") == "hive":
            raise ValueError("engine: local gives Delta tables no names in a metastore; set merge.engine to auto")
        return self

    @model_validator(mode="after")
    def _tables_are_found(self) -> Self:
        if self.format == "delta" and self.catalog is not None:
            (_check_unity if self.catalog.get("type") == "unity" else _check_metastore)(self.catalog)
        if self.format == "iceberg" and self.catalog is None and isinstance(self.warehouse, str):
            raise ValueError(
                "has Iceberg tables outside of a folder: set merge.catalog, such as {type: rest, uri: https://…}"
            )
        if self.objects is not None:
            place = place_in_store(self.warehouse) if isinstance(self.warehouse, str) else None
            if place is None:
                raise ValueError("has objects, which only a warehouse in a store (s3a://bucket/path) needs")
            self.objects.check(place)
        return self


def _check_unity(catalog: Mapping[str, str]) -> None:
    """Check the settings of a Unity Catalog for Delta tables.

    Raises:
        ValueError: one is missing, unknown or malformed.
    """
    unknown = sorted(catalog.keys() - {"type", "uri", "catalog", "token", "prefix", "replace"})
    if unknown:
        raise ValueError(
            f"has a catalog with {unknown[0]}, and a Unity Catalog has type, uri, catalog, token, prefix and replace"
            " only"
        )
    if re.fullmatch(r"https?://[^?#\s]+", catalog.get("uri", "")) is None:
        raise ValueError("has a catalog whose uri is not like https://host (without /api/2.1/unity-catalog)")
    if re.fullmatch(r"[\w-]+", catalog.get("catalog", "")) is None:
        raise ValueError("has a Unity Catalog without `catalog`: the name of the catalog there, such as main")
    if catalog.get("replace", "false") not in ("true", "false"):
        raise ValueError("has a catalog whose replace is neither true nor false")
    _check_prefix(catalog)


def _check_prefix(catalog: Mapping[str, str]) -> None:
    if re.fullmatch(r"[a-z0-9_]*", catalog.get("prefix", "")) is None:
        raise ValueError("has a catalog whose prefix has other characters than a-z, 0-9 and _")


def _check_metastore(catalog: Mapping[str, str]) -> None:
    """Check that a catalog for Delta tables is a Hive metastore.

    Raises:
        ValueError: it is not.
    """
    if catalog.get("type") != "hive":
        raise ValueError(
            "has a catalog that cannot hold Delta tables: set merge.catalog to a Hive metastore,"
            " {type: hive, uri: thrift://host:9083}, or to a Unity Catalog,"
            " {type: unity, uri: https://host, catalog: main}, or merge.format to iceberg"
        )
    unknown = sorted(catalog.keys() - {"type", "uri", "prefix"})
    if unknown:
        raise ValueError(
            f"has a catalog with {unknown[0]}, and a Hive metastore for Delta tables has type, uri and prefix only;"
            " Spark's own settings of it go into merge.spark (spark.hadoop.hive.metastore.…)"
        )
    if _THRIFT.fullmatch(catalog.get("uri", "thrift://left.out:1")) is None:
        raise ValueError("has a catalog whose uri is not like thrift://host:9083 (several with commas)")
    _check_prefix(catalog)


def _receiver(given: object, checked: ValidatorFunctionWrapHandler) -> object:
    """Return a receiver of notifications, by the settings model of its kind. A plug-in is imported only if its kind is
    named here."""
    if isinstance(given, Subscription):
        return given
    kind = given.get("kind") if isinstance(given, dict) else None
    return (plugged_settings(NOTIFIERS, kind) if isinstance(kind, str) else Notify).model_validate(given)


class Service(Settings):
    """HTTP: health, metrics, API and page. Without `tokens` it is read-only, and only for this machine."""

    listen: str | None = None
    """`host:port` for the page, the API, metrics and health ([http.md](http.md)); needs `pip install
    'cdcflow[service]'`. An address that other machines reach needs tokens. Default: off."""
    hosts: tuple[str, ...] = ()
    """Host names that requests may use, in addition to `localhost`, `listen`'s own and addresses; others get 421."""
    tokens: tuple[AccessToken, ...] = ()
    tls: ServerTls | None = None
    requests_per_second_max: float | None = Field(None, gt=0)
    """How many requests a second each token may send, or each address if it sends no token
    ([http.md](http.md#limits)). Default: no limit."""
    metrics_per_table: Literal["auto", "always", "never"] = "auto"
    """Which tables have their own metrics: all of up to 100 (`auto`), `always`, `never`
    ([metrics.md](metrics.md#tables))."""
    freshness_every: Seconds = 30.0
    """How often a canary proves that tables are fresh ([freshness.md](freshness.md))."""
    shadow_every: Seconds | None = None
    """How often a changed row is read again and compared with what was decoded, such as `10s`
    ([verify.md](verify.md#shadow-check)). Default: off."""
    notify: tuple[Annotated[SerializeAsAny[Notify | NotifierSettings], WrapValidator(_receiver)], ...] = ()
    traces: str | None = None
    """The collector that gets OpenTelemetry spans by OTLP over HTTP, such as `http://127.0.0.1:4318`
    ([traces.md](traces.md)). Default: off."""
    lease: LeaseSettings | None = None
    fleet: FleetMembership | None = None

    @property
    def cut_receivers(self) -> tuple[Notify | NotifierSettings, ...]:
        """The receivers of published cuts, which get them from the process that merges."""
        return tuple(one for one in self.notify if "cut_published" in one.on)

    @model_validator(mode="after")
    def _asks_who_is_there(self) -> Self:
        check_tokens(self.listen, self.tokens)
        return self

    @field_validator("traces")
    @classmethod
    def _collector(cls, traces: str | None) -> str | None:
        if traces is not None and re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", traces) is None:
            raise ValueError("must be a collector's URL such as http://127.0.0.1:4318, without user, password or query")
        return traces

    @field_validator("listen", mode="before")
    @classmethod
    def _host_and_port(cls, listen: object) -> object:
        # A port alone is a number in YAML, and so are some texts with colons.
        if listen is None or (isinstance(listen, str) and is_host_and_port(listen)):
            return listen
        raise ValueError("must be host:port, such as 127.0.0.1:8079")


def _target(given: object, checked: ValidatorFunctionWrapHandler) -> object:
    """Return a target, by the settings model of its kind. A plug-in is imported only if its kind is named here."""
    if isinstance(given, TargetSettings):
        return given
    kind = given.get("kind") if isinstance(given, dict) else None
    return (plugged_settings(TARGETS, kind) if isinstance(kind, str) else TargetSettings).model_validate(given)


_OWN_SOURCES: TypeAdapter[Any] = TypeAdapter(Annotated[Postgres | MySQL | Push, Field(discriminator="kind")])


class Config(Settings):
    """The whole of `cdcflow.yaml`. With `serve` the log is written by `cdcflow serve`, and `source` must not be set."""

    source: SerializeAsAny[Postgres | MySQL | Push | SourceSettings]
    log: FileLog | KafkaLog
    tables: dict[str, TableRules] = Field(default_factory=dict)
    person_keys: Path | None = None
    """The file with the keys of policies that have `key_by` ([columns.md](columns.md#erase-a-person)). Default:
    `person-keys` in the log's folder."""
    contracts: dict[str, dict[str, ColumnContract]] = Field(default_factory=dict)
    merge: Merge = Merge()
    publish: Publish | None = None
    targets: dict[str, Annotated[SerializeAsAny[TargetSettings], WrapValidator(_target)]] = Field(default_factory=dict)
    service: Service = Service()
    serve: Serve | None = None
    tests: tuple[Path, ...] = ()
    """Files of tests, as paths or patterns (`[tests/*.yaml]`), which `cdcflow test` and `cdcflow plan` run
    ([pipeline-tests.md](pipeline-tests.md)). Default: no file."""

    @property
    def database(self) -> SourceSettings:
        """The source that changes are captured from: a database, or what a plug-in reads.

        Raises:
            ConfigurationError: these settings have collections instead.
        """
        if isinstance(self.source, Push):
            raise ConfigurationError(
                "these settings have `serve`: programs write to the log, and there is no database to capture from",
                remedy="run `cdcflow serve`, or name the settings file of a database with --config",
            )
        return self.source

    @property
    def person_keys_file(self) -> Path:
        """The file with the keys of policies that have `key_by`."""
        return self.person_keys or self.log.folder / "person-keys"

    @field_validator("tables")
    @classmethod
    def _table_patterns(cls, tables: dict[str, TableRules]) -> dict[str, TableRules]:
        for pattern in tables:
            if PATTERN.fullmatch(pattern) is None or pattern.startswith("!"):
                raise ValueError(
                    f'has "{pattern}", which is not a table pattern: write schema.name, with * as a wildcard'
                )
        return tables

    @field_validator("contracts")
    @classmethod
    def _contract_tables(cls, given: dict[str, dict[str, ColumnContract]]) -> dict[str, dict[str, ColumnContract]]:
        for name in given:
            one_table(name)
        return given

    @model_validator(mode="after")
    def _contracts_are_checked(self) -> Self:
        derived = {name if "." in name else f"derived.{name}" for name in self.merge.derive}
        for name in sorted(self.contracts.keys() & derived):
            raise ValueError(f"contracts has {name}, a derived table, whose rows no contract checks: take it out")
        return self

    @model_validator(mode="after")
    def _derived_tables_have_no_mode(self) -> Self:
        derived = {name if "." in name else f"derived.{name}" for name in self.merge.derive}
        for name in sorted(self.merge.tables.each.keys() & derived):
            if (mode := self.merge.tables.each[name].mode) not in (None, "current"):
                raise ValueError(
                    f"merge.tables.each.{name} has mode {mode}, and a derived table has the rows that its query gives:"
                    " take it out, or derive from a table with that mode"
                )
        return self

    @model_validator(mode="after")
    def _routes_lead_elsewhere(self) -> Self:
        derived = {name if "." in name else f"derived.{name}" for name in self.merge.derive}
        for name in sorted(derived.intersection(self.merge.tables.routes.values())):
            raise ValueError(f"merge.tables.routes has {name}, which merge.derive computes: choose another name")
        return self

    @model_validator(mode="before")
    @classmethod
    def _programs_are_the_source(cls, given: object) -> object:
        if not isinstance(given, dict) or given.get("serve") is None:
            return given
        if "source" in given:
            raise ValueError(
                "serve and source are both set, and a log has one writer: move serve into a settings file with a"
                " separate log"
            )
        return {**given, "source": {"kind": "push"}}

    @field_validator("source", mode="wrap")
    @classmethod
    def _of_its_kind(cls, source: object, checked: ValidatorFunctionWrapHandler) -> object:
        """Return the source by the settings model of its kind. A plug-in is imported only if its kind is named here."""
        if isinstance(source, SourceSettings | Push):
            return source
        kind = source.get("kind") if isinstance(source, dict) else None
        if not isinstance(kind, str) or kind in OWN_KINDS or kind == "push":
            return _OWN_SOURCES.validate_python(source)
        return plugged_settings(SOURCES, kind).model_validate(source)

    @model_validator(mode="after")
    def _written_by_serve(self) -> Self:
        if not isinstance(self.source, Push):
            return self
        if self.tables:
            raise ValueError("tables has policies for a database's columns, and with serve there is no database")
        if self.serve is None:
            raise ValueError("source.kind is push, and serve is not set: leave source out, and set serve")
        if self.service.lease is not None:
            raise ValueError("service.lease is set, and `cdcflow serve` has no standby: remove service.lease")
        if not isinstance(self.log, FileLog) or not self.log.has_directory:
            raise ValueError("serve needs a log in a folder: set log.path")
        if not self.log.index:
            raise ValueError("serve finds rows by the log's index: set log.index to true, or leave it out")
        if self.log.retention is not None and not self.log.retention.state:
            raise ValueError(
                "serve with log.retention would forget rows that have not changed for long:"
                " set log.retention.state to true"
            )
        return self

    @model_validator(mode="after")
    def _purges_are_seen(self) -> Self:
        of_all = self.merge.tables
        for one in (of_all, *of_all.each.values()):
            removed = one.purge_origins if one.purge_origins is not None else of_all.purge_origins
            effects = one.purges if one.purges is not None else of_all.purges
            if (removed or effects) and getattr(self.source, "kind", "") not in ("postgres", "mysql", "mariadb"):
                raise ValueError(
                    "merge.tables has purges or purge_origins, which name origins of transactions, and only the logs of"
                    " PostgreSQL, MySQL and MariaDB have them: remove the setting; deletes then mark rows, as any do in"
                    " mode soft_delete"
                )
            if effects and getattr(self.source, "slot", None) == "purge":
                raise ValueError(
                    "merge.tables.purges is set, and the marks of source.slot have the prefix of purge marks,"
                    " cdcflow.purge: use another slot, or purge_origins with replication origins"
                )
            for name in removed or ():
                if (effects or {}).get(name) == "keep":
                    raise ValueError(
                        f"merge.tables has {name} in purge_origins, which removes rows, and in purges with keep:"
                        " take it out of one of them"
                    )
        return self

    @model_validator(mode="after")
    def _kept_for_what_is_set(self) -> Self:
        kept = getattr(self.log, "retention", None)
        if kept is not None and "publish" in (kept.keep_for or ()) and self.publish is None:
            raise ValueError("log.retention.keep_for has publish, and publish is not set: set it, or take that out")
        return self

    @model_validator(mode="after")
    def _tables_outside_of_the_log(self) -> Self:
        log, warehouse = self.log, self.merge.warehouse
        if not (isinstance(log, FileLog) and log.has_directory and isinstance(warehouse, Path)):
            return self
        # Not `resolve`, which fails for a link to itself; the command that opens the folder reports that.
        if Path(os.path.realpath(warehouse)).is_relative_to(os.path.realpath(log.path)):
            raise ValueError(
                "merge.warehouse is log.path or a folder in it, where only the log's own files may be:"
                " set merge.warehouse to a separate folder"
            )
        return self

    @model_validator(mode="after")
    def _kafka_is_sealed_by_spark(self) -> Self:
        if self.merge.engine == "local" and isinstance(self.log, KafkaLog):
            raise ValueError("merge.engine: local reads logs in files; set it to auto for a log in Kafka")
        return self

    @field_validator("log", mode="wrap")
    @classmethod
    def _in_one_place(cls, log: object, checked: ValidatorFunctionWrapHandler) -> object:
        if not isinstance(log, dict):
            return checked(log)
        if log.keys() == {"kafka", "retention"}:
            raise ValueError(f"has retention, and the log is in Kafka: {TOPIC_EXPIRES}")
        if "kafka" in log and len(log) > 1:
            raise ValueError("is in one place: either path (with what belongs to it) or kafka, not both")
        return (KafkaLog if "kafka" in log else FileLog).model_validate(log)
