"""Decodes pgoutput messages, which the server's walsender sends, to transactions in columns.

A committed transaction arrives as one unbroken run, B (Begin) … C (Commit). With protocol 2 and up a large one may
arrive before it is committed, in blocks (S … E), which alternate with those of other such transactions; later a message
(c) commits it:

    B r r r C   B r C   S₇ r r E   B r C   S₉ r E   S₇ r A₇₋₈ r E   c₇        r: rows; A₇₋₈: sub-transaction 8 undone
    ── run ──────────   ─ spool ─  ─ run ─ ─ spool  ─── spool ───   transaction 7 is complete, without 8's rows

Whole small transactions in a row become one `Run`: rows of all of them are decoded together, per table, and the
transactions are arrays alongside them. Only rare messages are read one by one: Relation, Type, Origin, Truncate and
Message, and the stream control messages. A transaction that is not complete yet is kept as bytes; past
`spool_bytes_max` it goes into a spool, as streamed ones always do, so memory does not depend on its size.

Schema: the server sends a Relation message before the first row of a shape. It applies to the messages after it. Inside
a streamed transaction it applies to that transaction only: when that is rolled back, its shape must not stay in force
(hard case P22). With every rollback the server forgets which shapes it sent in the transaction and sends them again,
and cdcflow forgets them too. With the commit they apply to all later messages, for the server as well.

The source of this: the server's `src/backend/replication/pgoutput/pgoutput.c` and `logical/proto.c`, and the chapter
"Logical Replication Message Formats".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from cdcflow.capture.interleave.messages import Advanced, ChangesRefused, Committed, MarkSeen, RowsFilled
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import InvariantViolated, SourceUnavailable, TableMisfit
from cdcflow.model.change import ChangeBatch, Int64s, Run, Uint64s
from cdcflow.model.position import Token
from cdcflow.model.table import Identity, Table, TableId
from cdcflow.sources.engine.buffers import Buffer, protocol_error
from cdcflow.sources.engine.changes import ShapedRows, Truncate, batches_by_shape, number_rows, split_at_marks
from cdcflow.sources.engine.errors import failure_text
from cdcflow.sources.engine.numbered_tables import NumberedTables
from cdcflow.sources.engine.selection import CapturedTableRefused
from cdcflow.sources.postgres.decoders import COMPILED, Compiled, layout_of
from cdcflow.sources.postgres.lsn import EPOCH_US, Lsn, position_of, positions
from cdcflow.sources.postgres.rewrites import Changed
from cdcflow.sources.postgres.spooled import PendingTransaction, RefusedRows, RelationShape, Shapes, SpooledMark
from cdcflow.sources.postgres.tuples import changes_of
from cdcflow.sources.postgres.types import DescribedTable, Policy, describe_table
from cdcflow.sources.postgres.wire import (
    Frames,
    Joined,
    Relation,
    RelationColumn,
    exactly,
    frames_of,
    join_messages,
    name_of,
    relation_of,
    string_at,
    truncated_of,
)

__all__ = ["Describe", "PgoutputDecoder", "Relation", "RelationColumn"]

_BEGIN, _COMMIT, _ORIGIN, _RELATION, _TYPE, _TRUNCATE, _MESSAGE = (ord(c) for c in "BCORYTM")
_START, _STOP, _STREAM_COMMIT, _ABORT = (ord(c) for c in "SEcA")
_HEARTBEAT = b"heartbeat"
PURGE_PREFIX = b"cdcflow.purge"
"""Prefix of a message that names its transaction, in place of a replication origin. The marks of a slot named `purge`
have the same prefix, so the stream of such a slot does not recognize messages of purges. Settings with both are
refused."""
ORIGIN_BYTES_MAX = 512
"""The most bytes of an origin's name: the server's limit for replication origins. A longer name in a message is cut
off."""
NO_NAME = "purge"
"""The origin of a transaction whose purge mark is empty."""
_CELLS_AT_ONCE = 4_000_000  # a cell costs 17 bytes of offsets on top of its value, perhaps 1 byte (P69: 1600 columns)
GATHERING_BYTES_MIN = 64 << 10
APART_BYTES_MIN = 256 << 10  # this many bytes are decoded separately rather than copied: a guess, not measured
_ROWS = np.zeros(256, np.bool_)
_ROWS[[ord(c) for c in "IUD"]] = True
_PLAIN = np.zeros(256, np.bool_)
_PLAIN[[ord(c) for c in "BCORYTMIUD"]] = True
_CONTROL = np.zeros(256, np.bool_)
_CONTROL[[_START, _STOP, _STREAM_COMMIT, _ABORT]] = True
_KNOWN = _PLAIN | _CONTROL
_SINGLE = np.zeros(256, np.bool_)
_SINGLE[[_ORIGIN, _RELATION, _TRUNCATE, _MESSAGE]] = True
_SINGLE_SEEN = sum(1 << ord(c) - 64 for c in "ORTM")
_OTHER_SEEN = ~sum(1 << ord(c) - 64 for c in "BCORYTMIUD")


Describe = Callable[[Relation], DescribedTable | None]
"""Returns the shape of a relation; None if the table is not captured under the name in this message."""
Hidden = Callable[[int, Collection[int]], Collection[int]]
"""The type of `HiddenChanges.tables`."""
LessSent = Callable[[int, Table, Relation], bool]
"""The type of `Catalog.less_sent`."""
TakeRefused = Callable[[], Sequence[CapturedTableRefused]]
"""The type of `Catalog.take_refused`."""
OnCommits = Callable[[Uint64s, Int64s], None]
"""Called with the ids of transactions and with where their commit records begin."""


@dataclass(slots=True)
class _Contents:
    """The contents of some frames: changes of each table in order, the shapes of relations, and the rare messages."""

    shapes: NumberedTables[RelationShape]
    changes: list[ShapedRows] = field(default_factory=list)
    truncates: list[Truncate] = field(default_factory=list)
    marks: list[SpooledMark] = field(default_factory=list)
    origins: dict[int, str] = field(default_factory=dict)
    purges: list[SpooledMark] = field(default_factory=list)
    beats: list[int] = field(default_factory=list)
    refused: list[RefusedRows] = field(default_factory=list)


class PgoutputDecoder:
    """Decodes one connection's stream; a new connection needs a new decoder, because the server starts over too.

    `describe` is called once for each Relation message. `skip_until`: transactions whose commit ends at or before it
    are in the log already and are dropped whole (hard cases P40, L15). Marks are transactional messages with
    `mark_prefix`; those whose content begins with "heartbeat" only show that the stream moves. A transaction's origin
    is the content of its last transactional message with `PURGE_PREFIX`, or its replication origin. Messages with other
    prefixes are counted in `messages_ignored` and otherwise dropped. Transactions without a row of a captured table are
    dropped too; if they are the last of the messages, `Advanced` contains the position that they reach. If `compiled`
    is None, the plain decoders do everything. `changed` is called once for each Relation message, which the server
    sends before the first row after any DDL: it returns whether the table's rows must be read again. The server
    describes a partition right after the table that publishes its rows, so `changed` is called a second time: for the
    relation described before, with this one as a partition of it (0 if there was none). `captures`: whether a
    relation's rows are decoded at all; a publication of all tables, or of those of a schema, sends others too.
    `describe` may still exclude those that have a certain name. `hidden` returns the tables, among those given, that a
    committed transaction may have changed without the catalog showing it yet: they are read again. A streamed
    transaction is in no catalog, so its relations are described again when it is committed, and tables whose
    description differs are read again. `on_commits` is called with the transactions of each `Committed` before it is
    returned, in the same order. `less_sent` is called with a table and the relation described after it, and
    returns whether the table must be read again because the partition's old rows lack a part of its key. `take_refused`
    returns the tables that `describe` and `less_sent` found refused since its last call.
    """

    def __init__(
        self,
        *,
        describe: Describe,
        open_spool: OpenSpool,
        spool_bytes_max: int,
        binary: bool,
        skip_until: int,
        mark_prefix: str = "cdcflow",
        compiled: Compiled | None = COMPILED,
        changed: Changed | None = None,
        captures: Callable[[int], bool] = lambda oid: True,
        hidden: Hidden = lambda xid, oids: (),
        less_sent: LessSent = lambda oid, table, partition: False,
        take_refused: TakeRefused = lambda: (),
        on_commits: OnCommits | None = None,
    ) -> None:
        self.messages_ignored = 0
        self._on_commits = on_commits
        self._describe = describe
        self._open_spool = open_spool
        self._spool_bytes_max = spool_bytes_max
        self._binary = binary
        self._skip_until = skip_until
        self._prefix = mark_prefix.encode()
        self._compiled = compiled
        self._changed = changed
        self._captures = captures
        self._hidden = hidden
        self._less_sent = less_sent
        self._take_refused = take_refused
        self._refused: list[RefusedRows] = []
        self._reached = skip_until
        self._left_out: set[int] = set()
        self._filled: list[RowsFilled] = []
        self._described_last = 0
        self._shape_last: RelationShape | None = None
        self._before: dict[int, int] = {}  # which relation was described just before which
        self._shapes: Shapes = {}
        self._bare: set[int] = set()  # relations that had no columns at some time
        self._streamed: dict[int, PendingTransaction] = {}
        self._block: PendingTransaction | None = None
        self._waiting: list[tuple[bytes, Int64s]] = []
        self._waiting_bytes = 0
        self._spooling: PendingTransaction | None = None

    @property
    def idle(self) -> bool:
        """Whether no transaction has arrived in part, neither an open one nor a streamed one."""
        return not (self._waiting or self._spooling or self._streamed)

    @property
    def gathering(self) -> bool:
        """Whether a large part of a transaction has arrived, but not its end, so that no event is returned
        before that."""
        return self._waiting_bytes > GATHERING_BYTES_MIN or self._spooling is not None or self._block is not None

    def close(self) -> None:
        """Discard transactions that arrived in part, spools included: the connection is gone, and the server sends them
        again."""
        for transaction in (*self._streamed.values(), *([self._spooling] if self._spooling else [])):
            transaction.discard()
        self._streamed, self._block, self._spooling = {}, None, None
        self._waiting, self._waiting_bytes = [], 0

    def decode(self, messages: Sequence[bytes] | Joined) -> list[StreamEvent]:
        """Return the events that these messages complete. Each message is one XLogData with its header. Messages that
        are already joined are not copied again.

        Raises:
            SourceUnavailable: bytes that the protocol does not allow; nothing was lost, connect again.
            ConfigurationError: the values of one column are too large.
            InvariantViolated: a message that is not known, out of order, or of an unknown relation; or a value that
                its type does not have.
        """
        if not len(messages):
            return []
        before = position_of(Lsn(self._reached))
        events = self._decode(messages)
        # The requests to read again come first, so that no position after a row in the new shape becomes durable
        # without them. So do refusals: rows of these tables may be missing among the events.
        refused = [ChangesRefused(r.table, r.reason, before, is_checked=r.is_checked) for r in self._take_all_refused()]
        filled = self.take_filled()
        return [*refused, *filled, *events] if refused or filled else events

    def _take_all_refused(self) -> list[RefusedRows]:
        described = [RefusedRows(r.table, r.reason, is_checked=True) for r in self._take_refused()]
        found, self._refused = [*described, *self._refused], []
        return list({r.table: r for r in reversed(found)}.values())

    def take_filled(self) -> list[RowsFilled]:
        """Return the tables to be read again that no call of `decode` has returned.

        If `decode` raises, the server sends the messages again, but cdcflow can then no longer determine which tables
        have to be read again.
        """
        filled, self._filled = self._filled, []
        return filled

    def _decode(self, messages: Sequence[bytes] | Joined) -> list[StreamEvent]:
        frames = self._frames(messages if isinstance(messages, Joined) else join_messages(messages))
        if not frames.seen & _OTHER_SEEN and self._block is None:
            return self._plain(frames)
        if not _KNOWN[frames.kind].all():
            letter = int(frames.kind[~_KNOWN[frames.kind]][0])
            raise InvariantViolated(
                f"pgoutput message of unknown type {chr(letter)!r} (0x{letter:02X})", runbook="stream-not-understood"
            )
        controls = np.flatnonzero(_CONTROL[frames.kind])
        if not len(controls) and self._block is None:
            return self._plain(frames)
        events: list[StreamEvent] = []
        begin = 0
        for at in (*controls.tolist(), len(frames)):
            if at > begin:
                part = frames.part(begin, at)
                events += self._plain(part) if self._block is None else self._piece(part, self._block)
            if at < len(frames):
                events += self._control(frames, at)
            begin = at + 1
        return events

    def _frames(self, messages: Joined) -> Frames:
        found = self._compiled and self._compiled.scan(messages.data, messages.lengths)
        return Frames(Buffer(messages.data), *found) if found else frames_of(messages)

    # ── transactions that come whole ────────────────────────────────────────────────────────────────────────

    def _plain(self, frames: Frames) -> list[StreamEvent]:
        """Decode the complete transactions among messages outside of stream blocks; an open transaction at the end
        waits."""
        if self._spooling is None and not self._waiting and frames.kind[-1] == _COMMIT:
            return self._whole(frames)
        commits = np.flatnonzero(frames.kind == _COMMIT)
        if self._spooling is not None:
            if not len(commits):
                return self._spool(frames, self._spooling, streamed=False)
            end = int(commits[0])
            events = self._spool(frames.part(0, end), self._spooling, streamed=False)
            events += self._spooled_committed(frames, end)
            rest = frames.part(end + 1, len(frames))
            return events + (self._plain(rest) if len(rest) else [])
        if self._waiting:
            if not len(commits):
                return self._wait(frames)
            end = int(commits[0]) + 1
            if int(frames.end[-1] - frames.end[end - 1]) > APART_BYTES_MIN:
                # The waiting messages are joined only with their own transaction's end: the rest is not copied.
                events = self._whole(self._with_waiting(frames.part(0, end)))
                return events + self._plain(frames.part(end, len(frames)))
            frames = self._with_waiting(frames)
            commits = np.flatnonzero(frames.kind == _COMMIT)
        last = int(commits[-1]) if len(commits) else -1
        begins = np.flatnonzero(frames.kind[last + 1 :] == _BEGIN)
        whole = last + 1 + int(begins[0]) if len(begins) else len(frames)
        events = self._whole(frames.part(0, whole)) if whole else []
        return events + (self._wait(frames.part(whole, len(frames))) if whole < len(frames) else [])

    def _with_waiting(self, frames: Frames) -> Frames:
        """Return the waiting messages followed by these, joined. Afterwards no message waits."""
        self._waiting.append((frames.raw(), frames.lengths))
        return self._together()

    def _together(self) -> Frames:
        """Return the waiting messages, joined. Afterwards no message waits."""
        pieces, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return self._frames(join_messages([p for p, _ in pieces], np.concatenate([n for _, n in pieces])))

    def _wait(self, frames: Frames) -> list[StreamEvent]:
        """Keep an open transaction's bytes; if they are too many, decode them into a spool."""
        if len(frames):
            self._waiting.append((frames.raw(), frames.lengths))
            self._waiting_bytes += len(self._waiting[-1][0])
        if self._waiting_bytes <= self._spool_bytes_max:
            return []
        frames = self._together()
        xid = struct.unpack(">I", exactly(frames.message_at(0), 21)[17:])[0]
        self._spooling = PendingTransaction(xid=xid, shapes=self._shapes)
        return self._spool(frames.part(1, len(frames)), self._spooling, streamed=False)

    def _whole(self, frames: Frames) -> list[StreamEvent]:
        """Decode whole transactions, and the messages between them."""
        found = self._compiled and self._compiled.transactions(frames.buffer.raw, frames.start, frames.end, frames.kind)
        begins, commits, xids, ends, clocks, inside = found or _transactions(frames)
        first = int(np.searchsorted(ends, self._skip_until, side="right"))  # those before are in the log already
        skipped = int(commits[first - 1]) if first else -1
        rows, batches, rows_before = self._rows(frames, skipped + 1, self._shapes, 0, plain=not inside)
        self._refused += rows.refused
        messages = _messages(rows)
        number = np.searchsorted(begins, messages, side="right") - 1
        if len(number) and ((number < 0).any() or (messages > commits[number]).any()):
            raise InvariantViolated("pgoutput rows outside of a transaction", runbook="stream-not-understood")
        return self._events(frames, rows, batches, rows_before, begins, commits, xids, ends, clocks + EPOCH_US, first)

    def _events(
        self,
        frames: Frames,
        rows: _Contents,
        batches: list[ChangeBatch],
        rows_before: Int64s,
        begins: Int64s,
        commits: Int64s,
        xids: Uint64s,
        ends: Int64s,
        clocks: Int64s,
        first: int,
    ) -> list[StreamEvent]:
        """Return runs of whole transactions, split at cdcflow's marks. Transactions without rows are skipped."""
        if self._compiled is not None:
            full, (xid, end, clock), row_ends = self._compiled.with_rows(commits, rows_before, (xids, ends, clocks))
            position = self._compiled.positions(end)
        else:
            row_ends = rows_before[commits]
            full = np.flatnonzero(np.diff(row_ends, prepend=0) > 0)
            xid, position, clock, row_ends = xids[full], positions(ends[full]), clocks[full], row_ends[full]
        run = Run(xid, position, clock, row_ends, tuple(batches), origin=self._origins(rows, begins, full))
        if self._on_commits is not None:
            self._on_commits(xid, frames.buffer.int64(frames.start[commits[full]] + 2))
        marks = []
        for mark in rows.marks:
            number = int(np.searchsorted(begins, mark.at, side="right")) - 1
            if number >= first and not mark.content.startswith(_HEARTBEAT):
                token = Token(name_of(mark.content))
                marks.append((number, MarkSeen(token, position_of(Lsn(int(ends[number]))), int(clocks[number]))))
        events = split_at_marks(run, full, marks)
        last = max([*full[-1:].tolist(), *(number for number, _ in marks)], default=-1)
        covered = int(ends[last]) if last >= 0 else self._skip_until
        reached = max([*rows.beats, int(ends[-1]) if len(ends) else 0])
        self._reached = max(self._reached, reached)
        if reached > covered:
            events.append(Advanced(position_of(Lsn(reached)), int(clocks[-1]) if len(ends) else 0))
        return events

    def _origins(self, rows: _Contents, begins: Int64s, full: Int64s) -> pa.Array | None:
        """Return each transaction's origin; an origin does not apply to the next transaction (hard case P59)."""
        if not (rows.origins or rows.purges):
            return None
        purges = {mark.at: origin_name(mark.content) for mark in rows.purges}
        named = (*rows.origins.items(), *purges.items())  # a later one of a transaction replaces an earlier one
        names = {int(np.searchsorted(begins, at, side="right")) - 1: name for at, name in named}
        return pa.array([names.get(number) for number in full.tolist()], pa.string())

    # ── rows ────────────────────────────────────────────────────────────────────────────────────────────────

    def _rows(
        self, frames: Frames, first: int, shapes: Shapes, header: int, *, plain: bool = False
    ) -> tuple[_Contents, list[ChangeBatch], Int64s]:
        """Decode the row messages starting with number `first`, each in the shape in force there; `shapes` is kept
        current. Also return the rows of each shape with their indices, and how many rows precede each message.

        `header` is 4 inside a stream block, where every message names its transaction after its type.
        """
        out = self._singles(frames, first, shapes, header)
        if self._left_out:
            frames = self._without_left_out(frames, header)
        if self._bare:
            frames = self._without_bare(frames, header, out)
        if self._compiled is not None and not plain:
            found = self._compiled.changes(
                frames.buffer.raw,
                frames.start,
                frames.end,
                frames.kind,
                first,
                header,
                shapes,
                {oid: shape if at < 0 else None for oid, ((at, shape), *_) in out.shapes.since.items()},
                sorted((at, oid, shape) for oid, known in out.shapes.since.items() for at, shape in known if at >= 0),
                [(at, 1) for at, _ in out.truncates],
                _CELLS_AT_ONCE,
            )
            if found is not None:
                parts, rows_before = found
                if len(parts) > 1:
                    parts.sort(key=lambda part: part[:2])
                indexed = [(layout.described.table, index, rows) for _, _, layout, index, rows in parts]
                return out, batches_by_shape(indexed, out.truncates, rows_before), rows_before
        self._plain_rows(frames, first, header, out)
        return out, *number_rows(out.changes, out.truncates, len(frames))

    def _singles(self, frames: Frames, first: int, shapes: Shapes, header: int) -> _Contents:
        """Read the messages that are read one by one."""
        out = _Contents(NumberedTables(shapes))
        if not frames.seen & _SINGLE_SEEN:
            return out
        for at in np.flatnonzero(_SINGLE[frames.kind]).tolist():
            kind, body = int(frames.kind[at]), frames.message_at(at)
            if kind == _RELATION:
                relation = relation_of(body[1 + header :])
                self._before[relation.oid], self._described_last = self._described_last, relation.oid
                is_captured = self._captures(relation.oid)
                # No catalog shows a streamed transaction before its commit, so its tables are compared when it is
                # committed.
                is_hidden = is_captured and not header and self._is_hidden(relation.oid, frames, at)
                shape = self._shape(relation) if is_captured else None
                root, self._shape_last = self._shape_last, shape
                if not header:
                    self._compare(relation.oid)
                if root is not None:
                    self._compare_identities(root, relation)
                if shape is not None and is_hidden:
                    self._read_again(shape)
                if shape is not None and header and self._block is not None:
                    self._block.described.append((relation, shape))
                if shape is None:
                    self._left_out.add(relation.oid)
                    continue
                if not shape.relation.columns:
                    self._bare.add(relation.oid)
                out.shapes.define(relation.oid, at, shape)
            elif kind == _TRUNCATE:
                for oid in truncated_of(body[1 + header :]):
                    if oid in self._left_out:
                        continue
                    table = out.shapes.meaning_at(oid, at).described.table
                    if at >= first and table.columns:
                        out.truncates.append((at, table))
            elif kind == _ORIGIN:
                out.origins[at] = string_at(body[1:], 8)[0].decode(errors="replace")
            else:
                self._message(body, at, header, out)
        return out

    def _without_left_out(self, frames: Frames, header: int) -> Frames:
        """Return the frames without the rows of tables that are not captured."""
        kind = frames.kind.copy()
        rows = np.flatnonzero(_ROWS[kind])
        oids = frames.buffer.uint32(frames.start[rows] + 1 + header)
        kind[rows[np.isin(oids, list(self._left_out))]] = _TYPE
        return replace(frames, kind=kind)

    def _without_bare(self, frames: Frames, header: int, out: _Contents) -> Frames:
        """Return the frames without the rows of tables without columns, which a log cannot store.

        `describe` refuses such a table if it is captured; others arrive while the settings or the publication change. A
        table whose name is not captured is treated like these others.
        """
        kind = frames.kind.copy()
        rows = np.flatnonzero(_ROWS[kind])
        oids = frames.buffer.uint32(frames.start[rows] + 1 + header)
        for oid in self._bare:
            if len(mine := rows[oids == oid]):
                for shape, part in out.shapes.split(oid, mine):
                    if not shape.relation.columns:
                        kind[part] = _TYPE
        return replace(frames, kind=kind)

    def _compare(self, oid: int) -> None:
        before = self._before.get(oid, 0)
        for asked, partition in ((oid, 0), (before, oid)) if before else ((oid, 0),):
            if self._changed is not None and (found := self._changed(asked, partition)) is not None:
                self._filled.append(RowsFilled(found.table, position_of(Lsn(self._skip_until)), found))

    def _compare_identities(self, root: RelationShape, partition: Relation) -> None:
        """Have a table read again if old rows of `partition`, which was described right after it, lack its key."""
        if self._block is not None:
            self._block.partitions.append((root.relation.oid, partition))
        elif self._less_sent(root.relation.oid, root.described.table, partition):
            self._read_again(root)

    def _is_hidden(self, oid: int, frames: Frames, at: int) -> bool:
        """Whether the transaction of message `at`, which is committed, changed this table and is not visible yet."""
        begins = np.flatnonzero(frames.kind[:at] == _BEGIN)
        if len(begins):
            xid = int(frames.buffer.uint32(frames.start[begins[-1:]] + 17)[0])
        elif self._spooling is not None:
            xid = self._spooling.xid
        else:
            raise InvariantViolated("pgoutput Relation outside of a transaction", runbook="stream-not-understood")
        return oid in self._hidden(xid, (oid,))

    def _describe_again(self, transaction: PendingTransaction) -> None:
        """Compare the shapes of a streamed transaction, which were described before its commit, with what the catalog
        shows now. Its rows are in the spool already, so tables that differ are read again."""
        oids = {relation.oid for relation, _ in transaction.described}
        hidden = self._hidden(transaction.xid, oids)
        seen: list[tuple[Relation, RelationShape]] = []
        for relation, shape in transaction.described:
            if (relation, shape) in seen:
                continue
            seen.append((relation, shape))
            again = self._shape(relation)
            if again.described.table != shape.described.table or relation.oid in hidden:
                self._read_again(shape)
                if self._shapes.get(relation.oid) == shape:
                    self._shapes[relation.oid] = again

    def _read_again(self, shape: RelationShape) -> None:
        if shape.relation.columns:
            self._filled.append(RowsFilled(shape.described.table.id, position_of(Lsn(self._skip_until))))

    def _shape(self, relation: Relation) -> RelationShape:
        described = self._describe_relation(relation)
        if not described.table.columns:
            relation = replace(relation, columns=())
        shape = RelationShape(relation, described)
        if self._compiled is None:
            return shape
        return replace(shape, layout=layout_of(self._compiled, described, shape.in_identity))

    def _plain_rows(self, frames: Frames, first: int, header: int, out: _Contents) -> None:
        rows = np.flatnonzero(_ROWS[frames.kind])
        rows = rows[np.searchsorted(rows, first) :]
        if not len(rows):
            return
        if (frames.start[rows] + 5 + header > frames.end[rows]).any():
            raise protocol_error("a row message ends before its relation")
        oids = frames.buffer.uint32(frames.start[rows] + 1 + header)
        for oid in np.unique(oids).tolist() if (oids != oids[0]).any() else [int(oids[0])]:
            for shape, mine in out.shapes.split(oid, rows[oids == oid]):
                step = max(_CELLS_AT_ONCE // max(len(shape.relation.columns), 1), 1)
                for begin in range(0, len(mine), step):
                    part = mine[begin : begin + step]
                    self._table_rows(frames, part, header, shape, out)

    def _table_rows(self, frames: Frames, part: Int64s, header: int, shape: RelationShape, out: _Contents) -> None:
        """Decode row messages of one shape. If some cannot be decoded, their table fails alone: all of these rows are
        dropped, but inside a stream block only those of the same sub-transaction, which may be rolled back."""
        try:
            out.changes.append(changes_of(frames, part, header + 4, shape.described, shape.in_identity))
        except TableMisfit as why:
            subxids = frames.buffer.uint32(frames.start[part] + 1) if header else np.zeros(len(part), np.int64)
            distinct = np.unique(subxids).tolist()
            if len(distinct) == 1:
                out.refused.append(_refused_rows(why, shape.described.table.id, distinct[0]))
                return
            for subxid in distinct:
                self._table_rows(frames, part[subxids == subxid], header, shape, out)

    def _describe_relation(self, relation: Relation) -> DescribedTable:
        described = self._describe(relation)
        if described is None:
            return describe_table(TableId(relation.namespace, relation.name), relation.oid, (), Identity.KEY, Policy())
        names = [c.name for c in described.table.columns]
        if names and names != [c.name for c in relation.columns]:
            raise InvariantViolated(
                f"table {relation.namespace}.{relation.name} was described with columns {names}, but the server sends "
                f"{[c.name for c in relation.columns]}",
                runbook="stream-not-understood",
            )
        if self._binary and not described.has_binary:
            raise SourceUnavailable(
                f"table {described.table.id} now has a column without a binary decoder; cdcflow connects again "
                f"and requests text"
            )
        return described

    def _message(self, body: bytes, at: int, header: int, out: _Contents) -> None:
        """Read a logical decoding message: a mark, a heartbeat, a purge mark, or a message of another program."""
        if len(body) < 10 + header:
            raise protocol_error("a logical message that ends early")
        transactional, lsn = struct.unpack_from(">BQ", body, 1 + header)
        prefix, rest = string_at(body, 10 + header)
        (size,) = struct.unpack(">I", exactly(rest[:4], 4))
        content = exactly(rest[4:], size)
        if prefix not in (self._prefix, PURGE_PREFIX) or (prefix == PURGE_PREFIX and not transactional & 1):
            self.messages_ignored += 1
        elif transactional & 1:
            subxid = struct.unpack_from(">I", body, 1)[0] if header else 0
            (out.marks if prefix == self._prefix else out.purges).append(SpooledMark(at, subxid, content))
        elif content.startswith(_HEARTBEAT):
            out.beats.append(lsn)

    # ── transactions that come in pieces ────────────────────────────────────────────────────────────────────

    def _control(self, frames: Frames, at: int) -> list[StreamEvent]:
        kind, body = int(frames.kind[at]), frames.message_at(at)
        if kind == _STOP:
            if self._block is None:
                raise InvariantViolated("pgoutput Stream Stop without a Stream Start", runbook="stream-not-understood")
            self._block = None
            return []
        if self._block is not None or self._waiting or self._spooling is not None:
            raise InvariantViolated(
                f"pgoutput stream message {chr(kind)!r} inside a transaction", runbook="stream-not-understood"
            )
        if kind == _START:
            xid, first = struct.unpack(">IB", exactly(body[1:], 5))
            if bool(first) == (xid in self._streamed):
                raise InvariantViolated(
                    "pgoutput Stream Start of a transaction that is not at that point", runbook="stream-not-understood"
                )
            self._block = self._streamed.setdefault(xid, PendingTransaction(xid=xid))
            return []
        if kind == _ABORT:
            return self._stream_aborted(body)
        xid, _, begin, end, clock = struct.unpack(">IBQQq", exactly(body[1:], 29))
        if xid not in self._streamed:
            raise InvariantViolated(
                "pgoutput Stream Commit of a transaction that was not streamed", runbook="stream-not-understood"
            )
        transaction = self._streamed.pop(xid)
        self._shapes.update(transaction.shapes)
        partitions = (oid for oid in self._left_out if self._before[oid] in transaction.shapes)
        self._describe_again(transaction)
        for oid in (*transaction.shapes, *partitions):
            self._compare(oid)  # the catalog shows what this transaction did to a table only now
        for oid, partition in transaction.partitions:
            if (root := self._shapes.get(oid)) is not None:
                self._compare_identities(root, partition)
        return self._commit_spooled(transaction, begin, end, clock + EPOCH_US)

    def _stream_aborted(self, body: bytes) -> list[StreamEvent]:
        """Handle the rollback of a streamed transaction or of one of its sub-transactions.

        The message has the rollback's position and time if parallel streaming was requested of the server.
        """
        if len(body) not in (9, 25):
            raise protocol_error("a Stream Abort of a wrong length")
        xid, subxid = struct.unpack_from(">II", body, 1)
        transaction = self._streamed.get(xid)
        if transaction is None:
            return []  # rolled back before a block of it was sent
        if xid == subxid:
            del self._streamed[xid]
            transaction.discard()
        else:
            transaction.roll_back(subxid)
        return []

    def _piece(self, frames: Frames, transaction: PendingTransaction) -> list[StreamEvent]:
        if not (_PLAIN[frames.kind] & (frames.kind != _BEGIN) & (frames.kind != _COMMIT)).all():
            raise InvariantViolated("pgoutput Begin or Commit inside a stream block", runbook="stream-not-understood")
        return self._spool(frames, transaction, streamed=True)

    def _spool(self, frames: Frames, transaction: PendingTransaction, *, streamed: bool) -> list[StreamEvent]:
        """Decode one piece of a large transaction into its spool."""
        if not len(frames):
            return []
        if not streamed and (frames.kind == _BEGIN).any():
            raise InvariantViolated("pgoutput Begin inside a transaction", runbook="stream-not-understood")
        header = 4 if streamed else 0
        rows, batches, rows_before = self._rows(frames, 0, transaction.shapes, header)
        transaction.marks += rows.marks
        for refused in rows.refused:
            transaction.refused.setdefault((refused.subxid, refused.table), refused)
        transaction.purges += rows.purges
        for name in rows.origins.values():
            transaction.origin = name
        if not batches:
            return []
        subxids: Uint64s | None = None
        if streamed:
            of_message = frames.buffer.uint32(frames.start + 1).astype(np.uint64)
            subxids = np.repeat(of_message, np.diff(rows_before))
        transaction.write(self._open_spool, batches, subxids)
        return []

    def _spooled_committed(self, frames: Frames, at: int) -> list[StreamEvent]:
        transaction, self._spooling = self._spooling, None
        assert transaction is not None  # noqa: S101  # the caller has seen to it
        _, begin, end, clock = struct.unpack(">BQQq", exactly(frames.message_at(at)[1:], 25))
        return self._commit_spooled(transaction, begin, end, clock + EPOCH_US)

    def _commit_spooled(self, transaction: PendingTransaction, begin: int, end: int, clock: int) -> list[StreamEvent]:
        """Return the events of a large transaction that is complete: its header, and its rows without those rolled
        back.

        Its commit record is between `begin` and `end`.
        """
        if end <= self._skip_until:
            transaction.discard()
            return []
        self._reached = max(self._reached, end)
        self._refused += transaction.refused.values()
        position = position_of(Lsn(end))
        marks = [m for m in transaction.marks if not m.content.startswith(_HEARTBEAT)]
        seen = [MarkSeen(Token(name_of(m.content)), position, clock) for m in marks]
        origin = origin_name(transaction.purges[-1].content) if transaction.purges else transaction.origin
        found = transaction.commit(transaction.xid, position, clock, origin)
        if found is None:
            return [*seen] or [Advanced(position, clock)]
        if self._on_commits is not None:
            self._on_commits(np.array([transaction.xid], np.uint64), np.array([begin], np.int64))
        return [Committed(found), *seen]


def _refused_rows(why: TableMisfit, table: TableId, subxid: int) -> RefusedRows:
    if isinstance(why, CapturedTableRefused):
        return RefusedRows(table, why.reason, is_checked=True, subxid=subxid)
    return RefusedRows(table, failure_text(why, table), is_checked=False, subxid=subxid)


def _messages(rows: _Contents) -> Int64s:
    """Return the numbers of all messages that must be inside a transaction."""
    found = [c.message for c in rows.changes]
    rare = [at for at, _ in rows.truncates] + [m.at for m in (*rows.marks, *rows.purges)] + list(rows.origins)
    return np.concatenate([*found, np.array(rare, np.int64)])


def origin_name(content: bytes) -> str:
    """Return the origin that a purge mark gives its transaction."""
    return content[:ORIGIN_BYTES_MAX].decode(errors="replace") or NO_NAME


def _transactions(frames: Frames) -> tuple[Int64s, Int64s, Uint64s, Int64s, Int64s, bool]:
    """Return the numbers of Begins and of Commits, xids, end positions, clocks as sent, and False: rows may be outside
    of the transactions."""
    begins, commits = np.flatnonzero(frames.kind == _BEGIN), np.flatnonzero(frames.kind == _COMMIT)
    if len(begins) != len(commits) or (begins > commits).any() or (begins[1:] < commits[:-1]).any():
        raise InvariantViolated("pgoutput Begin and Commit do not alternate", runbook="stream-not-understood")
    _check_sizes(frames, begins, 21)
    _check_sizes(frames, commits, 26)
    start, buffer = frames.start, frames.buffer
    xids = buffer.uint32(start[begins] + 17).astype(np.uint64)
    return begins, commits, xids, buffer.int64(start[commits] + 10), buffer.int64(start[commits] + 18), False


def _check_sizes(frames: Frames, at: Int64s, size: int) -> None:
    if (frames.end[at] - frames.start[at] != size).any():
        raise protocol_error("a Begin or Commit of a wrong length")
