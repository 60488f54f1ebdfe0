"""The connections of a writer to its peers: sends changes to each, and tracks which are on the disks of a majority.

    change ──▶ queue of each peer ──▶ socket ──▶ peer
    sync n ──▶                                    │ fsync
    wait n ◀── a majority is at n or later ◀──────┘ durable n

The caller of `wait` sends and receives itself, on sockets that do not block: handing that to another thread takes
longer than a quick disk. A thread does it while no caller waits. Every peer gets the same changes in one order. A peer
that is unavailable, silent for too long or too far behind is disconnected, and its own thread connects again and copies
the whole image, for which the others do not wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import structlog

from cdcflow.errors import CdcflowError, InvariantViolated, SinkUnavailable
from cdcflow.sinks.quorum.image import BLOCK_BYTES, ImageFile
from cdcflow.sinks.quorum.links import SOCKET_BYTES, PeerLink, PeerTls, promise_of
from cdcflow.sinks.quorum.messages import HEAD, MessageKind, decode, encode
from cdcflow.sinks.quorum.promises import EpochWriter, WriterRefused, acknowledged_sync, counts_again, majority

QUEUED_BYTES = 1 << 20
"""Changes are sent at once when this much waits for a peer; otherwise with the next sync."""
BEHIND_BYTES_MAX = 64 << 20
"""A peer with more waiting than this is disconnected, if a majority of the others has less."""
SILENT_S_MAX = 10.0
"""A peer that does not answer a sync for this long is disconnected."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 5.0
PUMP_EVERY_S = 0.2
TELL_EVERY_S = 3.0
SYNC_EVERY_S = 1.0
"""A sync at least this often shows the peers that the writer is alive (`peer_server.ALIVE_S`)."""
RECEIVED_BYTES = 64 << 10

_log = structlog.get_logger("cdcflow")


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file of the log's folder when the image was listed: its first `size` bytes, read through an open descriptor,
    and the bytes that follow them but are not in the file yet."""

    name: str
    fd: int
    size: int
    pending: bytes


Snapshot = Callable[[], Sequence[SnapshotFile]]
"""A function that returns the current files of the image. Its caller holds the lock of the changes, and closes the
descriptors."""


@dataclass(slots=True)
class FollowingPeer:
    """One peer while it gets changes. `acked` is the latest sync that it has made durable.

    `awaits` is the sync that a majority of the others must confirm before this peer counts; None if it counts.
    """

    peer: str
    link: PeerLink
    acked: int
    awaits: int | None = None
    is_installed: bool = False
    queue: deque[memoryview] = field(default_factory=deque)
    queued_bytes: int = 0
    received: bytearray = field(default_factory=bytearray)
    asked_at: deque[tuple[int, float]] = field(default_factory=deque)

    @property
    def sock(self) -> socket.socket:
        return self.link.link.sock


class Replicas:
    """The peers of one writer. Any thread may call it."""

    def __init__(self, peers: Sequence[str], tls: PeerTls | None, writer: EpochWriter, timeout_s: float) -> None:
        self.writer = writer
        self._peers = tuple(peers)
        self._tls = tls
        self._timeout_s = timeout_s
        self.changing = threading.RLock()
        """Held while a file changes here and the change is queued, so that both have one order."""
        self._sessions: dict[str, FollowingPeer] = {}
        self._problems: dict[str, str] = dict.fromkeys(peers, "not connected yet")
        self._fenced: set[str] = set()
        self._synced = 0
        self._acknowledged = 0
        self._last_sync_at = 0.0
        self._error: CdcflowError | None = None
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._on_change: Callable[[], None] = lambda: None

    # ── changes ─────────────────────────────────────────────────────────────────────────────────────────────

    def change(self, kind: MessageKind, name: str, payload: bytes = b"", number: int = 0) -> None:
        """Queue a change for all peers; the caller holds `changing`. Waits only if too much is queued."""
        head = encode(kind, name, payload, epoch=self.writer.epoch, number=number)
        for session in self._sessions.values():
            _queue(session, head, payload)
        if any(session.queued_bytes > QUEUED_BYTES for session in self._sessions.values()):
            self._pump()
            self._limit_queues()

    def sync(self) -> int:
        """Ask all peers to make the changes so far durable. Returns the number to wait for."""
        with self.changing:
            self._synced += 1
            self._last_sync_at = time.monotonic()
            head = encode(MessageKind.SYNC, epoch=self.writer.epoch, number=self._synced)
            for session in self._sessions.values():
                _queue(session, head, b"")
                session.asked_at.append((self._synced, self._last_sync_at))
            return self._synced

    def wait(self, number: int) -> None:
        """Wait until a majority of the peers has made this sync durable.

        Raises:
            SinkUnavailable: no majority did in time; what is not durable does not count.
            InvariantViolated: a majority follows another writer.
        """
        deadline = time.monotonic() + self._timeout_s
        while not self._is_acknowledged(number):
            left = deadline - time.monotonic()
            if left <= 0:
                self._fail(self._too_few())
            self._await_sockets(min(left, 0.05))

    def sync_and_wait(self) -> None:
        self.wait(self.sync())

    def check(self) -> None:
        """Confirm that a majority still follows this writer. Raises as `wait`."""
        self.sync_and_wait()

    # ── peers that join ─────────────────────────────────────────────────────────────────────────────────────

    def start(self, snapshot: Snapshot, on_change: Callable[[], None] = lambda: None) -> None:
        """Copy the image to every peer, and wait for a majority. `on_change`: a peer was connected or lost; also
        called every few seconds.

        Raises as `wait`.
        """
        self._on_change = on_change
        for peer in self._peers:
            self._threads.append(
                threading.Thread(target=self._keep, args=(peer, snapshot), name=f"cdcflow-peer-{peer}", daemon=True)
            )
        self._threads.append(threading.Thread(target=self._pump_regularly, name="cdcflow-peers", daemon=True))
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + self._timeout_s
        while len(self._counting()) < majority(len(self._peers)):
            self._raise_if_fenced()
            if time.monotonic() > deadline:
                self._fail(self._too_few())
            self._closed.wait(0.01)

    def close(self) -> None:
        self._closed.set()
        with self.changing:
            for session in list(self._sessions.values()):
                self._drop(session, "the log was closed")
        for thread in self._threads:
            thread.join(self._timeout_s)

    def status(self) -> dict[str, dict[str, object]]:
        """Return for each peer whether it counts, how many bytes it lacks, and its problem ("" if it has none)."""
        with self.changing:
            counting = set(self._counting())
            return {
                peer: {
                    "counts": peer in counting,
                    "lag_bytes": None if (one := self._sessions.get(peer)) is None else one.queued_bytes,
                    "lag_syncs": None if one is None else self._synced - one.acked,
                    "problem": "" if peer in counting else self._problems.get(peer, ""),
                }
                for peer in self._peers
            }

    def _keep(self, peer: str, snapshot: Snapshot) -> None:
        """Keep one peer connected, with an image, until the log is closed."""
        pause_s = PAUSE_S_MIN
        while not self._closed.is_set():
            if peer not in self._sessions:
                try:
                    self._join(peer, snapshot)
                    pause_s = PAUSE_S_MIN
                except WriterRefused as refusal:
                    self._note(peer, refusal.why)
                    if refusal.promise.promised > self.writer.epoch:
                        self._fenced.add(peer)
                    pause_s = PAUSE_S_MAX
                except (CdcflowError, OSError) as error:
                    self._note(peer, str(error).splitlines()[0])
                    pause_s = min(2 * pause_s, PAUSE_S_MAX)
            self._closed.wait(pause_s)

    def _join(self, peer: str, snapshot: Snapshot) -> None:
        link = PeerLink(peer, self._tls, self._timeout_s)
        session = None
        try:
            with self.changing:
                files = snapshot()
                session = FollowingPeer(peer, link, self._synced)
                self._sessions[peer] = session  # changes after the snapshot are queued for it
            self._copy(link, files)
            was_blank = bool(link.ask(MessageKind.INSTALLED)["was_blank"])
            self._begin(session, was_blank=was_blank)
        except BaseException:
            with self.changing:
                if session is not None and self._sessions.get(peer) is session:
                    del self._sessions[peer]
            link.close()
            raise
        self._on_change()

    def _copy(self, link: PeerLink, files: Sequence[SnapshotFile]) -> None:
        try:
            wanted = [ImageFile(file.name, file.size + len(file.pending), _sha256(file)) for file in files]
            value = {"writer": asdict(self.writer), "files": [asdict(file) for file in wanted]}
            missing = set(link.ask(MessageKind.INSTALL, value)["missing"])
            for file in files:
                if file.name in missing:
                    for block in _blocks(file):
                        link.send(MessageKind.CONTENT, file.name, block)
        finally:
            for file in files:
                _close(file.fd)

    def _begin(self, session: FollowingPeer, *, was_blank: bool) -> None:
        """Send the peer each change that follows."""
        session.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        session.sock.setblocking(False)
        with self.changing:
            session.is_installed = True
            session.asked_at.clear()
            if was_blank:
                # Which epoch it had promised is forgotten: the others must confirm this epoch (see `promises`).
                session.awaits = self._synced + 1
            self.sync()
            self._pump()
        _log.info("peer follows", peer=session.peer, epoch=self.writer.epoch, was_blank=was_blank)

    # ── sending and receiving ───────────────────────────────────────────────────────────────────────────────

    def _pump_regularly(self) -> None:
        told_at = 0.0
        while not self._closed.wait(PUMP_EVERY_S):
            if (now := time.monotonic()) - told_at > TELL_EVERY_S:
                told_at = now
                self._on_change()
            with self.changing:
                if time.monotonic() - self._last_sync_at > SYNC_EVERY_S:
                    self.sync()
                self._pump()
                self._drop_silent()

    def _is_acknowledged(self, number: int) -> bool:
        with self.changing:
            self._raise_if_fenced()
            self._pump()
            return self._acknowledged >= number

    def _await_sockets(self, seconds: float) -> None:
        poll = select.poll()
        with self.changing:
            for session in self._ready_peers():
                poll.register(session.sock, select.POLLIN | (select.POLLOUT if session.queue else 0))
        with contextlib.suppress(OSError, ValueError):
            poll.poll(seconds * 1000)

    def _pump(self) -> None:
        """Send and receive as much as is possible without waiting; the caller holds `changing`."""
        for session in self._ready_peers():
            try:
                _receive(session)  # first: a refusal says more than the broken connection that follows it
                _send(session)
                _receive(session)
            except (OSError, EOFError, CdcflowError) as error:
                self._drop(session, str(error).splitlines()[0] if str(error) else "the connection ended")
            except WriterRefused as refusal:
                if refusal.promise.promised > self.writer.epoch:
                    self._fenced.add(session.peer)
                self._drop(session, refusal.why)
        self._count()

    def _count(self) -> None:
        for session in self._ready_peers():
            if session.awaits is not None and self._has_confirmed(session):
                session.awaits = None
        durable = [self._sessions[peer].acked for peer in self._counting()]
        self._acknowledged = max(self._acknowledged, acknowledged_sync(durable, len(self._peers)))

    def _has_confirmed(self, blank: FollowingPeer) -> bool:
        assert blank.awaits is not None  # noqa: S101 - the caller checks it
        others = [s for s in self._ready_peers() if s is not blank and s.awaits is None and s.acked >= blank.awaits]
        return counts_again(len(others), len(self._peers))

    def _ready_peers(self) -> list[FollowingPeer]:
        return [session for session in self._sessions.values() if session.is_installed]

    def _counting(self) -> list[str]:
        with self.changing:
            return [session.peer for session in self._ready_peers() if session.awaits is None]

    def _limit_queues(self) -> None:
        """Disconnect peers that are too far behind; if too many are, wait for them: then they set the pace."""
        deadline = time.monotonic() + self._timeout_s
        while late := [s for s in self._sessions.values() if s.queued_bytes > BEHIND_BYTES_MAX]:
            on_time = [s for s in self._ready_peers() if s not in late and s.awaits is None]
            if len(on_time) >= majority(len(self._peers)):
                for session in late:
                    self._drop(session, "it is too slow")
            elif time.monotonic() > deadline:
                self._fail(self._too_few())
            else:
                self._await_sockets(0.05)
                self._pump()

    def _drop_silent(self) -> None:
        now = time.monotonic()
        for session in self._ready_peers():
            if session.asked_at and now - session.asked_at[0][1] > SILENT_S_MAX:
                self._drop(session, f"it has not answered for {SILENT_S_MAX:.0f} s")

    def _drop(self, session: FollowingPeer, why: str) -> None:
        if self._sessions.get(session.peer) is session:
            del self._sessions[session.peer]
        session.link.close()
        self._note(session.peer, why)
        if not self._closed.is_set():
            _log.warning("peer lost", peer=session.peer, reason=why)
            self._on_change()

    def _note(self, peer: str, why: str) -> None:
        self._problems[peer] = why

    # ── errors ──────────────────────────────────────────────────────────────────────────────────────────────

    def _raise_if_fenced(self) -> None:
        if self._error is not None:
            raise type(self._error)(str(self._error), runbook=self._error.runbook)
        if len(self._fenced) >= majority(len(self._peers)):
            self._fail(
                InvariantViolated(
                    f"writing the log: this process has epoch {self.writer.epoch}, and {len(self._fenced)} of "
                    f"{len(self._peers)} peers follow a later one: another process took the log over; nothing written "
                    "since then counts",
                    runbook="two-daemons",
                )
            )

    def _too_few(self) -> CdcflowError:
        lost = "; ".join(f"{peer}: {why['problem']}" for peer, why in self.status().items() if why["problem"])
        return SinkUnavailable(
            f"writing the log to its peers: {len(self._counting())} of {len(self._peers)} store it, and "
            f"{majority(len(self._peers))} are needed before a change is acknowledged" + (f" ({lost})" if lost else ""),
            remedy="start the peers that are missing, or restore the network to them; nothing is lost",
            runbook="quorum-lost",
        )

    def _fail(self, error: CdcflowError) -> None:
        self._error = error
        raise error


def _queue(session: FollowingPeer, head: bytes, payload: bytes) -> None:
    session.queue.append(memoryview(head))
    if payload:
        session.queue.append(memoryview(payload))
    session.queued_bytes += len(head) + len(payload)


def _send(session: FollowingPeer) -> None:
    with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
        while session.queue:
            part = _next_part(session)
            sent = session.sock.send(part)
            session.queued_bytes -= sent
            if sent == len(part):
                session.queue.popleft()
            else:
                session.queue[0] = part[sent:]


def _next_part(session: FollowingPeer) -> memoryview:
    """Return the next bytes to send; small ones are joined, so that a sync is one packet."""
    first = session.queue[0]
    if len(session.queue) > 1 and len(first) < 4096:
        parts, size = [], 0
        while session.queue and size < RECEIVED_BYTES and len(session.queue[0]) < RECEIVED_BYTES:
            part = session.queue.popleft()
            parts.append(part)
            size += len(part)
        session.queue.appendleft(memoryview(b"".join(parts)))
    return session.queue[0]


def _receive(session: FollowingPeer) -> None:
    with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        while True:
            found = session.sock.recv(RECEIVED_BYTES)
            if not found:
                raise EOFError("it closed the connection")
            session.received += found
    while len(session.received) >= HEAD.size:
        head = decode(bytes(session.received[: HEAD.size]), f"the peer {session.peer}")
        end = HEAD.size + head.name_bytes + head.payload_bytes
        if len(session.received) < end:
            return
        payload = bytes(session.received[HEAD.size + head.name_bytes : end])
        del session.received[:end]
        _take_answer(session, head.kind, head.number, payload)


def _take_answer(session: FollowingPeer, kind: MessageKind, number: int, payload: bytes) -> None:
    if kind is MessageKind.REFUSED:
        value = json.loads(payload)
        raise WriterRefused(promise_of(value), value["why"])
    session.acked = number
    while session.asked_at and session.asked_at[0][0] <= number:
        session.asked_at.popleft()


def _sha256(file: SnapshotFile) -> str:
    digest = hashlib.sha256()
    for block in _blocks(file):
        digest.update(block)
    return digest.hexdigest()


def _blocks(file: SnapshotFile) -> Iterator[bytes]:
    at = 0
    while at < file.size:
        block = os.pread(file.fd, min(BLOCK_BYTES, file.size - at), at)
        if not block:
            raise OSError(f"{file.name} was cut while it was copied")
        at += len(block)
        yield block
    if file.pending:
        yield file.pending


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)
