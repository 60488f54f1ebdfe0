"""Takeovers of a log with peers, under load on PostgreSQL: nothing is lost, doubled or reordered."""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path

import pytest
from tests.servers.journal_peers import JournalPeers
from tests.support.daemon.bank import Bank
from tests.support.daemon.lease_takeovers import Pair
from tests.support.daemon.takeovers import Machines

from cdcflow.config import Objects

TAKEOVERS = int(os.environ.get("TAKEOVERS", "10"))
SEED = int(os.environ.get("SEED", "1"))


@pytest.mark.long
def test_log_survives_its_machine(bank: Bank, objects: Objects, tmp_path: Path) -> None:
    """The active daemon is killed, then sleeps across a takeover, then a peer loses its disk, while the bank works."""
    with JournalPeers(tmp_path) as peers, closing(Machines(bank, objects, peers, bank.configure)) as machines:
        bank.start_writing(seed=1)
        machines.wait_until_live()
        machines.killed()
        machines.suspended()
        machines.disk_lost(0)
        machines.assert_nothing_lost_doubled_or_reordered()


@pytest.mark.long
def test_random_takeovers(bank: Bank, objects: Objects, tmp_path: Path) -> None:
    """`make test-quorum TAKEOVERS=60 SEED=1`: whatever happens next."""
    dice = random.Random(SEED)
    with JournalPeers(tmp_path) as peers, closing(Machines(bank, objects, peers, bank.configure)) as machines:
        bank.start_writing(seed=SEED)
        machines.wait_until_live()
        for number in range(TAKEOVERS):
            print(f"{number + 1} of {TAKEOVERS}, seed {SEED}: {machines.happen(dice)}", flush=True)
        machines.assert_nothing_lost_doubled_or_reordered()
        print(f"takeovers, from the start of the process to a later change in the log: {sorted(machines.takeovers_s)}")


def test_standby_on_another_machine_continues_from_the_last_acknowledged_change(
    bank: Bank, objects: Objects, tmp_path: Path
) -> None:
    """A lease decides which of two machines is active, and the peers have what the former one had acknowledged."""
    stored = {k: v for k, v in objects.model_dump(mode="json").items() if v is not None}
    with JournalPeers(tmp_path) as peers:
        bank.log_settings |= {
            "objects": {**stored, "keep_local": "0s"},
            "replicate": {"quorum": peers.addresses, "timeout": "5s"},
        }
        folders = bank.log, tmp_path / "second" / "log"
        second = {"log": {**bank.log_settings, "path": str(folders[1])}}
        with Pair(bank, {"at": "source", "name": "shop"}, changed=second) as pair:
            bank.start_writing(seed=4)
            for number, fault in enumerate(("kill", "suspend", "handover"), start=1):
                pair.take_over(fault)
                bank.log = folders[number % 2]
            bank.config_path = pair.active().config
            pair.finish()
