"""Read new records from a log's journals, each byte once, while the daemon writes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from cdcflow.errors import InvariantViolated
from cdcflow.log.files import attached
from cdcflow.log.files.extents import opened_journal
from cdcflow.log.files.layout import Layout
from cdcflow.log.format.framing import Damaged, FileKind, Frame, FrameKind, Header, frames, read_header
from cdcflow.log.format.journal import AttachedFile, AttachedSpool, Decoder, JournalHeader, Record
from cdcflow.log.format.numbers import Numbers, refusing


@dataclass(slots=True)
class _FilePosition:
    """A position in a journal: how many bytes and whole frames precede it."""

    at: int
    sequence: int = 0


class Following:
    """Reads journals one after another, starting with the one that has an offset. Creating it, and `read`, raise
    FileNotFoundError if that offset or the next records are in no journal (or no longer): the caller must then search
    the segments."""

    def __init__(self, layout: Layout, offset: int) -> None:
        self._file: BinaryIO | None = None
        self._layout = layout
        begins = [first for first in layout.journal_offsets() if first <= offset]
        if not begins:
            raise FileNotFoundError(2, "no journal has this offset", str(layout.journals))
        self._open(begins[-1])

    def read(self) -> Iterator[Record]:
        """Yield the new records since the last call, up to the latest whole cut, with attached rows in place of their
        records.

        Raises:
            InvariantViolated: the journal contradicts itself, or is damaged before a whole cut.
        """
        while True:
            follower = self._follower()
            yield from self._upto(self._newest_cut() if follower is None else follower.previous_bytes)
            if follower is None:
                return
            self._open(follower.first_offset)
            if self._head != follower:
                raise FileNotFoundError(2, "it is a different journal", self._name)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __del__(self) -> None:
        self.close()

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _open(self, first: int) -> None:
        self.close()
        path = self._layout.journal(first)
        self._name = str(path)
        self._file = path.open("rb")
        try:
            self._header = read_header(self._file, FileKind.JOURNAL, self._name)
        except Damaged as damage:
            raise InvariantViolated(
                f"reading {self._name}: its header is damaged ({damage.reason})", runbook="log-damaged"
            ) from None
        self._head = JournalHeader.from_header(self._header)
        self._decoder = Decoder(self._name, self._header)
        self._numbers = Numbers.after(self._head.base, refusing(self._name))
        self._read, self._seen = _FilePosition(self._header.end), _FilePosition(self._header.end)
        self._cut_end = self._header.end

    def _follower(self) -> JournalHeader | None:
        """Return the header of the journal that continues this one; `None` if this is the latest."""
        newer = [first for first in self._layout.journal_offsets() if first > self._head.first_offset]
        with opened_journal(self._layout, newer[0] if newer else self._head.first_offset) as (_, header, _):
            head = JournalHeader.from_header(header)
        if not newer and head == self._head:
            return None
        if head.previous == self._head.first_offset and head.epoch >= self._head.epoch:
            return head
        raise FileNotFoundError(2, "no journal continues this one, or it is a different one", self._name)

    def _newest_cut(self) -> int:
        """Return the byte where the latest whole cut ends. Bytes that the writer is still writing after it are read
        again in the next call."""
        try:
            for frame in self._frames(self._seen, None):
                if frame.kind is FrameKind.CUT:
                    self._cut_end = frame.end
        except Damaged:
            pass
        return self._cut_end

    def _upto(self, end: int) -> Iterator[Record]:
        try:
            for frame in self._frames(self._read, end):
                record = self._decoder.record(frame)
                self._numbers.take(record)
                if isinstance(record, AttachedSpool | AttachedFile):
                    yield from attached.rows(self._layout, record)
                else:
                    yield record
        except Damaged as damage:
            raise InvariantViolated(
                f"reading {self._name}: {damage}, in front of a whole cut", runbook="log-damaged"
            ) from None

    def _frames(self, position: _FilePosition, end: int | None) -> Iterator[Frame]:
        """Yield the frames starting at a position, which is advanced with each frame."""
        assert self._file is not None  # noqa: S101 - open until it is closed permanently
        self._file.seek(position.at)
        begin = Header(self._header.value, self._header.seed, position.at)
        for frame in frames(self._file, begin, end=end, sequence=position.sequence):
            position.at, position.sequence = frame.end, position.sequence + 1
            yield frame
