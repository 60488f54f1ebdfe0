"""A large transaction's rows in a separate file: how much of it counts once it is attached."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from cdcflow.errors import InvariantViolated
from cdcflow.log.format import spool
from cdcflow.log.format.framing import FileKind, read_header
from cdcflow.log.format.journal import AttachedSpool, Encoder
from cdcflow.model.checksum import crc32
from cdcflow.model.position import Checkpoint, Epoch
from cdcflow.testing.sinks import ORDERS, PRODUCTS, changes

Row = tuple[int, int, int]
"""Table (0: orders, 1: products), key, sub-transaction."""


def written(*pieces: list[Row], subxids: bool = True) -> bytes:
    head, seed = spool.header("log-a", Epoch(3), 7)
    encoder = Encoder(seed)
    for table in (ORDERS, PRODUCTS):
        encoder.shape(table, 0)
    for rows in pieces:
        encoder.piece(len(rows), np.array([r[2] for r in rows], np.uint64) if subxids else None)
        for number, table in enumerate((ORDERS, PRODUCTS)):
            at = [i for i, r in enumerate(rows) if r[0] == number]
            if at:
                encoder.rows(changes(table, [{"id": rows[i][1]} for i in at], at), 0)
    return head + b"".join(encoder.take())


def attached(content: bytes, rows: int, *aborted: int, first: int = 100) -> AttachedSpool:
    return AttachedSpool("spool-7", first, rows, len(content), crc32(content), frozenset(aborted))


def rows_of(content: bytes, attach: AttachedSpool) -> list[tuple[int, str, int]]:
    found = [
        (int(offset), rows.shape.table.id.name[:3], int(key))
        for rows in spool.rows(io.BytesIO(content), attach)
        for offset, key in zip(rows.offsets, rows.rows.column("id").to_pylist(), strict=True)
    ]
    return sorted(found)


PIECES: tuple[list[Row], ...] = (
    [(0, 1, 5), (1, 2, 6), (0, 3, 6), (0, 4, 5)],
    [(1, 5, 6)],
    [(0, 6, 5), (1, 7, 5)],
)


def test_rows_of_a_spool_follow_one_another_over_its_pieces() -> None:
    """Each piece counts its rows from 0; in the log their offsets begin at the one at which they are attached."""
    content = written(*PIECES)
    expected = [(100, "ord", 1), (101, "pro", 2), (102, "ord", 3), (103, "ord", 4), (104, "pro", 5)]
    expected += [(105, "ord", 6), (106, "pro", 7)]
    assert rows_of(content, attached(content, 7)) == expected
    assert rows_of(written(*PIECES, subxids=False), attached(written(*PIECES, subxids=False), 7)) == expected
    assert rows_of(content, attached(content, 7, 99)) == expected, "none of it was rolled back"


def test_rows_that_were_rolled_back_leave_no_gap() -> None:
    """P04: offsets are gapless, also after frames that keep some, all or none of their rows, and a piece that keeps
    none."""
    content = written(*PIECES)
    left = [(100, "ord", 1), (101, "ord", 4), (102, "ord", 6), (103, "pro", 7)]
    assert rows_of(content, attached(content, 4, 6)) == left
    other = [(100, "pro", 2), (101, "ord", 3), (102, "pro", 5)]
    assert rows_of(content, attached(content, 3, 5)) == other
    assert rows_of(content, attached(content, 0, 5, 6)) == []


def test_rows_that_cannot_be_rolled_back_stay_whatever_was() -> None:
    """A piece without sub-transactions has none that is among those rolled back."""
    content = written([(0, 1, 0)], subxids=False)
    assert rows_of(content, attached(content, 1, 5)) == [(100, "ord", 1)]


def test_a_spool_with_other_rows_than_announced_is_refused() -> None:
    """The transaction's header contains the number; a reader would number the following rows wrongly."""
    content = written(*PIECES)
    for count, aborted in ((6, ()), (8, ()), (7, (6,))):
        with pytest.raises(InvariantViolated, match=f"rows remain after {len(aborted)} rolled-back .* {count} were"):
            rows_of(content, attached(content, count, *aborted))


def test_invalid_parts_of_a_spool_are_refused() -> None:
    """Damage that its checksum shows, a file that ends too soon, a frame of a journal."""
    content = written(*PIECES)
    attach = attached(content, 7)
    damaged = content[:-20] + bytes([content[-20] ^ 1]) + content[-19:]
    for wrong in (damaged, content[:-8], b""):
        with pytest.raises(InvariantViolated, match="although it was complete when it was attached"):
            rows_of(wrong, attach)
    head, seed = spool.header("log-a", Epoch(3), 7)
    encoder = Encoder(seed)
    encoder.cut(Checkpoint(cut=1), 0)
    journal = head + b"".join(encoder.take())
    with pytest.raises(InvariantViolated, match="a CutMark does not belong"):
        rows_of(journal, attached(journal, 0))


def test_bytes_after_the_attached_part_do_not_count() -> None:
    """The file may be longer: the attachment records how much of it is meant."""
    content = written(*PIECES[:1])
    assert len(rows_of(content + b"rubbish", attached(content, 4))) == 4


def test_a_spool_is_whole_when_it_has_the_bytes_that_were_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash may leave it shorter, or with other blocks; recovery has to detect that before it counts its rows."""
    content = written(*PIECES)
    attach = attached(content, 7)
    for block in (1 << 20, 7, len(content)):
        monkeypatch.setattr(spool, "BLOCK", block)
        assert spool.is_whole(io.BytesIO(content), attach)
        assert spool.is_whole(io.BytesIO(content + b"more"), attach)
        assert not spool.is_whole(io.BytesIO(content[:-1]), attach)
        assert not spool.is_whole(io.BytesIO(b"x" + content[1:]), attach)


def test_spool_s_head_identifies_its_owner() -> None:
    """docs/changelog-format.md names these fields: an operator who finds a spool has to know what it belongs to."""
    found: Any = read_header(io.BytesIO(written()), FileKind.SPOOL, "spool").value
    assert found == {"log_id": "log-a", "epoch": 3, "number": 7}
