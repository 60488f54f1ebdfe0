"""The peers of a log's journals for tests: real processes on loopback, started, stopped, killed, halted, emptied."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.support.polling import wait_until

from cdcflow.demo.servers.processes import free_port


class JournalPeer:
    """One peer: a `cdcflow journal-peer` with its folder. Its port stays the same."""

    def __init__(self, folder: Path, tls: tuple[Path, Path, Path] | None = None) -> None:
        """`tls`: certificate, key and authority."""
        self.folder = folder
        self.port = free_port()
        self._tls = tls
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it answers."""
        self.launch()
        self.wait_until_it_answers()

    def launch(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "cdcflow", "journal-peer", "--path", str(self.folder / "peer")]
        command += ["--listen", self.address]
        if self._tls is not None:
            command += ["--cert", str(self._tls[0]), "--key", str(self._tls[1]), "--ca", str(self._tls[2])]
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def wait_until_it_answers(self) -> None:
        wait_until(self._answers, "the peer to answer", patience_s=120, more=self.said)

    def kill(self) -> None:
        if self._process is not None:
            self.resume()
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> int:
        """End it orderly; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(30)
        self._process = None
        return code

    def halt(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{self._process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the peer to be suspended")

    def resume(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGCONT)

    def lose_disk(self) -> None:
        """Kill it, and empty its folder."""
        self.kill()
        shutil.rmtree(self.folder / "peer")

    def said(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-3000:]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"the peer ended:\n{self.said()}"
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        return False


class JournalPeers:
    """Several peers. Use it as a context manager."""

    def __init__(self, folder: Path, count: int = 3, tls: tuple[Path, Path, Path] | None = None) -> None:
        self.peers = [JournalPeer(folder / f"peer-{number}", tls) for number in range(count)]

    @property
    def addresses(self) -> list[str]:
        return [peer.address for peer in self.peers]

    def __enter__(self) -> JournalPeers:
        for peer in self.peers:
            peer.launch()
        for peer in self.peers:
            peer.wait_until_it_answers()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for peer in self.peers:
            peer.kill()

    def __getitem__(self, number: int) -> JournalPeer:
        return self.peers[number]
