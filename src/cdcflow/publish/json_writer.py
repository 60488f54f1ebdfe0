"""Write values as Kafka Connect's JSON converter does: bytes in base64, NaN and infinities as texts."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdcflow.publish.base64_text import base64_text
from cdcflow.publish.connect import Schema
from cdcflow.publish.message_columns import RENDERED, concat_columns, constant, join_groups

_QUOTE = constant(b'"')
_NULL = constant(b"null")
_POINT_ZERO = [pa.scalar(text, pa.large_string()) for text in (".0", "")]
_SPECIAL = '["\\\\\\x00-\\x1f]'
_ESCAPES = [("\\", "\\\\"), ('"', '\\"')] + [(chr(n), json.dumps(chr(n))[1:-1]) for n in range(32)]


class JsonWriter:
    """Implements `rendering.FormatWriter`."""

    def scalar(self, values: pa.Array, schema: Schema) -> pa.Array:
        match schema.type:
            case "string":
                return _quote(escape(values.cast(pa.large_string())))
            case "bytes":
                return _quote(base64_text(values))
            case "float" | "double":
                return _decimals(values)
            case _:
                return values.cast(pa.large_string()).cast(RENDERED)

    def record(self, parts: Sequence[pa.Array | pa.Scalar], schema: Schema) -> pa.Array:
        pieces: list[pa.Array | pa.Scalar] = []
        before = b"{"
        for part, (name, _) in zip(parts, schema.fields, strict=True):
            pieces += [constant(before + json.dumps(name, ensure_ascii=False).encode() + b":"), _or_null(part)]
            before = b","
        return concat_columns(*pieces, constant(b"}" if pieces else b"{}"))

    def sequence(
        self, items: pa.Array, lengths: np.ndarray[tuple[int], np.dtype[np.int64]], schema: Schema
    ) -> pa.Array:
        return concat_columns(constant(b"["), join_groups(_or_null(items), lengths, b","), constant(b"]"))


def escape(texts: pa.Array) -> pa.Array:
    """Escape texts for use between the quotes of JSON."""
    if not pc.any(pc.match_substring_regex(texts, _SPECIAL)).as_py():
        return texts
    for plain, escape in _ESCAPES:
        # A search costs less than a replacement, and most texts have none of these characters.
        if pc.any(pc.match_substring(texts, plain)).as_py():
            texts = pc.replace_substring(texts, plain, escape)
    return texts


def _quote(texts: pa.Array) -> pa.Array:
    return concat_columns(_QUOTE, texts.cast(RENDERED), _QUOTE)


def _or_null(part: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    return pc.coalesce(part, _NULL) if isinstance(part, pa.Scalar) or part.null_count else part


def _decimals(values: pa.Array) -> pa.Array:
    texts = values.cast(pa.large_string())
    whole = pc.match_substring_regex(texts, "^-?[0-9]+$")
    if pc.any(whole).as_py():
        # 1.0 is no integer: a reader without a schema would take it for one.
        texts = pc.if_else(whole, pc.binary_join_element_wise(texts, *_POINT_ZERO), texts)
    for found, said in (("nan", '"NaN"'), ("-nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"')):
        is_it = pc.equal(texts, pa.scalar(found, pa.large_string()))
        if pc.any(is_it).as_py():
            texts = pc.if_else(is_it, pa.scalar(said, pa.large_string()), texts)
    return texts.cast(RENDERED)


def with_schema(schema: Schema) -> tuple[bytes, bytes]:
    """Return the bytes before and after a value that carries its schema."""
    said = json.dumps(schema.to_json(), separators=(",", ":"), ensure_ascii=False).encode()
    return b'{"schema":' + said + b',"payload":', b"}"
