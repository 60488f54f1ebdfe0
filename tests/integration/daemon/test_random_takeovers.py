"""Takeovers one after another under load, on each server and each lease: nothing is lost, doubled or reordered.

`make test-takeover N=200 SEED=1` prints how long they took; a failure prints the seed that repeats its faults.
"""

from __future__ import annotations

import copy
import os
import random
import statistics
from collections.abc import Callable, Iterator, Mapping
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

COUNT = int(os.environ.get("N", "14"))
SEED = int(os.environ.get("SEED", "1"))
CASES = ("postgres source", "postgres objects", "postgres file", "postgres cut off", "kafka", "mysql", "mariadb")
EACH = max(1, COUNT // len(CASES))
WITH_CUTS = ("kill", "suspend", "handover", "stop", "cut off")

pytestmark = pytest.mark.long
_took: list[tuple[str, str, float]] = []


@pytest.fixture(scope="module", autouse=True)
def _printed() -> Iterator[None]:
    yield
    for fault in sorted({fault for _, fault, _ in _took}):
        print_seconds(fault, [s for _, f, s in _took if f == fault])
    for case in sorted({case for case, _, _ in _took}):
        print_seconds(f"({case})", [s for c, _, s in _took if c == case])
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
    dice = random.Random(f"{case} {SEED}")
    flavor: Flavor | None = "mysql" if case == "mysql" else "mariadb" if case == "mariadb" else None
    if flavor is not None:
        servers: Callable[[Flavor], MySQLServer] = request.getfixturevalue("mysql_servers")
        database = servers(flavor).create_database("takeovers")
        take_over(case, MySQLBank(database, tmp_path), {"at": "source", "name": "takeovers"}, dice)
        return
    with PostgresServer(settings={"wal_sender_timeout": "10s"}) as server:
        bank = Bank(server.create_database("bank"), tmp_path)
        match case:
            case "postgres source":
                take_over(case, bank, {"at": "source", "name": "bank"}, dice)
            case "postgres objects":
                objects = object_server.objects(f"takeovers-{SEED}", "shop").model_dump(mode="json")
                access = {name: objects[name] for name in ("endpoint", "region", "access_key", "secret_key")}
                take_over(case, bank, {"at": objects["url"], "objects": access}, dice)
            case "postgres file":
                take_over(case, bank, {"at": "file"}, dice)
            case "postgres cut off":
                with TcpProxy(server.port) as one, TcpProxy(server.port) as two:
                    lease = {"at": _through(bank, server, one), "name": "bank"}
                    second = {"service": {"lease": {**lease, "at": _through(bank, server, two)}}}
                    take_over(case, bank, lease, dice, second, proxies=[one, two])
            case _:
                with KafkaBroker() as broker:
                    take_over_in_kafka(bank, broker, dice)


def _through(bank: Bank, server: PostgresServer, proxy: TcpProxy) -> str:
    return bank.database.url.replace(f":{server.port}/", f":{proxy.port}/")


def take_over_in_kafka(bank: Bank, broker: KafkaBroker, dice: random.Random) -> None:
    bank.log_settings = {"kafka": {"brokers": broker.address, "topic": "bank", "work": str(bank.folder / "work-1")}}
    second = copy.deepcopy(bank.log_settings)
    second["kafka"]["work"] = str(bank.folder / "work-2")
    take_over("kafka", bank, {"at": "kafka"}, dice, {"log": second})


def take_over(
    case: str,
    bank: Branch,
    lease: Mapping[str, Any],
    dice: random.Random,
    changed: Mapping[str, Any] | None = None,
    proxies: list[TcpProxy] | None = None,
) -> None:
    """Let `EACH` faults happen. `proxies`: those between each daemon and its lease, which may be held."""
    allowed = [f for f in (FAULTS if proxies is None else WITH_CUTS) if (case, f) != ("postgres file", "suspend")]
    try:
        with Pair(bank, lease, changed or {}, proxies=proxies or []) as pair:
            bank.start_writing(SEED)
            for _ in range(EACH):
                fault = dice.choice(allowed)
                _took.append((case, fault, pair.take_over(fault)))
            pair.finish()
    finally:
        bank.stop_writing()
