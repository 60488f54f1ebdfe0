"""The part of a topic after the end of its history, split into the segments that it becomes.

    topic      │ head … cut 40 │ … cut 41 … cut 42 │ head … cut 43 … cut 44 │
    history    ──segment──▶ cut 41                                             │ bytes enough, at a cut
    segments                      └── (41, 43] ────────────────┘└─ (43, 44] ─┘

Reading begins at a topic range's header, because a frame can be decoded only with the shapes before it. The part that
the history already has is skipped, up to and including the cut at its end. That cut is compared with the history's, so
that no segment is ever added to the history of a different log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from cdcflow.errors import InvariantViolated
from cdcflow.log.format.journal import CutMark, JournalHeader, Record
from cdcflow.log.format.records import Message, RangeDecoder
from cdcflow.log.format.transactions import TransactionHeaders
from cdcflow.model.position import Checkpoint, Epoch

SEGMENT_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """The address of a log's topic. `options`: options of the client library from the settings, with secrets
    resolved."""

    brokers: str
    name: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class TopicTail:
    """The part of a topic to read: from the header of a range (`begin`) to `end` (exclusive), committed records
    only."""

    topic: TopicAddress
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Unsealed:
    """A future segment: the records after `base`, up to a cut. `records` must be read to their end before the next."""

    base: Checkpoint
    epoch: Epoch
    records: Iterator[Record]


class TailSplitter:
    """Splits a topic's records after a cut into segments, each with rows and ending at a cut.

    `after` is the end of the history; `None` if it is empty, so that it begins with the first header. `topic_offset` is
    the offset after the last cut that was read.
    """

    def __init__(
        self, messages: Iterable[Message], name: str, log_id: str, after: Checkpoint | None, bytes_max: int
    ) -> None:
        self._name = name
        self._log_id = log_id
        self._after = after
        self._bytes_max = bytes_max
        self._bytes = 0
        self._epoch = Epoch(0)
        self._cut = self._base = after or Checkpoint()
        self._next = _next_of(self._cut)
        self._begun = False
        self._records = self._behind(messages)
        self.topic_offset = 0

    def segments(self) -> Iterator[Unsealed]:
        """Yield the segments, oldest first. Records after the last of them have no rows.

        Raises:
            InvariantViolated: something is missing, or the topic has another log.
        """
        while True:
            base = self._cut if self._begun else None
            first = self._upto_rows()
            if first is None:
                return
            # If the history was empty, the header records where it begins; it was read with the first rows.
            yield Unsealed(base or self._base, self._epoch, chain(first, self._to_a_cut()))

    def _upto_rows(self) -> list[Record] | None:
        """Return the records up to the next run that has rows; `None` if no such run follows. The cuts of an idle log
        alone do not make a segment."""
        self._bytes = 0
        found: list[Record] = []
        for record in self._records:
            found.append(record)
            if isinstance(record, TransactionHeaders):
                return found
        return None

    def _to_a_cut(self) -> Iterator[Record]:
        for record in self._records:
            yield record
            if isinstance(record, CutMark) and self._bytes >= self._bytes_max:
                return
        if self._next[0] != self._cut.next_offset:
            raise self._wrong(f"it ends at offset {self._next[0] - 1}, and its last cut is before it")

    def _behind(self, messages: Iterable[Message]) -> Iterator[Record]:
        """Yield the records after the history, in order and without a gap."""
        decoder = RangeDecoder(self._name)
        for message in messages:
            self._bytes += len(message.value)
            placed = decoder.take(message)
            if placed is None:
                continue
            record = placed.record
            match record:
                case JournalHeader():
                    self._head(record)
                    continue
                case CutMark() if not self._begun:
                    self._look_for(record.checkpoint)
                    self.topic_offset = message.topic_offset + 1
                    continue
                case CutMark():
                    self._pass(record.checkpoint)
                    self.topic_offset = message.topic_offset + 1
                case TransactionHeaders() if self._begun:
                    if (record.first_offset, record.first_transaction) != self._next:
                        raise self._wrong(f"offset {record.first_offset} comes where {self._next[0]} is expected")
                    self._next = (record.next_offset, record.next_transaction)
                case _:
                    pass
            if self._begun:
                yield record
        if not self._begun:
            raise self._wrong(f"it ends before cut {self._cut.cut}, which the history has")

    def _head(self, head: JournalHeader) -> None:
        if head.log_id != self._log_id:
            raise self._wrong("a topic range in it belongs to another log")
        self._epoch = head.epoch
        if self._begun and _next_of(head.base) != self._next:
            raise self._wrong(f"a topic range begins with offset {head.first_offset} where {self._next[0]} is expected")
        if not self._begun and (self._after is None or self._is_at(head.base)):
            self._begin()
            self._cut = self._base = head.base
            self._next = _next_of(head.base)

    def _is_at(self, base: Checkpoint) -> bool:
        """Whether a topic range begins where the history ends. Cuts without rows may be between the two."""
        if base.cut == self._cut.cut:
            self._check_same(base)
        return _next_of(base) == self._next and base.cut >= self._cut.cut

    def _look_for(self, checkpoint: Checkpoint) -> None:
        if checkpoint.cut >= self._cut.cut:
            self._check_same(checkpoint)
            self._begin()

    def _check_same(self, found: Checkpoint) -> None:
        """Check that the cut at the end of the history is the same in the topic."""
        known = self._cut
        if (found.cut, _next_of(found), found.position, found.commit_clock) != (
            known.cut,
            _next_of(known),
            known.position,
            known.commit_clock,
        ):
            raise self._wrong(
                f"cut {known.cut} of the history (offset {known.next_offset - 1}) is not in it in the same form"
            )

    def _begin(self) -> None:
        self._begun = True
        self._bytes = 0  # skipped records do not count

    def _pass(self, checkpoint: Checkpoint) -> None:
        if _next_of(checkpoint) != self._next or checkpoint.cut <= self._cut.cut:
            raise self._wrong(f"cut {checkpoint.cut} is not at the end of the rows before it")
        self._cut = checkpoint

    def _wrong(self, text: str) -> InvariantViolated:
        return InvariantViolated(f"reading {self._name}: {text}", runbook="log-damaged")


def _next_of(checkpoint: Checkpoint) -> tuple[int, int]:
    return checkpoint.next_offset, checkpoint.next_transaction
