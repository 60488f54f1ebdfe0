"""`cdcflow consumer …` and how the status shows consumers."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from typer.testing import CliRunner

from cdcflow import wiring
from cdcflow.cli import output
from cdcflow.cli.app import app
from cdcflow.config import load
from cdcflow.daemon.http_component import Http
from cdcflow.http.metrics import exposition
from cdcflow.reports.status import status_parts

ORDERS = make_table("orders", id="int64", v="string", doc="binary")
runner = CliRunner()


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandLog:
    monkeypatch.chdir(tmp_path)
    made = HandLog(tmp_path / "log", has_transactions=True)
    made.state(ORDERS)
    made.segment([(ORDERS, "r", {"id": n, "v": "a", "doc": b"\0\xff", "_txn": 1}) for n in (1, 2)])
    source = {"kind": "postgres", "url": "postgresql://cdc@127.0.0.1:1/shop"}
    Path("cdcflow.yaml").write_text(yaml.safe_dump({"source": source, "log": {"path": "log"}}))
    return made


def said(*words: str) -> str:
    found = runner.invoke(app, ["consumer", *words])
    assert found.exit_code == 0, found.output
    return found.output


def told(*words: str) -> list[Any]:
    return [json.loads(line) for line in said(*words, "--json").splitlines()]


def test_life_of_a_consumer(log: HandLog) -> None:
    """Every command, as a user types it."""
    assert said("create", "shop", "--table", "public.orders").splitlines() == [
        "consumer shop begins with the rows of 1 table at offset 2: `cdcflow consumer read shop`"
    ]
    assert said("read", "shop", "--limit", "1").splitlines() == ["1 r public.orders id=1 v=a doc=\\x00ff"]
    first, second = told("read", "shop")
    assert first["values"] == {"id": 1, "v": "a", "doc": "\\x00ff"}
    assert [line["values"]["id"] for line in told("read", "shop", "--after", first["cursor"])] == [2]
    said("commit", "shop", first["cursor"])
    assert [line["values"]["id"] for line in told("read", "shop", "--commit")] == [2]
    assert told("read", "shop") == []
    log.segment(
        [
            (ORDERS, "u", {"id": 1, "v": "b", "_unchanged": ["doc"], "_txn": 2}),
            (ORDERS, "d", {"id": 2, "_txn": 2}),
            (ORDERS, "t", {"_txn": 3}),
        ]
    )
    assert said("read", "shop").splitlines() == [
        "3 u public.orders id=1 v=b doc=(unchanged)",
        "4 d public.orders id=2",
        "5 t public.orders",
    ]
    [listed] = told("ls")[0]
    assert (listed["name"], listed["state"], listed["offset"], listed["behind_rows"]) == ("shop", "changes", 2, 3)
    assert listed["behind_seconds"] > 0
    assert "3" in said("ls")
    assert said("seek", "shop", "4") == "consumer shop continues after offset 4\n"
    assert [line["op"] for line in told("read", "shop")] == ["t"]
    said("seek", "shop", second["cursor"])
    assert said("restart", "shop", "--from", "beginning") == "consumer shop starts again at offset 0\n"
    assert len(told("read", "shop")) == 5
    said("drop", "shop")
    refused = runner.invoke(app, ["consumer", "read", "shop"])
    assert refused.exit_code == 78
    assert "create it: `cdcflow consumer create shop`" in refused.output


def test_limit_that_cuts_a_batch_commits_the_row_that_was_printed(log: HandLog) -> None:
    """`--limit 1 --commit` again and again prints each row once."""
    said("create", "shop")
    seen = [told("read", "shop", "--commit", "--limit", "1") for _ in range(3)]
    assert [[line["values"]["id"] for line in lines] for lines in seen] == [[1], [2], []]


def test_expiry_by_hand_names_the_consumers_whose_rows_it_removes(log: HandLog) -> None:
    """It does not wait for consumers; the printed command continues for them, once the table is in the log again."""
    said("create", "shop")
    log.state(ORDERS, generation=2, since=3)
    log.segment([(ORDERS, "r", {"id": n, "v": "b", "_txn": 2}) for n in (1, 2)])
    found = runner.invoke(app, ["log", "expire", "--before-cut", "2"])
    assert found.output.splitlines()[-1] == "consumer shop had not read all of them: `cdcflow consumer restart shop`"
    assert runner.invoke(app, ["consumer", "read", "shop"]).exit_code == 65
    said("restart", "shop")
    assert [line["values"]["v"] for line in told("read", "shop")] == ["b", "b"]


def test_daemons_service_has_the_consumers_of_its_log(log: HandLog) -> None:
    """A consumer that the command creates can be read over HTTP, and the other way round."""
    said("create", "shop")
    settings = yaml.safe_load(Path("cdcflow.yaml").read_text()) | {"service": {"listen": "127.0.0.1:0"}}
    Path("cdcflow.yaml").write_text(yaml.safe_dump(settings))
    config = load(Path("cdcflow.yaml"))
    ports: list[Any] = []
    watch: Any = SimpleNamespace(status=lambda **given: {})
    service = Http(lambda: config, watch, lambda *given: None, lambda event, fields: ports.append(fields["port"]))
    running = service.prepare(config)
    assert running is not None
    running.begin()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/api/v1/consumers/shop/changes") as answer:
            changes = json.load(answer)["changes"]
        assert [(line["values"]["id"], line["cursor"]) for line in changes] == [
            (line["values"]["id"], line["cursor"]) for line in told("read", "shop")
        ]
    finally:
        running.end(wait=True)
        service.close()


def test_status_and_metrics_report_how_far_consumers_are(log: HandLog, capsys: pytest.CaptureFixture[str]) -> None:
    """By their files alone: a status must not read the log."""
    said("create", "shop")
    said("create", "tail", "--from", "now", "--ops", "d")
    found = wiring.consumers_status(load(Path("cdcflow.yaml")), 12)
    assert found == {
        "shop": {"state": "backfill", "offset": 2, "behind_rows": 10},
        "tail": {"state": "changes", "offset": 2, "behind_rows": 10},
    }
    output.show(status_parts({"state": "capturing", "consumers": found}))
    assert "shop 10 rows behind (in its backfill); tail 10 rows behind" in capsys.readouterr().out
    assert 'cdcflow_consumer_behind_rows{consumer="tail"} 10.0' in exposition({"consumers": found})
