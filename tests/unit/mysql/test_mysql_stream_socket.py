"""The stream over a socket whose other end is the test: what arrives when, and what ends it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.mysql.binlog_bytes import Log, TestColumn, TestTable, packet, simple
from tests.support.mysql.binlog_decoder import TestTables
from tests.support.polling import PATIENCE_S
from tests.support.postgres.wire import Spools, marks, transactions

from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost, SourceUnavailable
from cdcflow.model.position import Token
from cdcflow.model.table import TableId
from cdcflow.sources.engine.descriptors import READABLE, wait_until
from cdcflow.sources.mysql import stream as streams
from cdcflow.sources.mysql.binlog import BinlogDecoder
from cdcflow.sources.mysql.dump import Dump
from cdcflow.sources.mysql.position import BinlogFile, BinlogPosition, coordinate
from cdcflow.sources.mysql.row_events import Marks
from cdcflow.sources.mysql.stream import BinlogStream

HEARTBEAT_S = 30.0


@dataclass
class Ends:
    """A stream and the server's end of its connection."""

    stream: BinlogStream
    server: socket.socket
    events: list[StreamEvent]

    def poll(self) -> list[StreamEvent]:
        found = list(self.stream.poll())
        self.events += found
        return found

    def ids(self) -> list[int]:
        return [row[2]["id"] for _, _, rows in transactions(self.events) for row in rows]

    def fails(self, kind: type[CdcflowError], said: str) -> None:
        with pytest.raises(kind, match=said):
            self._poll_for(PATIENCE_S)

    def _poll_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.poll()


class FakeConnector:
    address = "here"
    account = "`clerk`@`%`"
    leads_elsewhere = False

    def __init__(self, end: socket.socket) -> None:
        self._sock = end

    def connect(self, purpose: str) -> FakeConnector:
        return self

    def discard(self, connection: FakeConnector) -> None:
        self._sock.close()


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    mine, theirs = socket.socketpair()
    theirs.settimeout(5)
    monkeypatch.setattr(streams, "begin", lambda connection, dump: None)
    monkeypatch.setattr(streams, "BYTES_MAX", 1 << 16)
    place = BinlogPosition(BinlogFile("binlog.000001"), 4)
    decoder = BinlogDecoder(
        flavor="mysql",
        position=place,
        tables=TestTables(),
        marks=Marks("me", None),
        open_spool=Spools(),
        spool_bytes_max=1 << 30,
    )
    connector: Any = FakeConnector(mine)
    stream = BinlogStream(connector, Dump("mysql", place, False, 5, "", HEARTBEAT_S), decoder)
    yield Ends(stream, theirs, [])
    stream.close()
    theirs.close()


def many(count: int, size: int = 10) -> Log:
    log = Log()
    for i in range(count):
        log.begin()
        log.insert(simple("t", extra=["w"]), (i, "x", "y" * size))
        log.commit()
    return log


def test_poll_never_waits(ends: Ends) -> None:
    """The loop that calls it has other work to do."""
    assert ends.poll() == []
    assert not ends.stream.ready
    dump = many(1).dump()
    ends.server.sendall(dump[:-3])
    ends.poll()
    assert ends.ids() == []
    ends.server.sendall(dump[-3:])
    ends.poll()
    assert ends.ids() == [0]


def test_backlog_is_returned_in_several_calls_without_waiting_for_the_socket(ends: Ends) -> None:
    """What was read and is not decoded yet shows in `ready`, because the socket does not show it."""
    dump = many(1000, 150).dump()
    sent = 0
    deadline = time.monotonic() + PATIENCE_S
    calls = 0
    ends.server.setblocking(False)
    while len(ends.ids()) < 1000 and time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            sent += ends.server.send(dump[sent:])
        ends.poll()
        calls += 1
        assert len(ends.stream._buffer) == 1 << 16
    assert ends.ids() == list(range(1000))
    assert calls > 3


def test_buffer_grows_for_one_event_and_shrinks_again(ends: Ends) -> None:
    """M28: an event may be far larger than what is read at once."""
    blob = TestTable(TableId("shop", "b"), (TestColumn("id", 3), TestColumn("b", 252, b"\4")))
    log = Log()
    log.begin()
    log.rows("i", blob, b"\0" + struct.pack("<iI", 5, 300_000) + bytes(300_000))
    log.commit()
    dump = log.dump()
    largest = 0
    for at in range(0, len(dump), 40_000):
        ends.server.sendall(dump[at : at + 40_000])
        ends.poll()
        largest = max(largest, len(ends.stream._buffer))
    ends.poll()
    assert ends.ids() == [5]
    assert 300_000 < largest < 310_000
    ends.poll()
    assert len(ends.stream._buffer) == 1 << 16


def test_silence_is_noticed_and_heartbeats_are_not_silence(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """M60: three missing heartbeats mean that nothing will arrive."""
    clock = [float(int(time.monotonic()))]  # whole seconds: their differences are exact
    monkeypatch.setattr("cdcflow.sources.mysql.stream.time", SimpleNamespace(monotonic=lambda: clock[0]))
    log = many(1)
    ends.server.sendall(log.dump())
    beat = struct.pack("<IBIIIH", 1, 27, 7, 19 + 13 + 4, log.pos, 0) + b"binlog.000001"
    for _ in range(8):
        ends.server.sendall(packet(beat + struct.pack("<I", zlib.crc32(beat))))
        clock[0] += HEARTBEAT_S
        ends.poll()
    clock[0] += 3 * HEARTBEAT_S
    ends.poll()
    clock[0] += 1.0
    with pytest.raises(SourceUnavailable, match="silent for"):
        ends.poll()


def test_closed_connection_is_reported_after_the_events_before_it(ends: Ends) -> None:
    """Everything that arrived before the error is delivered first."""
    ends.server.sendall(many(3).dump())
    ends.server.close()
    ends.poll()
    assert ends.ids() == [0, 1, 2]
    assert ends.stream.ready
    ends.fails(SourceUnavailable, "the connection is gone")


@pytest.mark.parametrize(
    ("code", "text", "kind", "said"),
    [
        (1236, "Could not find first log file name in binary log index file", HistoryLost, "Could not find"),
        (1236, "Cannot replicate because the source purged required binary logs", HistoryLost, "purged"),
        (1236, "A replica with the same server_uuid/server_id as this replica has", SourceUnavailable, "same"),
        (4052, "A slave with the same server_uuid/server_id is already connected", SourceUnavailable, "same"),
        (1236, "log event entry exceeded max_allowed_packet; Increase", ConfigurationError, "max_allowed_packet"),
        (1227, "Access denied; you need (at least one of) the REPLICATION SLAVE", ConfigurationError, "REPLICATION"),
        (1053, "Server shutdown in progress", SourceUnavailable, "shutdown"),
    ],
)
def test_refusals_are_sorted_by_what_to_do(
    ends: Ends, code: int, text: str, kind: type[CdcflowError], said: str
) -> None:
    """M14, M27, M29, M69: retry, correct a setting, or let an operator decide; earlier changes are delivered first."""
    body = b"\xff" + struct.pack("<H", code) + b"#HY000" + text.encode()
    ends.server.sendall(many(1).dump() + struct.pack("<I", len(body))[:3] + b"\7" + body)
    ends.fails(kind, said)
    assert ends.ids() == [0]


def test_end_of_the_log_is_a_server_shutdown(ends: Ends) -> None:
    """The server sends it only on shutdown: cdcflow requested a dump that waits for more."""
    ends.server.sendall(b"\5\0\0\1\xfe\0\0\2\0")
    ends.fails(SourceUnavailable, "shuts down")


def test_expected_mark_that_was_passed_makes_the_stream_ready(ends: Ends) -> None:
    """On a quiet server nothing would wake the one who waits for it."""
    log = many(1)
    ends.server.sendall(log.dump())
    ends.poll()
    assert not ends.stream.ready
    ends.stream.expect(Token("e1/low"), coordinate(*log.place))
    assert ends.stream.ready
    assert marks(ends.poll()) == ["e1/low"]
    assert not ends.stream.ready


def wait_as_the_loop_does(stream: BinlogStream) -> None:
    if not stream.ready:
        wait_until(READABLE, stream.fileno(), 0.1)


def test_a_backlog_is_decoded_in_another_thread_in_order(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the loop writes the earlier changes. At the end of the backlog, the loop itself decodes single changes
    again."""
    monkeypatch.setattr(streams, "BUSY_BYTES_MIN", 1 << 12)
    threads: set[str] = set()
    decode = ends.stream._decode

    def noted() -> list[StreamEvent]:
        threads.add(threading.current_thread().name)
        return decode()

    monkeypatch.setattr(ends.stream, "_decode", noted)
    dump = many(3000, 150).dump()
    sender = threading.Thread(target=ends.server.sendall, args=(dump,))
    sender.start()
    deadline = time.monotonic() + PATIENCE_S
    while len(ends.ids()) < 3000 and time.monotonic() < deadline:
        wait_as_the_loop_does(ends.stream)
        ends.poll()
    sender.join()
    assert ends.ids() == list(range(3000))
    assert threads == {"MainThread", "cdcflow-decode_0"}
    while ends.stream._ahead.active:
        wait_as_the_loop_does(ends.stream)
        assert ends.poll() == []
    assert ends.stream.fileno() == ends.stream._socket.fileno()


def test_connection_lost_in_a_backlog_is_reported_after_the_transactions_before_it(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole transactions that were received count, in whichever thread they were decoded."""
    monkeypatch.setattr(streams, "BUSY_BYTES_MIN", 1 << 12)

    def send() -> None:
        ends.server.sendall(many(2000, 150).dump())
        ends.server.close()

    sender = threading.Thread(target=send)
    sender.start()
    ends.fails(SourceUnavailable, "the server closed it")
    sender.join()
    assert ends.ids() == list(range(2000))


def test_a_decoder_that_takes_longer_than_a_server_may_be_silent_is_no_silence(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = BinlogDecoder.decode
    clock = [float(int(time.monotonic()))]
    monkeypatch.setattr("cdcflow.sources.mysql.stream.time", SimpleNamespace(monotonic=lambda: clock[0]))

    def slow(self: BinlogDecoder, *given: Any) -> Any:
        clock[0] += 60.0
        return decode(self, *given)

    monkeypatch.setattr(BinlogDecoder, "decode", slow)
    ends.server.sendall(many(3).dump())
    assert ends.poll()
    assert ends.ids() == [0, 1, 2]
