"""AWS Glue as an Iceberg catalog. Needs the package boto3."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pyiceberg.catalog import METADATA_LOCATION, PREVIOUS_METADATA_LOCATION
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.table import Table

from cdcflow.tables.local.iceberg_known_tables import TablesReadOnce
from cdcflow.tables.local.iceberg_metadata import KnownMetadata
from cdcflow.tables.local.no_foreign_code import NoForeignCode


class _Glue(NoForeignCode, TablesReadOnce, GlueCatalog):
    """A catalog in Glue."""

    def _convert_glue_to_iceberg(self, glue_table: Any) -> Table:  # Any: boto3 has no types
        given = glue_table.get("Parameters", {})
        at = given.get(METADATA_LOCATION), given.get(PREVIOUS_METADATA_LOCATION)
        read = partial(super()._convert_glue_to_iceberg, glue_table)
        return self.known_table((glue_table["DatabaseName"], glue_table["Name"]), *at, read)


def glue_catalog(name: str, properties: Mapping[str, Any], known: KnownMetadata) -> GlueCatalog:
    """Return a catalog in Glue."""
    return _Glue(name, known, **properties)
