"""A large backlog in windows, through SQL; then the stream, near the log's end.

A walsender gives a change at a time to the network and to its consumer's wake-ups. The same decoding, asked for as a
query, gives a window of changes through COPY, faster and at less cost to the server (docs/performance.md):

    slot ──peek a window──▶ decoder ──▶ events … durable ──▶ advance the slot ──▶ peek the next … ──▶ stream

Peeking moves nothing. The slot is advanced only to what is durable in our log, so a crash at any step repeats a window
at most, and what was delivered of it is left out as after any restart (L15). A window's messages are those of the
stream, in the same decoder.

The server reads its log again for each window, from the slot's `restart_lsn` on, which an open transaction holds back
(and every advance reads it too). Skipping what lies before the window is only about three times as fast as decoding it,
so windows pay while that stretch is no longer than they are (docs/decisions/0007); then the stream, which reads it
once, is the better way. Windows end as well when a window is not made durable in time: an open backfill window waits
for a mark that lies at the log's end.

`pg_logical_slot_peek_binary_changes` looks at both of its bounds at commits only, so a window holds whole transactions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import psycopg
from psycopg import pq

from cdcflow.interleave.messages import Advanced
from cdcflow.model.position import Position
from cdcflow.ports import Stream, StreamEvent
from cdcflow.sources.postgres.arrivals import Arrivals
from cdcflow.sources.postgres.connection import Connection, Connector, explaining, literal
from cdcflow.sources.postgres.lsn import lsn_of, position_of
from cdcflow.sources.postgres.stream import (
    BYTES_MAX,
    MESSAGES_MAX,
    CheckSlot,
    MakeDecoder,
    NeedsText,
    error_of,
    named,
    place_of,
    plugin_options,
)

_LOOK = (
    "SELECT restart_lsn::text, confirmed_flush_lsn::text, pg_catalog.pg_current_wal_flush_lsn()::text "
    "FROM pg_catalog.pg_replication_slots WHERE slot_name = "
)


@dataclass(frozen=True, slots=True)
class Windows:
    """When windows pay, and how large they are; bytes are those of the server's log.

    `again_max`: the stretch that the server may have to read again for each. `durable_wait_s`: how long a window's end
    may take to become durable.
    """

    backlog_min: int = 32 << 20
    bytes_max: int = 256 << 20
    messages_max: int = 2_000_000
    again_max: int = 256 << 20
    durable_wait_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Backlog:
    """Where a slot stands and where the server's log ends."""

    restart: int
    confirmed: int
    end: int

    def pays(self, windows: Windows) -> bool:
        ahead, again = self.end - self.confirmed, self.confirmed - self.restart
        return ahead >= windows.backlog_min and again <= min(ahead, windows.again_max)


class _State(Enum):
    WAITING = "for what was delivered to be durable"
    LOOKING = "at the backlog, after advancing the slot"
    READING = "a window"


class CatchingUp:
    """Implements `cdcflow.ports.Stream` for a `backlog` that pays. `open_stream` begins the stream after a delivered
    position, with an acknowledged one, and binary values or not.

    Raises what `PostgresStream` does.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        slot: str,
        publication: str,
        position: int,
        binary: bool,
        make_decoder: MakeDecoder,
        check_slot: CheckSlot,
        open_stream: Callable[[int, int, bool], Stream],
        windows: Windows,
        backlog: Backlog,
    ) -> None:
        self._connector = connector
        self._slot = slot
        self._publication = publication
        self._delivered = position
        self._acknowledged = position
        self._binary = binary
        self._make_decoder = make_decoder
        self._check_slot = check_slot
        self._open_stream = open_stream
        self._limits = windows
        self._stream: Stream | None = None
        self._more = False
        self.windows = 0
        self._connect()
        self._peek(backlog)

    # ── cdcflow.ports.Stream ────────────────────────────────────────────────────────────────────────────────

    def fileno(self) -> int:
        return self._pg.socket if self._stream is None else self._stream.fileno()

    @property
    def ready(self) -> bool:
        if self._stream is not None:
            return self._stream.ready
        return self._more or (self._state is _State.WAITING and self._acknowledged >= self._delivered)

    def poll(self) -> Sequence[StreamEvent]:
        if self._stream is not None:
            return self._stream.poll()
        try:
            match self._state:
                case _State.WAITING:
                    self._wait()
                    return []
                case _State.LOOKING:
                    self._look()
                    return []
                case _State.READING:
                    return self._read()
        except psycopg.Error as error:
            raise named(error, f"catching up with slot {self._slot}", self._publication) from None

    def acknowledge(self, position: Position) -> None:
        self._acknowledged = max(self._acknowledged, lsn_of(position))
        if self._stream is not None:
            self._stream.acknowledge(position)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            return
        self._decoder.close()
        self._connector.discard(self._connection)

    # ── between windows ─────────────────────────────────────────────────────────────────────────────────────

    def _connect(self) -> None:
        self._connection = self._connector.connect("catch-up", idle_in_transaction_session_timeout="0")
        self._pg = self._connection.pgconn

    def _wait(self) -> None:
        if self._acknowledged >= self._delivered:
            self._pg.send_query(f"{self._advance()}; {_LOOK}{literal(self._slot)}".encode())
            self._results: list[pq.abc.PGresult] = []
            self._state = _State.LOOKING
        elif time.monotonic() > self._deadline:
            self._change_over()

    def _look(self) -> None:
        self._pg.consume_input()
        while not self._pg.is_busy():
            result = self._pg.get_result()
            if result is None:
                backlog = _backlog_of(self._results[-1])
                if backlog.confirmed > self._acknowledged:
                    self._check_slot(self._acknowledged)
                if backlog.pays(self._limits):
                    self._peek(backlog)
                else:
                    self._change_over()
                return
            if result.status != pq.ExecStatus.TUPLES_OK:
                raise psycopg.errors.error_from_result(result)
            self._results.append(result)

    def _advance(self) -> str:
        """Moves the slot, or leaves it where it is; never beyond what is durable."""
        name, reached = literal(self._slot), literal(position_of(self._acknowledged))
        return (
            f"SELECT pg_catalog.pg_replication_slot_advance(slot_name, {reached}) "  # noqa: S608  quoted
            f"FROM pg_catalog.pg_replication_slots WHERE slot_name = {name} AND confirmed_flush_lsn < {reached}"
        )

    def _change_over(self) -> None:
        self._connector.discard(self._connection)
        self._stream = self._open_stream(self._delivered, self._acknowledged, self._binary)

    # ── a window ────────────────────────────────────────────────────────────────────────────────────────────

    def _peek(self, backlog: Backlog) -> None:
        self._upto = min(backlog.confirmed + self._limits.bytes_max, backlog.end)
        options = plugin_options(
            self._connection.info.server_version, self._publication, binary=self._binary, streaming=False
        )
        listed = ", ".join(literal(word) for option in options.items() for word in option)
        bounds = f"{literal(self._slot)}, {literal(position_of(self._upto))}, {self._limits.messages_max}"
        peek = f"SELECT data FROM pg_catalog.pg_logical_slot_peek_binary_changes({bounds}, {listed})"  # noqa: S608  quoted
        self._pg.send_query(f"COPY ({peek}) TO STDOUT (FORMAT binary)".encode())
        self._arrivals: Arrivals | None = None
        self._decoder = self._make_decoder(self._delivered, self._binary)
        self._messages = 0
        self._more = False
        self._state = _State.READING

    def _read(self) -> list[StreamEvent]:
        if self._arrivals is None:
            self._pg.consume_input()
            if self._pg.is_busy():
                return []
            result = self._pg.get_result()
            if result is None or result.status != pq.ExecStatus.COPY_OUT:
                raise error_of(result)
            self._arrivals = Arrivals(self._pg, "peeked")
        taken = self._arrivals.take(BYTES_MAX, MESSAGES_MAX)
        self._more = taken.more
        self._messages += len(taken.messages)
        try:
            events = self._decoder.decode(taken.messages) if len(taken.messages) else []
        except NeedsText:
            self._begin_again_in_text()
            return []
        if events:
            self._delivered = max(self._delivered, lsn_of(place_of(events[-1])))
        if taken.ended:
            events += self._ended()
        return events

    def _ended(self) -> list[StreamEvent]:
        """The window is whole. When it did not end because it was full, nothing of ours is left up to its bound."""
        while (result := self._pg.get_result()) is not None:
            if result.status != pq.ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(result)
        self._decoder.close()
        self.windows += 1
        self._state = _State.WAITING
        self._deadline = time.monotonic() + self._limits.durable_wait_s
        if self._messages >= self._limits.messages_max or self._upto <= self._delivered:
            return []
        self._delivered = self._upto
        return [Advanced(position_of(self._upto))]

    def _begin_again_in_text(self) -> None:
        self._connector.discard(self._connection)
        self._decoder.close()
        self._binary = False
        self._connect()
        self._peek(look(self._connection, self._slot))


def look(connection: Connection, slot: str) -> Backlog:
    """Where the slot and the server's log stand now."""
    with explaining(f"looking at slot {slot}"):
        return _backlog_of(connection.pgconn.exec_(f"{_LOOK}{literal(slot)}".encode()))


def _backlog_of(result: pq.abc.PGresult) -> Backlog:
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    if not result.ntuples:
        raise psycopg.errors.UndefinedObject("replication slot does not exist")
    restart, confirmed, end = (lsn_of((result.get_value(0, column) or b"0/0").decode()) for column in range(3))
    return Backlog(restart, confirmed, end)
