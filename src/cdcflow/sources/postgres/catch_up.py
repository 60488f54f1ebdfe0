"""Reads a large backlog in windows, through SQL; then the stream, near the log's end (docs/decisions/0007).

    slot ──copied──▶ temporary slot ──a window──▶ decoder ──▶ events … durable ──▶ the slot is advanced
                            └─────────the next window──▶ …                  near the log's end: the stream

The slot itself is advanced, on a separate connection, only to a position that is durable in the change log. So a crash
at any step causes at most some repetition: the copy ends with its session, the slot is still at a position that the
change log had reached earlier, and transactions delivered since are skipped, as after any restart (L15). A window has
the messages that the stream would have, and the same decoder decodes them.

`pg_logical_slot_get_binary_changes` checks both of its bounds at commits only, so a window holds whole transactions,
and the server keeps all of it in a temporary file until the last one is decoded. A large transaction would be a file of
its size. Nothing announces it in advance; but the server reports how much it spills while it decodes (`SpillWatch`),
which happens before the commit, and so before the file. Then the window is cancelled, and the stream, which follows,
needs no such file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import pq

from cdcflow.capture.interleave.messages import Advanced
from cdcflow.capture.ports.stream import Stream, StreamEvent
from cdcflow.errors import CdcflowError
from cdcflow.model.position import Position
from cdcflow.sources.postgres.connection import Connection, Connector, has_no_encoding, literal, mapping_errors
from cdcflow.sources.postgres.copy_reader import CopyReader, error_of
from cdcflow.sources.postgres.lsn import Lsn, lsn_of, position_of
from cdcflow.sources.postgres.stream import (
    BYTES_MAX,
    MESSAGES_MAX,
    CheckSlot,
    MakeDecoder,
    NeedsText,
    map_stream_error,
    plugin_options,
    position_after,
)
from cdcflow.sources.postgres.unconvertible import SQLSTATES

_BACKLOG = (
    "SELECT restart_lsn::text, confirmed_flush_lsn::text, pg_catalog.pg_current_wal_flush_lsn()::text "
    "FROM pg_catalog.pg_replication_slots WHERE slot_name = "
)
_SPILLED = "SELECT spill_bytes::text FROM pg_catalog.pg_stat_replication_slots WHERE slot_name = "
_NO_ROOM = (psycopg.errors.ConfigurationLimitExceeded, psycopg.errors.DiskFull)
_NAME_BYTES_MAX = 63
CANCEL_WAIT_S = 5.0

_SKIPPED = 4
"""A window is worth it if the server reads at most this many bytes again for each byte of the window: that takes less
time than the window saves (0007)."""


@dataclass(frozen=True, slots=True)
class Windows:
    """When windows are worth it, and how large they are; bytes are those of the server's log.

    Windows begin with a backlog of `backlog_min` and end when less than `rest_min` is left. `bytes_min`: a window's
    length if the server need not read much again for it; otherwise it is as long as the range read again, up to
    `bytes_max`. `advance_min`: how much must be durable before the slot is advanced. `spill_max`: if the server has
    written more than this to spill files, for transactions that it has not sent yet (on top of
    `logical_decoding_work_mem`), then one of them is large.
    """

    backlog_min: int = 32 << 20
    rest_min: int = 4 << 20
    bytes_min: int = 128 << 20
    bytes_max: int = 256 << 20
    messages_max: int = 2_000_000
    advance_min: int = 64 << 20
    spill_max: int = 64 << 20


@dataclass(frozen=True, slots=True)
class SlotBacklog:
    """A slot's position, and the end of the server's log."""

    restart: Lsn
    confirmed: Lsn
    end: Lsn

    def pays(self, windows: Windows) -> bool:
        """Whether it is worth beginning with windows."""
        return self.end - self.confirmed >= windows.backlog_min and self.goes_on(windows)

    def goes_on(self, windows: Windows) -> bool:
        """Whether it is worth requesting one more window."""
        length = self.length(windows)
        return length >= windows.rest_min and self._again <= _SKIPPED * length

    def length(self, windows: Windows) -> int:
        """Return the length of the next window, in bytes of the log."""
        return min(max(windows.bytes_min, self._again), windows.bytes_max, self.end - self.confirmed)

    @property
    def _again(self) -> int:
        """How many bytes of log before the next window the server has to read again."""
        return self.confirmed - self.restart


class CatchingUp:
    """Implements `cdcflow.ports.Stream` for a `backlog` that is worth windows.

    `open_stream` opens the stream that follows the windows, from a delivered position, an acknowledged one, and whether
    to request binary values. Raises the same errors as `PostgresStream`.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        slot: str,
        publication: str,
        position: Lsn,
        binary: bool,
        make_decoder: MakeDecoder,
        check_slot: CheckSlot,
        open_stream: Callable[[Lsn, Lsn, bool], Stream],
        windows: Windows,
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
        self._more = self._leaving = False
        self.windows = 0
        self._advance = Advance(connector, slot, position, windows.advance_min)
        self._spills = SpillWatch(connector, windows.spill_max)
        with self._mapping_errors():
            self._begin()

    # ── cdcflow.ports.Stream ────────────────────────────────────────────────────────────────────────────────

    def fileno(self) -> int:
        if self._stream is not None:
            return self._stream.fileno()
        return self._advance.fileno() if self._leaving else self._pg.socket

    @property
    def ready(self) -> bool:
        if self._stream is not None:
            return self._stream.ready
        return self._more or (self._leaving and not self._advance.is_under_way)

    def poll(self) -> Sequence[StreamEvent]:
        if self._stream is not None:
            return self._stream.poll()
        with self._mapping_errors():
            if not self._leaving:
                self._advance.go_on(self._acknowledged)
                return self._window()
            if self._advance.is_done():
                self._change_over()
        return []

    def acknowledge(self, position: Position) -> None:
        self._acknowledged = max(self._acknowledged, lsn_of(position))
        if self._stream is not None:
            self._stream.acknowledge(position)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            return
        if not self._leaving:
            self._decoder.close()
        self._disconnect()

    # ── beginning and ending ────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        """Copy the slot and request the first window. If the server has no room for a copy, change over to the
        stream."""
        self._connection = self._connector.connect("catch-up", idle_in_transaction_session_timeout="0")
        self._pg = self._connection.pgconn
        suffix = f"_catch_up_{self._pg.backend_pid}"
        self._copy = self._slot[: _NAME_BYTES_MAX - len(suffix)] + suffix
        try:
            self._connection.execute(
                "SELECT pg_catalog.pg_copy_logical_replication_slot(%s, %s, temporary => true)",
                (self._slot, self._copy),
            )
        except psycopg.errors.ConfigurationLimitExceeded:
            self._leaving = True
            return
        backlog = backlog_of(self._connection, self._copy)
        if backlog.confirmed > self._delivered:
            self._check_slot(self._delivered)
        if has_no_encoding(self._connection):
            self._connection.execute("SET client_encoding = 'SQL_ASCII'")
        self._ask(backlog)

    def _begin_again_in_text(self) -> None:
        self._connector.discard(self._connection)
        self._decoder.close()
        self._binary = False
        self._begin()

    def _disconnect(self) -> None:
        self._connector.discard(self._connection)
        self._advance.close()
        self._spills.close()

    def _change_over(self) -> None:
        self._disconnect()
        self._stream = self._open_stream(self._delivered, self._acknowledged, self._binary)

    # ── a window ────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, backlog: SlotBacklog) -> None:
        """Request a window, and the slot's position after it."""
        self._upto = backlog.confirmed + backlog.length(self._limits)
        options = plugin_options(
            self._connection.info.server_version, self._publication, binary=self._binary, streaming=False
        )
        listed = ", ".join(literal(word) for option in options.items() for word in option)
        bounds = f"{literal(self._copy)}, {literal(str(self._upto))}, {self._limits.messages_max}"
        window = f"SELECT data FROM pg_catalog.pg_logical_slot_get_binary_changes({bounds}, {listed})"  # noqa: S608  quoted
        self._pg.send_query(f"COPY ({window}) TO STDOUT (FORMAT binary); {_BACKLOG}{literal(self._copy)}".encode())
        self._spills.begin(self._copy)
        self._reader: CopyReader | None = None
        self._decoder = self._make_decoder(self._delivered, self._binary)
        self._messages = 0
        self._more = False

    def _window(self) -> list[StreamEvent]:
        """Return the events of a window that have arrived. If the server has no room for the window, or cannot convert
        a text in it, change over to the stream."""
        try:
            return self._read()
        except psycopg.Error as error:
            if not isinstance(error, _NO_ROOM) and error.sqlstate not in SQLSTATES:
                raise
            # The server keeps a window's changes in a temporary file until it sends them, and a window has whole
            # transactions. The stream needs no such file, so neither temp_file_limit nor a full disk stops it. A text
            # that cannot be converted ends the stream, too, but after the transactions before it, and with its table.
            self._decoder.close()
            self._leaving = True
            return []

    def _read(self) -> list[StreamEvent]:
        if self._reader is None:
            self._pg.consume_input()
            if self._pg.is_busy():
                if self._spills.is_too_much():
                    self._break_off()
                return []
            result = self._pg.get_result()
            if result is None or result.status != pq.ExecStatus.COPY_OUT:
                raise error_of(result)
            self._reader = CopyReader(self._pg, "window")
        taken = self._reader.take(BYTES_MAX, MESSAGES_MAX)
        self._more = taken.more
        self._messages += len(taken.messages)
        try:
            events = self._decoder.decode(taken.messages) if len(taken.messages) else []
        except NeedsText:
            filled = self._decoder.take_filled()
            self._begin_again_in_text()
            return [*filled]
        if events:
            self._delivered = max(self._delivered, lsn_of(position_after(events[-1])))
        if taken.ended:
            events += self._end_window()
        return events

    def _break_off(self) -> None:
        """Cancel a window before any of its changes was delivered, and change over to the stream. The slot's copy ends
        with its connection."""
        # The server keeps decoding, and writing its file, until it is cancelled: it does not notice a closed socket.
        with contextlib.suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=CANCEL_WAIT_S)
        self._decoder.close()
        self._leaving = True

    def _end_window(self) -> list[StreamEvent]:
        """End a window that has arrived completely, and request the next one or change over to the stream.

        If the window ended at its bound, not because it was full, return an event that the position has reached that
        bound: no captured change is left before it.
        """
        backlog = _backlog_in(_last_result(self._pg))
        self._decoder.close()
        self.windows += 1
        events: list[StreamEvent] = []
        if self._messages < self._limits.messages_max and self._upto > self._delivered:
            self._delivered = self._upto
            events.append(Advanced(position_of(self._upto)))
        if backlog.goes_on(self._limits):
            self._ask(backlog)
        else:
            self._leaving = True
        return events

    @contextlib.contextmanager
    def _mapping_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise map_stream_error(error, f"catching up with slot {self._slot}", self._publication) from None


class Advance:
    """Moves the slot to the durable position, `minimum` bytes or more at a time, without waiting for the server.

    Whether the slot still exists, and no other process moved it, is checked when the stream begins. Until then the
    temporary copy of the slot has every change. Raises psycopg.Error if the server refuses, or the connection is lost.
    """

    def __init__(self, connector: Connector, slot: str, position: Lsn, minimum: int) -> None:
        self._connector = connector
        self._slot = slot
        self._asked = position
        self._minimum = minimum
        self._connection: Connection | None = None
        self.is_under_way = False

    def go_on(self, durable: Lsn) -> None:
        """Request the next range if it is long enough and no request is running."""
        if self.is_done() and durable - self._asked >= self._minimum:
            self._ask(durable)

    def is_done(self) -> bool:
        """Whether no request is running."""
        if self.is_under_way:
            self._pg.consume_input()
            if self._pg.is_busy():
                return False
            # The connection of a daemon that died may hold the slot until the server notices (P46). A later request
            # then moves it.
            with contextlib.suppress(psycopg.errors.ObjectInUse):
                _last_result(self._pg)
            self.is_under_way = False
        return True

    def fileno(self) -> int:
        """Return a descriptor that is readable when the running request may have ended. Valid while one runs."""
        return self._pg.socket

    def close(self) -> None:
        if self._connection is not None:
            self._connector.discard(self._connection)

    @property
    def _pg(self) -> pq.abc.PGconn:
        if self._connection is None:
            self._connection = self._connector.connect("catch-up", idle_in_transaction_session_timeout="0")
        return self._connection.pgconn

    def _ask(self, durable: Lsn) -> None:
        """Request that the slot move to `durable`. A slot that is at or after that position does not move."""
        name, reached = literal(self._slot), literal(str(durable))
        advance = (
            f"SELECT pg_catalog.pg_replication_slot_advance(slot_name, {reached}) "  # noqa: S608  quoted
            f"FROM pg_catalog.pg_replication_slots WHERE slot_name = {name} AND confirmed_flush_lsn < {reached}"
        )
        self._pg.send_query(advance.encode())
        self._asked = durable
        self.is_under_way = True


class SpillWatch:
    """Polls, now and then, how many bytes of transactions the server has spilled for a window that it is decoding.

    It does not wait for the answers. If the server cannot be queried, nothing counts as spilled.
    """

    def __init__(self, connector: Connector, bytes_max: int) -> None:
        self._connector = connector
        self._bytes_max = bytes_max
        self._slot = ""
        self._seen = self._before = 0
        self._connection: Connection | None = None
        self._is_asking = self._is_away = False

    def begin(self, slot: str) -> None:
        """Start counting for a window of this slot that was requested."""
        if slot != self._slot:
            self._slot, self._seen = slot, 0  # the server counts for each slot
        self._before = self._seen

    def is_too_much(self) -> bool:
        """Whether the server had spilled too much as of its last answer. Sends the next query."""
        try:
            if not self._is_away:
                self._go_on()
        except (psycopg.Error, CdcflowError):
            self._is_away = True
        return self._seen - self._before > self._bytes_max

    def close(self) -> None:
        if self._connection is not None:
            self._connector.discard(self._connection)

    def _go_on(self) -> None:
        if self._connection is None:
            self._connection = self._connector.connect("catch-up")
        pg = self._connection.pgconn
        if self._is_asking:
            pg.consume_input()
            if pg.is_busy():
                return
            found = _last_result(pg)
            if found.ntuples:
                self._seen = int(found.get_value(0, 0) or b"0")
        pg.send_query(f"{_SPILLED}{literal(self._slot)}".encode())
        self._is_asking = True


def backlog_of(connection: Connection, slot: str) -> SlotBacklog:
    """Return the current positions of the slot and of the end of the server's log."""
    with mapping_errors(f"checking slot {slot}"):
        return _backlog_in(connection.pgconn.exec_(f"{_BACKLOG}{literal(slot)}".encode()))


def _last_result(pg: pq.abc.PGconn) -> pq.abc.PGresult:
    """Return the result of a query's last statement, and raise the error of any statement that failed. The connection
    is free for the next query in either case."""
    found: list[pq.abc.PGresult] = []
    while (result := pg.get_result()) is not None:
        found.append(result)
    for result in found:
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            raise psycopg.errors.error_from_result(result)
    if not found:
        raise psycopg.OperationalError("the server did not answer")
    return found[-1]


def _backlog_in(result: pq.abc.PGresult) -> SlotBacklog:
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise psycopg.errors.error_from_result(result)
    if not result.ntuples:
        raise psycopg.errors.UndefinedObject("replication slot does not exist")
    restart, confirmed, end = (Lsn.parse((result.get_value(0, column) or b"0/0").decode()) for column in range(3))
    return SlotBacklog(restart, confirmed, end)
