"""The example of docs/columns.md, run as a reader runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.servers.postgres import PostgresServer
from tests.support.docs.pages import DOCS, first_of

from cdcflow import wiring
from cdcflow.config import load
from cdcflow.testing.folded import fold_log
from cdcflow.wiring.decryption import Decryption

pytestmark = pytest.mark.postgres
PAGE = DOCS / "columns.md"


def test_example_of_the_page_gives_what_the_page_shows(
    private_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, secret in re.findall(r"`([A-Z_]+)=([0-9a-f]+)`", PAGE.read_text()):
        monkeypatch.setenv(name, secret)
    database = private_server.create_database("columns_page")
    database.execute(first_of(PAGE, "sql"))
    settings = yaml.safe_load(first_of(PAGE, "yaml"))
    settings["source"]["url"] = database.url
    settings["log"]["path"] = str(tmp_path / "log")
    (tmp_path / "cdcflow.yaml").write_text(yaml.safe_dump(settings))
    config = load(tmp_path / "cdcflow.yaml")
    wiring.capture(config, backfill=(), once=True).run()
    [(_, rows)] = fold_log(wiring.log_reader(config)).items()
    [row] = rows.values()
    assert dict(row.values) == json.loads(first_of(PAGE, "json"))
    (encrypted, plain) = re.search(r"`cdcflow decrypt (\S+)` prints `(.*?)`", PAGE.read_text()).groups()  # type: ignore[union-attr]
    assert (Decryption.of(config).decrypt(encrypted) or b"").decode() == plain
    database.drop()
