"""COPY rows as they arrive, in one piece, cut short and malformed."""

from __future__ import annotations

import contextlib
import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.postgres.message_bytes import attribute, copy_rows, table

from cdcflow.errors import CdcflowError, SourceUnavailable
from cdcflow.sources.postgres.copy import decode_copy
from cdcflow.sources.postgres.decoders import Compiled
from cdcflow.sources.postgres.wire import join_messages

EXAMPLES = settings(max_examples=int(os.environ.get("CDCFLOW_EXAMPLES", "40")), deadline=None)
TABLE = table("t", 1, [attribute("id", 23, key=True), attribute("v", 25), attribute("n", 21)])
ROW = st.tuples(
    st.integers(-(2**31), 2**31 - 1).map(lambda v: struct.pack(">i", v)),
    # Bytes that look like the beginning of a row: three columns, small lengths, NULLs.
    st.none() | st.text(st.sampled_from("\x00\x03\x04a"), max_size=12).map(str.encode),
    st.none() | st.sampled_from([b"\x00\x03", b"\xff\xff", b"\x00\x00"]),
)


def plain(rows: list[tuple[bytes, bytes | None, bytes | None]]) -> list[dict[str, object]]:
    return [
        {
            "id": struct.unpack(">i", i)[0],
            "v": None if v is None else v.decode(),
            "n": None if n is None else struct.unpack(">h", n)[0],
        }
        for i, v, n in rows
    ]


@given(st.lists(ROW, max_size=40))
@EXAMPLES
def test_rows_are_found_in_one_piece_as_in_messages(
    compiled: Compiled | None, rows: list[tuple[bytes, bytes | None, bytes | None]]
) -> None:
    """The beginnings of rows are guessed and then proven; values that look like rows must not lead astray."""
    messages = copy_rows(rows)
    whole = b"".join(messages)
    for data in (
        messages,
        messages[:-1],
        whole,
        whole[19:],
        whole[:-2],
        memoryview(whole)[19:-2],
        join_messages(messages),
    ):
        assert decode_copy(data, TABLE, compiled).to_pylist() == plain(rows)


@given(st.lists(ROW, min_size=1, max_size=6), st.data())
@EXAMPLES
def test_garbled_rows_end_in_an_error_that_the_pipeline_knows(
    compiled: Compiled | None, rows: list[tuple[bytes, bytes | None, bytes | None]], data: st.DataObject
) -> None:
    """A chunk over a broken link is read again, if the error reports a broken link (O10)."""
    messages = copy_rows(rows)
    number = data.draw(st.integers(0, len(messages) - 1))
    changed = bytearray(messages[number])
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    messages[number] = bytes(changed)
    for body in (messages, b"".join(messages)):
        with contextlib.suppress(CdcflowError):
            decode_copy(body, TABLE, compiled)


@given(st.lists(ROW, min_size=1, max_size=4))
@EXAMPLES
def test_truncated_piece_is_not_mistaken_for_fewer_rows(
    compiled: Compiled | None,
    rows: list[tuple[bytes, bytes | None, bytes | None]],
) -> None:
    """Rows that are missing from a chunk would be missing downstream permanently (O10)."""
    whole = b"".join(copy_rows(rows))[19:-2]
    last = len(whole) - len(copy_rows(rows)[-2]) + (19 if len(rows) == 1 else 0)
    for size in range(last + 1, len(whole)):
        with pytest.raises(SourceUnavailable):
            decode_copy(whole[:size], TABLE, compiled)
