"""Iceberg catalogs, opened by PyIceberg: SQLite in the warehouse's folder, or the catalog that `merge.catalog` names.

    IcebergTable ──▶ TableCatalog ──▶ SqlCatalog     SQLite, PostgreSQL
                          │       ├─▶ RestCatalog    with `Tokens`
                          │       ├─▶ HiveCatalog    a client for each thread
                          │       └─▶ GlueCatalog
                          └── load, create ──▶ LoadedTable

A table has the same catalog, namespace and name as with Spark.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import Endpoints, RestCatalog, TableResponse
from pyiceberg.catalog.rest.auth import AuthManagerAdapter
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    NoSuchIcebergTableError,
    NoSuchPropertyException,
    NoSuchTableError,
    UnauthorizedError,
)
from pyiceberg.io import PY_IO_IMPL, FileIO
from pyiceberg.table import Table
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.typedef import Identifier as FullName
from requests import Session
from sqlalchemy import Executable, bindparam, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from cdcflow.errors import ConfigurationError, InvariantViolated
from cdcflow.tables.formats import iceberg
from cdcflow.tables.formats.iceberg import CATALOG
from cdcflow.tables.job.failures import FileUnreadable
from cdcflow.tables.local.catalog_errors import as_own
from cdcflow.tables.local.iceberg_commits import LoadedTable
from cdcflow.tables.local.iceberg_files import TableIO
from cdcflow.tables.local.iceberg_known_tables import TablesReadOnce
from cdcflow.tables.local.iceberg_metadata import KnownMetadata
from cdcflow.tables.local.iceberg_settings import CatalogSettings, OnlyForSpark, SqlAddress, catalog_settings
from cdcflow.tables.local.iceberg_tokens import TIMEOUT_S, Tokens
from cdcflow.tables.local.no_foreign_code import NoForeignCode
from cdcflow.tables.local.table_buckets import BUCKETS, TableBuckets
from cdcflow.tables.merge.refusals import CannotFollow
from cdcflow.tables.paths import Warehouse
from cdcflow.tables.port import HandOver

BUSY_S = 60
LOCKED = "database is locked"

_EXPIRED = (401, 419)

Identifier = tuple[str, str]
Properties = Mapping[str, Any]


class TableCatalog:
    """A warehouse's catalog. May be used from several threads; `close` it.

    Every call may raise SinkUnavailable (the catalog does not answer) or ConfigurationError (it refuses the request).
    """

    def __init__(self, warehouse: Warehouse) -> None:
        """Open the catalog. Raises HandOver if only Spark can open it."""
        self._warehouse = warehouse
        self._settings = settings_of(warehouse)
        self._shared: Catalog | None = None
        self._known = KnownMetadata()
        self._local = threading.local()
        self._opened: list[Catalog] = []
        self._lock = threading.Lock()

    @property
    def is_embedded(self) -> bool:
        """Whether the catalog is a file in the warehouse's folder."""
        return self._settings is None

    @property
    def ignores_case(self) -> bool:
        """Whether the catalog has only names of lower-case letters, digits and `_`."""
        return self._settings is not None and self._settings.type in iceberg.PLAIN_NAMES

    def load(self, identifier: Identifier) -> LoadedTable | None:
        """Return a table in its current version; `None` if it does not exist.

        Raises:
            CannotFollow: a table of another kind has the name.
        """
        with self.calling(f"reading {'.'.join(identifier)}"):
            try:
                return LoadedTable.of(self._catalog.load_table(self._known_as(identifier)))
            except (NoSuchIcebergTableError, NoSuchPropertyException) as error:
                raise CannotFollow(
                    f"table {'.'.join(identifier)} cannot be merged: its name in the catalog belongs to a table that is"
                    " not an Iceberg table",
                    remedy="remove or rename that table, then run `cdcflow merge`",
                ) from error
            except NoSuchTableError:
                return None

    def create(self, identifier: Identifier, columns: pa.Schema, location: str, properties: Properties) -> LoadedTable:
        """Create a table, and its namespace unless it exists.

        Raises:
            TableAlreadyExistsError: another process has created it.
            CannotFollow: the catalog cannot hold such a name.
        """
        iceberg.check_name(identifier, self._type)
        with self.calling(f"creating {'.'.join(identifier)}"):
            name = self._known_as(identifier)
            self._create_namespace(name[:1])
            return LoadedTable.of(
                self._catalog.create_table(name, columns, location=location, properties=dict(properties))
            )

    def has_read(self, location: str) -> bool:
        """Return whether the metadata at a location was read, or written, already."""
        return self._known.find(location) is not None

    def remove_entry(self, identifier: Identifier) -> None:
        """Remove a table's name, if it exists; its files stay."""
        with self.calling(f"removing {'.'.join(identifier)}"), suppress(NoSuchTableError):
            self._catalog.drop_table(self._known_as(identifier))

    def close(self) -> None:
        for catalog in self._opened:
            catalog.close()
            buckets = catalog.properties.get(BUCKETS)
            if isinstance(buckets, TableBuckets):
                buckets.close()

    @contextmanager
    def calling(self, attempted: str) -> Iterator[None]:
        """Convert the errors of the catalog to cdcflow's.

        Raises:
            FileUnreadable: the catalog is a damaged file.
        """
        try:
            yield
        except (SQLAlchemyError, sqlite3.DatabaseError) as error:
            if self._settings is None and LOCKED not in str(error):
                raise FileUnreadable(self._warehouse.location_of((CATALOG,))) from error
            self._raise_own(error, attempted)
            raise
        except Exception as error:
            self._raise_own(error, attempted)
            raise

    def _raise_own(self, error: Exception, attempted: str) -> None:
        if self._settings is not None:
            own = as_own(error, name_of(self._settings), attempted, self._settings.secrets)
            if own is not None:
                raise own from error

    @property
    def _catalog(self) -> Catalog:
        """The client of the catalog. Each thread has a separate one for Hive, whose client is not thread-safe."""
        if self._settings is None or self._settings.type != "hive":
            with self._lock:
                self._shared = self._shared or self._open()
                return self._shared
        found: Catalog | None = getattr(self._local, "catalog", None)
        if found is None:
            with self._lock:
                found = self._local.catalog = self._open()
        return found

    def _open(self) -> Catalog:
        found = _open(self._warehouse, self._settings, self._known)
        self._opened.append(found)
        return found

    def _create_namespace(self, namespace: tuple[str, ...]) -> None:
        catalog, properties = self._catalog, {}
        if self._settings is not None and self._settings.type == "hive":
            properties["location"] = self._warehouse.location_of((f"{namespace[0]}.db",))  # as Iceberg's own client
        try:
            catalog.create_namespace_if_not_exists(namespace, properties)
        except Exception:
            # Another table's thread may have been faster, for which servers have different errors.
            if not catalog.namespace_exists(namespace):
                raise

    def _known_as(self, identifier: Identifier) -> Identifier:
        """Return the name under which the catalog has a table: Hive and Glue store names in lower case."""
        return (identifier[0].lower(), identifier[1].lower()) if self.ignores_case else identifier

    @property
    def _type(self) -> str:
        return "" if self._settings is None else self._settings.type


def settings_of(warehouse: Warehouse) -> CatalogSettings | None:
    """Return the settings of a warehouse's catalog; `None` for a file in its folder.

    Raises:
        HandOver: only Spark can open it.
    """
    if warehouse.catalog is None:
        return None
    try:
        return catalog_settings(warehouse.catalog, warehouse.location_of(()))
    except OnlyForSpark as reason:
        raise HandOver(str(reason)) from reason


def name_of(settings: CatalogSettings) -> str:
    """Return the name and address of a catalog in messages, without user and password."""
    if settings.sql is not None:
        return f"the catalog in {settings.sql.driver.partition('+')[0]} at {settings.sql.host or settings.sql.database}"
    url = urlsplit(settings.properties.get("uri", ""))
    place = f" at {url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}" if url.netloc else ""
    return f"the {settings.type} catalog{place}"


def embedded_catalog(warehouse: Warehouse | Path, known: KnownMetadata | None = None) -> SqlCatalog:
    """Return the catalog in a warehouse's folder, which is created if it does not exist. `known`: see
    `TablesReadOnce`."""
    place = Warehouse.of(warehouse)
    folder = place.folder.resolve()
    uri = f"sqlite:///{quote(str(folder / CATALOG))}?timeout={BUSY_S}"
    return _Sql(iceberg.catalog_name(place), known, uri=uri, warehouse=str(folder), **_files(None))


def _files(buckets: TableBuckets | None) -> dict[str, Any]:
    return {PY_IO_IMPL: f"{TableIO.__module__}.{TableIO.__name__}", BUCKETS: buckets}


def _open(warehouse: Warehouse, settings: CatalogSettings | None, known: KnownMetadata) -> Catalog:
    if settings is None:
        return embedded_catalog(warehouse, known)
    _check_package(settings)
    buckets = TableBuckets(warehouse.store, settings.properties)
    name, properties = iceberg.catalog_name(warehouse), {**settings.properties, **_files(buckets)}
    match settings.type:
        case "rest":
            return _Rest(name, None if settings.oauth is None else Tokens(settings.oauth), buckets, properties)
        case "jdbc":
            return _sql(name, settings.sql, properties, known)
        case "hive":
            from cdcflow.tables.local.hive_catalog import hive_catalog

            return hive_catalog(name, properties, known)
        case "glue":
            from cdcflow.tables.local.glue_catalog import glue_catalog

            return glue_catalog(name, properties, known)


def _check_package(settings: CatalogSettings) -> None:
    package = settings.package
    if package is not None and find_spec(package) is None:
        raise ConfigurationError(
            f"merging without Spark: {name_of(settings)} needs the package {package}",
            remedy="run `pip install 'cdcflow[catalogs]'`",
            runbook="package-missing",
        )


class _PlainSql(SqlCatalog):
    """PyIceberg's catalog in a database; it finds a table by a statement that is prepared only once."""

    def load_table(self, identifier: str | FullName) -> Table:
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(identifier))
        given = {"namespace": namespace, "name": Catalog.table_name_from(identifier)}
        with self.engine.connect() as connection:
            found = connection.execute(self._one_table, given).one_or_none()
        if found is None:
            raise NoSuchTableError(f"Table does not exist: {namespace}.{given['name']}")
        return self._convert_orm_to_iceberg(found)  # type: ignore[arg-type]  # it has the same columns

    @cached_property
    def _one_table(self) -> Executable:
        found = select(
            IcebergTables.table_namespace,
            IcebergTables.table_name,
            IcebergTables.metadata_location,
            IcebergTables.previous_metadata_location,
        ).where(
            IcebergTables.catalog_name == self.name,
            IcebergTables.table_namespace == bindparam("namespace"),
            IcebergTables.table_name == bindparam("name"),
        )
        is_table = self._iceberg_type_filter()
        return found if is_table is None else found.where(is_table)


class _Sql(NoForeignCode, TablesReadOnce, _PlainSql):
    """A catalog in a database."""

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        name = (*Catalog.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name)
        at = orm_table.metadata_location, orm_table.previous_metadata_location
        return self.known_table(name, *at, partial(super()._convert_orm_to_iceberg, orm_table))

    def create_tables(self) -> None:
        for _ in range(2):  # another process may create the same one of the two tables at the same time
            with suppress(SQLAlchemyError):
                return super().create_tables()
        return super().create_tables()


class _Rest(NoForeignCode, RestCatalog):
    """A REST catalog with time limits. Its secrets are not among its properties, because files and tables get these."""

    def __init__(self, name: str, tokens: Tokens | None, buckets: TableBuckets, properties: Properties) -> None:
        self._tokens = tokens
        self._buckets = buckets
        super().__init__(name, **{**properties, "auth": {"type": "noop"}})

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return TableIO({BUCKETS: self._buckets})  # whatever the server's answer or a table's properties name

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        found = super()._response_to_table(identifier_tuple, table_response)
        if isinstance(found.io, TableIO):
            given = _keys_in(self, table_response)
            found.io.owner = self._buckets.keys_of(
                identifier_tuple, given, lambda: self._request_keys(identifier_tuple)
            )
        return found

    def _request_keys(self, identifier: tuple[str, ...]) -> Mapping[str, str]:
        """Request new keys for a table's files from the catalog."""
        url = self.url(Endpoints.load_table, prefixed=True, **self._split_identifier_for_path(identifier))
        answer = self._session.get(url)
        if answer.status_code in _EXPIRED and self._tokens is not None and self._tokens.renew():
            answer = self._session.get(url)
        answer.raise_for_status()
        return _keys_in(self, TableResponse.model_validate_json(answer.text))

    def _create_session(self) -> Session:
        session = super()._create_session()
        if self._tokens is not None:
            self._auth_manager = self._tokens
            session.auth = AuthManagerAdapter(self._tokens)
        session.request = partial(session.request, timeout=TIMEOUT_S)  # type: ignore[method-assign]
        return session

    def _fetch_config(self) -> None:
        try:
            super()._fetch_config()
        except (UnauthorizedError, AuthorizationExpiredError):  # PyIceberg renews the token for other requests only
            if self._tokens is None or not self._tokens.renew():
                raise
            super()._fetch_config()

    def _refresh_token(self) -> None:
        if self._tokens is not None:
            self._tokens.renew()


def _keys_in(catalog: RestCatalog, answer: TableResponse) -> Mapping[str, str]:
    """Return the keys for a table's files that a catalog's description of the table contains."""
    found = catalog._resolve_storage_credentials(answer.storage_credentials, answer.metadata_location)
    return {**answer.config, **found}


def _sql(name: str, address: SqlAddress | None, properties: Properties, known: KnownMetadata) -> SqlCatalog:
    if address is None:
        raise InvariantViolated("a catalog in a database has no address")
    url = URL.create(
        address.driver, address.user, address.password, address.host, address.port, address.database, address.query
    )
    # As an object: as text it would have the password, and PyIceberg passes properties to files.
    given: dict[str, Any] = {"init_catalog_tables": "true", **properties, "uri": url, "pool_pre_ping": "true"}
    found = _Sql(name, known, **{**given, "init_catalog_tables": "false"})
    if given["init_catalog_tables"] == "true":
        found.create_tables()
    return found
