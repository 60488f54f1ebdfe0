"""docs/routes.md runs as printed: its settings, over the log of its statements, give the rows that it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.docs.pages import ROOT, blocks, first_of, python_of
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from typer.testing import CliRunner

from cdcflow import local, wiring
from cdcflow.cli.app import app
from cdcflow.config import load
from cdcflow.errors import ConfigurationError
from cdcflow.tables.paths import Warehouse

PAGE = ROOT / "docs" / "routes.md"
SETTINGS = "source: {kind: postgres, url: 'postgresql://reader@127.0.0.1/shop'}\nlog: {path: cdcflow-log}\n"


def test_page_shows_the_rows_that_its_settings_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thing that a user copies."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cdcflow.yaml").write_text(SETTINGS + first_of(PAGE, "yaml"))
    settings = load(tmp_path / "cdcflow.yaml")
    log = HandLog(tmp_path / "cdcflow-log", has_transactions=True)
    clients = make_table("customers", id="int64", name="string")
    first, second = (make_table("orders", schema=f"shard_{n}", id="int64", item="string") for n in (1, 2))
    for table in (clients, first, second):
        log.state(table)
    before = [(clients, "c", {"id": 1, "name": "Ada"}), (first, "c", {"id": 1, "item": "tea"})]
    before += [(first, "c", {"id": 2, "item": "milk"}), (second, "c", {"id": 1, "item": "rice"})]
    log.segment(before)
    policies = wiring.policies(settings)
    assert len(policies.routes.listed) == 2
    local.merge(log.root, Warehouse.of(settings.merge.warehouse), policies=policies)
    log.segment([(first, "t", {}), (first, "c", {"id": 3, "item": "salt"})])
    local.merge(log.root, Warehouse.of(settings.merge.warehouse), policies=policies)
    names: dict[str, Any] = {}
    for block in python_of(PAGE, spark=False):
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102  our own page
    assert names["clients"] == [{"id": 1, "name": "Ada"}]
    explained = CliRunner().invoke(app, ["explain", "shop.orders", "--key", "3,1", "--json"])
    assert (explained.exit_code, json.loads(explained.stdout)["row_state"]) == (0, "in the table")
    strange = CliRunner().invoke(app, ["explain", "shop.orders", "--key", "3,9"])
    assert "name the row's own key, and then shard: shard_1.orders has 1; shard_2.orders has 2" in strange.output
    shown = [json.loads(line) for line in first_of(PAGE, "json").splitlines()]
    assert sorted(names["orders"], key=lambda row: row["shard"]) == shown


def test_pipelines_of_the_page_are_in_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings for one pipeline, with another value for the second; each row can be explained by its own log."""
    monkeypatch.chdir(tmp_path)
    of_eu = next(b.text for b in blocks(PAGE) if b.language == "yaml" and "constants" in b.text)
    shown = [json.loads(line) for line in [b.text for b in blocks(PAGE) if b.language == "json"][1].splitlines()]
    orders = make_table("orders", id="int64", item="string")
    roots, policies = {}, {}
    for row in shown:
        name = row.pop("region")
        text = SETTINGS.replace("cdcflow-log", f"{name}-log") + of_eu.replace("region: eu", f"region: {name}")
        (tmp_path / f"{name}.yaml").write_text(text)
        settings = load(tmp_path / f"{name}.yaml")
        log = HandLog(tmp_path / f"{name}-log", log_id=name, has_transactions=True)
        log.state(orders)
        log.segment([(orders, "c", row)])
        roots[name], policies[name] = log.root, wiring.policies(settings)
    assert local.merge_logs(roots, tmp_path / "warehouse", policies=policies).published
    rows = local.read_cut(tmp_path / "warehouse")["shop.orders"].select(["region", "id", "item"]).to_pylist()
    assert sorted(rows, key=lambda row: str(row["region"])) == [
        {"region": name, **row} for name, row in zip(("eu", "us"), shown, strict=True)
    ]
    for name in roots:
        said = CliRunner().invoke(app, ["explain", "shop.orders", "--key", f"1,{name}", "-c", f"{name}.yaml", "--json"])
        assert said.exit_code == 0, said.output
        assert json.loads(said.stdout)["row_state"] == "in the table"
    strange = {name: wiring.policies(load(tmp_path / "eu.yaml")) for name in roots}
    with pytest.raises(ConfigurationError, match=r"a table shop\.orders, and nothing distinguishes their rows"):
        local.merge_logs(roots, tmp_path / "warehouse", policies=strange)
