"""Labels, geometry, vectors, addresses, fixed and compressed bytes: each decoder by itself, at its edges."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from cdcflow.errors import SourceUnavailable
from cdcflow.sources.engine.buffers import Cells, with_padding
from cdcflow.sources.mysql.types import labels, special, text
from cdcflow.sources.mysql.types.family import Decoder, Where

WHERE = Where("shop.t.c", "odd")


def cells(values: Sequence[bytes | None], between: bytes = b"\xff" * 20) -> Cells:
    """Values one after another. Between two, and where one is NULL, are bytes that belong to another column."""
    pieces = [between if value is None else value + between for value in values]
    size = np.array([len(p) for p in pieces], np.int64)
    length = np.array([0 if v is None else len(v) for v in values], np.int64)
    valid = None if None not in values else np.array([v is not None for v in values])
    return Cells(with_padding(pieces), np.cumsum(size) - size, length, valid)


def found(decode: Decoder, values: Sequence[bytes | None]) -> list[object]:
    """The column of all of them together, and each by itself."""
    column = decode(cells(values), WHERE)
    column.validate(full=True)
    together = column.to_pylist()
    for value, one in zip(values, together, strict=True):
        assert decode(cells([value]), WHERE).to_pylist() == [one]
    assert decode(cells([]), WHERE).to_pylist() == []
    assert decode(cells([None, None]), WHERE).to_pylist() == [None, None]
    return list(together)


def refused(decode: Decoder, value: bytes, good: bytes) -> None:
    for values in ([value], [good, value], [None, value, good]):
        with pytest.raises(SourceUnavailable, match=r"column shop\.t\.c"):
            decode(cells(values), WHERE)


@pytest.mark.parametrize(("width", "count"), [(1, 3), (1, 255), (2, 256), (2, 9000)])
def test_a_number_of_an_enum_is_one_of_its_labels(width: int, count: int) -> None:
    """N10: the first, the last, and none; the number after the last is malformed."""
    names = [f"l{n}" for n in range(1, count + 1)]
    decode = partial(labels.enum_label, width, names)
    raw = [n.to_bytes(width, "little") for n in (0, 1, count)]
    assert found(decode, [*raw, None]) == ["", "l1", f"l{count}", None]
    if count + 1 < 1 << 8 * width:
        refused(decode, (count + 1).to_bytes(width, "little"), raw[1])


@pytest.mark.parametrize(("width", "count"), [(1, 1), (1, 7), (1, 8), (2, 9), (3, 24), (4, 31), (8, 33), (8, 63)])
def test_bits_of_a_set_are_its_labels(width: int, count: int) -> None:
    """N10: each alone and all together; the bit after the last is malformed."""
    names = [f"l{n}" for n in range(count)]
    decode = partial(labels.set_labels, width, names)
    bits = [0, *(1 << n for n in range(count)), (1 << count) - 1, 1]
    expected = ["", *names, ",".join(names), "l0"]
    assert found(decode, [*(b.to_bytes(width, "little") for b in bits), None]) == [*expected, None]
    if count < 8 * width:
        refused(decode, (1 << count).to_bytes(width, "little"), b"\1" + bytes(width - 1))


def test_a_set_of_64_labels_uses_every_bit() -> None:
    """There is no bit left that could be wrong."""
    names = [f"l{n}" for n in range(64)]
    decode = partial(labels.set_labels, 8, names)
    assert found(decode, [b"\xff" * 8, bytes(7) + b"\x80"]) == [",".join(names), "l63"]


def test_fixed_bytes_are_filled_up_to_their_width() -> None:
    """N11: whatever bytes follow them."""
    assert found(partial(text.decode_binary, 3), [b"abc", b"a", b"", None, b"\0b"]) == [
        b"abc",
        b"a\0\0",
        b"\0\0\0",
        None,
        b"\0b\0",
    ]
    refused(partial(text.decode_binary, 3), b"abcd", b"abc")
    at_the_end = Cells(with_padding([b"x"]), np.array([0, 1]), np.array([1, 0]))
    assert text.decode_binary(70, at_the_end, WHERE).to_pylist() == [b"x" + bytes(69), bytes(70)]


def compressed(value: bytes, octets: int, *, header: bool = True) -> bytes:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, 15 if header else -15)
    return (
        bytes([0x80 | (0 if header else 8) | octets])
        + len(value).to_bytes(octets, "big")
        + (squeeze.compress(value) + squeeze.flush())
    )


@pytest.mark.parametrize("octets", [1, 2, 3, 4])
def test_compressed_values_have_a_length_of_one_to_four_bytes(octets: int) -> None:
    """M62: with zlib's header and without; short values are stored uncompressed."""
    value = b"abc" * 80
    decode = partial(text.decode_compressed, text.raw)
    given = [compressed(value, octets), compressed(value, octets, header=False), b"\0" + value, b"", b"\0", None]
    assert found(decode, given) == [value, value, value, b"", b"", None]
    for wrong in (len(value) - 1, len(value) + 1):
        refused(decode, given[0][:1] + wrong.to_bytes(octets, "big") + given[0][1 + octets :], b"")  # type: ignore[index]


@pytest.mark.parametrize(
    "value",
    [
        b"\x80" + zlib.compress(b""),
        b"\x85" + (3).to_bytes(5, "big") + zlib.compress(b"abc"),
        b"\x01\3" + zlib.compress(b"abc"),
        b"\x91\3" + zlib.compress(b"abc"),
        b"\x71\3" + zlib.compress(b"abc"),
        b"\x81\3" + zlib.compress(b"abc")[:-6],
        b"\x81\3abc",
        b"\x81\3",
    ],
)
def test_unknown_compression_is_refused(value: bytes) -> None:
    """O10: unknown means stop."""
    refused(partial(text.decode_compressed, text.raw), value, b"\0x")


POINT = struct.pack("<BIdd", 1, 1, 1.5, -2.5)


def test_geometry_with_a_reference_system_is_flagged_after_its_type() -> None:
    """Its flag is one bit of the type, and the rest of the type stays."""
    for srid in (1, 255, 256, 65_536, 1 << 24, 2**32 - 1):
        for kind in (1, 2, 7):
            rest = POINT[5:]
            server = struct.pack("<IBI", srid, 1, kind) + rest
            plain = bytes(4) + struct.pack("<BI", 1, kind) + rest
            ewkb = struct.pack("<BII", 1, kind | 0x20000000, srid) + rest
            assert found(special.well_known, [server, plain, None, server]) == [ewkb, plain[4:], None, ewkb]
    assert found(special.well_known, [bytes(4) + POINT, None]) == [POINT, None]
    shortest = struct.pack("<IBI", 4326, 1, 7)
    assert found(special.well_known, [shortest]) == [struct.pack("<BII", 1, 0x20000007, 4326)]


@pytest.mark.parametrize("value", [b"", struct.pack("<IBI", 4326, 1, 7)[:-1], struct.pack("<IB", 4326, 0) + POINT[1:]])
def test_what_is_no_geometry_is_refused(value: bytes) -> None:
    """O10: too short for a type, or not as the servers store it."""
    refused(special.well_known, value, bytes(4) + POINT)


def test_vectors_are_as_long_as_they_are() -> None:
    """Bytes of other columns between them do not belong to them."""
    raw = [struct.pack(f"<{n}f", *range(n)) for n in (3, 0, 1, 200)]
    expected = [[float(i) for i in range(n)] for n in (3, 0, 1, 200)]
    assert found(special.vector, raw) == expected
    assert found(special.vector, [None, *raw, None]) == [None, *expected, None]
    for size in (1, 2, 3, 5):
        refused(special.vector, bytes(size), raw[0])
    backwards = Cells(with_padding([b"".join(raw[:3])]), np.array([12, 0]), np.array([4, 12]))
    assert special.vector(backwards, WHERE).to_pylist() == [[0.0], [0.0, 1.0, 2.0]]
    assert special.vector(cells([]), WHERE).type == special.VECTOR


@pytest.mark.parametrize(
    ("stored", "printed"),
    [
        ("000102030405060708090a0b0c0d0e0f", "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        ("00010203040586075f090a0b0c0d0e0f", "0c0d0e0f-0a0b-5f09-8607-000102030405"),
        ("000102030405860708090a0b0c0d0e0f", "0c0d0e0f-0a0b-0809-8607-000102030405"),
        ("000102030405860760090a0b0c0d0e0f", "00010203-0405-8607-6009-0a0b0c0d0e0f"),
        ("000102030405860700090a0b0c0d0e0f", "00010203-0405-8607-0009-0a0b0c0d0e0f"),
        ("000102030405860701090a0b0c0d0e0f", "0c0d0e0f-0a0b-0109-8607-000102030405"),
        ("00010203040576075f090a0b0c0d0e0f", "00010203-0405-7607-5f09-0a0b0c0d0e0f"),
    ],
)
def test_a_uuid_is_turned_round_only_where_the_server_did(stored: str, printed: str) -> None:
    """N26: its variant's bit, and a version before 6, show it."""
    assert found(special.uuid_text, [bytes.fromhex(stored), None]) == [printed, None]


@pytest.mark.parametrize(
    ("stored", "printed"),
    [
        ("1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8"),
        ("0:2:3:4:5:6:7:8", "::2:3:4:5:6:7:8"),
        ("1:2:3:4:5:6:7:0", "1:2:3:4:5:6:7::"),
        ("1:0:3:4:5:6:7:8", "1::3:4:5:6:7:8"),
        ("1:0:3:0:5:6:7:8", "1::3:0:5:6:7:8"),
        ("1:0:3:0:0:6:7:8", "1:0:3::6:7:8"),
        ("1:0:0:4:0:0:7:8", "1::4:0:0:7:8"),
        ("0:0:0:0:0:0:0:0", "::"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("0:0:0:0:0:0:0:ffff", "::ffff"),
        ("0:0:0:0:0:0:1:0", "::0.1.0.0"),
        ("0:0:0:0:0:0:a00:1", "::10.0.0.1"),
        ("0:0:0:0:0:ffff:a00:1", "::ffff:10.0.0.1"),
        ("0:0:0:0:0:ffff:0:0", "::ffff:0.0.0.0"),
        ("0:0:0:0:0:fffe:a00:1", "::fffe:a00:1"),
        ("0:0:0:0:1:ffff:a00:1", "::1:ffff:a00:1"),
        ("fe80:0:0:0:abcd:ef01:2345:6789", "fe80::abcd:ef01:2345:6789"),
        ("ff:f:100:1000:0:0:0:10", "ff:f:100:1000::10"),
    ],
)
def test_an_address_is_as_short_as_the_server_prints_it(stored: str, printed: str) -> None:
    """N26: the first of the longest runs of zeros is omitted, even a single one."""
    raw = b"".join(int(group, 16).to_bytes(2, "big") for group in stored.split(":"))
    assert found(special.inet6, [raw, None]) == [printed, None]


def test_omitted_bytes_at_the_end_of_an_address_are_zero() -> None:
    """N11: like any fixed bytes."""
    assert found(special.inet4, [b"\xff\1\0\x0a", b"\1\2", b"\0\0\1", None]) == [
        *("255.1.0.10", "1.2.0.0", "0.0.1.0"),
        None,
    ]
    assert found(special.uuid_text, [b""]) == ["00000000-0000-0000-0000-000000000000"]
    assert pa.types.is_string(special.inet6(cells([b""]), WHERE).type)
