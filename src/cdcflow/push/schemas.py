"""A collection's JSON Schema as a table of the log, and JSON values as values of its columns.

Only the keywords of JSON Schema in `_ANNOTATIONS` and `_CHECKS` are supported; any other causes an error that names it
when the collection is created, because a rule that is not checked is worse than none.

    string              string                     integer   int64
    string, date-time   timestamp(us, UTC)         number    float64
    string, date        date32                     boolean   bool
    object, array       their JSON as string, its keys sorted

Errors about rows name a property and what is wrong with it, never its value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdcflow.errors import ConfigurationError
from cdcflow.model.table import LOG_COLUMNS, MISSING, Column, Table, TableId
from cdcflow.model.types import ColumnType

SCHEMA = "push"
"""The schema of the tables of collections."""
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**63 - 1
_PROPERTY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_ANNOTATIONS = frozenset(("$schema", "$id", "$comment", "title", "description", "examples"))
_TOP = _ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
_CHECKS: Mapping[str, frozenset[str]] = {
    "string": frozenset(("minLength", "maxLength", "enum")),
    "date-time": frozenset(),
    "date": frozenset(),
    "integer": frozenset(("minimum", "maximum", "enum")),
    "number": frozenset(("minimum", "maximum")),
    "boolean": frozenset(),
    "object": frozenset(),
    "array": frozenset(),
}
_TYPES: Mapping[str, ColumnType] = {
    "string": ColumnType("string", pa.string()),
    "date-time": ColumnType("date-time", pa.timestamp("us", tz="UTC")),
    "date": ColumnType("date", pa.date32()),
    "integer": ColumnType("integer", pa.int64()),
    "number": ColumnType("number", pa.float64()),
    "boolean": ColumnType("boolean", pa.bool_()),
    "object": ColumnType("object", pa.string()),
    "array": ColumnType("array", pa.string()),
}
_KEYS = frozenset(("string", "integer", "boolean", "date", "date-time"))


class Wrong(Exception):
    """The error for a value that a collection does not accept. `reason` does not contain the value."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Property:
    """One property. `kind`: its type, or the format of a string that is a time. `nullable`: null is accepted."""

    name: str
    kind: str
    nullable: bool
    checks: Mapping[str, Any] = field(default_factory=dict)

    def value(self, given: Any) -> Any:
        """Return a JSON value as a value of the column.

        Raises:
            Wrong: it does not fit.
        """
        if given is None:
            if not self.nullable:
                raise Wrong(f"{self.name}: null is not taken")
            return None
        found = self.read(given)
        for check, limit in self.checks.items():
            if not _HOLDS[check](found, limit):
                raise Wrong(f"{self.name}: {check} of the schema is not kept")
        return found

    def read(self, given: Any) -> Any:
        """Return a JSON value other than null as a value of the column, without the schema's checks."""
        try:
            return _READ[self.kind](given)
        except (ValueError, OverflowError, TypeError):
            kind = f"{_ARTICLE.get(self.kind, 'a')} {self.kind}"
            raise Wrong(f"{self.name}: not {kind}{_HINTS.get(self.kind, '')}") from None


@dataclass(frozen=True)
class CollectionShape:
    """A collection: its properties in the order of the table's columns, and the table."""

    name: str
    table: Table
    properties: Mapping[str, Property]
    required: frozenset[str]

    def row(self, given: Any) -> dict[str, Any]:
        """Return a whole row from a JSON object; a missing property is NULL.

        Raises:
            Wrong: it is not a valid row; the reason names everything that is wrong.
        """
        if missing := sorted(self.required - _object(given).keys()):
            raise Wrong(f"{', '.join(missing)}: missing")
        return {**dict.fromkeys(self.properties), **self.part(given)}

    def part(self, given: Any) -> dict[str, Any]:
        """Return some properties of a row as values of its columns."""
        values: dict[str, Any] = {}
        wrong = []
        for name, value in _object(given).items():
            known = self.properties.get(name)
            if known is None:
                wrong.append("a property that the schema does not have")
                continue
            try:
                values[name] = known.value(value)
            except Wrong as error:
                wrong.append(error.reason)
        if wrong:
            raise Wrong("; ".join(dict.fromkeys(wrong)))
        return values

    def key(self, given: Any) -> tuple[Any, ...]:
        """Return the values of a key, from an object of its columns, or from a single value if it has one column."""
        names = self.table.key
        if not isinstance(given, Mapping):
            if len(names) > 1:
                raise Wrong(f"key: must be an object with {', '.join(names)}")
            given = {names[0]: given}
        if given.keys() != set(names):
            raise Wrong(f"key: must have exactly {', '.join(names)}")
        return tuple(self.properties[name].value(given[name]) for name in names)


def compile_schema(name: str, key: Sequence[str], given: Mapping[str, Any] | Path) -> CollectionShape:
    """Return a collection from its schema, or from the file that holds it. Its columns have the numbers of a first
    shape.

    Raises:
        ConfigurationError: the file cannot be read, or the schema is not supported.
    """
    schema = _read(name, given) if isinstance(given, Path) else given
    if unknown := sorted(schema.keys() - _TOP):
        raise _schema_error(name, f"{unknown[0]} is not known", "remove it; docs/serve.md lists what is supported")
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), Mapping):
        raise _schema_error(name, "it describes no object", "set type to object, and list its properties")
    if schema.get("additionalProperties", False) is not False:
        raise _schema_error(
            name, "additionalProperties is not false", "set it to false, or leave it out: each property is a column"
        )
    required = schema.get("required", [])
    if not isinstance(required, Sequence) or not set(required) <= schema["properties"].keys():
        raise _schema_error(name, "required names something that is not a property", "list it under properties")
    needed = frozenset(required) | frozenset(key)
    properties = {p: _property(name, p, said) for p, said in schema["properties"].items()}
    for column in key:
        if column not in properties:
            raise _schema_error(name, f"the key names {column}, which is not a property", "list it under properties")
        if properties[column].kind not in _KEYS or properties[column].nullable:
            raise _schema_error(
                name,
                f"the key's {column} is {properties[column].kind}{' or null' if properties[column].nullable else ''}",
                "make it a string, an integer, a boolean or a date that is never null",
            )
    properties = {p: one if p in needed else replace(one, nullable=True) for p, one in properties.items()}
    columns = tuple(
        Column(p, number, _TYPES[one.kind], one.nullable) for number, (p, one) in enumerate(properties.items(), 1)
    )
    return CollectionShape(name, Table(TableId(SCHEMA, name), 1, columns, tuple(key)), properties, needed)


def continue_numbers(shape: CollectionShape, before: Sequence[Table]) -> CollectionShape:
    """Return the collection with the numbers that its columns already have. `before`: the table's shapes, oldest first.

    Raises:
        ConfigurationError: it is not the log's schema with optional properties added.
    """
    if not before:
        return shape
    newest, name = before[-1], shape.name
    if newest.key != shape.table.key:
        raise _schema_error(
            name,
            f"its key is {', '.join(shape.table.key)}, and in the log {', '.join(newest.key)}",
            "restore the old key, or give the new collection another name",
        )
    now = {column.name: column for column in shape.table.columns}
    kept = []
    for old in newest.columns:
        new = now.pop(old.name, None)
        if new is None:
            raise _schema_error(
                name, f"the property {old.name} is gone", "restore it; programs may stop sending an optional one"
            )
        if new.type != old.type:
            raise _schema_error(
                name,
                f"{old.name} is {new.type.source}, and in the log {old.type.source}",
                "restore the old type, or give the new property another name",
            )
        if old.nullable and not new.nullable:
            raise _schema_error(
                name, f"{old.name} is required, and was optional", "leave it optional: rows may lack it"
            )
        kept.append(replace(new, number=old.number))
    numbers = max(column.number for table in before for column in table.columns)
    for number, new in enumerate(now.values(), numbers + 1):
        if not new.nullable:
            raise _schema_error(
                name, f"the new property {new.name} is required", "make it optional: older rows lack it"
            )
        kept.append(replace(new, number=number))
    properties = {column.name: shape.properties[column.name] for column in kept}
    return replace(shape, table=replace(shape.table, columns=tuple(kept)), properties=properties)


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _read(name: str, path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"reading the schema of the collection {name}: {path}: {error.strerror}",
            remedy="correct json_schema in serve.collections",
        ) from None
    except ValueError:
        found = None
    if not isinstance(found, Mapping):
        raise ConfigurationError(
            f"reading the schema of the collection {name}: {path} holds no JSON object", remedy=f"correct {path}"
        )
    return found


def _property(name: str, column: str, said: Any) -> Property:
    if _PROPERTY.fullmatch(column) is None or column in (*LOG_COLUMNS, MISSING):
        raise _schema_error(
            name,
            f"the property {column} cannot be a column",
            "name it with letters, digits and _, beginning with a letter, at most 63 of them",
        )
    if not isinstance(said, Mapping):
        raise _schema_error(name, f"the property {column} has no type", "give it a type")
    types = said.get("type")
    listed = list(types) if isinstance(types, list) else [types]
    nullable = "null" in listed
    kinds = [one for one in listed if one != "null"]
    if len(kinds) != 1 or kinds[0] not in _TYPES:
        raise _schema_error(
            name,
            f"the property {column} has no type, or several",
            "give it one of string, integer, number, boolean, object, array (or a list of one and null)",
        )
    kind = str(kinds[0])
    if kind == "string" and "format" in said:
        said_format = str(said["format"])
        if said_format not in ("date-time", "date"):
            raise _schema_error(name, f"the property {column} has the format {said_format}", "leave format out")
        kind = said_format
    checks = {k: v for k, v in said.items() if k not in _ANNOTATIONS and k not in ("type", "format")}
    if unknown := sorted(checks.keys() - _CHECKS[kind]):
        raise _schema_error(
            name, f"the property {column} has {unknown[0]}", "remove it; docs/serve.md lists what is supported"
        )
    return Property(column, kind, nullable, checks)


def _schema_error(name: str, found: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"creating the collection {name} from its schema: {found}", remedy=remedy)


def _object(given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise Wrong("not an object")
    return given


def _string(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    given.encode()  # JSON can contain a lone surrogate, and a column cannot
    return given


def _integer(given: Any) -> int:
    if isinstance(given, float) and given.is_integer() and abs(given) < 2**53:
        given = int(given)
    if not isinstance(given, int) or isinstance(given, bool) or not INTEGER_MIN <= given <= INTEGER_MAX:
        raise TypeError
    return given


def _number(given: Any) -> float:
    if not isinstance(given, int | float) or isinstance(given, bool) or not math.isfinite(found := float(given)):
        raise TypeError
    return found


def _boolean(given: Any) -> bool:
    if not isinstance(given, bool):
        raise TypeError
    return given


def _moment(given: Any) -> datetime:
    found = datetime.fromisoformat(_string(given))
    if found.tzinfo is None or len(given) < len("2026-11-25T10:00Z"):
        raise ValueError
    return found.astimezone(UTC)


def _date(given: Any) -> date:
    if len(_string(given)) != len("2026-11-25"):
        raise ValueError
    return date.fromisoformat(given)


def _json_of(kind: type) -> Callable[[Any], str]:
    def text(given: Any) -> str:
        if not isinstance(given, kind):
            raise TypeError
        found = json.dumps(given, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
        return _string(found)

    return text


_READ: Mapping[str, Callable[[Any], Any]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "date-time": _moment,
    "date": _date,
    "object": _json_of(dict),
    "array": _json_of(list),
}
_HOLDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "minLength": lambda value, limit: len(value) >= limit,
    "maxLength": lambda value, limit: len(value) <= limit,
    "minimum": lambda value, limit: value >= limit,
    "maximum": lambda value, limit: value <= limit,
    "enum": lambda value, limit: value in limit,
}
_ARTICLE = {"integer": "an", "object": "an", "array": "an"}
_HINTS = {
    "date-time": " with a zone, such as 2026-11-25T10:00:00Z",
    "date": ", such as 2026-11-25",
    "integer": " of 64 bits",
}
