"""Frames whose numbers do not match their contents: whole, with the right checksum, and refused by every reader."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdcflow.errors import InvariantViolated
from cdcflow.log.files.layout import Layout
from cdcflow.log.format import rows
from cdcflow.log.format import transactions as headers
from cdcflow.log.format.framing import FileKind, FrameKind, Framer, encode_header, frames, read_header
from cdcflow.log.format.recovery import whole
from cdcflow.log.read.reader import read_rows, read_transactions
from cdcflow.model.position import SourceIdentity
from cdcflow.model.table import OFFSET
from cdcflow.sinks.files.log import FileLog
from cdcflow.testing.sinks import ORDERS, Writer, changes, orders, transactions

FIELDS = {
    "rows: first offset": (FrameKind.ROWS, rows._HEAD, 5),
    "rows: count": (FrameKind.ROWS, rows._HEAD, 6),
    "transactions: count": (FrameKind.TRANSACTIONS, headers._HEAD, 0),
    "transactions: first number": (FrameKind.TRANSACTIONS, headers._HEAD, 4),
    "transactions: first offset": (FrameKind.TRANSACTIONS, headers._HEAD, 5),
    "transactions: rows": (FrameKind.TRANSACTIONS, headers._HEAD, 6),
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """A log in a folder: three runs of two transactions each, with a cut after each."""
    with_rows = FileLog.open(tmp_path / "log", SourceIdentity("postgres", "7301", "shop", "1"))
    writer = Writer.of(with_rows)
    for n in range(3):
        batch = changes(ORDERS, [{"id": 10 * n + i, "note": "x"} for i in range(4)])
        writer.put(transactions([2 * n + 1, 2 * n + 2], [2, 4], batch))
    with_rows._lease.release()
    yield tmp_path / "log"
    with_rows._lease.release()


def journal_of(log: Path) -> Path:
    layout = Layout(log)
    return layout.journal(layout.journal_offsets()[-1])


def lie(content: bytes, kind: FrameKind, layout: struct.Struct, field: int, by: int) -> bytes:
    """The journal with this number of its second such frame changed, all checksums right."""
    file = io.BytesIO(content)
    header = read_header(file, FileKind.JOURNAL, "x")
    head, seed = encode_header(FileKind.JOURNAL, header.value)
    framer, found = Framer(seed), head
    met = 0
    for frame in frames(file, header):
        payload = frame.payload
        if frame.kind is kind:
            met += 1
            if met == 2:
                values = list(layout.unpack_from(payload))
                values[field] += by
                payload = layout.pack(*values) + payload[layout.size :]
        found += b"".join(framer.frame(frame.kind, payload))
    assert met >= 2
    return found


def recovered(content: bytes) -> int:
    file = io.BytesIO(content)
    header = read_header(file, FileKind.JOURNAL, "x")
    return whole(file, header, len(content), "some.journal", lambda _: True, end=None).checkpoint.next_offset


def test_unchanged_journal_is_read(log: Path) -> None:
    """The refusals below mean something only if nothing else is wrong with it."""
    content = journal_of(log).read_bytes()
    assert lie(content, *FIELDS["rows: count"], by=0) == content
    assert recovered(content) == 13
    assert [o for _, _, found in read_rows(log) for o in found.column(OFFSET).to_pylist()] == list(range(1, 13))


@pytest.mark.parametrize("by", [-1, 1, 100, -100])
@pytest.mark.parametrize("field", FIELDS)
def test_frame_whose_numbers_do_not_match_its_rows_is_refused_by_recovery(log: Path, field: str, by: int) -> None:
    """Continuing there would give two rows the same offset, or skip some, permanently."""
    kind, layout, at = FIELDS[field]
    try:
        content = lie(journal_of(log).read_bytes(), kind, layout, at, by)
    except struct.error:
        return  # the number does not go below 0
    with pytest.raises(InvariantViolated):
        recovered(content)


@pytest.mark.parametrize("by", [-1, 1, 100, -100])
@pytest.mark.parametrize("field", [f for f in FIELDS if f != "transactions: first number"])
def test_frame_whose_numbers_do_not_match_its_rows_is_refused_by_readers(log: Path, field: str, by: int) -> None:
    """A reader shows a row with its transaction; it must not show it with another's, or under another offset."""
    kind, layout, at = FIELDS[field]
    path = journal_of(log)
    try:
        path.write_bytes(lie(path.read_bytes(), kind, layout, at, by))
    except struct.error:
        return
    readers: list[Callable[[], object]] = [lambda: list(read_rows(log))]
    if kind is FrameKind.TRANSACTIONS:
        readers.append(lambda: list(read_transactions(log)))
    for read in readers:
        with pytest.raises(InvariantViolated):
            read()


@pytest.mark.parametrize("by", [-1, 1])
def test_run_of_one_with_a_wrong_offset_is_refused(tmp_path: Path, by: int) -> None:
    """The fast path for one transaction of one row must not skip the checks."""
    opened = FileLog.open(tmp_path / "log", SourceIdentity("postgres", "7301", "shop", "1"))
    writer = Writer.of(opened)
    for n in range(3):
        writer.put(orders(n))
    opened._lease.release()
    path = journal_of(tmp_path / "log")
    path.write_bytes(lie(path.read_bytes(), *FIELDS["rows: first offset"], by=by))
    with pytest.raises(InvariantViolated):
        recovered(path.read_bytes())
    with pytest.raises(InvariantViolated):
        list(read_rows(tmp_path / "log"))
