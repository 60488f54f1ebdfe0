"""Write values in Avro's binary encoding, and schemas as Kafka Connect's Avro converter produces them.

The meaning of a plain type travels as `connect.name` and `connect.parameters`, so a consumer with that converter gets
the same Connect values as from Debezium.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError
from cdcflow.publish.connect import Schema, adjust_name
from cdcflow.publish.message_columns import concat_columns, constant, join_groups
from cdcflow.publish.varints import scalars, varints, zigzag

_NULL, _VALUE, _END = constant(b"\0"), constant(b"\x02"), constant(b"\0")
_PLAIN = {"boolean": "boolean", "int16": "int", "int32": "int", "int64": "long", "float": "float", "double": "double"}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_PRECISION_UNKNOWN = 64
_LOGICAL = {
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}


class AvroWriter:
    """Implements `rendering.FormatWriter`."""

    def scalar(self, values: pa.Array, schema: Schema) -> pa.Array:
        return scalars(values, schema.type, zigzagged=True)

    def record(self, parts: Sequence[pa.Array | pa.Scalar], schema: Schema) -> pa.Array:
        fields = zip(parts, schema.fields, strict=True)
        return concat_columns(*(_branch(part) if inner.optional else part for part, (_, inner) in fields))

    def sequence(
        self, items: pa.Array, lengths: np.ndarray[tuple[int], np.dtype[np.int64]], schema: Schema
    ) -> pa.Array:
        whole = join_groups(_branch(items) if schema.items is None or schema.items.optional else items, lengths, b"")
        # One block with all elements, then one with none; an empty array has only the second.
        block = concat_columns(varints(zigzag(lengths)), whole)
        return concat_columns(pc.if_else(pa.array(lengths > 0), block, constant(b"")), _END)


def _branch(cells: pa.Array | pa.Scalar) -> pa.Array:
    """Return values as Avro encodes them in a union of null and their type."""
    return pc.coalesce(concat_columns(_VALUE, cells), _NULL)


def schema_text(schema: Schema) -> str:
    return json.dumps(_of(schema, set()), separators=(",", ":"))


def _of(schema: Schema, known: set[str]) -> object:
    """Return the Avro type of a schema as if it were not optional. A record that was described before is only named."""
    match schema.type:
        case "struct":
            return _record(schema, known)
        case "array":
            assert schema.items is not None  # noqa: S101  of an array, always
            items = _of(schema.items, known)
            plain: dict[str, object] = {
                "type": "array",
                "items": ["null", items] if schema.items.optional else items,
            }
        case _:
            plain = {"type": _PLAIN.get(schema.type, schema.type)}
    if schema.type == "int16":
        plain["connect.type"] = "int16"
    parameters = dict(schema.parameters)
    if schema.name == _DECIMAL:
        precision = int(parameters.get("connect.decimal.precision", _PRECISION_UNKNOWN))
        plain |= {"scale": int(parameters["scale"]), "precision": precision, "logicalType": "decimal"}
    elif schema.name in _LOGICAL:
        plain["logicalType"] = _LOGICAL[schema.name]
    if schema.version is not None:
        plain["connect.version"] = schema.version
    if parameters:
        plain["connect.parameters"] = parameters
    if schema.name is not None:
        plain["connect.name"] = schema.name
    return plain["type"] if len(plain) == 1 else plain


def _record(schema: Schema, known: set[str]) -> object:
    full = adjust_name(schema.name or "ConnectDefault")
    if full in known:
        return full
    known.add(full)
    namespace, _, name = full.rpartition(".")
    names = [adjust_name(field) for field, _ in schema.fields]
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"describing {schema.name} for Avro: two columns have the same name once Avro's rules are kept",
            remedy="rename one of them, or publish as JSON",
            runbook="settings",
        )
    fields = []
    for name_, (_, inner) in zip(names, schema.fields, strict=True):
        kind = _of(inner, known)
        fields.append(
            {"name": name_, "type": ["null", kind], "default": None}
            if inner.optional
            else {"name": name_, "type": kind}
        )
    about: dict[str, object] = {"type": "record", "name": name}
    if namespace:
        about["namespace"] = namespace
    about["fields"] = fields
    if schema.version is not None:
        about["connect.version"] = schema.version
    if schema.doc is not None:
        about["connect.doc"] = schema.doc
    if schema.name is not None:
        about["connect.name"] = schema.name
    return about
