"""Takeovers of a replicated log under load: two machines (folders), three peers, and what happens to each of them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from tests.servers.journal_peers import JournalPeers
from tests.support.daemon.bank import Branch

from cdcflow.config import Objects

MACHINES = ("a", "b")
ENDED_WITHIN_S = 60


class Machines:
    """The daemon of one pipeline, on the machine on which it currently runs. Use it within `JournalPeers`."""

    def __init__(self, bank: Branch, objects: Objects, peers: JournalPeers, configure: Callable[[], Any]) -> None:
        self.bank = bank
        self.peers = peers
        self._objects = {k: v for k, v in objects.model_dump(mode="json").items() if v is not None}
        self._configure = configure
        self.takeovers_s: list[float] = []
        self.machine = MACHINES[0]
        self._settle(self.machine)
        self.daemon = bank.daemon()

    def _settle(self, machine: str) -> None:
        room = self.bank.folder / machine
        room.mkdir(exist_ok=True)
        self.machine = machine
        self.bank.log = room / "log"
        self.bank.config_path = room / "cdcflow.yaml"
        self.bank.log_settings |= {
            "path": str(self.bank.log),
            "objects": {**self._objects, "keep_local": "0s"},
            "replicate": {"quorum": self.peers.addresses, "timeout": "5s"},
        }
        self._configure()

    def wait_until_live(self) -> None:
        fence = self.bank.fence()
        self.bank.wait_until(lambda: self.bank.has_passed(fence), f"{self.machine} to capture", self.daemon, 180)

    def take_over(self) -> subprocess.Popen[bytes]:
        """Start the other machine's daemon; returns the first one's process."""
        before, began = self.daemon, time.monotonic()
        self._settle(MACHINES[1] if self.machine == MACHINES[0] else MACHINES[0])
        self.daemon = self.bank.daemon()
        self.wait_until_live()
        self.takeovers_s.append(time.monotonic() - began)
        return before

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────────

    def killed(self) -> None:
        """The active machine is gone."""
        self.daemon.kill()
        self.daemon.wait()
        self.take_over()

    def stopped(self) -> None:
        self.daemon.send_signal(signal.SIGTERM)
        assert self.daemon.wait(timeout=ENDED_WITHIN_S) == 0, self.bank.output()
        self.take_over()

    def suspended(self) -> None:
        """The active daemon sleeps across the takeover, then continues: it must end."""
        os.kill(self.daemon.pid, signal.SIGSTOP)
        time.sleep(3.5)
        before = self.take_over()
        os.kill(before.pid, signal.SIGCONT)
        assert before.wait(timeout=ENDED_WITHIN_S) not in (0, None), self.bank.output()

    def peer_away(self, number: int) -> None:
        """A peer is stopped before, during and after the takeover."""
        self.peers[number].kill()
        time.sleep(1)
        self.killed()
        self.peers[number].start()

    def peer_cut_off(self, number: int) -> None:
        """A peer answers no process for a while, keeps its connections, and answers again."""
        self.peers[number].halt()
        time.sleep(1)
        self.killed()
        self.peers[number].resume()

    def disk_lost(self, number: int) -> None:
        """A peer starts empty while the log is written; a second peer is stopped in the next takeover."""
        self.peers[number].lose_disk()
        time.sleep(0.5)
        self.peers[number].start()
        self.bank.wait_until(self._all_follow, "the peers to follow", self.daemon)
        self.peer_away((number + 1) % 3)

    def majority_lost(self) -> None:
        """Two peers away: nothing is acknowledged; the daemon waits, and continues when they are back."""
        self.peers[0].kill()
        self.peers[1].kill()
        time.sleep(7)
        assert self.daemon.poll() is None, self.bank.output()
        self.peers[0].start()
        self.wait_until_live()
        self.peers[1].start()

    def _all_follow(self) -> bool:
        status = json.loads((self.bank.log / "peers.json").read_text())
        return all(peer["counts"] for peer in status["peers"].values())

    def happen(self, dice: random.Random) -> str:
        """One of these, at random."""
        events: Mapping[str, Callable[[], None]] = {
            "killed": self.killed,
            "stopped": self.stopped,
            "suspended": self.suspended,
            "peer away": lambda: self.peer_away(dice.randrange(3)),
            "peer cut off": lambda: self.peer_cut_off(dice.randrange(3)),
            "disk lost": lambda: self.disk_lost(dice.randrange(3)),
            "majority lost": self.majority_lost,
        }
        name = dice.choice(sorted(events))
        time.sleep(dice.random())
        events[name]()
        return name

    # ── at the end ──────────────────────────────────────────────────────────────────────────────────────────

    def assert_nothing_lost_doubled_or_reordered(self) -> None:
        """The whole log on the last machine, its segments included, equals the source; each commit is in it once."""
        self.bank.stop_writing()
        self.bank.catch_up_and_stop(self.daemon)
        self.bank.assert_log_equals_source()
        headers = pa.concat_tables(self.bank.reader.read_transactions())
        positions = headers.column("position").to_pylist()
        changes = [p for p, kind in zip(positions, headers.column("kind").to_pylist(), strict=True) if kind == "source"]
        assert len(set(changes)) == len(changes), "a transaction is in the log twice"
        assert changes == sorted(changes, key=_in_order), "transactions are out of order"

    def close(self) -> None:
        self.bank.stop_writing()
        self.daemon.kill()
        self.daemon.wait()


def _in_order(position: str) -> tuple[str, int]:
    """PostgreSQL's positions are padded; MySQL's begin with file and byte."""
    file, _, rest = position.partition(":")
    return file, int(rest.partition(";")[0] or 0)
