"""Write values as Protobuf, and a schema's text (proto3) with one message that holds all others.

an array        message of `repeated` elements, each with an `optional` value: NULL, empty and a NULL inside are
                three different values, which a bare `repeated` cannot express
a Decimal       bytes, the unscaled number; its scale is in the schema's comment
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.errors import ConfigurationError
from cdcflow.publish.connect import Schema, adjust_name, flat
from cdcflow.publish.message_columns import concat_columns, constant, join_groups
from cdcflow.publish.varints import behind_length, scalars, varint

_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5
_WIRE = {"boolean": _VARINT, "int16": _VARINT, "int32": _VARINT, "int64": _VARINT, "float": _FOUR, "double": _EIGHT}
_NAMES = {"boolean": "bool", "int16": "int32"}
_NOTHING = constant(b"")


class ProtobufWriter:
    """Implements `rendering.FormatWriter`."""

    def scalar(self, values: pa.Array, schema: Schema) -> pa.Array:
        return scalars(values, schema.type, zigzagged=False)

    def record(self, parts: Sequence[pa.Array | pa.Scalar], schema: Schema) -> pa.Array:
        numbered = enumerate(zip(parts, schema.fields, strict=True), 1)
        return concat_columns(*(_field(part, number, inner) for number, (part, (_, inner)) in numbered))

    def sequence(
        self, items: pa.Array, lengths: np.ndarray[tuple[int], np.dtype[np.int64]], schema: Schema
    ) -> pa.Array:
        assert schema.items is not None  # noqa: S101  of an array, always
        element = behind_length(_field(items, 1, schema.items), zigzagged=False)
        return join_groups(concat_columns(constant(_tag(1, _LENGTH)), element), lengths, b"")


def _tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


def _field(cells: pa.Array | pa.Scalar, number: int, schema: Schema) -> pa.Array | pa.Scalar:
    """Return the cells of a field, each preceded by the field's number; an empty cell for NULL."""
    if isinstance(cells, pa.Scalar) and not cells.is_valid:
        return _NOTHING
    if schema.type in ("struct", "array"):
        cells = behind_length(cells, zigzagged=False)
    tag = constant(_tag(number, _WIRE.get(schema.type, _LENGTH)))
    return pc.coalesce(concat_columns(tag, cells), _NOTHING)


def schema_text(schema: Schema) -> str:
    package, _, _ = adjust_name(schema.name or "Value").rpartition(".")
    lines = ['syntax = "proto3";', *([f"package {package};"] if package else [])]
    return "\n".join([*lines, "", *_message(schema, set()), ""])


def _message(schema: Schema, known: set[str]) -> list[str]:
    """Return the lines of a struct's message. The outermost message contains those of all structs in it."""
    is_outermost = not known
    known.add(_short(schema))
    inner = [line for part in _structs(schema, known) for line in part] if is_outermost else []
    return [f"message {_short(schema)} {{", *(f"  {line}" for line in [*inner, *_fields(schema)]), "}"]


def _structs(schema: Schema, known: set[str]) -> list[list[str]]:
    found = []
    for _, inner in schema.fields:
        kind = inner.items if inner.items is not None else inner
        if kind.type == "struct" and _short(kind) not in known:
            known.add(_short(kind))
            found += [*_structs(kind, known), _message(kind, known)]
    return found


def _fields(schema: Schema) -> list[str]:
    lines: list[str] = []
    names = [flat(name) for name, _ in schema.fields]
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"describing {schema.name} for Protobuf: two columns have the same name once its rules are kept",
            remedy="rename one of them, or publish as JSON",
            runbook="settings",
        )
    for number, (name, (_, inner)) in enumerate(zip(names, schema.fields, strict=True), 1):
        kind = _kind(inner)
        if inner.items is not None:
            kind = f"{name}_Array"
            lines += [
                f"message {kind} {{",
                f"  message Element {{ optional {_kind(inner.items)} value = 1; }}",
                f"  repeated Element elements = 1;{_meaning(inner.items)}",
                "}",
            ]
        optional = "optional " if inner.optional else ""
        lines.append(f"{optional}{kind} {name} = {number};{_meaning(inner)}")
    return lines


def _kind(schema: Schema) -> str:
    return _short(schema) if schema.type == "struct" else _NAMES.get(schema.type, schema.type)


def _short(schema: Schema) -> str:
    return flat((schema.name or "Value").rpartition(".")[2])


def _meaning(schema: Schema) -> str:
    if schema.name is None or schema.type == "struct":
        return ""
    about = ", ".join(f"{k} {v}" for k, v in schema.parameters if k != "allowed")
    return f"  // {schema.name}" + (f" ({about})" if about else "")
