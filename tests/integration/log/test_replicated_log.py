"""A log whose journals are on peers: what a majority has survives the machine, and nothing less is acknowledged."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.journal_peers import JournalPeers
from tests.support.certificates import HERE, Authority
from tests.support.log.replicated import ReplicatedLog, peers_in_threads
from tests.support.objects.logs import IDENTITY
from tests.support.polling import wait_until

from cdcflow.config import Objects
from cdcflow.errors import CdcflowError, ConfigurationError, InvariantViolated, SinkUnavailable, WriterReplaced
from cdcflow.log.files.layout import Layout
from cdcflow.sinks.files.log import FileLog
from cdcflow.sinks.objects.uploads import Uploads
from cdcflow.sinks.quorum import image, takeover
from cdcflow.sinks.quorum.links import PeerTls
from cdcflow.sinks.quorum.peer_server import PeerServer
from cdcflow.sinks.quorum.takeover import MARK
from cdcflow.testing.sinks import Writer, orders


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[JournalPeers]:
    with JournalPeers(tmp_path) as started:
        yield started


@pytest.fixture
def replicated(tmp_path: Path, objects: Objects, peers: JournalPeers) -> Iterator[ReplicatedLog]:
    log = ReplicatedLog(tmp_path, objects, peers.addresses)
    yield log
    log.kill_all()


def write(log: FileLog, *ids: int) -> None:
    """Commit rows, and make them durable."""
    writer = Writer.of(log)
    writer.append(orders(*ids))
    writer.cut()
    log.sync()


def seal(log: FileLog) -> None:
    assert log.roll()
    log.sync()
    log.seal_pending()


def test_another_machine_continues_from_the_last_acknowledged_change(
    replicated: ReplicatedLog, peers: JournalPeers
) -> None:
    """The machine is gone, with changes that no segment has: the other one has every one of them, once, in order. That
    also holds if the peer that was slow to follow is one of the two that answer."""
    first = replicated.open("a")
    write(first, 1, 2)
    replicated.all_follow(first)
    peers[2].halt()
    write(first, 3)
    seal(first)
    write(first, 4, 5)
    replicated.kill(first)
    peers[2].resume()
    peers[0].kill()
    second = replicated.open("b")
    assert replicated.ids("b") == [1, 2, 3, 4, 5]
    write(second, 6)
    replicated.kill(second)
    peers[0].start()
    replicated.open("a")
    assert replicated.ids("a") == [1, 2, 3, 4, 5, 6]


def test_nothing_is_acknowledged_without_a_majority(replicated: ReplicatedLog, peers: JournalPeers) -> None:
    """One of three missing costs nothing; two missing stop the log with a reason, and what was acknowledged exists when
    they return."""
    log = replicated.open()
    replicated.all_follow(log)
    peers[0].kill()
    write(log, 1)
    peers[1].halt()
    with pytest.raises(SinkUnavailable, match=r"1 of 3 store it|2 of 3 store it") as stopped:
        write(log, 2)
    assert stopped.value.runbook == "quorum-lost"
    assert replicated.ids() == [1], "a reader here saw what no majority has"
    with pytest.raises(CdcflowError):
        write(log, 3)
    replicated.kill(log)
    with pytest.raises(SinkUnavailable, match="recovering the log from its peers"):
        replicated.open("b")
    peers[1].resume()
    write(replicated.open("b"), 4)
    assert replicated.ids("b")[0] == 1
    assert replicated.ids("b")[-1] == 4


def test_writer_that_was_suspended_across_a_takeover_writes_nothing_that_counts(replicated: ReplicatedLog) -> None:
    """Its peers follow the other one: its next write fails, and no reader on its machine ever sees it."""
    first = replicated.open("a")
    write(first, 1)
    journals = first._replication
    journals._replicas._closed.set()  # type: ignore[union-attr]  # its threads sleep, as after a SIGSTOP
    time.sleep(3.2)
    second = replicated.open("b")
    write(second, 2)
    with pytest.raises(InvariantViolated, match="another process took the log over"):
        write(first, 3)
    with pytest.raises(InvariantViolated):
        first._check_writer()
    assert replicated.ids("a") == [1]
    assert replicated.ids("b") == [1, 2]


def test_second_process_does_not_disturb_a_writer_that_runs(replicated: ReplicatedLog) -> None:
    """A daemon that is started on another machine by mistake must not end the one that works."""
    first = replicated.open("a")
    write(first, 1)
    with pytest.raises(SinkUnavailable, match="a process on this or a different machine writes it"):
        replicated.open("b")
    write(first, 2)
    assert replicated.ids("a") == [1, 2]


def test_process_that_was_replaced_between_two_attempts_does_not_wait_for_its_turn(
    replicated: ReplicatedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that was suspended may find its stream broken first, and open the log again. It has no lease, and must
    not write when the other one is stopped, days later."""
    first = replicated.open("a")
    write(first, 1)
    first.close()
    replicated.open("a", was_open=True).close()  # no other process has written it
    with monkeypatch.context() as other_process:
        other_process.setattr(takeover, "_PROCESS", "another process.")
        second = replicated.open("b")
    write(second, 2)
    with pytest.raises(WriterReplaced, match="took the log over"):
        replicated.open("a", was_open=True)
    second.close()
    with pytest.raises(WriterReplaced, match="took the log over"):
        replicated.open("a", was_open=True)
    assert replicated.ids("b") == [1, 2]


def test_peer_that_lost_its_disk_proves_nothing_until_it_has_everything(
    replicated: ReplicatedLog, peers: JournalPeers
) -> None:
    """It answers, and knows of nothing: with it and one other peer a takeover could lose what the third has."""
    log = replicated.open("a")
    replicated.all_follow(log)
    peers[2].kill()
    write(log, 1)
    replicated.kill(log)
    peers[0].lose_disk()
    peers[1].halt()
    peers[0].start()
    peers[2].start()
    with pytest.raises(SinkUnavailable, match="its disk is new, or was lost"):
        replicated.open("b")
    peers[1].resume()
    second = replicated.open("b")
    assert replicated.ids("b") == [1]
    replicated.all_follow(second)
    replicated.kill(second)
    peers[1].kill()
    replicated.open("c")
    assert replicated.ids("c") == [1]


def test_peers_follow_again_whatever_they_missed(replicated: ReplicatedLog, peers: JournalPeers) -> None:
    """Away while journals are sealed and begun, with files attached: afterwards all three have the same bytes."""
    log = replicated.open()
    log.file_bytes_min = 1
    for number in range(6):
        peers[number % 3].kill()
        write(log, *range(100 * number, 100 * number + 50))
        seal(log)
        write(log, 100 * number + 99)
        peers[number % 3].start()
        replicated.all_follow(log)
    log.sync()
    wait_until(lambda: _images_agree(peers, replicated.layout("a")), "all peers to have the journals")


def _images_agree(peers: JournalPeers, layout: Layout) -> bool:
    here = {(f.name, f.bytes, f.sha256) for f in image.files(layout.root)}
    try:
        for peer in peers.peers:
            (folder,) = (peer.folder / "peer" / "images").iterdir()
            if {(f.name, f.bytes, f.sha256) for f in image.files(folder)} != here:
                return False
    except (ValueError, FileNotFoundError):
        return False
    return bool(here)


def test_journal_stays_on_the_peers_until_its_segment_is_in_the_store(
    replicated: ReplicatedLog, tmp_path: Path
) -> None:
    """Sealed and not uploaded, a segment is on one machine alone: the peers' journal is the only other copy."""
    replicated.uploads = False
    log = replicated.open("a")
    write(log, 1)
    seal(log)
    write(log, 2)
    seal(log)
    write(log, 3)
    replicated.kill(log)
    replicated.uploads = True
    second = replicated.open("b")
    assert replicated.ids("b") == [1, 2, 3]
    second.seal_pending()
    wait_until(lambda: len(replicated.layout("c").segment_offsets()) >= 2, "the uploads")
    write(second, 4)
    seal(second)
    write(second, 5)
    seal(second)
    journals = [name for name in image.names(replicated.layout("b").root) if name.startswith("journal/")]
    assert len(journals) < 5, "nothing is ever removed"


def test_log_that_exists_is_copied_to_its_first_peers(replicated: ReplicatedLog) -> None:
    """`log.replicate` can be set for a log that has been written for years."""
    layout = replicated.layout("a")
    layout.root.parent.mkdir()
    alone = FileLog.open(layout.root, IDENTITY)
    write(alone, 1, 2)
    alone.close()
    log = replicated.open("a")
    write(log, 3)
    wait_until(lambda: bool(replicated.layout("b").segment_offsets()), "the upload")
    replicated.kill(log)
    replicated.open("b")
    assert replicated.ids("b") == [1, 2, 3]


def test_empty_peers_are_not_taken_for_a_new_log(
    replicated: ReplicatedLog, peers: JournalPeers, tmp_path: Path
) -> None:
    """All peers lost their disks: this folder may be older than what they acknowledged. The printed remedy works."""
    log = replicated.open("a")
    write(log, 1)
    replicated.kill(log)
    for peer in peers.peers:
        peer.lose_disk()
        peer.start()
    with pytest.raises(ConfigurationError, match="all of its peers are empty") as refused:
        replicated.open("a")
    assert str(replicated.layout("a").root / MARK) in str(refused.value)
    (replicated.layout("a").root / MARK).unlink()
    write(replicated.open("a"), 2)
    assert replicated.ids("a") == [1, 2]


def test_machine_without_the_log_does_not_begin_a_new_one(replicated: ReplicatedLog) -> None:
    """The store has the log and no peer has a journal: beginning from nothing would hide what is missing."""
    alone = replicated.layout("a")
    alone.root.parent.mkdir()
    log = FileLog.open(alone, IDENTITY, uploads=Uploads(Layout(alone.root), replicated.bucket, keep_local_s=0))
    write(log, 1)
    log.close()
    with pytest.raises(ConfigurationError, match="neither this folder nor a peer has its journals"):
        replicated.open("b")
    replicated.kill(replicated.open("a"))  # the remedy
    replicated.open("b")
    assert replicated.ids("b") == [1]


def test_peers_of_another_log_are_refused(tmp_path: Path, objects: Objects) -> None:
    """Two pipelines with one list of peers by mistake: the second would replace its journals by the first one's."""
    with peers_in_threads(tmp_path) as addresses:
        first = ReplicatedLog(tmp_path / "first", objects, addresses)
        write(first.open(), 1)
        first.kill_all()
        layout = first.layout("other")
        layout.root.parent.mkdir()
        FileLog.open(layout.root, IDENTITY).close()
        with pytest.raises(ConfigurationError, match="its peers store the log"):
            first.open("other")


def test_sealing_continues_while_a_peer_is_halted(replicated: ReplicatedLog, peers: JournalPeers) -> None:
    """A slow peer neither slows nor stops: many syncs and seals while one peer is halted permanently."""
    log = replicated.open()
    replicated.all_follow(log)
    peers[1].halt()
    for number in range(200):
        write(log, number)
        if number % 50 == 49:
            seal(log)
    assert replicated.ids() == list(range(200))


def test_only_certificates_of_the_authority_are_let_in(tmp_path: Path, objects: Objects) -> None:
    """Who can write to a peer can change the log: a stranger gets neither an answer nor a row."""
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    files, strangers = ours.certificate("peer", HERE), theirs.certificate("stranger", HERE)

    def tls(made: dict[str, str], authority: Authority) -> PeerTls:
        Path(made["ssl_key"]).chmod(0o600)
        return PeerTls(Path(made["ssl_cert"]), Path(made["ssl_key"]), authority.path)

    good = tls(files, ours)
    with JournalPeers(tmp_path, 3, (good.cert, Path(files["ssl_key"]), good.ca)) as peers:
        log = ReplicatedLog(tmp_path, objects, peers.addresses, tls=good, timeout_s=10)
        opened = log.open()
        write(opened, 1)
        log.kill(opened)
        for wrong in (tls(strangers, ours), tls(strangers, theirs), None):
            stranger = ReplicatedLog(tmp_path / "stranger", objects, peers.addresses, tls=wrong, timeout_s=2)
            with pytest.raises(SinkUnavailable):
                stranger.open()
        log.open()
        assert log.ids() == [1]
        log.kill_all()


def test_probe_of_the_port_is_no_event_and_a_stranger_is_one(tmp_path: Path) -> None:
    """An orchestrator connects every few seconds and sends nothing; that must not hide clients that are refused."""
    authority = Authority(tmp_path, "ours")
    files = authority.certificate("peer", HERE)
    Path(files["ssl_key"]).chmod(0o600)
    events: list[str] = []
    tls = PeerTls(Path(files["ssl_cert"]), Path(files["ssl_key"]), authority.path)
    server = PeerServer(tmp_path / "peer", "127.0.0.1:0", tls, lambda event, fields: events.append(event))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        for sent in (b"", b"", b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    while client.recv(4096):
                        pass
        wait_until(lambda: len(events) > 1, "an event about the stranger")
    finally:
        server.stop()
        thread.join()
    assert events == ["peer started", "client refused"]


def test_readers_see_only_what_a_majority_has(replicated: ReplicatedLog, peers: JournalPeers) -> None:
    """A reader acts on what it sees. Rows that a takeover could lose are not visible, however long a sync takes."""
    log = replicated.open()
    write(log, 1)
    replicated.all_follow(log)
    for number in (0, 1, 2):
        peers[number].halt()
    writing = threading.Thread(target=write, args=(log, 2))
    writing.start()
    time.sleep(0.5)
    assert replicated.ids() == [1]
    for number in (0, 1, 2):
        peers[number].resume()
    writing.join()
    assert replicated.ids() == [1, 2]
