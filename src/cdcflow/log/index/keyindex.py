"""Where in the log a key may have changed: an index of the keys of a range of offsets. It is small, and never
authoritative.

For each table a file of the index records which of its keys have a row in which **block**: a range of offsets in which
the table had one shape. Offsets never change, so an index file remains valid when segments are compacted, moved to a
store, or read from a copy. A key is identified by 32 bits of its hash (`keyhash`), so the index may name a block that
has no row of the key, but never misses one that does. Without the index every query can still be answered, more slowly.

Files follow each other without a gap, at first one per segment. Eight neighbours of a level are merged into one of the
next (`due`), so that a query over many segments reads few files. Small neighbouring blocks are merged at the same time.

    segments   ▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏
    files      └──────────── level 2 ───────────────────────────────────┘└ 1 ┘└ 1 ┘▏▏▏

A large file stores its pairs of key and block in 16 bits each: a hash's first bits select a pair's bucket, so the pair
stores only the bits that follow and the number of the block. With the buckets' offsets that is two and a quarter bytes.
A small file, which will soon be merged into another, has whole hashes: six bytes.

The file: 8 bytes `cdckeys1`; the length and the CRC-32 of the JSON that follows, 32 bits each; the JSON; and, starting
at the next multiple of 8, the arrays that it names, each with its type, shape, first byte and CRC-32. All numbers are
little-endian.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cdcflow.errors import InvariantViolated
from cdcflow.log.index.keyhash import Hashes
from cdcflow.model.table import TableId

MAGIC = b"cdckeys1"
_LENGTHS = "<II"
FAN = 8
"""The number of neighbours of one level that are merged into one file of the next."""
BLOCKS_MAX = 1024
"""A file with more blocks is not merged any further."""
BLOCK_KEYS_MIN = 8 << 10
"""Neighbouring blocks are merged if they have at most this many keys together."""
COMPACT_PAIRS_MIN = 64 << 10
HASH_BITS = 32
_PAIR_BITS = 16
_BUCKET_PAIRS = 16

Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]
UInt16s = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class TableKeys:
    """The keys of one table in a range of the log, as pairs of a hash and a block, ascending and distinct.

    `blocks`: one row per block, ascending: its first and last offset, and the number of the table's shape in it.
    `truncates`: the offsets at which the table was truncated. `hashes`: the first `bits` bits of each pair's hash, the
    others zero; `at`: the number of the pair's block.
    """

    blocks: Int64s
    truncates: Int64s
    hashes: UInt32s
    at: UInt16s
    bits: int = HASH_BITS

    @classmethod
    def of(cls, blocks: Sequence[tuple[int, int, int]], found: Sequence[Hashes], truncates: Sequence[int]) -> TableKeys:
        """Build the keys of a table from the hashes of all rows of each block."""
        numbers = np.repeat(np.arange(len(found), dtype=np.uint64), [len(one) for one in found])
        hashes = np.concatenate([np.zeros(0, np.uint64), *found]) >> np.uint64(64 - HASH_BITS)
        return cls(
            np.array(blocks, np.int64).reshape(-1, 3), np.array(truncates, np.int64), *_distinct(hashes, numbers)
        )

    def may_have(self, hash_: int) -> Int64s:
        """Return the blocks (rows of `blocks`) that may have a row of the key with this hash (64 bits)."""
        wanted = np.uint32((hash_ >> (64 - HASH_BITS)) & _first(self.bits))
        low, high = np.searchsorted(self.hashes, wanted, "left"), np.searchsorted(self.hashes, wanted, "right")
        return self.blocks[self.at[low:high]]

    def hits(self, wanted: Hashes) -> npt.NDArray[np.bool_]:
        """Return, for each of these hashes, whether any block may have its key."""
        first = (wanted >> np.uint64(64 - HASH_BITS)).astype(np.uint32) & np.uint32(_first(self.bits))
        found: npt.NDArray[np.bool_] = np.searchsorted(self.hashes, first, "left") < np.searchsorted(
            self.hashes, first, "right"
        )
        return found


@dataclass(frozen=True, slots=True)
class CompactKeys:
    """The keys of one table like `TableKeys`, in a compact form for many keys. Pairs are in buckets by the first
    `bucket_bits` bits of their hash; `starts` holds where each bucket begins, and where the last one ends. A pair is
    the next bits of the hash, then the block's number in `block_bits`."""

    blocks: Int64s
    truncates: Int64s
    starts: UInt32s
    pairs: UInt16s
    bucket_bits: int
    block_bits: int
    bits: int

    @classmethod
    def of(cls, keys: TableKeys) -> CompactKeys | None:
        """Return the compact form; `None` if the keys are too few, or in too many blocks, for it to pay off."""
        count, block_bits = len(keys.hashes), max(1, (len(keys.blocks) - 1).bit_length())
        if count < COMPACT_PAIRS_MIN or len(keys.blocks) > BLOCKS_MAX:
            return None
        bucket_bits = min((count // _BUCKET_PAIRS).bit_length(), keys.bits)
        rest = min(_PAIR_BITS - block_bits, keys.bits - bucket_bits)
        bits = bucket_bits + rest
        buckets = keys.hashes >> np.uint32(HASH_BITS - bucket_bits)
        starts = np.searchsorted(buckets, np.arange((1 << bucket_bits) + 1, dtype=np.uint64)).astype(np.uint32)
        middle = (keys.hashes >> np.uint32(HASH_BITS - bits)) & np.uint32((1 << rest) - 1)
        pairs = ((middle << np.uint32(block_bits)) | keys.at).astype(np.uint16)
        return cls(keys.blocks, keys.truncates, starts, pairs, bucket_bits, block_bits, bits)

    def may_have(self, hash_: int) -> Int64s:
        """Return the blocks that may have a row of the key with this hash, as `TableKeys.may_have` does."""
        bucket = hash_ >> (64 - self.bucket_bits)
        rest = self.bits - self.bucket_bits
        wanted = (hash_ >> (64 - self.bits)) & ((1 << rest) - 1)
        pairs = self.pairs[self.starts[bucket] : self.starts[bucket + 1]]
        hits = pairs[(pairs >> np.uint16(self.block_bits)) == wanted]
        found: Int64s = self.blocks[hits & np.uint16((1 << self.block_bits) - 1)]
        return found

    def hits(self, wanted: Hashes) -> npt.NDArray[np.bool_]:
        """Return, for each hash, whether any block may have its key, as `TableKeys.hits` does."""
        buckets = wanted >> np.uint64(64 - self.bucket_bits)
        rest = self.bits - self.bucket_bits
        middle = (wanted >> np.uint64(64 - self.bits)) & np.uint64((1 << rest) - 1)
        starts, ends = self.starts[buckets].astype(np.int64), self.starts[buckets + np.uint64(1)].astype(np.int64)
        found = np.zeros(len(wanted), np.bool_)
        for at in range(int((ends - starts).max(initial=0))):  # the n-th pair of every bucket at once
            there = np.flatnonzero((starts + at < ends) & ~found)
            pairs = self.pairs[starts[there] + at] >> np.uint16(self.block_bits)
            found[there] = pairs == middle[there]
        return found

    def whole(self) -> TableKeys:
        """Return the keys as `TableKeys`, with as many bits of the hashes as are known."""
        counts = self.starts[1:] - self.starts[:-1]
        buckets = np.repeat(np.arange(1 << self.bucket_bits, dtype=np.uint64), counts)
        rest = self.bits - self.bucket_bits
        middle = (self.pairs >> np.uint16(self.block_bits)).astype(np.uint64)
        hashes = ((buckets << np.uint64(rest)) | middle) << np.uint64(HASH_BITS - self.bits)
        blocks = (self.pairs & np.uint16((1 << self.block_bits) - 1)).astype(np.uint64)
        return TableKeys(self.blocks, self.truncates, *_distinct(hashes, blocks), self.bits)


Keys = TableKeys | CompactKeys


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of the index: the keys of all tables with offsets from `first_offset` to `last_offset` (inclusive).
    `tables` includes tables without a key, which have blocks but no keys. `cut` and `chain`: the log's cut at its end,
    and how the log continued there (see `index_files`)."""

    log_id: str
    first_offset: int
    last_offset: int
    level: int
    tables: Mapping[TableId, Keys]
    cut: int = 0
    chain: str = ""

    @property
    def blocks(self) -> int:
        return sum(len(keys.blocks) for keys in self.tables.values())

    def to_bytes(self) -> bytes:
        arrays: list[npt.NDArray[Any]] = []
        tables = []
        for table, keys in sorted(self.tables.items()):
            told, own = _header_entry(keys)
            entry = {"schema": table.schema, "name": table.name, "arrays": [len(arrays), len(arrays) + len(own)]}
            tables.append(entry | told)
            arrays += own
        parts = [np.ascontiguousarray(a.astype(a.dtype.newbyteorder("<"), copy=False)).tobytes() for a in arrays]
        listed, end = [], 0
        for array, part in zip(arrays, parts, strict=True):
            listed.append([array.dtype.newbyteorder("<").str, list(array.shape), end, zlib.crc32(part)])
            end += len(part) + _padding(len(part))
        head = {
            "log_id": self.log_id,
            "first_offset": self.first_offset,
            "last_offset": self.last_offset,
            "level": self.level,
            "cut": self.cut,
            "chain": self.chain,
            "tables": tables,
            "arrays": listed,
        }
        text = json.dumps(head, separators=(",", ":")).encode()
        begun = MAGIC + struct.pack(_LENGTHS, len(text), zlib.crc32(text)) + text
        return b"".join((begun, bytes(_padding(len(begun))), *(p + bytes(_padding(len(p))) for p in parts)))

    @classmethod
    def from_buffer(cls, content: memoryview, name: str) -> IndexFile:
        """Read what `to_bytes` wrote; the arrays are views of `content`.

        Raises:
            InvariantViolated: it is damaged, or not an index file.
        """
        try:
            if content[: len(MAGIC)] != MAGIC:
                raise ValueError("not an index")
            begin = len(MAGIC) + struct.calcsize(_LENGTHS)
            length, crc = struct.unpack(_LENGTHS, content[len(MAGIC) : begin])
            text = bytes(content[begin : begin + length])
            if zlib.crc32(text) != crc:
                raise ValueError("damaged")
            head = json.loads(text)
            body = content[begin + length + _padding(begin + length) :]
            arrays = [_array(body, *entry) for entry in head["arrays"]]
            tables = {TableId(t["schema"], t["name"]): _keys(t, arrays[slice(*t["arrays"])]) for t in head["tables"]}
            names = ("log_id", "first_offset", "last_offset", "level", "cut", "chain")
            return cls(**{name: head[name] for name in names}, tables=tables)
        except (ValueError, KeyError, TypeError, IndexError, struct.error) as error:
            raise InvariantViolated(
                f"reading the index {name}: it is damaged ({type(error).__name__})",
                remedy="run `cdcflow log index --anew`: it makes the index again from the log",
                runbook="log-damaged",
            ) from None


def merge_files(files: Sequence[IndexFile]) -> IndexFile:
    """Merge neighbouring files, given oldest first, into one."""
    tables: dict[TableId, list[TableKeys]] = {}
    for file in files:
        for table, keys in file.tables.items():
            tables.setdefault(table, []).append(keys.whole() if isinstance(keys, CompactKeys) else keys)
    first, last = files[0], files[-1]
    level = max(file.level for file in files) + 1
    together = {table: _join_keys(keys) for table, keys in tables.items()}
    return replace(last, first_offset=first.first_offset, level=level, tables=together)


def due(files: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Return which neighbouring files to merge, as the start and end of a slice; `None` if there is nothing to merge.
    `files`: the level and number of blocks of each file, oldest first."""
    end = len(files)
    while end >= FAN:
        begin = end - FAN
        group = files[begin:end]
        if len({level for level, _ in group}) == 1 and sum(blocks for _, blocks in group) <= BLOCKS_MAX:
            return begin, end
        end -= 1
    return None


# ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────


def _first(bits: int) -> int:
    """Return a number of `HASH_BITS` bits with the first `bits` bits set."""
    return ((1 << bits) - 1) << (HASH_BITS - bits)


def _distinct(hashes: npt.NDArray[np.uint64], blocks: npt.NDArray[np.uint64]) -> tuple[UInt32s, UInt16s]:
    both = np.sort((hashes << np.uint64(16)) | blocks, kind="stable")  # fast if much of it is sorted already
    both = both[np.diff(both, prepend=~both[:1]) != 0]
    return (both >> np.uint64(16)).astype(np.uint32), (both & np.uint64(0xFFFF)).astype(np.uint16)


def _join_keys(keys: Sequence[TableKeys]) -> TableKeys:
    bits = min(one.bits for one in keys)
    blocks = np.concatenate([one.blocks for one in keys])
    before = np.cumsum([0, *(len(one.blocks) for one in keys[:-1])])
    at = np.concatenate([one.at.astype(np.uint64) + np.uint64(b) for one, b in zip(keys, before, strict=True)])
    hashes = np.concatenate([one.hashes for one in keys]).astype(np.uint64) & np.uint64(_first(bits))
    counts = np.bincount(at.astype(np.int64), minlength=len(blocks))
    owner = np.fromiter(_owners(blocks, counts), np.uint64, len(blocks))
    first = np.flatnonzero(np.diff(owner, prepend=np.uint64(len(blocks) + 1)) != 0)
    joined = blocks
    if len(blocks):
        joined = np.column_stack([blocks[first, 0], np.maximum.reduceat(blocks[:, 1], first), blocks[first, 2]])
    truncates = np.concatenate([one.truncates for one in keys])
    return TableKeys(joined, truncates, *_distinct(hashes, owner[at.astype(np.int64)]), bits)


def _owners(blocks: Int64s, counts: Int64s) -> Iterator[int]:
    """Yield, for each block, the number of the merged block that it becomes part of."""
    number, keys, version = -1, 0, -1
    for (_, _, of), count in zip(blocks.tolist(), counts.tolist(), strict=True):
        if number < 0 or of != version or keys + count > BLOCK_KEYS_MIN:
            number, keys, version = number + 1, 0, of
        keys += count
        yield number


def _padding(length: int) -> int:
    return -length % 8


def _array(body: memoryview, kind: str, shape: Sequence[int], begin: int, crc: int) -> npt.NDArray[Any]:
    if kind not in ("<i8", "<u4", "<u2"):
        raise ValueError("of another type")
    length = int(np.prod(shape)) * np.dtype(kind).itemsize
    part = body[begin : begin + length]
    if len(part) != length or zlib.crc32(part) != crc:
        raise ValueError("damaged")
    return np.frombuffer(part, kind).reshape(shape)


def _header_entry(keys: Keys) -> tuple[dict[str, Any], list[npt.NDArray[Any]]]:
    """Return the header's entry for a table's keys, and their arrays."""
    compact = CompactKeys.of(keys) if isinstance(keys, TableKeys) else keys
    match compact or keys:
        case CompactKeys() as kept:
            told = {"buckets": kept.bucket_bits, "block_bits": kept.block_bits, "bits": kept.bits}
            return told, [kept.blocks, kept.truncates, kept.starts, kept.pairs]
        case TableKeys() as kept:
            return {"bits": kept.bits}, [kept.blocks, kept.truncates, kept.hashes, kept.at]


def _keys(entry: Mapping[str, Any], arrays: Sequence[npt.NDArray[Any]]) -> Keys:
    blocks, truncates, first, second = arrays
    if "buckets" in entry:
        return CompactKeys(blocks, truncates, first, second, entry["buckets"], entry["block_bits"], entry["bits"])
    return TableKeys(blocks, truncates, first, second, entry["bits"])
