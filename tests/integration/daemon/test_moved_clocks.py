"""The time of day of one machine jumps by an hour while two daemons share a lease: one of them writes, nothing is lost.

Leases, terms and epochs count by clocks that are never set. An object store is the exception: it refuses requests that
are signed with a wrong time, so a daemon whose clock is wrong cannot hold a lease there. Kafka's client library waits
by the time of day: a call during which the clock is set back may last that long, so the daemon is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.servers.kafka import KafkaBroker
from tests.servers.objects import ObjectServer
from tests.support.daemon.bank import Bank, Branch
from tests.support.daemon.lease_takeovers import TAKEN, Pair
from tests.support.daemon.moved_clock import MovedClock
from tests.support.daemon.mysql_bank import MySQLBank
from tests.support.polling import wait_until

pytestmark = pytest.mark.long
HOUR_S = 3600


@pytest.mark.postgres
@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
def test_jump_with_a_lease_in_the_source(bank: Bank, tmp_path: Path, by_s: int) -> None:
    jump(bank, {"at": "source", "name": "shop"}, tmp_path, by_s)


@pytest.mark.mysql
@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
def test_jump_with_a_lease_in_mysql(mysql_servers: Callable[[str], Any], tmp_path: Path, by_s: int) -> None:
    bank = MySQLBank(mysql_servers("mysql").create_database(f"jumps{'ab'[by_s > 0]}"), tmp_path)
    jump(bank, {"at": "source", "name": bank.schema}, tmp_path, by_s)


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
def test_jump_with_lease_and_log_in_kafka(bank: Bank, tmp_path: Path, by_s: int) -> None:
    with KafkaBroker() as broker:
        bank.log_settings = {
            "kafka": {"brokers": broker.address, "topic": "bank", "work": str(tmp_path / "work-1")},
        }
        clock = MovedClock(tmp_path / "clock")
        changed = {"log": {"kafka": {"work": str(tmp_path / "work-2")}}}
        with Pair(bank, {"at": "kafka"}, changed, environments=(clock.environment, {})) as pair:
            bank.start_writing(seed=12)
            clock.move(by_s)
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_reached(fence), f"the log to pass the fence:\n{pair.text()}")
            pair.members[0].end()  # a call of the library may last as long as its clock was set back
            captures(pair)
            pair.finish()


@pytest.mark.postgres
@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S])
def test_jump_with_a_lease_in_an_object_store(
    bank: Bank, object_server: ObjectServer, tmp_path: Path, by_s: int
) -> None:
    """The store refuses what is signed with a wrong time: the daemon with the right one becomes active."""
    objects = object_server.objects(f"jumps{'ab'[by_s > 0]}", "shop").model_dump(mode="json")
    access = {name: objects[name] for name in ("endpoint", "region", "access_key", "secret_key")}
    jump(bank, {"at": objects["url"], "objects": access}, tmp_path, by_s, is_refused=True)


def jump(
    bank: Branch,
    lease: dict[str, Any],
    folder: Path,
    by_s: int,
    *,
    is_refused: bool = False,
) -> None:
    """The active daemon's clock jumps there and back, then the standby's, which becomes active with it.

    `is_refused`: the lease's place accepts no request from a daemon whose clock is wrong.
    """
    clocks = [MovedClock(folder / f"clock-{number}") for number in (1, 2)]
    environments = (clocks[0].environment, clocks[1].environment)
    with ExitStack() as ending:
        pair = ending.enter_context(Pair(bank, lease, environments=environments))
        bank.start_writing(seed=11)
        ending.callback(bank.stop_writing)
        second = pair.members[1]
        taken = second.count(TAKEN)
        clocks[0].move(by_s)
        if is_refused:
            wait_until(lambda: second.count(TAKEN) > taken, "the daemon with the right clock", more=pair.text)
        captures(pair)
        clocks[0].move(0)
        captures(pair)
        active = pair.active()
        standby = pair.other(active)
        clock = clocks[pair.members.index(standby)]
        clock.move(by_s)
        captures(pair)
        if is_refused:
            clock.move(0)
        if pair.active() is active:  # otherwise the standby has become active with its clock already
            pair.take_over("kill")
        captures(pair)
        clock.move(0)
        captures(pair)
        pair.finish()


def captures(pair: Pair) -> None:
    """What is written now arrives in the log, and one daemon is active."""
    fence = pair.bank.fence()
    pair.bank.wait_until(lambda: pair.bank.has_reached(fence), f"the log to pass the fence:\n{pair.text()}")
    pair.active()
