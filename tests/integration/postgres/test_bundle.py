"""`cdcflow bundle` holds what helps, and nothing that must stay where it is."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import Database, PostgresServer
from tests.support.capture.watched_capture import Watched
from typer.testing import CliRunner

from cdcflow.cli.app import app

pytestmark = pytest.mark.postgres
CANARY = "c4n4ry"
PASSWORD, HOOK, SPARK_KEY, ARGUMENT = (f"{CANARY}-{n}" for n in ("password", "hook", "spark", "argument"))
ROW, KEY, DEFAULT = (f"{CANARY}-{n}" for n in ("row", "key", "default"))


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def shop(postgres: PostgresServer) -> Iterator[Database]:
    """Row values and a secret wherever they could get into a bundle: keys, defaults, values, the password."""
    made = postgres.create_database("shop")
    postgres.execute(f"CREATE ROLE cdc LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    made.execute("CREATE TABLE orders (id text PRIMARY KEY, words text)")
    made.execute(f"INSERT INTO orders SELECT '{KEY}' || i, '{ROW}' FROM generate_series(1, 500) i")
    made.execute("CREATE TABLE days (id date PRIMARY KEY)")
    made.execute("INSERT INTO days VALUES ('1987-06-05')")
    yield made
    made.drop()
    postgres.execute("DROP ROLE cdc")


def opened(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        found = {}
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            assert file is not None
            found[entry.name.removeprefix("cdcflow-bundle/")] = file.read()
    return found


@pytest.fixture
def settings(shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    monkeypatch.setenv("SHOP_HOOK", f"https://127.0.0.1:1/{HOOK}")
    path = tmp_path / "cdcflow.yaml"
    path.write_text(
        f"source: {{kind: postgres, url: '{shop.url_as('cdc')}', password: '${{env:SHOP_PASSWORD}}'}}\n"
        "log: {path: log}\n"
        f"merge: {{spark: {{spark.hadoop.fs.s3a.secret.key: {SPARK_KEY}, spark.master: 'local[2]'}}}}\n"
        "service:\n  notify:\n"
        "    - {on: [lag], webhook: '${env:SHOP_HOOK}'}\n"
        f"    - {{on: [lag], webhook: 'https://127.0.0.1:1/{HOOK}'}}\n"
        f"    - {{on: [lag], command: [/bin/true, {ARGUMENT}]}}\n"
    )
    return path


def test_a_bundle_holds_no_secret_and_no_value_of_a_row(settings: Path, shop: Database, tmp_path: Path) -> None:
    """It is sent to strangers. Each canary is in a place where an earlier version of some bundle leaked it."""
    source = {"kind": "postgres", "url": shop.url, "heartbeat": "200ms"}
    with Watched(tmp_path, source) as on:
        on.until_fresh("public.orders", "fresh", "quiet")
        shop.execute(f"ALTER TABLE orders ADD COLUMN more text DEFAULT '{DEFAULT}'")
        shop.execute(f"UPDATE orders SET words = '{ROW}-2'")
        shop.execute("INSERT INTO days VALUES ('1988-07-06')")
        on.until(lambda s: s["counts"]["rows_captured"] >= 501, "the changes")
    lines = tmp_path / "daemon.log"
    lines.write_text(
        "2026-01-31T12:00:00.123Z range chunk read table=public.orders rows=500\n"
        f'{{"event": "capture interrupted", "reason": "refused {PASSWORD}", "time": "2026-01-31T12:00:01Z"}}\n'
        f"ValueError: {ROW}\n"
    )
    done = CliRunner().invoke(app, ["bundle", "--output", "b.tar.gz", "--events", str(lines)])
    assert done.exit_code == 0, done.output
    path = tmp_path / "b.tar.gz"
    assert path.stat().st_mode & 0o777 == 0o600
    files = opened(path)
    for name, content in files.items():
        assert CANARY.encode() not in content, (name, content.decode()[:2000])
        assert b"1987" not in content, name
        assert b"1988" not in content, name
    assert CANARY not in done.output
    parts: dict[str, Any] = {n: json.loads(c) for n, c in files.items() if n.endswith(".json")}
    assert set(files) == {"contents.txt", "events.txt", *parts}
    assert all(name in done.output and name in files["contents.txt"].decode() for name in set(files) - {"contents.txt"})
    assert not [name for name, part in parts.items() if "error" in part], "a part of the bundle has an error"
    assert parts["settings.json"]["source"]["password"] == "${env:SHOP_PASSWORD}"  # noqa: S105  the reference
    assert parts["settings.json"]["service"]["notify"][0]["webhook"] == "${env:SHOP_HOOK}"
    assert parts["settings.json"]["merge"]["spark"]["spark.master"] == "local[2]"
    assert parts["status.json"]["tables"]["public.orders"]["state"] == "done"
    assert parts["server.json"]["wal_level"] == "logical"
    assert [c["name"] for c in parts["tables.json"]["public.orders"]["2"]["columns"]] == ["id", "words", "more"]
    assert sum(f["rows"] for s in parts["log.json"]["newest"] for f in s["files"]) > 1000
    assert any(f["level"] == "ok" for f in parts["doctor.json"])
    assert files["events.txt"].startswith(b"1 other lines are excluded\n2026-01-31T12:00:00.123Z range chunk read")
    again = CliRunner().invoke(app, ["bundle", "--output", "b.tar.gz"])
    assert again.exit_code == 78
    assert "exists already" in again.output


def test_bundle_is_written_while_the_server_is_unavailable(settings: Path, tmp_path: Path) -> None:
    """That is when a bundle is needed. It explains what is unavailable."""
    settings.write_text("source: {kind: postgres, url: 'postgresql://cdc@127.0.0.1:1/shop'}\nlog: {path: log}\n")
    done = CliRunner().invoke(app, ["bundle", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    files = opened(Path(said["path"]))
    assert {f["name"] for f in said["files"]} == set(files) - {"contents.txt"}
    assert json.loads(files["server.json"])["error"] == "SourceUnavailable"
    assert json.loads(files["versions.json"])["packages"]["pyarrow"]
