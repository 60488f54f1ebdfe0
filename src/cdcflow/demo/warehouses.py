"""The warehouse of the demo: in a folder, or in an object store that the demo starts itself."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, Protocol, Self
from urllib.parse import urlsplit

from cdcflow.demo.databases import DemoSource
from cdcflow.errors import ConfigurationError

WarehouseKind = Literal["folder", "s3"]
BUCKET = "demo"
SCHEMA = "lake"
"""The schema of the catalog's tables, if the catalog is in the source's server."""

_ACCESS, _SECRET = "CDCFLOW_DEMO_ACCESS_KEY", "CDCFLOW_DEMO_SECRET_KEY"


class DemoWarehouse(Protocol):
    """The demo's warehouse, as a context manager: tables can be written until it is left."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

    def settings(self, source: DemoSource) -> list[str]:
        """Return the parts of the settings below `merge:` that name this warehouse."""
        ...


class InFolder:
    """Tables in the demo's folder."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def settings(self, source: DemoSource) -> list[str]:
        return ["warehouse: ./warehouse"]


class InStore:
    """Tables in a bucket. Its server ends with the demo; the objects stay as files in the demo's folder."""

    def __init__(self, directory: Path, table_format: str, engine: str) -> None:
        self._directory = directory
        self._has_catalog = table_format == "iceberg"
        self._engine = engine
        self._endpoint = ""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        from cdcflow.demo.servers.objects import ObjectStore

        keys = (BUCKET, secrets.token_hex(16))
        # The daemon inherits them; the settings file has only their names.
        os.environ[_ACCESS], os.environ[_SECRET] = keys
        self._endpoint = self._stack.enter_context(ObjectStore(self._directory / "store", BUCKET, keys)).endpoint
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        os.environ.pop(_ACCESS, None)
        os.environ.pop(_SECRET, None)

    def settings(self, source: DemoSource) -> list[str]:
        keys = f'access_key: "${{env:{_ACCESS}}}", secret_key: "${{env:{_SECRET}}}"'
        lines = [f"warehouse: s3a://{BUCKET}/warehouse", f'objects: {{endpoint: "{self._endpoint}", {keys}}}']
        return [*lines, f"catalog: {self._catalog(source)}"] if self._has_catalog else lines

    def _catalog(self, source: DemoSource) -> str:
        """Iceberg's catalog: a file for Spark; without Spark a schema of the source's server, which must be
        PostgreSQL."""
        if self._engine == "spark":
            place = (self._directory / "catalog.db").absolute()
            return f'{{type: jdbc, uri: "jdbc:sqlite:{place}", jdbc.schema-version: V1, clients: "1"}}'
        source.execute(f"CREATE SCHEMA {SCHEMA}")
        url = urlsplit(source.url)
        place_of = f"jdbc:postgresql://{url.hostname}:{url.port}{url.path}?currentSchema={SCHEMA}"
        return f'{{type: jdbc, uri: "{place_of}", jdbc.user: "{url.username}"}}'


def objects_on_disk(directory: Path) -> Path:
    """Return the folder in which the objects of the demo's store are files, also after its server has ended."""
    return directory / "store" / "buckets" / BUCKET / "warehouse"


def demo_warehouse(
    kind: WarehouseKind, directory: Path, table_format: str, engine: str, source_kind: str
) -> DemoWarehouse:
    """Return the demo's warehouse of this kind; nothing is started yet.

    Raises:
        ConfigurationError: there would be no catalog for its tables.
    """
    if kind == "folder":
        return InFolder()
    if table_format == "iceberg" and engine == "local" and source_kind != "postgres":
        raise ConfigurationError(
            "Iceberg tables in an object store need a catalog, which the demo without Spark has in its PostgreSQL",
            remedy="leave --source, --engine local, --format iceberg or --warehouse s3 out",
        )
    return InStore(directory, table_format, engine)
