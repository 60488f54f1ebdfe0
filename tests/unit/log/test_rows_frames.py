"""The form in which rows are written: what is omitted, what refers to the frame before it, what is compressed."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.log.format.rows import (
    DEFLATED_BYTES_MAX,
    NO_BEFORE,
    NO_OP,
    NO_UNCHANGED,
    PLAIN_MESSAGES,
    SMALL_ROWS,
    RowsDecoder,
    RowsEncoder,
    ShapeEntry,
    ShapeRows,
    is_needless,
    rows_extent,
)
from cdcflow.model.change import ChangeBatch
from cdcflow.testing.sinks import ORDERS, changes

HEAD = struct.Struct("<IBBBBqII")
WHOLE, DICTIONARY, DEFLATED = 0, 1, 2
EVERYTHING = NO_OP | NO_UNCHANGED | NO_BEFORE


def frame(encoder: RowsEncoder, batch: ChangeBatch, first: int = 1) -> bytes:
    return b"".join(encoder.parts(batch, first))


def form(payload: bytes) -> int:
    return int(HEAD.unpack_from(payload)[4])


def inserts(count: int, note: str | None = None) -> ChangeBatch:
    return changes(ORDERS, [{"id": i, "note": note} for i in range(count)])


def read(payloads: Sequence[bytes]) -> list[ShapeRows]:
    decoder = RowsDecoder()
    return [decoder.rows(payload, [ShapeEntry(ORDERS, 1)]) for payload in payloads]


def test_frame_s_head_describes_its_content() -> None:
    """docs/changelog-format.md has these fields; other programs read them."""
    encoder = RowsEncoder(ORDERS, 7)
    batch = changes(ORDERS, [{"id": 1, "_op": "d"}, {"id": 2, "_op": "d"}], [3, 300])
    number, width, op, left_out, written, first, count, size = HEAD.unpack_from(frame(encoder, batch, 1000))
    assert (number, width, chr(op), left_out, written, first, count, size) == (7, 2, "d", 7, DICTIONARY, 1003, 2, 0)
    again = HEAD.unpack_from(frame(encoder, batch, 2000))
    assert (again[4], again[5]) == (DEFLATED, 2003)
    assert again[7] == len(frame(RowsEncoder(ORDERS, 7, deflates=False), batch)) - HEAD.size - 8, "what it inflates to"


@pytest.mark.parametrize(
    ("row", "left_out"),
    [
        ({}, EVERYTHING),
        ({"_unchanged": ["note"]}, NO_OP | NO_BEFORE),
        ({"_before": {"id": 9}}, NO_OP | NO_UNCHANGED),
        ({"_op": "d"}, NO_UNCHANGED | NO_BEFORE),
        ({"_op": "u", "_unchanged": ["note"], "_before": {"id": 9}}, 0),
    ],
)
def test_empty_columns_are_omitted(row: dict[str, object], left_out: int) -> None:
    """And only those: one row with a value is enough."""
    batch = changes(ORDERS, [{"id": 1}, {"id": 2, **row}, {"id": 3}])
    payload = frame(RowsEncoder(ORDERS, 0), batch)
    assert HEAD.unpack_from(payload)[3] == left_out
    (found,) = read([payload])
    assert (found.left_out, found.op) == (left_out, "c" if left_out & NO_OP else "")
    assert found.rows.equals(batch.rows)


def test_small_messages_lean_on_the_first_one_with_the_same_columns() -> None:
    """Each set of columns has its own first message; a message of more rows neither refers to one nor serves as one."""
    encoder = RowsEncoder(ORDERS, 0)
    partial = changes(ORDERS, [{"id": 1, "_op": "u", "_unchanged": ["note"]}])
    batches = [inserts(1), partial, inserts(SMALL_ROWS), partial, inserts(SMALL_ROWS + 1), inserts(2)]
    payloads = [frame(encoder, batch) for batch in batches]
    assert [form(p) for p in payloads] == [DICTIONARY, DICTIONARY, DEFLATED, DEFLATED, WHOLE, DEFLATED]
    assert [r.rows.to_pylist() for r in read(payloads)] == [b.rows.to_pylist() for b in batches]
    alone = RowsEncoder(ORDERS, 0, deflates=False)
    assert [form(frame(alone, inserts(1))) for _ in range(2)] == [WHOLE, WHOLE]


def test_a_small_message_with_large_values_leans_on_nothing() -> None:
    """It is not mostly description; and as the dictionary of others it would be more than a reader keeps."""
    encoder = RowsEncoder(ORDERS, 0)
    least = len(frame(RowsEncoder(ORDERS, 0, deflates=False), inserts(1, ""))) - HEAD.size
    room = DEFLATED_BYTES_MAX - least
    notes = ["x" * (room + 64), "x" * (room - room % 64), "x" * (room - room % 64), "y"]
    payloads = [frame(encoder, inserts(1, note)) for note in notes]
    assert [form(p) for p in payloads] == [WHOLE, DICTIONARY, DEFLATED, DEFLATED]
    assert [r.rows.column("note").to_pylist() for r in read(payloads)] == [[n] for n in notes]


def test_message_next_to_its_dictionary_is_small() -> None:
    """Repeated parts cost next to nothing."""
    encoder = RowsEncoder(ORDERS, 0)
    note = random.Random(3).randbytes(50).hex()
    first, second = (frame(encoder, inserts(1, note)) for _ in range(2))
    assert len(second) < 100 < 300 < len(first)


def digests(count: int, seed: int) -> ChangeBatch:
    chance = random.Random(seed)
    return changes(ORDERS, [{"id": i, "note": chance.randbytes(500).hex()} for i in range(count)])


def test_incompressible_message_is_written_plain_several_times_and_lz4_is_then_tried_again() -> None:
    """A try every time would cost as much as decoding did; never trying again would leave later texts uncompressed."""
    encoder = RowsEncoder(ORDERS, 0)
    large, blank = digests(100, 1), inserts(100, " " * 2000)
    size = len(frame(encoder, large))
    assert size > 64 << 10
    compressed = len(frame(RowsEncoder(ORDERS, 0), blank))
    found = [len(frame(encoder, blank)) > 10 * compressed for _ in range(PLAIN_MESSAGES + 3)]
    assert found == [True] * PLAIN_MESSAGES + [False] * 3


def test_message_of_a_few_kilobytes_is_not_compressed() -> None:
    """Arrow starts its threads to read a compressed message, however small it is. A larger one shrinks."""
    few, many, wide = (inserts(rows, "x" * width) for rows, width in ((20, 300), (300, 30), (20, 2000)))
    plain, shrunk, smaller = (frame(RowsEncoder(ORDERS, 0), batch) for batch in (few, many, wide))
    assert len(plain) > 20 * 300
    assert len(shrunk) < many.rows.nbytes / 2
    assert len(smaller) < wide.rows.nbytes / 2
    assert [r.rows.to_pylist() for r in read([plain])] == [few.rows.to_pylist()]


def test_small_message_predicts_nothing_about_later_ones() -> None:
    """A few short digests are no reason to skip compression."""
    encoder = RowsEncoder(ORDERS, 0)
    assert len(frame(encoder, digests(50, 1))) < 64 << 10
    blank = inserts(100, " " * 2000)
    assert len(frame(encoder, blank)) < blank.rows.nbytes / 10


@pytest.mark.parametrize(
    ("index", "width", "bytes_"),
    [
        ([0], 0, 0),
        ([5, 6, 7], 0, 0),
        ([0, 2], 1, 8),
        ([0, 256], 1, 8),
        ([0, 257], 2, 8),
        ([0, 1 << 16], 2, 8),
        ([0, (1 << 16) + 1], 4, 8),
        ([0, 1 << 32], 4, 8),
        ([0, (1 << 32) + 1], 8, 8),
        ([0, 2, 3, 4, 5, 6, 7, 8, 9], 1, 8),
        ([0, 2, 3, 4, 5, 6, 7, 8, 9, 10], 1, 16),
    ],
)
def test_gaps_between_offsets_are_stored_in_the_fewest_bytes(index: list[int], width: int, bytes_: int) -> None:
    """Padded to multiples of eight bytes, so that the message after it is aligned as Arrow requires."""
    rows = inserts(len(index)).rows
    payload = frame(RowsEncoder(ORDERS, 0, deflates=False), ChangeBatch(ORDERS, np.array(index, np.int64), rows), 100)
    plain = frame(RowsEncoder(ORDERS, 0, deflates=False), ChangeBatch(ORDERS, np.arange(len(index)), rows), 100)
    assert (HEAD.unpack_from(payload)[1], len(payload) - len(plain)) == (width, bytes_)
    offsets = [100 + i for i in index]
    (found,) = read([payload])
    assert found.offsets.tolist() == offsets
    assert rows_extent(payload) == (offsets[0], offsets[-1], len(offsets), sum(offsets))


def test_missing_or_negative_gaps_are_refused() -> None:
    """The sum over them would be other rows' offsets."""
    wide = ChangeBatch(ORDERS, np.array([0, (1 << 32) + 1, (1 << 32) + 9], np.int64), inserts(3).rows)
    payload = bytearray(frame(RowsEncoder(ORDERS, 0), wide))
    payload[HEAD.size + 8 : HEAD.size + 16] = (2**64 - 5).to_bytes(8, "little")
    for look in (rows_extent, lambda p: RowsDecoder().rows(p, [ShapeEntry(ORDERS, 1)])):
        with pytest.raises(ValueError, match="offsets do not ascend"):
            look(bytes(payload))


def test_a_frame_is_needless_when_all_its_rows_are_and_no_other_leans_on_it() -> None:
    """A reader that begins later skips it undecoded; a reader does not skip one that it cannot read."""
    encoder = RowsEncoder(ORDERS, 0)
    first, second = (frame(encoder, inserts(3), at) for at in (10, 20))
    large = frame(encoder, inserts(20), 30)
    assert [is_needless(second, before) for before in (20, 22, 23)] == [False, False, True]
    assert [is_needless(large, before) for before in (49, 50)] == [False, True]
    assert not is_needless(first, 100), "the second one leans on it"
    assert is_needless(b"", 5) is False
    assert is_needless(b"\xff" * HEAD.size, 5) is False
    assert is_needless(second[: HEAD.size - 1], 100) is False


@pytest.mark.parametrize("at", ["count", "left_out", "op"])
def test_a_head_that_contradicts_its_message_is_refused(at: str) -> None:
    """Rows under the offsets of others would silently make wrong tables."""
    payload = bytearray(frame(RowsEncoder(ORDERS, 0), inserts(3)))
    if at == "count":
        payload[16] = 2
    elif at == "op":
        payload[5] = 0
    else:
        payload[6] &= ~NO_OP
    with pytest.raises((ValueError, pa.ArrowException, OSError)):
        read([bytes(payload)])


def test_the_largest_letter_is_one() -> None:
    """127 is the last one that is a single byte in a text."""
    payload = bytearray(frame(RowsEncoder(ORDERS, 0), inserts(1)))
    payload[5] = 127
    (found,) = read([bytes(payload)])
    assert found.rows.column("_op").to_pylist() == ["\x7f"]


def test_piece_of_a_message_is_kept_as_the_dictionary_of_those_after_it() -> None:
    """Its size is limited to that of a message: a crafted one must not fill the memory."""
    encoder = RowsEncoder(ORDERS, 0)
    payloads = [frame(encoder, inserts(1, note)) for note in ("a", "b")]
    decoder = RowsDecoder()
    decoder.rows(payloads[0] + b"x" * (1 << 20), [ShapeEntry(ORDERS, 1)])
    assert max(map(len, decoder._dictionaries.values())) == DEFLATED_BYTES_MAX
