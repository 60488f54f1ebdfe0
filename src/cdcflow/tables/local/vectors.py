"""Deletion vectors: the deleted rows of the files of a Delta table.

    byte 1, the version │ size, 4 bytes │ content │ CRC-32, 4 bytes │ size │ content │ …      deletion_vector_<uuid>.bin
                        ▲ a file's `offset`

A content is a magic number and the bitmaps of row numbers in Roaring's portable 64-bit format. Numbers outside of the
content are big-endian. Source: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vector-format
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import numpy as np
from pyroaring import BitMap, BitMap64

from cdcflow.tables.folders import WarehouseFolder
from cdcflow.tables.formats.delta import from_z85, to_z85, vector_path
from cdcflow.tables.job.failures import reading
from cdcflow.tables.local.recently_used import RecentlyUsed
from cdcflow.tables.local.scan import NONE, Numbers, RowMarks
from cdcflow.tables.port import HandOver

_MAGIC = 1681511377
_VERSION = b"\1"
_WORD = 4
"""The bytes of the size before a vector, and of the checksum after it."""

KNOWN_BYTES_MAX = 64 << 20
"""The maximum size of the deletion vectors that are kept in memory as numbers of rows, and of those as bitmaps."""

Bitmap = BitMap | BitMap64


class KnownVectors:
    """The deletion vectors that were read or written last. The name of a vector's file has an id that no other has, so
    its content never changes."""

    def __init__(self, bytes_max: int = KNOWN_BYTES_MAX) -> None:
        self._known: RecentlyUsed[Numbers] = RecentlyUsed(bytes_max)
        self._bitmaps: RecentlyUsed[Bitmap] = RecentlyUsed(bytes_max)

    def deleted_numbers(self, folder: WarehouseFolder, vector: Mapping[str, Any] | None) -> Numbers:
        """Return the same as the function of this name."""
        if vector is None or vector["storageType"] != "u":
            return deleted_numbers(folder, vector)
        found = self._known.get(_identity(folder, vector))
        if found is None:
            found = deleted_numbers(folder, vector)
            self.keep(folder, vector, found)
        return found

    def write(
        self, folder: WarehouseFolder, marked: Sequence[tuple[Mapping[str, Any] | None, RowMarks]]
    ) -> list[Mapping[str, Any]]:
        """Write a file with a vector for each of these marks, which replaces a vector (or `None`). Return the log's
        descriptor of each. The file's content is durable on return, its name is not yet."""
        bitmaps = [self._bitmap_after(folder, before, marks) for before, marks in marked]
        packed = list(map(_pack, bitmaps))
        said = _write(folder, [(content, len(marks.all)) for content, (_, marks) in zip(packed, marked, strict=True)])
        for vector, bitmap, content, (_, marks) in zip(said, bitmaps, packed, marked, strict=True):
            self.keep(folder, vector, marks.all)
            self._bitmaps.keep(_identity(folder, vector), bitmap, len(content))
        return said

    def _bitmap_after(self, folder: WarehouseFolder, before: Mapping[str, Any] | None, marks: RowMarks) -> Bitmap:
        """Return the bitmap of these marks. If the one before them is in memory, extend a copy of it: a merge adds a
        few to a million."""
        known = None if before is None else self._bitmaps.get(_identity(folder, before))
        if isinstance(known, BitMap) and marks.more is not None and _fits(marks.more):
            found = known.copy()
            found.update(_words(marks.more))
            if len(found) == len(marks.all):
                return found
        return _bitmap_of(marks.all)

    def keep(self, folder: WarehouseFolder, vector: Mapping[str, Any], numbers: Numbers) -> None:
        """Keep in memory the numbers in a vector that was just written."""
        numbers.flags.writeable = False
        self._known.keep(_identity(folder, vector), numbers, numbers.nbytes)


def _identity(folder: WarehouseFolder, vector: Mapping[str, Any]) -> tuple[str, str, int, int]:
    return folder.location, vector["pathOrInlineDv"], vector["offset"] or 0, vector["sizeInBytes"]


def deleted_numbers(folder: WarehouseFolder | Path, vector: Mapping[str, Any] | None) -> Numbers:
    """Return the numbers of a file's rows that its deletion vector marks as deleted.

    Raises:
        HandOver: the vector has a form that this reader does not support, or is damaged.
    """
    if vector is None:
        return NONE
    kind, stored = vector["storageType"], vector["pathOrInlineDv"]
    if kind == "i":
        return _unpack(from_z85(stored)[: vector["sizeInBytes"]])
    place, name = _place(WarehouseFolder.of(folder), kind, stored)
    with reading(place.place_of(name)):
        framed = place.read_part(name, vector["offset"] or 0, vector["sizeInBytes"] + 2 * _WORD)
        (size,) = struct.unpack(">I", framed[:_WORD])
        content, checksum = framed[_WORD:][:size], framed[_WORD + size :][:_WORD]
        if struct.unpack(">I", checksum) != (zlib.crc32(content),):
            raise HandOver("it has a deletion vector with a wrong checksum")
    return _unpack(content)


def _place(folder: WarehouseFolder, kind: str, stored: str) -> tuple[WarehouseFolder, str]:
    """Return the folder and the name of a vector's file: in the table's folder, or anywhere on this machine."""
    if kind == "u":
        return folder, vector_path(stored)
    if folder.path is None:
        raise HandOver("it has deletion vectors outside of its folder")
    path = Path(unquote(urlsplit(stored).path))
    return WarehouseFolder.of(path.parent), path.name


def _write(folder: WarehouseFolder, vectors: Sequence[tuple[bytes, int]]) -> list[Mapping[str, Any]]:
    """Write a file with these vectors, each with its cardinality."""
    id_ = uuid4()
    content = bytearray(_VERSION)
    found: list[Mapping[str, Any]] = []
    for packed, cardinality in vectors:
        said = {
            "storageType": "u",
            "pathOrInlineDv": to_z85(id_.bytes),
            "offset": len(content),
            "sizeInBytes": len(packed),
            "cardinality": cardinality,
        }
        found.append(said)
        content += struct.pack(">I", len(packed)) + packed + struct.pack(">I", zlib.crc32(packed))
    folder.write(f"deletion_vector_{id_}.bin", lambda file: file.write(content))
    return found


def _bitmap_of(numbers: Numbers) -> Bitmap:
    if len(numbers) and _fits(numbers):
        return BitMap(_words(numbers))
    return BitMap64(array("Q", numbers.astype(np.uint64).tobytes()))


def _fits(numbers: Numbers) -> bool:
    """Whether the numbers have at most 32 bits."""
    return not len(numbers) or not int(numbers.max()) >> 32


def _words(numbers: Numbers) -> array[int]:
    return array("I", numbers.astype(np.uint32).tobytes())


def _pack(bitmap: Bitmap) -> bytes:
    bitmap.run_optimize()
    if isinstance(bitmap, BitMap):
        # The 64-bit format counts 32-bit bitmaps, each with the upper half of its numbers. One of 32 bits takes a
        # quarter of the time.
        return struct.pack("<IQI", _MAGIC, 1, 0) + bitmap.serialize()
    return struct.pack("<I", _MAGIC) + bitmap.serialize()


def _unpack(content: bytes) -> Numbers:
    if struct.unpack("<I", content[:4]) != (_MAGIC,):
        raise HandOver("it has a deletion vector of a form that only Spark reads")
    return np.frombuffer(BitMap64.deserialize(content[4:]).to_array(), np.uint64).astype(np.int64)
