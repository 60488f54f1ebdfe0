"""The MCP server and a real daemon, asked by a real client: it reads, by token, and shows values only on request."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.schedulers.environments import ROOT
from tests.schedulers.test_schedulers import run
from tests.servers.postgres import PostgresServer
from tests.support.daemon.running_shop import DaemonFolder

pytestmark = [pytest.mark.postgres, pytest.mark.long]
SCRIPT = ROOT / "tests" / "schedulers" / "mcp_script.py"
CANARY = "value-of-a-row"
TOKEN = secrets.token_hex(24)
Call = tuple[str, dict[str, Any]]


class Asked:
    """A daemon with a token, and a folder for the server's files."""

    def __init__(self, shop: DaemonFolder, listen: str, home: Path) -> None:
        self.shop = shop
        self.url = f"http://{listen}"
        self.home = home
        self.token_file = home / "token"
        self.token_file.write_text(TOKEN)

    def ask(self, *calls: Call, options: tuple[str, ...] = ()) -> dict[str, Any]:
        arguments = ("--url", self.url, "--token-file", str(self.token_file), *options)
        return run("mcp", SCRIPT, self.home, json.dumps(calls), *arguments)


@pytest.fixture
def asked(own_postgres: PostgresServer, tmp_path: Path) -> Iterator[Asked]:
    database = own_postgres.create_database("shop")
    database.execute(f"CREATE TABLE orders (id int PRIMARY KEY, note text); INSERT INTO orders VALUES (1, '{CANARY}')")
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    shop = DaemonFolder(tmp_path, {"kind": "postgres", "url": database.url}, "public.orders")
    home = tmp_path / "mcp"
    home.mkdir()
    (home / "of_daemon").write_text(TOKEN)
    (home / "of_daemon").chmod(0o600)
    reference = f"${{file:{home / 'of_daemon'}}}"
    shop.rest["service"] = {"listen": listen, "tokens": [{"name": "model", "role": "read", "token": reference}]}
    shop.write()
    try:
        shop.start()
        yield Asked(shop, listen, home)
    finally:
        shop.kill()


def test_model_sees_state_and_changes_but_no_value(asked: Asked) -> None:
    found = asked.ask(("overview", {}), ("tables", {}), ("changes", {"table": "public.orders"}))
    assert found["tools"] == ["changes", "history", "overview", "tables", "transaction"]
    assert found["read_only"]
    assert [one["is_error"] for one in found["answers"]] == [False] * 3
    overview, tables, changes = (one["text"] for one in found["answers"])
    assert "capturing" in overview
    assert "public.orders" in tables
    assert '"op"' in changes
    assert CANARY not in json.dumps(found)
    assert TOKEN not in json.dumps(found)


def test_values_are_shown_on_request(asked: Asked) -> None:
    found = asked.ask(("row", {"table": "public.orders", "key": ["1"]}), options=("--row-values",))
    assert {"row", "row_history", "differences"} <= set(found["tools"])
    assert CANARY in found["answers"][0]["text"]


def test_refusals_have_the_daemons_reason_and_no_token(asked: Asked) -> None:
    """A table that does not exist, and then a token that the daemon does not know."""
    (unknown,) = asked.ask(("changes", {"table": "public.ordres"}))["answers"]
    assert unknown["is_error"]
    assert "public.ordres" in unknown["text"]
    asked.token_file.write_text("f" * 48)
    (refused,) = asked.ask(("tables", {}))["answers"]
    assert refused["is_error"]
    assert "f" * 48 not in refused["text"]
    assert "token" in refused["text"]
