"""Spools: the rows of one large transaction, in a separate file until it commits or rolls back.

    header │ schema … │ piece │ rows … │ piece │ rows … │

A piece records how many rows follow and which sub-transaction each belongs to; its rows frames count from 0. When the
transaction commits, the journal attaches the spool by its name, length and checksum, and names the sub-transactions
that were rolled back. Readers skip their rows and number the others without gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.errors import InvariantViolated
from cdcflow.log.format.framing import Damaged, FileKind, encode_header, read_header
from cdcflow.log.format.journal import AttachedSpool, SpoolPiece, records
from cdcflow.log.format.rows import ShapeEntry, ShapeRows
from cdcflow.model.checksum import crc32
from cdcflow.model.position import Epoch

BLOCK = 1 << 20


def header(log_id: str, epoch: Epoch, number: int) -> tuple[bytes, int]:
    """Return the header of a spool, and the seed for its frames."""
    return encode_header(FileKind.SPOOL, {"log_id": log_id, "epoch": epoch, "number": number})


def is_whole(file: BinaryIO, attach: AttachedSpool) -> bool:
    """Return whether the spool is the same as when it was attached."""
    crc, left = 0, attach.bytes
    while block := file.read(min(left, BLOCK)):
        crc = crc32(block, crc)
        left -= len(block)
    return not left and crc == attach.crc


def rows(file: BinaryIO, attach: AttachedSpool) -> Iterator[ShapeRows]:
    """Yield the rows of an attached spool, with their offsets in the log; shapes have no version.

    Raises:
        InvariantViolated: it does not have the rows that were attached.
    """
    aborted = np.array(sorted(attach.aborted), np.uint64)
    piece: _PieceOffsets | None = None
    after = attach.first_offset
    try:
        for record in records(file, read_header(file, FileKind.SPOOL, attach.spool), attach.spool, end=attach.bytes):
            match record:
                case SpoolPiece():
                    piece = _PieceOffsets.of(record, aborted, after)
                    after += piece.kept
                case ShapeRows() if piece is not None:
                    if (kept := piece.with_offsets(record)) is not None:
                        yield kept
                case ShapeEntry():
                    pass
                case _:
                    raise InvariantViolated(f"reading spool {attach.spool}: a {type(record).__name__} does not belong")
    except Damaged as damage:
        raise InvariantViolated(
            f"reading spool {attach.spool}: {damage}, although it was complete when it was attached"
        ) from None
    if after != attach.first_offset + attach.rows:
        raise InvariantViolated(
            f"reading spool {attach.spool}: {after - attach.first_offset} rows remain after "
            f"{len(attach.aborted)} rolled-back sub-transactions, {attach.rows} were announced"
        )


@dataclass(frozen=True, slots=True)
class _PieceOffsets:
    """The offsets of the rows of one piece: `offsets` by row of the piece. `keep`: the rows that are kept; `None` if
    all are."""

    offsets: npt.NDArray[np.int64]
    keep: npt.NDArray[np.bool_] | None
    kept: int

    @classmethod
    def of(cls, piece: SpoolPiece, aborted: npt.NDArray[np.uint64], after: int) -> _PieceOffsets:
        if piece.subxids is None or not len(aborted):
            return cls(np.arange(after, after + piece.rows, dtype=np.int64), None, piece.rows)
        keep = ~np.isin(piece.subxids, aborted)
        offsets = np.cumsum(keep, dtype=np.int64)
        return cls(offsets + (after - 1), keep, int(offsets[-1]) if len(offsets) else 0)

    def with_offsets(self, found: ShapeRows) -> ShapeRows | None:
        offsets = self.offsets[found.offsets]
        if self.keep is None:
            return replace(found, offsets=offsets)
        mask = self.keep[found.offsets]
        kept = int(np.count_nonzero(mask))
        if kept == len(mask):
            return replace(found, offsets=offsets)
        if not kept:
            return None
        return replace(found, offsets=offsets[mask], stored=found.stored.filter(pa.array(mask)))
