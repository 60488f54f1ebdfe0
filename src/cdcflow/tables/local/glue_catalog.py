"""AWS Glue as an Iceberg catalog. Needs the package boto3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog.glue import GlueCatalog

from cdcflow.tables.local.no_foreign_code import NoForeignCode


class _Glue(NoForeignCode, GlueCatalog):
    """A catalog in Glue."""


def glue_catalog(name: str, properties: Mapping[str, Any]) -> GlueCatalog:
    """Return a catalog in Glue."""
    return _Glue(name, **properties)
