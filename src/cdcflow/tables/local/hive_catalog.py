"""A Hive metastore as an Iceberg catalog: PyIceberg's client, with time limits, and with the first of several addresses
that answers. Needs the package thrift."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog import METADATA_LOCATION, PREVIOUS_METADATA_LOCATION
from pyiceberg.catalog.hive import HiveCatalog, _HiveClient
from pyiceberg.table import Table

from cdcflow.tables.local.iceberg_known_tables import TablesReadOnce
from cdcflow.tables.local.iceberg_metadata import KnownMetadata
from cdcflow.tables.local.no_foreign_code import NoForeignCode

CONNECT_WITHIN_S, ANSWER_WITHIN_S = 10.0, 60.0
_PORT = 9083


class _Client(_HiveClient):
    """A client of a metastore that waits only for a limited time."""

    def _init_thrift_transport(self) -> Any:  # Any: thrift has no types
        transport = super()._init_thrift_transport()
        transport._TBufferedTransport__trans.setTimeout(ANSWER_WITHIN_S * 1000)
        return transport


class _Hive(NoForeignCode, TablesReadOnce, HiveCatalog):
    """A catalog in a metastore, for one thread only: each call opens and closes the catalog's connection."""

    def _convert_hive_into_iceberg(self, table: Any) -> Table:  # Any: thrift has no types
        given = table.parameters
        at = given.get(METADATA_LOCATION), given.get(PREVIOUS_METADATA_LOCATION)
        read = partial(super()._convert_hive_into_iceberg, table)
        return self.known_table((table.dbName, table.tableName), *at, read)

    @staticmethod
    def _create_hive_client(properties: dict[str, str]) -> _HiveClient:
        return _Client(_reachable(properties["uri"].split(",")), properties.get("ugi"))


def hive_catalog(name: str, properties: Mapping[str, Any], known: KnownMetadata) -> HiveCatalog:
    """Return a catalog in a metastore."""
    return _Hive(name, known, **properties)


def _reachable(uris: list[str]) -> str:
    """Return the first address of a metastore that takes connections; the first one if none does."""
    for uri in uris:
        url = urlsplit(uri)
        with suppress(OSError):
            socket.create_connection((url.hostname or "", url.port or _PORT), CONNECT_WITHIN_S).close()
            return uri
    return uris[0]
