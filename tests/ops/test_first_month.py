"""The first month with cdcflow, played in minutes: a wheel, a real PostgreSQL, a store, Prometheus, a browser.

`make test-ops` runs it. Each step is what an operator does, by the commands and pages that the book names.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.ops.installed import Terminal, environment
from tests.ops.prometheus import Prometheus
from tests.page.browser import started
from tests.servers.objects import ObjectServer
from tests.servers.postgres import Database, PostgresServer
from tests.servers.proxy import TcpProxy
from tests.support.polling import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.long]
ROLE = "cdc"
ROWS = 20_000
CANARY = "value-of-a-row-that-nobody-must-see"
STATEMENT = "(?:GRANT|ALTER|CREATE) [^;\n]+"


class Month:
    """The state that the steps share."""

    def __init__(self, room: Path, server: PostgresServer, store: ObjectServer) -> None:
        self.room = room
        self.server = server
        self.store = store
        self.database: Database = server.create_database("shop")
        self.link = TcpProxy(urlsplit(self.database.url).port)
        self.token = secrets.token_hex(24)
        self.password = room / "password"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.listen = f"127.0.0.1:{free.getsockname()[1]}"
        self.settings: dict[str, Any] = {
            "source": {
                "kind": "postgres",
                "url": f"postgresql://{ROLE}@127.0.0.1:{self.link.port}/shop",
                "password": f"${{file:{self.password}}}",
                "tables": ["public.orders"],
                "heartbeat": "1s",
                "backfill": {"rows_per_second_max": 50_000},
            },
            "log": {
                "path": "log",
                "seal": {"age_max": "1s"},
                "objects": json.loads(store.objects("ops").model_dump_json()),
            },
            "merge": {"format": "delta", "warehouse": "lake"},
            "service": {
                "listen": self.listen,
                "tokens": [{"name": "ops", "role": "operate", "token": "${env:OPS_TOKEN}"}],
            },
        }
        self.terminal: Terminal

    def install(self) -> None:
        folder = self.room / "work"
        folder.mkdir()
        self.terminal = Terminal(environment(self.room), folder, {"OPS_TOKEN": self.token})
        assert "cdcflow" in self.terminal.run("--version")
        assert "wrote cdcflow.yaml" in self.terminal.run("init")
        self.save()

    def save(self) -> None:
        (self.room / "work" / "cdcflow.yaml").write_text(json.dumps(self.settings))  # JSON is YAML

    def set_password(self) -> None:
        text = secrets.token_hex(12)
        self.database.execute(f"ALTER ROLE {ROLE} LOGIN PASSWORD '{text}'")
        self.password.write_text(text)
        self.password.chmod(0o600)

    def doctor_until_well(self) -> int:
        """Do what doctor says, to the letter, until it finds no error. Returns how often it found one."""
        for times in range(10):
            wrong = [one for one in self.findings() if one["level"] == "error"]
            if not wrong:
                return times
            for one in wrong:
                advice = one["remedy"].partition("; or ")[0]
                for statement in re.findall(STATEMENT, advice):
                    self.database.execute(statement)
                for name in re.findall(r"set source\.publication: (\w+)", advice):
                    self.settings["source"]["publication"] = name
                    self.save()
        raise AssertionError(wrong)

    def findings(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.terminal.run("doctor", "--json", code=None))
        return found

    def write(self, *, count: int = 1) -> None:
        self.database.execute(f"INSERT INTO orders (note) SELECT '{CANARY}' FROM generate_series(1, {count})")

    def merged(self, sql: str) -> list[dict[str, Any]]:
        self.terminal.run("merge")
        table = DeltaTable(str(self.room / "work" / "lake" / "public" / "orders"))
        rows = QueryBuilder().register("orders", table).execute(sql).read_all()
        return [dict(row) for row in rows.to_struct_array().to_pylist()]


@pytest.fixture
def month(own_postgres: PostgresServer, tmp_path: Path) -> Iterator[Month]:
    with ObjectServer() as store:
        made = Month(tmp_path, own_postgres, store)
        made.database.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, note text)")
        made.write(count=ROWS)
        made.database.execute(f"CREATE ROLE {ROLE}")
        made.set_password()
        own_postgres.write_hba(
            "local all postgres trust",
            "host all postgres 127.0.0.1/32 trust",
            "host all all 127.0.0.1/32 scram-sha-256",
            "host replication all 127.0.0.1/32 scram-sha-256",
        )
        with made.link:
            try:
                yield made
            finally:
                made.terminal.close()


def done(status: dict[str, Any], *names: str) -> bool:
    return all(status["tables"].get(f"public.{name}", {}).get("state") == "done" for name in names)


def test_first_month(month: Month) -> None:
    """Every step works with the output of the step before, and at the end the source has nothing of cdcflow's."""
    month.install()
    assert month.doctor_until_well() > 0, "the role has no rights at first"

    month.terminal.start()
    month.terminal.until(lambda s: done(s, "orders"), "the first backfill")
    changes_of_settings(month)
    pause(month)
    throttle(month)
    outages(month)
    assert (
        month.merged("SELECT count(*) AS n FROM orders")[0]["n"]
        == month.database.execute("SELECT count(*) FROM orders")[0][0]
    )
    month.database.execute("ALTER TABLE orders ADD COLUMN paid boolean")
    month.database.execute("UPDATE orders SET paid = true WHERE id = 1")
    rotated_password(month)
    look_at_the_page(month)
    bundle(month)
    end(month)


def changes_of_settings(month: Month) -> None:
    month.database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    month.database.execute("INSERT INTO items SELECT generate_series(1, 10)")
    month.settings["source"]["tables"] = ["public.orders", "public.items"]
    month.save()
    assert month.doctor_until_well() > 0, "no role may read the new table yet"
    assert "public.items" in month.terminal.run("plan", "--detailed-exitcode", code=2)
    month.terminal.run("apply", "--yes")
    month.terminal.until(lambda s: done(s, "orders", "items"), "the table that was added")


def pause(month: Month) -> None:
    """The capture pauses for a while; settings that change in the meantime are applied with it."""
    month.terminal.run("ctl", "pause")
    month.terminal.until(lambda s: s["state"] == "paused", "the pause")
    month.settings["source"]["heartbeat"] = "2s"
    month.save()
    assert "The capture is paused" in month.terminal.run("apply", "--yes")
    month.write()
    month.terminal.run("ctl", "resume")
    month.terminal.until(lambda s: s["state"] == "capturing" and s["rows_captured"] >= 1, "the row of the pause")


def throttle(month: Month) -> None:
    month.settings["source"]["backfill"]["rows_per_second_max"] = 2_000
    month.save()
    month.terminal.run("apply", "--yes")
    month.terminal.run("table", "backfill", "public.orders")
    month.terminal.until(lambda s: s["tables"]["public.orders"]["state"] == "reading", "the backfill")
    assert "adjusted" in month.terminal.run("ctl", "throttle", "1000")
    seen = month.terminal.status()["tables"]["public.orders"]
    assert (seen["rate_limit"], seen["rate_limit_from"]) == (1000, "order")
    month.terminal.run("ctl", "throttle", "0")
    month.terminal.until(lambda s: done(s, "orders"), "the end of the backfill")
    assert "nothing to do" in month.terminal.run("table", "pause", "public.orders", code=1)


def outages(month: Month) -> None:
    """The server goes, and an alert fires; the store goes, and the log waits on the disk."""
    with Prometheus(month.room / "prometheus", month.listen) as watching:
        watching.until("CdcflowLagGrows", fires=False)
        month.link.cut()
        watching.until("CdcflowLagGrows", fires=True)
        month.link.mend()
        watching.until("CdcflowLagGrows", fires=False)
    month.store.kill()
    month.write(count=10)
    held = month.terminal.until(lambda s: s["upload_waiting_segments"] and s["upload_problem"], "a segment that waits")
    assert held["state"] == "capturing", "the log continues on the disk"
    month.store.start()
    month.terminal.until(lambda s: not s["upload_waiting_segments"], "the store to have it all")


def rotated_password(month: Month) -> None:
    month.set_password()
    month.database.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'")
    month.write()
    (last,) = month.database.execute("SELECT max(id) FROM orders")[0]
    query = f"SELECT id, note, (SELECT paid FROM orders WHERE id = 1) AS paid FROM orders WHERE id = {last}"
    rows = wait_until(lambda: month.merged(query), "the row", more=lambda: month.terminal.events()[-2000:])
    assert rows == [{"id": last, "note": CANARY, "paid": True}]


def look_at_the_page(month: Month) -> None:
    with started() as browser:
        browser.size(1280, 900)
        browser.open(f"http://{month.listen}/", shown=False)
        browser.sign_in(month.token)
        assert browser.text("#state") == "capturing"
        assert {one.text for one in browser.all("#tables tbody th")} == {"public.orders", "public.items"}
        browser.picture(month.room / "page.png")
        # A user who is not signed in gets a 401, and a prompt for a token.
        assert [text for text in browser.complaints() if "401" not in text] == []


def bundle(month: Month) -> None:
    said = month.terminal.run("bundle", "--output", "bundle.tar.gz", "--events", "events.jsonl")
    assert "status" in said
    with tarfile.open(month.room / "work" / "bundle.tar.gz") as file:
        texts = [file.extractfile(member).read() for member in file.getmembers() if member.isfile()]  # type: ignore[union-attr]
    whole = b"\n".join(texts)
    for secret in (month.password.read_text(), month.token, CANARY):
        assert secret.encode() not in whole
    assert b"public.orders" in whole


def end(month: Month) -> None:
    assert "daemon" in month.terminal.run("drop", "--yes", code=78)
    assert month.terminal.stop() == 0
    said = month.terminal.run("drop", "--yes", code=1)
    assert "removed: slot" in said
    (statement,) = re.findall("DROP PUBLICATION [^;\n]+", said)  # the settings name it: others may read it
    month.database.execute(statement)
    for catalog in ("pg_replication_slots", "pg_publication"):
        assert month.database.execute(f"SELECT count(*) FROM {catalog}") == [(0,)]
    assert month.database.execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'cdcflow%'") == [(0,)]
