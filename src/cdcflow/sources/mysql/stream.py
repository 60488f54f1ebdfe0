"""The server's binary log as it arrives: bytes from the socket in bulk, cut and decoded in batches.

    server ──packet─packet─packet─heartbeat──▶  poll ──▶ packets ──▶ decoder ──▶ events

The client sends nothing after the command: the server keeps its log by age or size, not for its readers. So
acknowledging only remembers the position; `status` reports how much longer the server keeps the log that cdcflow still
needs.

After the command only this module reads from the socket. pymysql's own reader has nothing in its buffer, because all of
its earlier requests were answered. Under TLS, waiting for the socket misses bytes that TLS has read already; therefore
`poll` reads until nothing is left, or the stream is `ready`.

While a backlog arrives, another thread receives and decodes (`engine.decode_ahead`); then `fileno` and `ready` refer to
the results of that thread.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import Final

from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import CdcflowError, SourceUnavailable
from cdcflow.model.position import Position, Token
from cdcflow.sources.engine.buffers import PAD
from cdcflow.sources.engine.stream import BulkStream
from cdcflow.sources.mysql import wire
from cdcflow.sources.mysql.binlog import BinlogDecoder
from cdcflow.sources.mysql.connection import Connector
from cdcflow.sources.mysql.dump import Dump, Packets, ServerIdConflicts, begin, refusal_of
from cdcflow.sources.mysql.position import Coordinate
from cdcflow.sources.mysql.wire import SplitFunction, bytes_needed

BYTES_MAX: Final = 2 << 20
LINGER_S: Final = 0.004
NAP_S: Final = 0.0004
BUSY_BYTES_MIN: Final = 128 << 10
"""If a receive returned this many bytes, the next one waits briefly for more, and another thread decodes. A small
arrival never waits."""
SILENT_PERIODS: Final = 3
SETTLED_S: Final = 60.0

_PADDING = bytes(PAD)


class BinlogStream(BulkStream):
    """Implements `cdcflow.ports.Stream`. `decoder` must be new, and created for the dump's position. `conflicts` is the
    source's, and outlives the stream."""

    def __init__(
        self,
        connector: Connector,
        dump: Dump,
        decoder: BinlogDecoder,
        *,
        conflicts: ServerIdConflicts | None = None,
        split: SplitFunction = wire.split,
    ) -> None:
        self.acknowledged: Position | None = None
        self._connector = connector
        self._dump = dump
        self._decoder = decoder
        self._conflicts = conflicts or ServerIdConflicts()
        self._packets = Packets(decoder, flavor=dump.flavor, pos=dump.start[1], split=split)
        self._buffer = bytearray(BYTES_MAX)
        self._size = 0
        self._connection = connector.connect("stream")
        try:
            begin(self._connection, dump)
            self._socket: socket.socket = self._connection._sock  # see above
            self._socket.setblocking(False)
        except BaseException:
            connector.discard(self._connection)
            raise
        super().__init__()
        self._began_at = self._heard_at = time.monotonic()
        self._silent_s = 0.0

    # ── cdcflow.ports.Stream ────────────────────────────────────────────────────────────────────────────────

    @property
    def ready(self) -> bool:
        return super().ready or (not self._ahead.active and self._decoder.progress.due)

    def acknowledge(self, position: Position) -> None:
        self.acknowledged = position

    def expect(self, token: Token, coordinate: Coordinate) -> None:
        """Report this mark once everything through this coordinate was delivered; for marks that are not written. May
        be called by any thread."""
        self._decoder.progress.expect(token, coordinate)

    def expect_time(self, commit_ts: int, coordinate: Coordinate) -> None:
        """Report that the server had this time once everything through this coordinate was delivered. May be called by
        any thread."""
        self._decoder.progress.expect_time(commit_ts, coordinate)

    def _end(self) -> None:
        self._decoder.close()
        self._connector.discard(self._connection)

    # ── a turn ──────────────────────────────────────────────────────────────────────────────────────────────

    def _socket_number(self) -> int:
        return self._socket.fileno()

    def _receive(self) -> list[StreamEvent]:
        events = self._decoder.progress.passed_marks()
        self._receive_bytes()
        try:
            events += self._decode()
        except CdcflowError as failure:
            # The marks seen so far are reported first: they do not depend on a failure after them.
            self._failure = failure
        if self._failure is None:
            self._check_heard()
        return events

    # ── receiving ───────────────────────────────────────────────────────────────────────────────────────────

    def _receive_bytes(self) -> None:
        """Receive the bytes that have arrived, and more while they keep arriving, up to a bound."""
        linger = LINGER_S if self._is_backlog else 0.0
        received = 0
        self._more = False
        room = memoryview(self._roomy())
        try:
            while self._failure is None:
                if self._size == len(room):
                    self._more = True
                    break
                try:
                    got = self._socket.recv_into(room[self._size :])
                except (BlockingIOError, ssl.SSLWantReadError):
                    if linger <= 0:
                        break
                    time.sleep(NAP_S)
                    linger -= NAP_S
                    continue
                except OSError as error:
                    self._failure = self._connection_lost(error.strerror or type(error).__name__)
                    break
                if not got:
                    self._failure = self._connection_lost("the server closed it")
                    break
                self._size += got
                received += got
        finally:
            room.release()
        self._is_backlog = received >= BUSY_BYTES_MIN
        # The silence is measured here, after everything that had arrived was received: decoding may take longer than
        # the server may be silent.
        now = time.monotonic()
        if received:
            self._heard_at = now
        self._silent_s = now - self._heard_at

    def _roomy(self) -> bytearray:
        """Return the buffer, just large enough for the event that is arriving (hard case M28)."""
        needed = bytes_needed(self._buffer, self._size) if self._size else 0
        size = max(BYTES_MAX, needed)
        if len(self._buffer) < size or (len(self._buffer) > BYTES_MAX and size == BYTES_MAX >= self._size):
            self._buffer = self._buffer[: self._size] + bytearray(size - self._size)
        return self._buffer

    def _decode(self) -> list[StreamEvent]:
        if not self._size or self._size < bytes_needed(self._buffer, self._size):
            return []
        with memoryview(self._buffer) as view:
            data = b"".join((view[: self._size], _PADDING))
        events, taken = self._packets.take(data, self._size)
        left = self._size - taken
        self._buffer[:left] = data[taken : self._size]
        self._size = left
        if self._packets.refusal is not None:
            self._failure = refusal_of(self._packets.refusal, self._dump, self._conflicts, self._connector.account)
        return events

    def _check_heard(self) -> None:
        if self._silent_s > SILENT_PERIODS * self._dump.heartbeat_s and not self._more:
            self._failure = SourceUnavailable(
                f"reading the binary log of {self._connector.address}: silent for {self._silent_s:.0f} s, "
                f"although cdcflow asked for a heartbeat every {self._dump.heartbeat_s:g} s; connecting again"
            )
        if self._connector.leads_elsewhere:
            self._failure = SourceUnavailable(
                f"reading the binary log: {self._connector.address} now leads to another server; connecting again"
            )
        if time.monotonic() - self._began_at > SETTLED_S:
            self._conflicts.reset()

    def _connection_lost(self, why: str) -> CdcflowError:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        return SourceUnavailable(f"reading the binary log of {self._connector.address}: the connection is gone: {why}")
