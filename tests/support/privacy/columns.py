"""Random columns for policies from a seed, and how the results of two kernels differ."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa

from cdcflow.sources.privacy.kernels import Convert

_TYPES: list[tuple[pa.DataType, Callable[[random.Random], object]]] = [
    (pa.string(), lambda chance: _text(chance)),
    (pa.binary(), lambda chance: chance.randbytes(_length(chance))),
    (pa.large_string(), lambda chance: _text(chance)),
    (
        pa.int32(),
        lambda chance: chance.randrange(-9, 9) if chance.random() < 0.5 else chance.randrange(-(2**31), 2**31),
    ),
    (pa.float64(), lambda chance: chance.choice([0.0, -0.0, 1e300, chance.random(), float("nan"), float("inf")])),
    (pa.bool_(), lambda chance: chance.random() < 0.5),
    (pa.date32(), lambda chance: chance.randrange(-100_000, 100_000)),
    (pa.timestamp("us", "UTC"), lambda chance: chance.randrange(-(2**50), 2**50)),
]


def _length(chance: random.Random) -> int:
    """Mostly short; around the blocks of SHA-256 and AES, and long."""
    return chance.choice(
        [0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 55, 56, 57, 63, 64, 65, 119, 120, chance.randrange(5000)]
    )


def _text(chance: random.Random) -> str:
    return "".join(chance.choices("ab0 \0é€\U0001f600", k=_length(chance)))


def column_of(seed: int) -> pa.Array:
    """Values of some type, often few different ones, often a slice of a longer column."""
    chance = random.Random(seed)
    arrow, value = chance.choice(_TYPES[:3] if chance.random() < 0.6 else _TYPES)
    count = chance.choice([0, 1, 2, 3, 8, 9, 40, 255, 256, 257, 1500])
    pool = [value(chance) for _ in range(chance.choice([1, 3, 40, count + 1]))]
    # Alike in the parts that the quick hash of a long value reads.
    if arrow == pa.string():
        pool += [f"0123456789{letter}{'x' * 300}" for letter in "abc"]
    nulls = chance.choice([0.0, 0.0, 0.1, 0.9, 1.0])
    values = [None if chance.random() < nulls else chance.choice(pool) for _ in range(count)]
    first = chance.randrange(count + 1) if chance.random() < 0.5 else 0
    last = chance.randrange(first, count + 1) if chance.random() < 0.5 else count
    return pa.array(values, arrow).slice(first, last - first)


def persons_of(seed: int, count: int) -> pa.Array:
    """As many persons, some of them NULL; 7 is erased in the tests."""
    chance = random.Random(seed)
    many = chance.choice([1, 3, 50])
    return pa.array([None if chance.random() < 0.1 else 7 + chance.randrange(many) for _ in range(count)], pa.int32())


def results_differ(values: pa.Array, plain: Convert, compiled: Convert) -> str | None:
    """How two conversions of a column differ, or what is wrong with the second one's buffers."""
    expected, found = plain(values), compiled(values)
    if expected.type != found.type or expected.to_pylist() != found.to_pylist():
        return f"{values.type}, {len(values)} values from {values.offset}: the results differ"
    return spare_bytes(found)


def spare_bytes(texts: pa.Array) -> str | None:
    """Bytes in the buffers of a string array that are no part of it: a journal has all of a buffer, and memory that
    was used before may have anything."""
    texts.validate(full=True)
    bits, offsets, data = texts.buffers()
    if texts.null_count == len(texts):
        return None
    if (len(bits), len(offsets), len(data)) != ((len(texts) + 7) // 8, 4 * len(texts) + 4, _bytes_of(texts)):
        return f"buffers of {len(bits)}, {len(offsets)} and {len(data)} bytes for {len(texts)} values"
    if bits[len(bits) - 1] >> (len(texts) % 8 or 8):
        return "bits after the last value are set"
    return None


def _bytes_of(texts: pa.Array) -> int:
    return sum(len(text.encode()) for text in texts.to_pylist() if text is not None)
