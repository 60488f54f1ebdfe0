"""Iceberg's classes in the JVM (see `runtime.jvm`)."""

from __future__ import annotations

import json
from typing import Any

from cdcflow.spark.runtime.jvm import Jvm, once
from cdcflow.tables.formats import iceberg
from cdcflow.tables.merge.target import FormatColumn


class IcebergJvm(Jvm):
    """Iceberg's classes."""

    def __init__(self, jvm: Any) -> None:  # Any, here and below: py4j gives whatever the other side has
        super().__init__(jvm)
        own = jvm.org.apache.iceberg
        self.spark = own.spark.Spark3Util
        self.metadata = own.TableMetadataParser
        self._schemas = own.SchemaParser
        self._mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()

    def map(self, value: Any) -> dict[str, str]:
        """Return a Java map of texts."""
        found: dict[str, str] = json.loads(self._mapper.writeValueAsString(value))
        return found

    def columns(self, schema: Any) -> tuple[FormatColumn, ...]:
        """Return a schema's columns; the type of a nested one is `None`."""
        return tuple(
            FormatColumn(f["name"], int(f["id"]), iceberg.type_sql(f["type"]) if isinstance(f["type"], str) else None)
            for f in json.loads(self._schemas.toJson(schema))["fields"]
        )


iceberg_jvm = once(IcebergJvm)
