"""Takeovers of a log with peers, under load on MySQL and MariaDB: nothing is lost, doubled or reordered."""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path

import pytest
from tests.servers.journal_peers import JournalPeers
from tests.support.daemon.mysql_bank import MySQLBank
from tests.support.daemon.takeovers import Machines

from cdcflow.config import Objects

TAKEOVERS = int(os.environ.get("TAKEOVERS", "10"))
SEED = int(os.environ.get("SEED", "1"))


@pytest.mark.long
def test_log_survives_its_machine(bank: MySQLBank, objects: Objects, tmp_path: Path) -> None:
    """The active daemon is killed while a peer is cut off, while the bank works."""
    with JournalPeers(tmp_path) as peers, closing(Machines(bank, objects, peers, bank.configure)) as machines:
        bank.start_writing(seed=1)
        machines.wait_until_live()
        machines.peer_cut_off(1)
        machines.assert_nothing_lost_doubled_or_reordered()


@pytest.mark.long
def test_random_takeovers(bank: MySQLBank, objects: Objects, tmp_path: Path) -> None:
    """`make test-quorum TAKEOVERS=60 SEED=1`: whatever happens next."""
    dice = random.Random(SEED)
    with JournalPeers(tmp_path) as peers, closing(Machines(bank, objects, peers, bank.configure)) as machines:
        bank.start_writing(seed=SEED)
        machines.wait_until_live()
        for number in range(TAKEOVERS):
            print(f"{number + 1} of {TAKEOVERS}, seed {SEED}: {machines.happen(dice)}", flush=True)
        machines.assert_nothing_lost_doubled_or_reordered()
        print(f"takeovers, from the start of the process to a later change in the log: {sorted(machines.takeovers_s)}")
