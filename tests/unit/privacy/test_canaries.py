"""The search for protected values finds them in every form in which cdcflow writes values."""

from __future__ import annotations

import base64
import gzip
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.privacy.canaries import CANARY, has_canary, places_in

from cdcflow.model.change import KeySet
from cdcflow.model.table import Column, Table, TableId
from cdcflow.model.types import ColumnType

KEYS = KeySet(pa.table({"k": [f"{CANARY}-{i}" for i in range(100)]}))
SHAPE = Table(TableId("s", "t"), 1, (Column("c", 1, ColumnType("text", pa.string()), missing=CANARY),), ())


@pytest.mark.parametrize("before", ["", "a", "ab", "abc"])
def test_text_is_found_in_other_encodings(before: str) -> None:
    text = f"{before}{CANARY}!".encode()
    for form in (text, text.hex().encode(), base64.b64encode(text), text.decode().encode("utf-16-le")):
        assert has_canary(b"{" + form + b"}")
    assert not has_canary(base64.b64encode(before.encode() * 1000))


@pytest.mark.parametrize(
    "content",
    [
        f'{{"keys": "{KEYS.to_text()}"}}'.encode(),
        f'{{"shape": "{SHAPE.to_text()}"}}'.encode(),
        gzip.compress(CANARY.encode()),
    ],
    ids=["keys", "shape", "gzip"],
)
def test_values_are_found_in_compressed_texts(content: bytes) -> None:
    assert CANARY.encode() not in content
    assert list(places_in(content))


def test_values_are_found_in_compressed_parquet() -> None:
    file = io.BytesIO()
    pq.write_table(KEYS.keys, file, compression="zstd", write_statistics=False)
    assert list(places_in(file.getvalue()))
