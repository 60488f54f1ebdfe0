"""The headers of one appended run: its transactions, and the offsets of each.

In a frame they take a few dozen bytes per transaction: numbers as differences to the one before, positions as text, lz4
over all of it if there are many. Readers see them as `TRANSACTIONS_SCHEMA`.

    head    transactions, kind, form, bytes of the body, first number, first offset, rows
    body    rows │ xid │ commit_ts │ commit_clock - commit_ts │ lengths of positions │ positions │ (origins)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdcflow.log.format.segment import TRANSACTIONS_SCHEMA
from cdcflow.model.change import HeldRun, Int64s, Kind, Run, SpooledTransaction, Uint64s
from cdcflow.model.position import Position

PLAIN_BYTES_MAX = 512  # up to this, compressing costs more than it saves
BODY_BYTES_MAX = 1 << 30

_HEAD = struct.Struct("<IBB2xI4xqqq")
_ONE = struct.Struct("<qQqqI")
_KINDS = (Kind.SOURCE, Kind.READ)
_KIND_NUMBERS = {kind: number for number, kind in enumerate(_KINDS)}
_LZ4, _ORIGINS = 1, 2
_CODEC = pa.Codec("lz4")  # the lz4 frame format
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_WORDS = 4


@dataclass(frozen=True, slots=True)
class TransactionHeaders:
    """The headers of the transactions of one appended run. Its rows have offsets starting at `first_offset`, without
    gaps.

    `position` is a text if there is only one transaction. As in a `Run`, `ends` counts the run's rows up to each
    transaction's end, and `commit_ts` and `commit_clock` are microseconds since 1970.
    """

    first_offset: int
    first_transaction: int
    kind: Kind
    ends: Int64s
    xid: Uint64s
    position: pa.Array | str
    commit_ts: Int64s
    commit_clock: Int64s
    origin: pa.Array | None = None

    @classmethod
    def of(
        cls, run: Run | SpooledTransaction | HeldRun, first_offset: int, first_transaction: int, commit_clock: Int64s
    ) -> TransactionHeaders:
        """Return the headers of a run that gets these numbers."""
        match run:
            case Run():
                ends, ts, position, origin = run.ends, run.commit_ts, run.position, run.origin
            case HeldRun():
                ends, ts = np.array([run.rows], np.int64), np.array([run.commit_ts], np.int64)
                position, origin = run.position.text, None
            case SpooledTransaction():
                ends, ts = np.array([run.rows], np.int64), np.array([run.commit_ts], np.int64)
                position = run.position.text
                origin = None if run.origin is None else pa.array([run.origin], pa.string())
        return cls(first_offset, first_transaction, run.kind, ends, run.xids, position, ts, commit_clock, origin)

    @property
    def next_offset(self) -> int:
        return self.first_offset + int(self.ends[-1])

    @property
    def next_transaction(self) -> int:
        return self.first_transaction + len(self.ends)

    @property
    def headers(self) -> pa.RecordBatch:
        """The headers as readers see them (`TRANSACTIONS_SCHEMA`)."""
        return join_headers([self])

    def encode(self) -> bytes:
        """Return the headers as bytes, which `decode` reads."""
        if len(self.ends) == 1 and self.origin is None:
            return self._encode_one()
        steps = np.empty((_WORDS, len(self.ends)), np.int64)
        steps[0], steps[1], steps[2] = self.ends, self.xid.view(np.int64), self.commit_ts
        steps[:3, 1:] -= steps[:3, :-1].copy()
        steps[3] = self.commit_clock - self.commit_ts
        body = steps.astype("<i8", copy=False).tobytes() + _texts(_array(self.position))
        form = 0
        if self.origin is not None and self.origin.null_count < len(self.origin):
            form |= _ORIGINS
            body += _texts(self.origin)
        head = self._head(form, len(body))
        if len(body) <= PLAIN_BYTES_MAX:
            return head + body
        return self._head(form | _LZ4, len(body)) + bytes(_CODEC.compress(body, asbytes=True))

    def _encode_one(self) -> bytes:
        # For a run of one transaction the overhead of numpy and Arrow exceeds the work itself.
        text: str = self.position if isinstance(self.position, str) else self.position[0].as_py()
        position = text.encode()
        ts = int(self.commit_ts[0])
        body = _ONE.pack(int(self.ends[0]), int(self.xid[0]), ts, int(self.commit_clock[0]) - ts, len(position))
        return self._head(0, len(body) + len(position)) + body + position

    def _head(self, form: int, size: int) -> bytes:
        kind = _KIND_NUMBERS[self.kind]
        rows = int(self.ends[-1])
        return _HEAD.pack(len(self.ends), kind, form, size, self.first_transaction, self.first_offset, rows)

    @classmethod
    def decode(cls, payload: bytes) -> TransactionHeaders:
        """Read what `encode` wrote. Raises ValueError or struct.error if it is invalid."""
        count, kind, form, size, number, offset, rows = _HEAD.unpack_from(payload)
        body: memoryview = memoryview(payload)[_HEAD.size :]
        if size > BODY_BYTES_MAX or not count or (_WORDS * 8 + 4) * count > size:
            raise ValueError("the body's size is wrong")
        if form & _LZ4:
            body = memoryview(_CODEC.decompress(body, size, asbytes=True))
        if len(body) != size:
            raise ValueError("the body's size is wrong")
        steps = np.frombuffer(body, "<i8", _WORDS * count).reshape(_WORDS, count)
        ends, xid, ts = np.cumsum(steps[:3], axis=1) if count > 1 else steps[:3]
        if int(ends[-1]) != rows or (count > 1 and int(steps[0].min()) < 0):
            raise ValueError("the rows are not those of the transactions")
        position, rest = _read_texts(body[_WORDS * 8 * count :], count)
        origin: pa.Array | None = None
        if form & _ORIGINS:
            origins, rest = _read_texts(rest, count)
            origin = _array(origins)
        if len(rest):  # Arrow does not report that a compressed body was shorter
            raise ValueError("the body's size is wrong")
        return cls(offset, number, _KINDS[kind], ends, xid.view(np.uint64), position, ts, ts + steps[3], origin)


HEADERS_BACK = pa.schema(
    [
        ("number", pa.int64()),
        ("position", pa.string()),
        ("xid", pa.uint64()),
        ("commit_ts", TRANSACTIONS_SCHEMA.field("commit_ts").type),
    ]
)
"""The columns of headers by which a source compares the log's last transactions with its own."""


def headers_back(runs: Sequence[TransactionHeaders]) -> pa.Table:
    """Return the position and id of each transaction of the source among these runs, in their order."""
    mine = [run for run in runs if run.kind is Kind.SOURCE]
    if not mine:
        return HEADERS_BACK.empty_table()
    return pa.Table.from_batches([join_headers(mine)]).select(HEADERS_BACK.names).cast(HEADERS_BACK)


def gathered_back(pieces: Iterable[pa.Table], is_enough: Callable[[Position], bool]) -> pa.Table:
    """Return headers as one table with the oldest first. `pieces` gives them latest piece first; no more pieces are
    taken than `is_enough` requires."""
    found: list[pa.Table] = [HEADERS_BACK.empty_table()]
    for piece in pieces:
        found.append(piece)
        if len(piece) and is_enough(Position(piece.column("position")[0].as_py())):
            break
    return pa.concat_tables(reversed(found))


def source_xids(payload: bytes) -> list[int]:
    """Return the transaction ids of an encoded run; empty if its transactions are not the source's."""
    count, kind, form = _HEAD.unpack_from(payload)[:3]
    if _KINDS[kind] is not Kind.SOURCE:
        return []
    if count == 1 and not form:
        return [_ONE.unpack_from(payload, _HEAD.size)[1]]
    return [int(xid) for xid in TransactionHeaders.decode(payload).xid]


def extent(payload: bytes) -> tuple[int, int, int, int]:
    """Return the first offset, the number of rows, the first transaction and the number of transactions of an encoded
    run. For a run of one transaction this is cheaper than `decode`."""
    count, _, form, _, number, offset, rows = _HEAD.unpack_from(payload)
    if count != 1 or form:
        TransactionHeaders.decode(payload)
    elif _ONE.unpack_from(payload, _HEAD.size)[0] != rows:
        raise ValueError("the rows are not those of the transactions")
    return offset, rows, number, count


def join_headers(runs: Sequence[TransactionHeaders]) -> pa.RecordBatch:
    """Return the headers of some runs, in order, as readers see them (`TRANSACTIONS_SCHEMA`)."""
    counts = [len(r.ends) for r in runs]
    starts = np.cumsum([0, *counts[:-1]])
    offsets = np.array([r.first_offset for r in runs], np.int64)
    numbers = np.array([r.first_transaction for r in runs], np.int64)
    last = _concatenate([r.ends for r in runs]) + np.repeat(offsets - 1, counts)
    first = np.empty_like(last)
    first[1:] = last[:-1] + 1
    first[starts] = offsets
    number = np.arange(len(last)) + np.repeat(numbers - starts, counts)
    kinds = pa.array([r.kind.value for r in runs], pa.string())
    if len(kinds) < len(last):
        kinds = kinds.take(pa.array(np.repeat(np.arange(len(runs)), counts)))
    texts = [r.position for r in runs]
    if all(isinstance(text, str) for text in texts):
        positions = pa.array(texts, pa.string())
    else:
        positions = pa.concat_arrays([_array(text) for text in texts])
    origins = pa.nulls(len(last), pa.string())
    if any(r.origin is not None for r in runs):
        origins = pa.concat_arrays([pa.nulls(len(r.ends), pa.string()) if r.origin is None else r.origin for r in runs])
    return pa.RecordBatch.from_arrays(
        [
            pa.array(number),
            pa.array(first),
            pa.array(last),
            positions,
            pa.array(_concatenate([r.xid for r in runs])),
            pa.array(_concatenate([r.commit_ts for r in runs])).view(_TIMESTAMP),
            pa.array(_concatenate([r.commit_clock for r in runs])).view(_TIMESTAMP),
            kinds,
            origins,
        ],
        schema=TRANSACTIONS_SCHEMA,
    )


def _concatenate(columns: list[npt.NDArray[np.generic]]) -> npt.NDArray[np.generic]:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)


def _array(texts: pa.Array | str) -> pa.Array:
    return pa.array([texts], pa.string()) if isinstance(texts, str) else texts


def _texts(texts: pa.Array) -> bytes:
    """Encode texts: their lengths (-1: NULL), then the texts, one after another. At least one is not NULL."""
    there = texts.drop_null() if texts.null_count else texts
    _, ends, content = there.buffers()
    bounds = np.frombuffer(ends, np.int32)[there.offset : there.offset + len(there) + 1]
    lengths = (bounds[1:] - bounds[:-1]).astype("<i4", copy=False)
    if texts.null_count:
        lengths, known = np.full(len(texts), -1, "<i4"), lengths
        lengths[texts.is_valid().to_numpy(zero_copy_only=False)] = known
    whole = b"" if content is None else bytes(memoryview(content)[int(bounds[0]) : int(bounds[-1])])
    return lengths.tobytes() + whole


def _read_texts(body: memoryview, count: int) -> tuple[pa.Array | str, memoryview]:
    """Return the texts (a single one as a str), and the bytes after them."""
    if count == 1 and (length := int.from_bytes(body[:4], "little", signed=True)) >= 0:
        if length > len(body) - 4:
            raise ValueError("texts are longer than the body")
        return str(body[4 : 4 + length], "utf-8"), body[4 + length :]
    lengths = np.frombuffer(body, "<i4", count)
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(np.maximum(lengths, 0), out=bounds[1:])
    content, rest = body[4 * count : 4 * count + int(bounds[-1])], body[4 * count + int(bounds[-1]) :]
    if len(content) != bounds[-1]:
        raise ValueError("texts are longer than the body")
    valid = lengths >= 0
    mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    ends = pa.py_buffer(bounds.astype(np.int32))
    found = pa.Array.from_buffers(pa.string(), count, [mask, ends, pa.py_buffer(bytes(content))])
    found.validate(full=True)
    return found, rest
