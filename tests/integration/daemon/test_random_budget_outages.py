"""Outages until the budget of the source's log is passed: the source keeps no more, and the tables become equal again.

`make test-budget OUTAGES=30 SEED=1`; a failure prints the seed that repeats it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers.mysql import MySQLServer
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import TcpProxy
from tests.support.daemon.bank import Bank
from tests.support.daemon.budget_outages import LOAD, OUTAGES, Operated, random_pause, repeated
from tests.support.daemon.mysql_bank import MySQLBank
from tests.support.polling import PATIENCE_S, wait_until

from cdcflow.sources.mysql.position import BinlogPosition

COUNT = int(os.environ.get("OUTAGES", "2"))
SEED = int(os.environ.get("SEED", "1"))
BUDGET = 32 << 20
SEGMENT = 16 << 20
KEPT = """
SELECT coalesce(max(pg_current_wal_lsn() - restart_lsn), 0)::bigint, count(*) FILTER (WHERE slot_name = 'budgeted')
FROM pg_replication_slots
"""


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
def test_postgres_keeps_no_more_than_the_budget(tmp_path: Path, seed: int) -> None:
    """P37: with a guard next to the server, whatever fails, and whenever."""
    dice = random.Random(seed)
    kind = OUTAGES[seed % len(OUTAGES)]
    with PostgresServer() as server, TcpProxy(server.port) as proxy:
        bank = Bank(server.create_database("bank"), tmp_path)
        source = {"slot": "budgeted", "log_budget": BUDGET, "log_budget_then": "release"}
        bank.configure(**source)
        for_guard = tmp_path / "guard.yaml"
        for_guard.write_text(bank.config_path.read_text())
        bank.configure(**source, url=bank.database.url.replace(f":{server.port}/", f":{proxy.port}/"))
        most, slots = [0], [1]

        def measure() -> None:
            with bank.database.connect(autocommit=True) as connection:
                for _ in range(20):
                    kept, slots[0] = connection.execute(KEPT).fetchone() or (0, 0)
                    most[0] = max(most[0], kept)

        operated = Operated(bank, proxy)
        operated.start()
        with (tmp_path / "guard.out").open("wb") as output:
            command = [sys.executable, "-m", "cdcflow.cli", "guard", "--json", "--config", str(for_guard)]
            guard = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_reached(fence), "the first rows", operated.daemon)
            bank.start_writing(seed)
            with repeated(measure, 0.02):
                random_pause(dice, 2)
                with operated.outage(kind):
                    with repeated(lambda: server.execute(LOAD), 0.02):
                        wait_until(lambda: slots[0] == 0, f"a release (seed {seed}, {kind})", more=bank.output)
                    random_pause(dice, 2)
                random_pause(dice, 3)
                operated.check(1)
        finally:
            bank.stop_writing()
            guard.terminate()
            guard.wait()
            operated.end()
        print(f"seed {seed}: {kind}, at most {most[0] >> 20} MiB kept of {BUDGET >> 20} MiB")
        assert most[0] <= BUDGET + SEGMENT, f"seed {seed}, {kind}"


@pytest.mark.long
@pytest.mark.mysql
@pytest.mark.parametrize("seed", range(SEED, SEED + COUNT))
def test_binary_log_that_is_purged_costs_no_rows(own_mysql: MySQLServer, tmp_path: Path, seed: int) -> None:
    """M14: the server purges past the reader, whatever it is that fails."""
    dice = random.Random(seed)
    kind = OUTAGES[seed % len(OUTAGES)]
    with TcpProxy(int(own_mysql.port)) as proxy:
        database = own_mysql.create_database("bank")
        url = own_mysql.url().replace(f":{own_mysql.port}", f":{proxy.port}")
        bank = MySQLBank(database, tmp_path, url=url, log_budget_then="release")
        operated = Operated(bank, proxy)
        operated.start()

        def is_purged() -> bool:
            """Whether the file that the log continues in is gone. A file that is still being sent is not purged."""
            own_mysql.execute("FLUSH BINARY LOGS")
            files = [str(row[0]) for row in own_mysql.execute("SHOW BINARY LOGS")]
            own_mysql.execute(f"PURGE BINARY LOGS TO '{files[-1]}'")
            position = bank.reader.newest_checkpoint().position
            assert position is not None
            left = [str(row[0]) for row in own_mysql.execute("SHOW BINARY LOGS")]
            return BinlogPosition.parse(position.text).start.file.name not in left

        try:
            fence = bank.fence()
            bank.wait_until(lambda: bank.has_reached(fence), "the first rows", operated.daemon)
            bank.start_writing(seed)
            random_pause(dice, 2)
            with operated.outage(kind):
                random_pause(dice, 1)
                wait_until(is_purged, f"a purge (seed {seed}, {kind})", patience_s=4 * PATIENCE_S, more=bank.output)
                random_pause(dice, 2)
            random_pause(dice, 3)
            # What the server has sent to a reader that hangs arrives later, and nothing is lost then.
            operated.check(0 if kind in ("stopped", "silent") else 1)
        finally:
            bank.stop_writing()
            operated.end()
