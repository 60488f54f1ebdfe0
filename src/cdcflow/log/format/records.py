"""A log's frames as records of a topic.

    key    kind of frame │ 1: the rest of it follows in the next record
    value  the frame's payload, or a piece of it

Kafka already provides what a file needs framing for: checksums, order, and transactions whose records appear together.
A range of the topic begins with a header, like a journal, and its frames can be decoded starting there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cdcflow.errors import InvariantViolated
from cdcflow.log.format.framing import Frame, FrameKind, Header, Part
from cdcflow.log.format.journal import Decoder, JournalHeader, Record
from cdcflow.log.format.rows import is_needless

HEAD = 0
"""The kind of the record that begins a topic range; frames have the other numbers."""

_KINDS = {int(kind): kind for kind in FrameKind}


@dataclass(frozen=True, slots=True)
class Message:
    """One record of the log's topic: `topic_offset` is its offset; `key` and `value` are as described above."""

    topic_offset: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """The content of a frame, and the offset of its first record in the topic."""

    topic_offset: int
    record: Record | JournalHeader


def pieces(kind: int, payload: Sequence[Part], bytes_max: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of the records for one frame, each with at most `bytes_max` bytes of the frame."""
    left = sum(map(len, payload))
    if left <= bytes_max:
        yield bytes((kind, 0)), b"".join(payload)
        return
    # Taken piece by piece from its buffers: a frame can be as large as the largest value, and is not copied whole.
    piece: list[Part] = []
    room = bytes_max
    for part in payload:
        view = memoryview(part).cast("B")
        while len(view):
            piece.append(view[:room])
            taken = len(piece[-1])
            view, room, left = view[taken:], room - taken, left - taken
            if not room or not left:
                yield bytes((kind, left > 0)), b"".join(piece)
                piece, room = [], bytes_max


def head_of(header: JournalHeader) -> bytes:
    """Return the value of a topic range's first record."""
    return json.dumps(header.value(), separators=(",", ":")).encode()


def head_from(value: bytes) -> JournalHeader:
    """Read what `head_of` wrote. ValueError, KeyError or TypeError if the value is invalid."""
    return JournalHeader.from_header(Header(json.loads(value), 0, 0))


class RangeDecoder:
    """Decodes records into the contents of frames. It must begin at a header; other kinds before the first header are
    an error.

    `wanted`: frames of other kinds are returned as `Skipped`, undecoded (`None`: all are decoded). Shapes are always
    decoded. Rows of offsets below `before` are returned as `Skipped` too, unless later frames depend on them.
    """

    def __init__(self, name: str, wanted: Iterable[FrameKind] | None = None, before: int = 0) -> None:
        self._name = name
        self._wanted = None if wanted is None else {*wanted, FrameKind.SCHEMA, FrameKind.PROGRESS}
        self._before = before
        self._decoder: Decoder | None = None
        self._open: tuple[int, int, list[bytes]] | None = None

    def take(self, message: Message) -> TopicRecord | None:
        """Return the frame that this record completes; `None` if the rest of a frame is in the next record.

        Raises:
            InvariantViolated: cdcflow did not write it like this.
        """
        if len(message.key) != 2 or message.key[1] > 1:
            raise self._foreign(message)
        kind, more = message.key
        if self._open is not None and self._open[1] != kind:
            raise self._foreign(message)
        topic_offset, value = message.topic_offset, message.value
        if self._open is not None:
            self._open[2].append(value)
            topic_offset, value = self._open[0], b"" if more else b"".join(self._open[2])
        elif more:
            self._open = (topic_offset, kind, [value])
        if more:
            return None
        self._open = None
        return TopicRecord(topic_offset, self._whole(kind, value, message))

    def _whole(self, kind: int, value: bytes, message: Message) -> Record | JournalHeader:
        if kind == HEAD:
            try:
                header = Header(json.loads(value), 0, 0)
                head = JournalHeader.from_header(header)
            except (ValueError, KeyError, TypeError):
                raise self._foreign(message) from None
            self._decoder = Decoder(self._name, header)
            return head
        if self._decoder is None or kind not in _KINDS:
            raise self._foreign(message)
        frame_kind = _KINDS[kind]
        payload = value if self._wanted is None or frame_kind in self._wanted else b""
        if self._before and frame_kind is FrameKind.ROWS and payload and is_needless(payload, self._before):
            payload = b""
        return self._decoder.record(Frame(frame_kind, payload, message.topic_offset, message.topic_offset + 1))

    def _foreign(self, message: Message) -> InvariantViolated:
        return InvariantViolated(
            f"reading {self._name}: the record at offset {message.topic_offset} was not written by cdcflow",
            runbook="log-damaged",
        )
