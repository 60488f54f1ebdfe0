"""Names of Delta tables: their entries in the Hive metastore that a Spark session uses.

    SELECT * FROM shop.orders ──▶ entry shop.orders ──▶ <warehouse>/shop/orders, the Delta table

An entry holds a table's location. Versions, columns and rows are in the table itself, so commits still use the path, no
commit changes an entry, and a dropped entry loses nothing: the next merge recreates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.model.sqltypes import name_sql, text_sql
from cdcflow.spark.runtime.failures import first_line
from cdcflow.tables.formats.delta import metastore_name
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.paths import DATABASES, Metastore, Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CATALOG, _URIS = "spark.sql.catalogImplementation", "hive.metastore.uris"


def settings(metastore: Metastore) -> dict[str, str]:
    """Return the settings with which a Spark session uses this metastore."""
    return {_CATALOG: "hive", **({} if metastore.uri is None else {f"spark.hadoop.{_URIS}": metastore.uri})}


def check_metastore(spark: SparkSession, metastore: Metastore) -> None:
    """Check that this session uses the metastore, and that the metastore answers.

    Raises:
        ConfigurationError: the session uses a different one, or none; that is decided when a session starts.
        SinkUnavailable: the metastore does not answer.
    """
    context: Any = spark.sparkContext._jsc
    if spark.conf.get(_CATALOG, None) != "hive":
        found = "none"
    elif metastore.uri not in (None, context.hadoopConfiguration().get(_URIS)):
        found = f"the one at {context.hadoopConfiguration().get(_URIS) or 'no address (embedded)'}"
    else:
        found = ""
    if found:
        wanted = ", ".join(f"{name}={value}" for name, value in settings(metastore).items())
        raise ConfigurationError(
            f"the settings register Delta tables in the Hive metastore {metastore.uri or '(of the session)'}, "
            f"but this"
            f" Spark session uses {found}",
            remedy=f"begin a session with {wanted}: by cdcflow.spark.session(settings=…) in a process without one,"
            " or by --conf of spark-submit",
            runbook="merge-session",
        )
    try:
        _catalog(spark).databaseExists("default")
    except Exception as error:
        raise SinkUnavailable(
            f"querying the Hive metastore {metastore.uri or ''}: {first_line(error)}",
            remedy="make sure that the metastore runs and answers, then merge again",
            runbook="catalog-unreachable",
        ) from error


class Entry:
    """The entry of one Delta table in the metastore of a session."""

    def __init__(self, spark: SparkSession, warehouse: Warehouse, metastore: Metastore, path: Sequence[str]) -> None:
        self._spark = spark
        self._warehouse = warehouse
        self._database, self._name = metastore_name(path, metastore.prefix)
        self._location = warehouse.location_of(path)
        self._is_kept = False

    @property
    def sql(self) -> str:
        """The entry's name in SQL."""
        return f"{name_sql(self._database)}.{name_sql(self._name)}"

    def keep(self, *, is_there: bool) -> None:
        """Check that the name belongs to this table or is free. If the table exists (`is_there`), also create the entry
        unless it exists.

        Raises:
            CannotFollow: the name belongs to another table.
            SinkUnavailable: the metastore does not answer, or refuses.
        """
        if self._is_kept:
            return
        try:
            if not self._is_ours() and is_there:
                self._make()
            self._is_kept = is_there
        except CannotFollow:
            raise
        except Exception as error:
            raise SinkUnavailable(
                f"naming the table at {self._location} {self._database}.{self._name} in the metastore:"
                f" {first_line(error)}",
                remedy="make sure that the metastore answers, reaches that location, and lets this user create "
                "databases and tables; then merge again",
                runbook="catalog-unreachable",
            ) from error

    def _is_ours(self) -> bool:
        """Return whether the name belongs to this table; False if it is free."""
        catalog = _catalog(self._spark)
        if not catalog.tableExists(self._database, self._name):
            return False
        entry = catalog.getTable(self._database, self._name)
        provider = entry.provider().get() if entry.provider().isDefined() else "no"
        location = entry.storage().locationUri()
        there = self._with_scheme(location.get()) if location.isDefined() else "no place (a view)"
        if (provider, there) != ("delta", self._with_scheme(self._location)):
            raise self._name_taken(str(provider), there)
        return True

    def _make(self) -> None:
        if not _catalog(self._spark).databaseExists(self._database):
            # Not in the folder of the schema's tables: DROP DATABASE … CASCADE removes a database's folder.
            place = text_sql(self._warehouse.location_of((DATABASES, self._database)))
            self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {name_sql(self._database)} LOCATION {place}")
        try:
            # For an existing table Delta takes everything else from its log, and commits nothing.
            self._spark.sql(f"CREATE TABLE {self.sql} USING delta LOCATION {text_sql(self._location)}")
        except Exception:
            if not self._is_ours():  # another merge has created it concurrently
                raise

    def _name_taken(self, provider: str, there: str) -> CannotFollow:
        remedy = (
            "set merge.catalog.prefix, so that this warehouse has its own databases, or remove that name from the "
            "metastore (DROP TABLE removes the files, too, of a table that was made without a location)"
        )
        if there.startswith(self._with_scheme(self._warehouse.location_of(())) + "/"):
            remedy = (
                "a metastore does not tell names apart that differ in case: leave one of the two tables out of"
                " source.tables, or merge without merge.catalog"
            )
        return CannotFollow(
            f"naming the table at {self._location} in the metastore: {self._database}.{self._name} is another table's,"
            f" with {provider} format at {there}",
            remedy=remedy,
        )

    def _with_scheme(self, place: Any) -> str:
        """Return a place, given as text or as Java's URI, with its scheme added."""
        jvm: Any = self._spark._jvm
        context: Any = self._spark.sparkContext._jsc
        path = jvm.org.apache.hadoop.fs.Path(place)
        return str(path.getFileSystem(context.hadoopConfiguration()).makeQualified(path).toString())


def _catalog(spark: SparkSession) -> Any:  # Any: py4j gives whatever the other side has
    session: Any = spark._jsparkSession
    return session.sessionState().catalog().externalCatalog()
