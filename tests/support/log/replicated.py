"""A log whose journals are on peers, opened on several machines (folders) one after another."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.kill.abandoned_logs import gone
from tests.support.objects.logs import IDENTITY
from tests.support.polling import wait_until

from cdcflow.config import Objects
from cdcflow.log.files.layout import Layout
from cdcflow.log.read.reader import read_rows
from cdcflow.sinks.files.log import FileLog
from cdcflow.sinks.objects.store import BucketStore
from cdcflow.sinks.objects.uploaded import UploadedPart
from cdcflow.sinks.objects.uploads import Uploads
from cdcflow.sinks.quorum.links import PeerTls
from cdcflow.sinks.quorum.peer_server import PeerServer
from cdcflow.sinks.quorum.takeover import ReplicatedJournals
from cdcflow.stores.bucket import Bucket


@contextlib.contextmanager
def peers_in_threads(folder: Path, count: int = 3) -> Iterator[list[str]]:
    """The addresses of peers that run in this process: quicker than processes, where none has to die."""
    servers = [PeerServer(folder / f"peer-{n}", "127.0.0.1:0", None, lambda event, fields: None) for n in range(count)]
    threads = [threading.Thread(target=server.run) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield [f"127.0.0.1:{server.port}" for server in servers]
    finally:
        for server in servers:
            server.stop()
        for thread in threads:
            thread.join()


@dataclass
class ReplicatedLog:
    """`open(machine)` opens it in that machine's folder; each opening is abandoned like a killed process by `kill`."""

    room: Path
    objects: Objects
    peers: Sequence[str]
    tls: PeerTls | None = None
    timeout_s: float = 5
    uploads: bool = True
    opened: list[FileLog] = field(default_factory=list)

    def layout(self, machine: str) -> Layout:
        return Layout(self.room / machine / "log", BucketStore(self.bucket, self.room / machine / "cache", 1 << 20))

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.objects)

    def open(self, machine: str = "a", *, was_open: bool = False) -> FileLog:
        layout = self.layout(machine)
        layout.root.parent.mkdir(parents=True, exist_ok=True)
        bare = Layout(layout.root)
        journals = ReplicatedJournals(
            self.peers,
            self.tls,
            timeout_s=self.timeout_s,
            stored=UploadedPart(bare, self.bucket.name),
            was_open=was_open,
        )
        uploads = Uploads(bare, self.bucket, keep_local_s=0) if self.uploads else None
        log = FileLog.open(layout, IDENTITY, uploads=uploads, replication=journals)
        self.opened.append(log)
        return log

    def kill(self, log: FileLog) -> None:
        """What a SIGKILL leaves: the connections end, and so does the lock."""
        if log._replication is not None:
            log._replication.close()
        if log._uploads is not None:
            log._uploads.close()
        gone(log)

    def kill_all(self) -> None:
        for log in self.opened:
            if log._is_open:
                self.kill(log)

    def ids(self, machine: str = "a") -> list[int]:
        """The ids of the rows that a reader on this machine sees, in order."""
        return [value for _, _, rows in read_rows(self.layout(machine)) for value in rows.column("id").to_pylist()]

    def all_follow(self, log: FileLog) -> None:
        """Wait until every peer has everything."""
        wait_until(lambda: all(one["counts"] for one in self.status(log).values()), "all peers to follow")

    def status(self, log: FileLog) -> dict[str, dict[str, object]]:
        journals = log._replication
        assert isinstance(journals, ReplicatedJournals)
        assert journals._replicas is not None
        return journals._replicas.status()
