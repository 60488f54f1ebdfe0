"""Iceberg's classes in the JVM (see `runtime.jvm`)."""

from __future__ import annotations

import json
from typing import Any

from cdcflow.model.file_layout import FileLayout, PartitionField
from cdcflow.spark.runtime.jvm import Jvm, once
from cdcflow.tables.formats import iceberg
from cdcflow.tables.merge.target import FormatColumn


class IcebergJvm(Jvm):
    """Iceberg's classes in the JVM."""

    def __init__(self, jvm: Any) -> None:  # Any, here and below: py4j gives whatever the other side has
        super().__init__(jvm)
        own = jvm.org.apache.iceberg
        self.spark = own.spark.Spark3Util
        self.metadata = own.TableMetadataParser
        self._schemas = own.SchemaParser
        self._specs = own.PartitionSpecParser
        self._orders = own.SortOrderParser
        self._expressions = own.expressions.Expressions
        self._nulls = own.NullOrder
        self._mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper()

    def map(self, value: Any) -> dict[str, str]:
        """Return a Java map of texts as a dict."""
        found: dict[str, str] = json.loads(self._mapper.writeValueAsString(value))
        return found

    def set_layout(self, change: Any, table: Any, layout: FileLayout) -> None:
        """Change the partitions and the order of new files, as far as they differ from the current ones. `change`: a
        transaction of the table."""
        ids = {c.name: c.id for c in self.columns(table.schema())}
        wanted = {(ids[p.column], _transform(p)): p for p in layout.partitions}
        there = {(f["source-id"], f["transform"]): f["name"] for f in self._fields(self._specs, table.spec())}
        if wanted.keys() != there.keys():
            specs = [table.specs().get(number) for number in list(table.specs())]
            earlier = [field for spec in specs for field in self._fields(self._specs, spec)]
            names = {(f["source-id"], f["transform"]): f["name"] for f in earlier}
            taken = {name.lower() for name in (*ids, *names.values())}
            update = change.updateSpec()
            for what in there.keys() - wanted.keys():
                update = update.removeField(there[what])
            for what, field in wanted.items():
                if what not in there:
                    name = names.get(what) or iceberg.partition_name(field, taken)
                    taken.add(name.lower())
                    update = update.addField(name, self._term(field))
            update.commit()
        order = [(ids[one.column], "desc" if one.descending else "asc") for one in layout.order]
        if order != [(f["source-id"], f["direction"]) for f in self._fields(self._orders, table.sortOrder())]:
            sort = change.replaceSortOrder()
            for one in layout.order:
                nulls = self._nulls.NULLS_LAST if one.descending else self._nulls.NULLS_FIRST
                # py4j does not find the method that takes a column's name: its class is not public.
                sort = (sort.desc if one.descending else sort.asc)(self._expressions.ref(one.column), nulls)
            sort.commit()

    def _fields(self, parser: Any, spec: Any) -> list[dict[str, Any]]:
        """Return the fields of a partition specification or of a sort order."""
        found: list[dict[str, Any]] = json.loads(parser.toJson(spec))["fields"]
        return found

    def _term(self, field: PartitionField) -> Any:
        of = self._expressions
        match field.transform:
            case "identity":
                return of.ref(field.column)
            case "bucket":
                return of.bucket(field.column, field.number)
            case "truncate":
                return of.truncate(field.column, field.number)
            case time:
                return getattr(of, time)(field.column)

    def columns(self, schema: Any) -> tuple[FormatColumn, ...]:
        """Return a schema's columns; the type of a nested one is `None`."""
        return tuple(
            FormatColumn(f["name"], int(f["id"]), iceberg.type_sql(f["type"]) if isinstance(f["type"], str) else None)
            for f in json.loads(self._schemas.toJson(schema))["fields"]
        )


def _transform(field: PartitionField) -> str:
    """Return a transform as Iceberg writes it."""
    return f"{field.transform}[{field.number}]" if field.number else field.transform


iceberg_jvm = once(IcebergJvm)
