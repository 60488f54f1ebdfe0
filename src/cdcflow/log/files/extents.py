"""Find which journals count, and how much of each: the part that a reader without the writer's lock may see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from cdcflow.errors import InvariantViolated
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.framing import Damaged, FileKind, FrameKind, Header, frames, read_header
from cdcflow.log.format.journal import CutMark, Decoder, JournalHeader, Record, records
from cdcflow.log.format.numbers import in_order
from cdcflow.model.position import Checkpoint

Found = TypeVar("Found")

TRIES_MAX = 20
"""How often a reader retries when a file vanishes, without any progress, before it reports the file as missing."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The part of a journal that counts for a reader: its first `bytes`, which end with `checkpoint`."""

    header: JournalHeader
    bytes: int
    checkpoint: Checkpoint

    @property
    def last_offset(self) -> int:
        return self.checkpoint.next_offset - 1


def extents_of(layout: Layout) -> list[Extent]:
    """Return the extent of each journal, oldest first. Scans the latest journal."""
    found: list[Extent] = []

    def read() -> None:
        found.clear()
        found.extend(_extents(layout))

    retry_read(read, layout.root)
    return found


@contextmanager
def opened_journal(layout: Layout, first_offset: int) -> Iterator[tuple[BinaryIO, Header, Path]]:
    """Open a journal, read its header and yield the file after it. Raises InvariantViolated if the header is damaged:
    it was durable before the file had its name."""
    path = layout.journal(first_offset)
    with path.open("rb") as file:
        try:
            header = read_header(file, FileKind.JOURNAL, str(path))
        except Damaged as damage:
            raise InvariantViolated(
                f"reading {path}: its header is damaged ({damage.reason})", runbook="log-damaged"
            ) from None
        yield file, header, path


def counting_heads(layout: Layout) -> Iterator[tuple[JournalHeader, bool]]:
    """Yield the headers of all journals, oldest first, and whether each counts. A journal of a replaced writer does
    not."""
    epoch = 0
    for first in layout.journal_offsets():
        with opened_journal(layout, first) as (_, header, _):
            head = JournalHeader.from_header(header)
        yield head, head.epoch >= epoch
        epoch = max(epoch, head.epoch)


def retry_read(read: Callable[[], Found], path: Path) -> Found:
    """Return the result of `read`, which is called again if a file vanishes while it reads."""
    for _ in range(TRIES_MAX):
        try:
            return read()
        except FileNotFoundError as error:
            missing = error.filename
    raise InvariantViolated(f"reading the log {path}: {missing} is missing", runbook="log-damaged")


def _extents(layout: Layout) -> Iterator[Extent]:
    heads = [head for head, counts in counting_heads(layout) if counts]
    for head, successor in zip(heads, [*heads[1:], None][: len(heads)], strict=True):
        if successor is None:
            yield _newest_extent(layout, head)
        elif successor.previous == head.first_offset:
            yield Extent(head, successor.previous_bytes, successor.base)
        else:
            # Between reading these two headers, the journal between them was sealed; or it is missing, and a retry
            # shows that.
            raise FileNotFoundError(2, "a journal is missing", str(layout.journal(successor.previous or 0)))


def _newest_extent(layout: Layout, head: JournalHeader) -> Extent:
    with opened_journal(layout, head.first_offset) as (file, header, path):
        head = JournalHeader.from_header(header)  # a different journal may have its name by now
        extent = Extent(head, header.end, head.base)
        decoder = Decoder(str(path), header)
        try:
            for frame in frames(file, header):
                if frame.kind in (FrameKind.CUT, FrameKind.PROGRESS):
                    mark = decoder.record(frame)
                    if isinstance(mark, CutMark):
                        extent = Extent(head, frame.end, mark.checkpoint)
        except Damaged:
            pass  # the writer is writing this frame, or died while writing it: everything before it counts
    return extent


def extent_records(layout: Layout, extent: Extent, skip: frozenset[FrameKind] = frozenset()) -> Iterator[Record]:
    """Yield the records of an extent. Raises InvariantViolated if they contradict each other, which can be checked only
    if `skip` is empty."""
    found = counted_records(layout, extent, skip)
    return found if skip else in_order(found, extent.header, str(layout.journal(extent.header.first_offset)))


def counted_records(layout: Layout, extent: Extent, skip: frozenset[FrameKind] = frozenset()) -> Iterator[Record]:
    """Yield the records of an extent without the check for contradictions, which the caller makes. Raises
    FileNotFoundError if the journal has been replaced: a writer that starts replaces a journal without rows by its own,
    under the same name."""
    with opened_journal(layout, extent.header.first_offset) as (file, header, path):
        if JournalHeader.from_header(header) != extent.header:
            raise FileNotFoundError(2, "it is a different journal", str(path))
        try:
            yield from records(file, header, str(path), end=extent.bytes, skip=skip)
        except Damaged as damage:
            raise InvariantViolated(
                f"reading {path}: {damage}, in front of a whole cut", runbook="log-damaged"
            ) from None
