"""`cdcflow run` with policies: everything that it writes, prints and serves, and policies that change while it runs."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.daemon.running_shop import Shop, planned, runner, said
from tests.support.polling import wait_until
from tests.support.privacy.canaries import CANARY, canaries_in, has_canary
from tests.support.privacy.private_bank import HASH, SECRETS, hashed

from cdcflow import wiring
from cdcflow.cli.app import app
from cdcflow.config import load
from cdcflow.demo.servers.processes import free_port
from cdcflow.model.table import TableId
from cdcflow.testing.folded import fold_log

pytestmark = pytest.mark.postgres
ORDERS = TableId("public", "orders")


@pytest.fixture
def database(private_server: PostgresServer) -> Iterator[Database]:
    made = private_server.create_database("running")
    made.execute(
        "CREATE TABLE orders (email text PRIMARY KEY, note text, due date);"
        f"INSERT INTO orders SELECT '{CANARY}' || i, '{CANARY} note ' || i, '2020-01-01' FROM generate_series(1, 300) i"
    )
    yield made
    made.drop()


@pytest.fixture
def shop(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    monkeypatch.chdir(tmp_path)
    made = Shop(tmp_path, database)
    yield made
    made.kill()


def rows(shop: Shop) -> dict[str, dict[str, Any]]:
    """The rows of the log, by the number in their note or key."""
    folded = fold_log(wiring.log_reader(load(shop.file)))
    return {str(key[0]): dict(row.values) for key, row in folded.get(ORDERS, {}).items()}


def test_policy_that_changes_while_running_reads_the_table_again(shop: Shop) -> None:
    """The plan explains it before, and the current rows have the new policy afterwards; so does every later row."""
    shop.start()
    shop.rest["tables"] = {"public.orders": {"columns": {"note": HASH}}}
    shop.write()
    found = planned()
    assert found["actions"] == {"public.orders": "read again"}
    assert any("keep their values until the log expires them" in warning for warning in found["warnings"])
    said("apply", "--yes")
    shop.wait_until(lambda s: s["tables"]["public.orders"]["generation"] == 2, "the second generation")
    shop.wait_until(lambda s: s["tables"]["public.orders"]["state"] == "done", "the table to be read again")
    shop.database.execute(f"INSERT INTO orders VALUES ('new', '{CANARY} new', NULL)")
    wait_until(lambda: "new" in rows(shop), "the new row")
    known = rows(shop)
    assert known["new"]["note"] == hashed(f"{CANARY} new")
    assert known[f"{CANARY}7"]["note"] == hashed(f"{CANARY} note 7")
    assert not planned()["changes"]
    shop.rest["tables"] = {"public.orders": {"columns": {"note": "drop", "nota": "mask"}}}
    shop.write()
    (refusal,) = json.loads(runner.invoke(app, ["plan", "--json"]).output)["refused"]
    assert "no column nota" in refusal["text"]
    assert "did you mean note?" in refusal["remedy"]
    del shop.rest["tables"]
    shop.write()
    assert planned()["actions"] == {"public.orders": "read again"}
    shop.end()


def test_repair_makes_the_values_of_an_erased_person_null(shop: Shop) -> None:
    """Until then a comparison lists them: the source has them still."""
    by_email = {"encrypt": {"key": "${env:CARD_KEY}", "id": "k1", "key_by": "email"}}
    shop.rest["tables"] = {"public.orders": {"columns": {"note": by_email}}}
    shop.write()
    shop.start()
    shop.wait_until(lambda s: s["tables"]["public.orders"]["state"] == "done", "the backfill")
    said("erase", "public.orders", f"{CANARY}7", "--yes")
    compare = ("verify", "public.orders", "--against", "log")
    wait_until(lambda: "not compared" not in runner.invoke(app, list(compare)).output, "the first segment")
    assert runner.invoke(app, list(compare)).exit_code == 1
    said("repair", "public.orders", "--against", "log")
    said(*compare)
    known = rows(shop)
    assert known[f"{CANARY}7"]["note"] is None
    assert all(row["note"] for key, row in known.items() if key != f"{CANARY}7")
    assert said("decrypt", known[f"{CANARY}8"]["note"]).strip() == f"{CANARY} note 8"
    shop.end()


def test_nothing_that_a_daemon_writes_prints_or_serves_has_a_protected_value(shop: Shop) -> None:
    """Merges, tables, metrics, status, the page, a bundle and the report of a crash: after a kill, and after a value
    that cannot be stored."""
    port = free_port()
    shop.rest["tables"] = {"public.*": {"columns": {"email": HASH, "note": {"mask": {"keep_last": 2}}}}}
    shop.rest["merge"] = {"engine": "local", "warehouse": "warehouse", "every": "1s"}
    shop.rest["service"] = {"listen": f"127.0.0.1:{port}", "shadow_every": "1s"}
    shop.write()
    shop.start()
    assert shop.daemon is not None
    shop.database.execute("UPDATE orders SET note = note || '!' WHERE email LIKE '%7'")
    shop.daemon.kill()
    shop.daemon.wait()
    assert canaries_in(shop.folder) == []
    shop.start()
    shop.database.execute(f"UPDATE orders SET email = email || '{CANARY}' WHERE email LIKE '%8'")
    wait_until(lambda: list((shop.folder / "warehouse").rglob("*.parquet")), "a merge", more=shop.output.read_text)
    shop.wait_until(lambda s: (s.get("merge") or {}).get("cut", 1) is not None, "a cut")
    served = [
        urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30).read()
        for path in ("/", "/metrics", "/status")
    ]
    printed = [runner.invoke(app, list(words)).output for words in (["status"], ["doctor"], ["plan"], ["bundle"])]
    assert not any(map(has_canary, [*served, *(text.encode() for text in printed)]))
    assert "**** 1" in said("get", "public.orders", str(hashed(f"{CANARY}1")))
    assert canaries_in(shop.folder) == []
    shop.database.execute(f"INSERT INTO orders VALUES ('{CANARY}', '{CANARY}', 'infinity')")
    shop.wait_until(lambda s: "special_values" in str(s["tables"]["public.orders"].get("reason")), "the table to fail")
    assert canaries_in(shop.folder) == []
