"""Takeovers one after another under load, on each server and each lease: nothing is lost, doubled or reordered.

`make test-takeover N=200 SEED=1` prints how long they took; a failure prints the seed that repeats its faults.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.servers.kafka import KafkaBroker
from tests.servers.mysql import Flavor, MySQLServer
from tests.servers.objects import ObjectServer
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import TcpProxy
from tests.support.daemon.bank import Bank, Branch
from tests.support.daemon.lease_takeovers import FAULTS, Pair
from tests.support.daemon.mysql_bank import MySQLBank

COUNT = int(os.environ.get("N", "24"))
SEED = int(os.environ.get("SEED", "1"))
CASES = (
    "postgres source",
    "postgres objects",
    "postgres file",
    "postgres source, lease cut off",
    "postgres source, all cut off",
    "postgres objects, lease cut off",
    "postgres kafka",
    "postgres source, log in kafka",
    "mysql source",
    "mysql source, all cut off",
    "mariadb source",
    "mariadb source, all cut off",
)
"""The server, the lease, and what may be cut off from the active daemon: its lease, or all servers."""
EACH = max(1, COUNT // len(CASES))
WITH_CUTS = (*FAULTS, "cut off")

READ_AGAIN = 0.4
"""How often a table is being read when a fault happens."""

pytestmark = pytest.mark.long
_numbers = itertools.count(1)
_took: list[tuple[str, str, float]] = []


@pytest.fixture(scope="module", autouse=True)
def _printed() -> Iterator[None]:
    yield
    for case, fault in sorted({(case, fault) for case, fault, _ in _took}):
        print_seconds(f"{case}: {fault}", [s for c, f, s in _took if (c, f) == (case, fault)])
    for fault in sorted({fault for _, fault, _ in _took}):
        print_seconds(fault, [s for _, f, s in _took if f == fault])
    print_seconds("all", [s for _, _, s in _took])


def print_seconds(name: str, seconds: list[float]) -> None:
    if seconds:
        found = sorted(seconds)
        p99 = found[min(len(found) - 1, int(0.99 * len(found)))]
        print(f"{name}: {len(found)} takeovers, median {statistics.median(found):.2f} s, p99 {p99:.2f} s")


@pytest.mark.postgres
@pytest.mark.mysql
@pytest.mark.kafka
@pytest.mark.parametrize("case", CASES)
def test_takeovers_lose_double_and_reorder_nothing(
    case: str,
    tmp_path: Path,
    object_server: ObjectServer,
    request: pytest.FixtureRequest,
) -> None:
    """L10, L11, L12, K11, O01: whatever happens to the active daemon."""
    server, _, where = case.partition(" ")
    with ExitStack() as around:
        if server == "postgres":
            started = around.enter_context(PostgresServer(settings={"wal_sender_timeout": "10s"}))
            bank: Branch = Bank(started.create_database("bank"), tmp_path)
            port, url = started.port, bank.database.url  # type: ignore[attr-defined]
        else:
            servers: Callable[[Flavor], MySQLServer] = request.getfixturevalue("mysql_servers")
            of_flavor = servers("mysql" if server == "mysql" else "mariadb")
            bank = MySQLBank(of_flavor.create_database(f"takeovers_{next(_numbers)}"), tmp_path)
            port, url = int(of_flavor.port), of_flavor.url()
        lease: dict[str, Any] = {"at": "source", "name": "takeovers"}
        changed: tuple[dict[str, Any], ...] = ({}, {})
        proxies: list[TcpProxy] = []

        def through_proxies(target: int) -> list[TcpProxy]:
            proxies.extend(around.enter_context(TcpProxy(target)) for _ in range(2))
            return proxies

        if "kafka" in where:
            broker = around.enter_context(KafkaBroker())
            bank.log_settings = {
                "kafka": {"brokers": broker.address, "topic": "bank", "work": str(tmp_path / "work-1")}
            }
            changed = ({}, {"log": {"kafka": {"work": str(tmp_path / "work-2")}}})
        match where:
            case "file" | "kafka":
                lease = {"at": where}
            case "objects":
                lease = bucket_of(object_server, tmp_path)
            case "objects, lease cut off":
                lease = bucket_of(object_server, tmp_path)
                ways = [f"http://127.0.0.1:{proxy.port}" for proxy in through_proxies(object_server.port)]
                changed = tuple({"service": {"lease": {"objects": {"endpoint": way}}}} for way in ways)
            case "source, lease cut off":
                ways = [url.replace(f":{port}", f":{proxy.port}") for proxy in through_proxies(port)]
                changed = tuple({"service": {"lease": {"at": way}}} for way in ways)
            case "source, all cut off":
                ways = [url.replace(f":{port}", f":{proxy.port}") for proxy in through_proxies(port)]
                changed = tuple({"source": {"url": way}} for way in ways)
        take_over(case, bank, lease, changed, proxies)


def bucket_of(object_server: ObjectServer, folder: Path) -> dict[str, Any]:
    """A lease in a bucket that no other test uses."""
    name = "".join(c for c in folder.name.lower() if c.isalnum())[-40:]
    objects = object_server.objects(f"takeovers{name}", "shop").model_dump(mode="json")
    access = {name: objects[name] for name in ("endpoint", "region", "access_key", "secret_key")}
    return {"at": objects["url"], "objects": access}


def take_over(
    case: str,
    bank: Branch,
    lease: Mapping[str, Any],
    changed: tuple[Mapping[str, Any], ...],
    proxies: list[TcpProxy],
) -> None:
    """Let `EACH` faults happen. `changed`: settings of each daemon. `proxies`: those that may be held."""
    dice = random.Random(f"{case} {SEED}")
    is_suspendable = case != "postgres file"  # a suspended process keeps the lock of a file
    allowed = [f for f in (WITH_CUTS if proxies else FAULTS) if f != "suspend" or is_suspendable]
    try:
        with Pair(bank, lease, changed[1], proxies=proxies, changed_first=changed[0]) as pair:
            bank.start_writing(SEED)
            for _ in range(EACH):
                fault = dice.choice(allowed)
                if dice.random() < READ_AGAIN:
                    pair.read_again(dice.choice(("accounts", "entries")))
                _took.append((case, fault, pair.take_over(fault)))
                print(f"takeover: {case}: {fault}: {_took[-1][2]:.2f} s", flush=True)
            pair.finish()
    finally:
        bank.stop_writing()
