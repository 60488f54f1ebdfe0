"""Decodes events of the binary log to transactions, in columns.

    ROTATE FORMAT …  G b t r r X   G b t r X   G ddl   H            G: GTID  b: BEGIN  t: table map  r: rows  X: XID
                     ── run ──────────────────         Advanced     H: heartbeat

Whole transactions that arrive together become one `Run`: row events of all of them are decoded together by shape
(`row_events`), and arrays describe the transactions. Rare events (statements, savepoints, XA) are processed one by one.
A transaction that is not complete yet waits as bytes; past `spool_bytes_max` it goes into a spool, so memory does not
depend on its size.

The order is that of the log, and a transaction's number (`xid`) is the coordinate of its commit: a number composed of
file and byte. A position is only ever reported between two transactions (hard case M11).

Transactions that were delivered before are skipped: through a coordinate, if the server is the one that the position is
from, and by GTID (M12). While XA transactions are prepared, a restart reads again from before the oldest of them
(`BinlogPosition.xa`), holds its rows again and skips all other transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
import pyarrow as pa

from cdcflow.capture.interleave.messages import Committed, MarkSeen, RowsIncomplete
from cdcflow.capture.ports.log import OpenSpool
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import InvariantViolated
from cdcflow.model.change import Int64s, KeySet, Run, Uint64s
from cdcflow.model.position import Position, Token
from cdcflow.model.table import TableId
from cdcflow.sources.engine.buffers import Bools
from cdcflow.sources.engine.changes import Truncate, number_rows, split_at_marks
from cdcflow.sources.mysql.compressed import EXPANDED_BYTES_MAX, expand
from cdcflow.sources.mysql.ddl import Statements
from cdcflow.sources.mysql.decoders import COMPILED, Compiled
from cdcflow.sources.mysql.effects import Effects
from cdcflow.sources.mysql.errors import history_lost
from cdcflow.sources.mysql.event_samples import EventSamples
from cdcflow.sources.mysql.events import IS_ROWS, EventType, Xid, check_types, prepared_xid
from cdcflow.sources.mysql.gtids import Flavor, Gtids, GtidSet, MysqlGtids, gtid_set, tag_of
from cdcflow.sources.mysql.position import BinlogFile, BinlogPosition, Coordinate, StreamProgress, began_text
from cdcflow.sources.mysql.row_events import HEARTBEAT, Marks, RowEvents
from cdcflow.sources.mysql.statements import Rollback, Savepoint, Statement, XaEnd
from cdcflow.sources.mysql.tables import Tables
from cdcflow.sources.mysql.transactions import (
    Groups,
    Large,
    Openers,
    PreparedTransaction,
    first_end,
    groups_of,
    keys_by_table,
    may_end,
    openers_of,
    xa_groups,
)
from cdcflow.sources.mysql.wire import Events, joined_events

OnGtids = Callable[[Uint64s, Gtids], None]
"""Called with the coordinates and GTIDs of transactions with rows, just before they are delivered."""

_IS_HEARTBEAT = (EventType.HEARTBEAT, EventType.HEARTBEAT_V2)


@dataclass(slots=True)
class _Open:
    """A transaction whose rows go into a spool until its end is known: a large one, or an XA transaction."""

    openers: Openers
    delivered: bool
    again: BinlogPosition
    large: Large


class BinlogDecoder:
    """Decodes one connection's events; a new connection needs a new decoder.

    `position` is where cdcflow's log ends; events start at `position.start`. `by_gtid`: the server sends the
    transactions that are not in the GTIDs of `position`, whose file and byte are those of another server. `samples`
    gets row events for a second opinion. `progress.expect` may be called by any thread, everything else by only one.
    """

    def __init__(
        self,
        *,
        flavor: Flavor,
        position: BinlogPosition,
        tables: Tables,
        marks: Marks,
        open_spool: OpenSpool,
        spool_bytes_max: int,
        by_gtid: bool = False,
        on_gtids: OnGtids | None = None,
        expanded_bytes_max: int = EXPANDED_BYTES_MAX,
        compiled: Compiled | None = COMPILED,
        samples: EventSamples | None = None,
    ) -> None:
        self.progress = StreamProgress(position, by_gtid=by_gtid)
        self._flavor: Flavor = flavor
        self._open_spool = open_spool
        self._spool_bytes_max = spool_bytes_max
        self._expanded_bytes_max = expanded_bytes_max
        self._on_gtids = on_gtids
        self._rows = RowEvents(tables, marks, compiled, samples, flavor=flavor)
        self._statements = Statements(tables, self._rows)
        self._gtids: GtidSet = gtid_set(flavor, position.gtids)
        self._before = gtid_set(flavor, position.gtids) if by_gtid and flavor == "mariadb" and position.xa else None
        self._xa = position.xa
        self._held: dict[Xid, PreparedTransaction] = {}
        self._waiting: list[Events] = []
        self._waiting_bytes = 0
        self._open: _Open | None = None
        self._incomplete: list[dict[TableId, KeySet]] = []

    @property
    def idle(self) -> bool:
        """Whether no transaction is partly received."""
        return not self._waiting and self._open is None

    def close(self) -> None:
        """Discard partly received transactions and their spools, because the connection is gone. The next connection
        receives them again."""
        if self._open is not None:
            self._open.large.discard()
        for held in self._held.values():
            held.large.discard()
        self._open, self._held, self._waiting, self._waiting_bytes = None, {}, [], 0

    # ── files and parts ─────────────────────────────────────────────────────────────────────────────────────

    def rotate(self, file: BinlogFile, pos: int) -> list[StreamEvent]:
        """Begin a file: the events that follow are in it, starting at this byte. Table ids start over (hard
        case M13)."""
        if not self.idle:
            raise InvariantViolated(
                f"the binary log continues in file {file} inside a transaction", runbook="stream-not-understood"
            )
        self._rows.begin_file(file)
        self.progress.enter_file(file)
        return self.progress.advance(pos, self._gtids.text(), self._held_text(), known=False)

    def file_began(self, seconds: int) -> None:
        """Note the time (seconds since 1970) at which the server created the current file."""
        self.progress.began = seconds

    def decode(self, events: Events) -> list[StreamEvent]:
        """Decode events of one file, and return the stream events that they complete. ROTATE and FORMAT_DESCRIPTION
        events must not be passed here.

        Raises:
            SourceUnavailable: bytes that the format does not allow; nothing was lost, connect again.
            ConfigurationError: an event, a statement or a value that must not occur; the message names it.
            HistoryLost: rows of a captured table changed in a way that the log does not contain.
            InvariantViolated: events out of order, or rows of an unknown table.
        """
        out: list[StreamEvent] = []
        before = self.progress.last
        for part in expand(check_types(events, self._flavor), self._expanded_bytes_max):
            for piece in self._by_begin(check_types(part, self._flavor)):  # events in a payload are checked here
                out += self._part(piece)
        # The requests to read again come first, so that no position after their statement becomes durable without them.
        again: list[StreamEvent] = [*self._statements.refused_tables(before), *self._statements.filled_tables(before)]
        again += [
            RowsIncomplete(table, keys, before) for by_table in self._incomplete for table, keys in by_table.items()
        ]
        self._incomplete = []
        return [*again, *out]

    def _by_begin(self, events: Events) -> Iterator[Events]:
        """Split these events where new tables begin (see `lives`), which is always between transactions."""
        while len(events) and (due := self._statements.next_begin) is not None:
            first = int(np.searchsorted(self.progress.base | events.reach, due.value, side="right"))
            if first == len(events):
                break
            if first:
                yield events.part(0, first)
            self._statements.begin(due)
            events = events.part(first, len(events))
        yield events

    def _part(self, events: Events) -> list[StreamEvent]:
        if not len(events):
            return []
        if self._open is not None:
            return self._continue(events, self._open)
        if self._waiting:
            end = may_end(events)
            if end is None:
                return self._wait(events)
            # Only events that may complete the open transaction are joined with it: the rest is not copied.
            whole = joined_events([*self._waiting, events.part(0, end + 1)])
            self._waiting, self._waiting_bytes = [], 0
            return self._part(whole) + self._part(events.part(end + 1, len(events)))
        groups, stop = groups_of(events, self._flavor)
        out: list[StreamEvent] = []
        begin = first = 0
        for number in xa_groups(events, groups):
            a, b = int(groups.opener[number]), int(groups.ender[number]) + 1
            out += self._whole(events.part(begin, a), groups.part(first, number, begin))
            out += self._open_transaction(events.part(a, b))
            begin, first = b, number + 1
        out += self._whole(events.part(begin, stop), groups.part(first, len(groups), begin))
        return out + (self._wait(events.part(stop, len(events))) if stop < len(events) else [])

    def _wait(self, events: Events) -> list[StreamEvent]:
        """Keep an open transaction's events; if they exceed `spool_bytes_max`, decode them into a spool."""
        self._waiting.append(events.copy())
        self._waiting_bytes += events.bytes
        # A transaction without rows so far may turn out to be a single statement.
        if self._waiting_bytes <= self._spool_bytes_max or not any(IS_ROWS[w.type].any() for w in self._waiting):
            return []
        events = joined_events(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        return self._open_transaction(events)

    def _delivered_before(self, openers: Openers, coordinates: Int64s) -> Bools:
        """Return which of these transactions were delivered before, by coordinate and by GTID."""
        out: Bools = coordinates <= self.progress.skip_until.value
        known = self._before
        if isinstance(self._gtids, MysqlGtids):
            run = openers.gtids.run
            if run is not None and self._gtids.is_beyond(*run):
                return out
            known = self._gtids
        if known is not None:
            for at in np.flatnonzero(~out).tolist():
                found = openers.gtids.gtid_at(at)
                out[at] = found is not None and known.contains(*found)
        return out

    def _held_text(self) -> str:
        """Return the last part of a position's text: where the oldest held XA transaction begins, and when the file
        began."""
        began = began_text(self.progress.began)
        for held in self._held.values():
            return f";xa={held.again.file}:{held.again.pos};{held.again.gtids}{began}"
        return began

    # ── transactions that are completely received ───────────────────────────────────────────────────────────────

    def _whole(self, events: Events, groups: Groups) -> list[StreamEvent]:
        if not len(groups):
            return self._trailing(events, self._gtids.text()) if len(events) else []
        coordinates = self.progress.base | events.reach[groups.ender]
        delivered = self._delivered_before(groups.openers, coordinates)
        use, truncates, filling = self._statements.walk(events, groups, delivered)
        found = self._rows.decode(events, use)
        if found.incomplete:
            self._incomplete.append(keys_by_table((i.table, i.keys) for i in found.incomplete))
        batches, rows_before = number_rows(found.changes, truncates, len(events))
        row_ends = rows_before[groups.ender + 1]
        full = np.flatnonzero(np.diff(row_ends, prepend=0) > 0)
        marks = self._marks(events, groups, coordinates, found.tokens)
        wanted = sorted({*full.tolist(), *(k for k, _ in marks if k >= 0), len(groups) - 1})
        spelled = dict(zip(wanted, self._gtids.texts(groups.openers.gtids, np.array(wanted)), strict=True))
        held, file, reach = self._held_text(), self.progress.file.name, events.reach[groups.ender].tolist()
        text = {k: f"{file}:{reach[k]};{spelled[k]}{held}" for k in wanted}
        run = Run(
            coordinates[full].astype(np.uint64),
            pa.array([text[k] for k in full.tolist()], pa.string()),
            groups.openers.commit_ts[full],
            row_ends[full],
            tuple(batches),
            origin=_origins(groups, found.purges, full),
        )
        self._note_gtids(coordinates, groups.openers.gtids, sorted({*full.tolist(), *filling}))
        self._statements.add_effects(Effects(xids=tuple(coordinates[filling].tolist())))
        seen = []
        for number, token in marks:
            commit_ts = int(groups.openers.commit_ts[number]) if number >= 0 else self.progress.commit_ts
            position = Position(text[number]) if number in text else self.progress.last
            seen.append((number, MarkSeen(Token(token), position, commit_ts)))
        out = split_at_marks(run, full, seen)
        covered = max([*full[-1:].tolist(), *(number for number, _ in marks)], default=-1)
        if covered >= 0:
            self.progress.record_delivery(
                Position(text[covered]), Coordinate(int(coordinates[covered])), int(groups.openers.commit_ts[covered])
            )
        return out + self._trailing(events, spelled[len(groups) - 1], int(groups.openers.commit_ts[-1]))

    def _note_gtids(self, coordinates: Int64s, gtids: Gtids, these: list[int]) -> None:
        """Report the GTIDs of these transactions, which reads of tables have to see."""
        if these and self._on_gtids is not None:
            chosen = Gtids(gtids.sources, gtids.which[these], gtids.number[these])
            self._on_gtids(coordinates[these].astype(np.uint64), chosen)

    def _trailing(self, events: Events, gtids: str, commit_ts: int = 0) -> list[StreamEvent]:
        """Return the progress through events that end outside a transaction; the last transaction was committed at
        `commit_ts`."""
        known = int(events.type[-1]) in _IS_HEARTBEAT or bool(np.isin(events.type, _ENDS).any())
        reach = int(events.reach[-1])
        return self.progress.advance(reach, gtids, self._held_text(), known=known, commit_ts=commit_ts)

    def _marks(
        self, events: Events, groups: Groups, coordinates: Int64s, tokens: list[tuple[int, str]]
    ) -> list[tuple[int, str]]:
        """Return marks, each with the number of the last transaction before it (-1: before all of these)."""
        written = [(groups.of(at), token) for at, token in tokens if not token.startswith(HEARTBEAT)]
        expected = [
            (int(np.searchsorted(coordinates, coordinate.value, side="right")) - 1, token.text)
            for token, coordinate in self.progress.take_marks(self.progress.coordinate_at(int(events.reach[-1])))
        ]
        return sorted([*written, *expected], key=itemgetter(0))  # marks at one position: in the order of requests

    # ── transactions that go into a spool ───────────────────────────────────────────────────────────────────

    def _open_transaction(self, events: Events) -> list[StreamEvent]:
        """Open the transaction that begins with the first of these events, and decode what has arrived of it."""
        if self._statements.next_begin is not None:
            # An XA transaction may be committed after the places where new tables begin, so its rows are decoded as if
            # no table were new.
            self._statements.begin(None)
        openers = openers_of(events, np.zeros(1, np.int64))
        delivered = bool(self._delivered_before(openers, self.progress.base | events.reach[:1])[0])
        again = BinlogPosition(self.progress.file, self.progress.pos, self._gtids.text())
        self._open = _Open(openers, delivered, self._xa if delivered and self._xa else again, Large())
        return self._continue(events.part(1, len(events)), self._open)

    def _continue(self, events: Events, now: _Open) -> list[StreamEvent]:
        end, said = first_end(events, self._flavor)
        stop = len(events) if end is None else end
        self._piece(events.part(0, stop), [(at, s) for at, s in said if at < stop], now)
        if end is None:
            return []
        self._open = None
        out = self._end(events.part(end, end + 1), said[-1][1] if said and said[-1][0] == end else None, now)
        return out + self._part(events.part(end + 1, len(events)))

    def _piece(self, events: Events, said: list[tuple[int, Statement]], now: _Open) -> None:
        """Decode one piece of a transaction into its spool."""
        earlier = self._statements.take_effects()
        self._decode_piece(events, said, now)
        now.large.effects.add(self._statements.take_effects())
        self._statements.add_effects(earlier)

    def _decode_piece(self, events: Events, said: list[tuple[int, Statement]], now: _Open) -> None:
        self._rows.begin()
        segment = np.zeros(len(events), np.uint64)
        truncates: list[Truncate] = []
        begin = 0
        for at, statement in said:
            self._rows.learn(events, begin, at)
            segment[begin:] = now.large.segment
            begin = at
            match statement:
                case Savepoint(name, to=False):
                    now.large.save(name)
                case Savepoint(name):
                    now.large.take_back(name)
                case _:
                    truncates += self._statements.take(statement, at, delivered=now.delivered)
                    if now.delivered:
                        self._statements.note_again(statement)
        self._rows.learn(events, begin, len(events))
        segment[begin:] = now.large.segment
        if now.delivered and self._xa is None:
            return
        found = self._rows.decode(events, np.ones(len(events), np.bool_))
        batches, rows_before = number_rows(found.changes, truncates, len(events))
        now.large.tokens += [] if now.delivered else [t for _, t in found.tokens if not t.startswith(HEARTBEAT)]
        now.large.incomplete += [(i, segment[i.event]) for i in found.incomplete]
        now.large.purges += [(int(segment[at]), name) for at, name in found.purges]
        now.large.write(self._open_spool, batches, np.repeat(segment, np.diff(rows_before)))

    def _end(self, events: Events, statement: Statement | None, now: _Open) -> list[StreamEvent]:
        """End a transaction: its last event decides what happens to its rows."""
        for table in now.large.taken_back if not isinstance(statement, Rollback) else now.large.tables:
            self._statements.check_transactional(table)
        pos = int(events.reach[0])
        [gtids] = self._gtids.texts(now.openers.gtids, np.zeros(1, np.int64))
        coordinate, commit_ts = self.progress.coordinate_at(pos), int(now.openers.commit_ts[0])
        committed: PreparedTransaction | Large | None = None if now.delivered else now.large
        if events.type[0] == EventType.XA_PREPARE and not (prepared := prepared_xid(events.event_at(0)))[1]:
            self._held[prepared[0]] = PreparedTransaction(now.large, now.again)
            committed = None
        elif isinstance(statement, XaEnd):
            committed = self._decide_xa(statement, delivered=now.delivered)
        elif isinstance(statement, Rollback) or now.delivered:
            now.large.discard()
            committed = None
        position = self.progress.position_at(pos, gtids, self._held_text())
        origin = committed.purge() or tag_of(now.openers.gtids, 0) if committed is not None else None
        found = committed.commit(coordinate.value, position, commit_ts, origin) if committed is not None else None
        out: list[StreamEvent] = []
        if committed is not None:
            # Only now: a table that was read again before the end of a prepared transaction lacks what that changed.
            effects = committed.effects
            self._statements.add_effects(replace(effects, xids=(coordinate.value,) if effects.filled else ()))
            if found is not None or effects.filled:
                self._note_gtids(np.array([coordinate.value]), now.openers.gtids, [0])
        if found is not None and committed is not None:
            self._incomplete.append(committed.incomplete_keys())
            out.append(Committed(found))
        tokens = now.large.tokens if committed is now.large else []
        out += [MarkSeen(Token(token), position, commit_ts) for token in tokens]
        if out:
            self.progress.record_delivery(position, coordinate, commit_ts)
        return out + self.progress.advance(pos, gtids, self._held_text(), known=True, commit_ts=commit_ts)

    def _decide_xa(self, end: XaEnd, *, delivered: bool) -> PreparedTransaction | None:
        """Return the held transaction that XA COMMIT or XA ROLLBACK refers to; None if nothing is to be delivered.

        Raises:
            HistoryLost: the transaction was prepared before the position where cdcflow began to read.
        """
        held = self._held.pop(end.xid, None)
        if held is not None and end.commit and not delivered:
            return held
        if held is not None:
            held.large.discard()
        elif end.commit and not delivered:
            raise history_lost(
                "an XA transaction was committed that was prepared before the position where cdcflow began to "
                "read the binary log, so its rows are unknown (XA RECOVER shows what is prepared)",
                runbook="xa-prepared",
            )
        return None


def _origins(groups: Groups, purges: list[tuple[int, str]], full: Int64s) -> pa.Array | None:
    """Return each transaction's origin: the name in its last purge mark, or the tag of its GTID; None if none
    has one."""
    gtids = groups.openers.gtids
    if not purges and not gtids.has_tags:
        return None
    names = {groups.of(at): name for at, name in sorted(purges)}
    return pa.array([names.get(number) or tag_of(gtids, number) for number in full.tolist()], pa.string())


_ENDS = (EventType.XID, EventType.QUERY, EventType.EXECUTE_LOAD_QUERY, EventType.XA_PREPARE)
