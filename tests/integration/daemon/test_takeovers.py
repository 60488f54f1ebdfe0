"""Two daemons with one lease capture PostgreSQL into one folder, as two machines with a shared disk do.

`make test-takeover N=200 SEED=1` reports how long takeovers take.
"""

from __future__ import annotations

from functools import partial

import pytest
from tests.servers.objects import ObjectServer
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import TcpProxy
from tests.support.daemon.bank import Bank
from tests.support.daemon.budget_outages import LOAD, Operated, repeated
from tests.support.daemon.lease_takeovers import Pair, check_handover, check_takeovers
from tests.support.polling import wait_until

pytestmark = pytest.mark.postgres


def test_standby_replaces_a_daemon_that_was_killed_suspended_or_stopped(bank: Bank) -> None:
    """L10, L11: the suspended one wakes up with the log open, and nothing that it writes then may count."""
    with Pair(bank, {"at": "source", "name": "shop"}) as pair:
        check_takeovers(pair, ["kill", "suspend", "handover"], seed=1)


def test_lease_in_an_object_store(bank: Bank, object_server: ObjectServer) -> None:
    """No server knows who is alive: only time shows it."""
    objects = object_server.objects("leases", "shop").model_dump(mode="json")
    access = {name: objects[name] for name in ("endpoint", "region", "access_key", "secret_key")}
    with Pair(bank, {"at": objects["url"], "objects": access}) as pair:
        check_takeovers(pair, ["suspend", "kill"], seed=2)


@pytest.mark.long
def test_lease_of_two_daemons_on_one_machine(bank: Bank) -> None:
    with Pair(bank, {"at": "file"}) as pair:
        check_takeovers(pair, ["kill", "stop", "handover"], seed=3)


@pytest.mark.long
def test_handover_succeeds_only_if_the_other_daemon_becomes_active(bank: Bank) -> None:
    """Otherwise an operator would switch the machine off on which the only daemon runs."""
    with Pair(bank, {"at": "source", "name": "shop"}) as pair:
        check_handover(pair)


@pytest.mark.long
def test_budget_of_the_source_is_held_while_no_daemon_can_get_the_lease(
    bank: Bank, wheel_server: PostgresServer
) -> None:
    """P37: no daemon captures then, and the slot does not advance; a standby releases it, and its next term repairs."""
    source = {"slot": "leased", "log_budget": 32 << 20, "log_budget_then": "release"}
    with TcpProxy(wheel_server.port) as proxy:
        at = bank.database.url.replace(f":{wheel_server.port}/", f":{proxy.port}/")
        bank.other_settings = {"service": {"lease": {"at": at, "name": "shop"}}}
        bank.configure(**source)
        operated = Operated(bank, proxy)
        operated.start()
        try:
            bank.wait_until(lambda: bank.has_reached(""), "the first backfill", operated.daemon)
            bank.start_writing(seed=8)
            with operated.outage("cut"), repeated(partial(bank.database.execute, LOAD), 0.02):
                released = "SELECT count(*) = 0 FROM pg_replication_slots WHERE slot_name = 'leased'"
                bank.wait_until(lambda: bank.database.execute(released) == [(True,)], "the release", operated.daemon)
            operated.check(1)
        finally:
            bank.stop_writing()
            operated.end()


@pytest.mark.long
def test_executors_run_at_the_active_daemon_alone(bank: Bank) -> None:
    """Two Spark clusters would cost twice as much, and a takeover must not wait for one."""
    connected = "executors connected"
    with Pair(bank, {"at": "source", "name": "shop"}, arguments=("--on", "local[2]")) as pair:
        bank.start_writing(seed=9)
        for fault in ("handover", "kill"):
            active = pair.active()
            standby = pair.other(active)
            before = standby.count(connected)
            wait_until(lambda: active.count(connected) > 0, "the executors", more=pair.text)  # noqa: B023
            pair.read_again("accounts")
            pair.take_over(fault)
            wait_until(lambda: standby.count(connected) > before, "other executors", more=pair.text)  # noqa: B023
        pair.read_again("accounts")
        pair.finish()
