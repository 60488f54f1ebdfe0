"""A collection's JSON Schema: what is accepted, and what is refused, with an error that names it and the remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.push.collections import ORDERS, SCHEMA

from cdcflow.errors import ConfigurationError
from cdcflow.push import columns
from cdcflow.push.operations import OperationFailure, parse_operations
from cdcflow.push.schemas import CollectionShape, Wrong, compile_schema, continue_numbers

HIDDEN = "row-value"


def schema(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"id": {"type": "integer"}, **properties}, "required": list(required)}


def orders(*required: str, **properties: Any) -> CollectionShape:
    return compile_schema("orders", ["id"], schema(*required, **properties))


def reasons(*given: Any) -> list[str]:
    return [one.detail if isinstance(one, OperationFailure) else "" for one in parse_operations(ORDERS, list(given))]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"op": "put", "value": {"id": HIDDEN}}, "id: not an integer of 64 bits"),
        ({"op": "put", "value": {"id": 2**63}}, "id: not an integer of 64 bits"),
        ({"op": "put", "value": {"id": True}}, "id: not an integer of 64 bits"),
        ({"op": "put", "value": {"note": HIDDEN}}, "id: missing"),
        ({"op": "put", "value": {"id": 1, HIDDEN: 2}}, "a property that the schema does not have"),
        ({"op": "put", "value": {"id": 1, "note": "x" * 21}}, "note: maxLength of the schema is not kept"),
        ({"op": "put", "value": {"id": 1, "note": "\ud800"}}, "note: not a string"),
        ({"op": "put", "value": {"id": 1, "at": "2026-11-25T10:00:00"}}, "at: not a date-time with a zone"),
        ({"op": "put", "value": {"id": 1, "at": "0001-01-01T00:00:00+05:00"}}, "at: not a date-time"),
        ({"op": "put", "value": {"id": 1, "tags": {}}}, "tags: not an array"),
        ({"op": "put", "key": 2, "value": {"id": 1}}, "value: another key"),
        ({"op": "put", "value": [HIDDEN]}, "not an object"),
        ({"op": HIDDEN}, "op: must be one of put, delete"),
        ({"op": "delete", "key": {"id": 1, "x": HIDDEN}}, "key: must have exactly id"),
        ({"op": "delete", "key": 1, "value": HIDDEN}, "delete has key, op and nothing else"),
        ({"op": "increment", "key": 1, "value": {"note": 1}}, "only columns that are numbers"),
        ({"op": "increment", "key": 1, "value": {"id": 1}}, "only columns that are numbers"),
        ({"op": "compare_and_set", "key": 1, "value": {}}, "expect: missing"),
        (HIDDEN, "op: must be one of"),
    ],
)
def test_wrong_operation_is_reported_without_its_values(given: Any, said: str) -> None:
    """The reason goes to logs of programs: it names the property, and nothing that was in it."""
    [reason] = reasons(given)
    assert said in reason
    assert HIDDEN not in reason


def test_values_become_those_of_exact_types() -> None:
    """A time in another zone is the same point in time; arrays are JSON and are compared by meaning alone."""
    row = ORDERS.row({"id": 1.0, "at": "2026-11-25T10:00:00+01:00", "tags": [{"b": 1, "a": "é"}]})
    assert row["id"] == 1
    assert row["at"].isoformat() == "2026-11-25T09:00:00+00:00"
    assert row["tags"] == '[{"a":"é","b":1}]'


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"type": "array"}, "it describes no object"),
        ({**schema(), "additionalProperties": True}, "additionalProperties is not false"),
        ({**schema(), "oneOf": []}, "oneOf is not known"),
        (schema(price={"type": "number", "multipleOf": 0.01}), "price has multipleOf"),
        (schema(at={"type": "string", "format": "email"}), "at has the format email"),
        (schema(a={"type": ["string", "integer"]}), "a has no type, or several"),
        (schema(_offset={"type": "integer"}), "_offset cannot be a column"),
        (schema("gone"), "required names something that is not a property"),
        ({**schema(), "properties": {"x": {"type": "string"}}}, "the key names id"),
        ({**schema(), "properties": {"id": {"type": "number"}}}, "the key's id is number"),
        ({**schema(), "properties": {"id": {"type": ["string", "null"]}}}, "the key's id is string or null"),
    ],
)
def test_schema_that_cannot_be_kept_is_refused(given: Mapping[str, Any], said: str) -> None:
    """A rule that is never checked is worse than none."""
    with pytest.raises(ConfigurationError, match=re.escape(said)) as caught:
        compile_schema("orders", ["id"], given)
    assert caught.value.remedy


def test_new_optional_property_is_a_new_column_with_a_new_number() -> None:
    """Wherever it is in the schema: a column of the same name keeps its number."""
    wider = schema(early={"type": "boolean"}, **SCHEMA["properties"])
    found = continue_numbers(compile_schema("orders", ["id"], wider), [ORDERS.table]).table
    assert [(c.name, c.number) for c in found.columns][-2:] == [("tags", 5), ("early", 6)]
    assert continue_numbers(compile_schema("orders", ["id"], SCHEMA), [ORDERS.table]).table == ORDERS.table


BEFORE = orders("id", note={"type": "string"}, total={"type": "number"})


@pytest.mark.parametrize(
    ("now", "said", "mended"),
    [
        (orders(note={"type": "string"}), "the property total is gone", BEFORE),
        (
            orders(note={"type": "integer"}, total={"type": "number"}),
            "note is integer, and in the log string",
            orders(note={"type": "string"}, total={"type": "number"}, note_number={"type": "integer"}),
        ),
        (orders("note", note={"type": "string"}, total={"type": "number"}), "note is required", BEFORE),
        (
            orders("x", note={"type": "string"}, total={"type": "number"}, x={"type": "string"}),
            "the new property x is required",
            orders(note={"type": "string"}, total={"type": "number"}, x={"type": "string"}),
        ),
        (compile_schema("orders", ["id", "note"], schema(note={"type": "string"})), "its key is id, note", BEFORE),
    ],
)
def test_incompatible_change_is_refused_and_its_remedy_works(
    now: CollectionShape, said: str, mended: CollectionShape
) -> None:
    """Rows of the old kind stay in the log permanently."""
    with pytest.raises(ConfigurationError, match=said) as caught:
        continue_numbers(now, [BEFORE.table])
    assert caught.value.remedy
    assert continue_numbers(mended, [BEFORE.table]).table.key == ("id",)


def test_schema_may_be_in_a_file_that_must_exist(tmp_path: Path) -> None:
    """And the error names the file."""
    path = tmp_path / "orders.json"
    with pytest.raises(ConfigurationError, match=r"orders\.json: No such file"):
        compile_schema("orders", ["id"], path)
    path.write_text("[")
    with pytest.raises(ConfigurationError, match="holds no JSON object"):
        compile_schema("orders", ["id"], path)
    path.write_text(json.dumps(SCHEMA))
    assert compile_schema("orders", ["id"], path).table == ORDERS.table


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_columns_are_widened_and_omitted_ones_are_null() -> None:
    """A program need not know cdcflow's types, if it loses nothing."""
    given = pa.table({"id": pa.array([1, 2], pa.int16()), "note": pa.array(["a", None]).dictionary_encode()})
    rows, failures = columns.read(ORDERS, stream(given))
    assert failures == []
    assert rows.schema == ORDERS.table.row_schema
    assert rows.column("note").to_pylist() == ["a", None]
    assert rows.column("hits").null_count == 2


def test_wrong_rows_of_a_stream_are_reported_by_number() -> None:
    """As those of JSON, without their values."""
    given = pa.table({"id": pa.array([1, None, 3]), "note": ["x" * 21, "", "x" * 30], "hits": [1001, 1, 1]})
    _, failures = columns.read(ORDERS, stream(given))
    assert [(f.number, f.detail) for f in failures] == [
        (1, "note: maxLength of the schema is not kept; hits: maximum of the schema is not kept"),
        (2, "id: null is not taken"),
        (3, "note: maxLength of the schema is not kept"),
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (pa.table({"note": ["a"]}), "id: missing"),
        (pa.table({"id": [1], HIDDEN: [1]}), "a column twice, or one that the schema does not have"),
        (pa.table({"id": ["1"]}), "id: string does not become int64"),
        (pa.table({"id": pa.array([2**63], pa.uint64())}), "id: uint64 does not become int64"),
        (pa.table({"id": [1], "tags": ["[]"]}), "tags: objects and arrays are sent as JSON"),
        (pa.table({"id": pa.array([], pa.int64())}), "has no rows"),
    ],
)
def test_stream_that_is_not_the_collections_is_refused(given: pa.Table, said: str) -> None:
    """Before a row of it is read."""
    with pytest.raises(Wrong, match=said):
        columns.read(ORDERS, stream(given))
    with pytest.raises(Wrong, match="no Arrow stream"):
        columns.read(ORDERS, stream(given)[:-40][:20])
