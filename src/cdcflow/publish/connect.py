"""Schemas as in Kafka Connect: what a value means, whatever format encodes it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

_ODD = re.compile(r"[^A-Za-z0-9_]")


Type = Literal["boolean", "int16", "int32", "int64", "float", "double", "string", "bytes", "array", "struct"]


@dataclass(frozen=True, slots=True)
class Schema:
    """The schema of one type. `name`: the meaning of the plain type (`io.debezium.time.Date`).

    `fields` are those of a struct in order, `items` the element type of an array.
    """

    type: Type
    optional: bool = True
    name: str | None = None
    version: int | None = None
    parameters: tuple[tuple[str, str], ...] = ()
    doc: str | None = None
    default: str | None = None
    fields: tuple[tuple[str, Schema], ...] = ()
    items: Schema | None = None

    @property
    def as_required(self) -> Schema:
        return replace(self, optional=False)

    def to_json(self, field: str | None = None) -> dict[str, object]:
        """Return the schema as Connect's JSON converter writes it into a message."""
        value: dict[str, object] = {"type": self.type}
        if self.type == "struct":
            value["fields"] = [inner.to_json(name) for name, inner in self.fields]
        if self.items is not None:
            value["items"] = self.items.to_json()
        value["optional"] = self.optional
        for key in ("name", "version", "doc", "default"):
            if (said := getattr(self, key)) is not None:
                value[key] = said
        if self.parameters:
            value["parameters"] = dict(self.parameters)
        if field is not None:
            value["field"] = field
        return value


BOOLEAN, INT16, INT32, INT64 = Schema("boolean"), Schema("int16"), Schema("int32"), Schema("int64")
FLOAT, DOUBLE, STRING, BYTES = Schema("float"), Schema("double"), Schema("string"), Schema("bytes")


def named_schema(plain: Schema, name: str, version: int = 1, **parameters: str) -> Schema:
    """Return the schema of a plain type with a semantic name."""
    return replace(plain, name=name, version=version, parameters=tuple(parameters.items()))


def struct(
    *fields: tuple[str, Schema], name: str, version: int | None = None, doc: str | None = None, optional: bool = True
) -> Schema:
    return Schema("struct", optional, name, version, doc=doc, fields=fields)


def array(items: Schema) -> Schema:
    return Schema("array", items=items)


def decimal(scale: int, precision: int | None) -> Schema:
    """Return the schema of Connect's Decimal: the unscaled number, big-endian."""
    parameters = [("scale", str(scale))]
    if precision is not None:
        parameters.append(("connect.decimal.precision", str(precision)))
    return Schema("bytes", name="org.apache.kafka.connect.data.Decimal", version=1, parameters=tuple(parameters))


VARIABLE_SCALE_DECIMAL = struct(
    ("scale", INT32.as_required),
    ("value", BYTES.as_required),
    name="io.debezium.data.VariableScaleDecimal",
    version=1,
    doc="Variable scaled decimal",
)
POINT = struct(
    ("x", DOUBLE.as_required),
    ("y", DOUBLE.as_required),
    ("wkb", BYTES),
    ("srid", INT32),
    name="io.debezium.data.geometry.Point",
    version=1,
    doc="Geometry (POINT)",
)
GEOMETRY = struct(
    ("wkb", BYTES.as_required), ("srid", INT32), name="io.debezium.data.geometry.Geometry", version=1, doc="Geometry"
)
DATE = named_schema(INT32, "io.debezium.time.Date")
TIME = named_schema(INT32, "io.debezium.time.Time")
MICRO_TIME = named_schema(INT64, "io.debezium.time.MicroTime")
TIMESTAMP = named_schema(INT64, "io.debezium.time.Timestamp")
MICRO_TIMESTAMP = named_schema(INT64, "io.debezium.time.MicroTimestamp")
ZONED_TIMESTAMP = named_schema(STRING, "io.debezium.time.ZonedTimestamp")
ZONED_TIME = named_schema(STRING, "io.debezium.time.ZonedTime")
MICRO_DURATION = named_schema(INT64, "io.debezium.time.MicroDuration")
INTERVAL = named_schema(STRING, "io.debezium.time.Interval")
YEAR = named_schema(INT32, "io.debezium.time.Year")
CONNECT_DATE = named_schema(INT32, "org.apache.kafka.connect.data.Date")
CONNECT_TIME = named_schema(INT32, "org.apache.kafka.connect.data.Time")
CONNECT_TIMESTAMP = named_schema(INT64, "org.apache.kafka.connect.data.Timestamp")
JSON = named_schema(STRING, "io.debezium.data.Json")
UUID = named_schema(STRING, "io.debezium.data.Uuid")
XML = named_schema(STRING, "io.debezium.data.Xml")
LTREE = named_schema(STRING, "io.debezium.data.Ltree")
TSVECTOR = named_schema(STRING, "io.debezium.data.Tsvector")


def adjust_name(name: str) -> str:
    """Return a name in the form that Avro and Protobuf allow: letters, digits and underscores between dots, no digit at
    the beginning."""
    return ".".join(flat(part) for part in name.split("."))


def flat(part: str) -> str:
    """Return a name of one part, without dots."""
    plain = _ODD.sub("_", part)
    return f"_{plain}" if not plain or plain[0].isdigit() else plain
