"""The example of docs/rows.md, run as a reader runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.servers.postgres import PostgresServer

from cdcflow import wiring
from cdcflow.config import load
from cdcflow.testing.folded import fold_log

pytestmark = pytest.mark.postgres
PAGE = (Path(__file__).parents[3] / "docs" / "rows.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_example_of_the_page_gives_what_the_page_shows(private_server: PostgresServer, tmp_path: Path) -> None:
    database = private_server.create_database("rows_page")
    database.execute(block("sql"))
    settings = yaml.safe_load(block("yaml"))
    settings["source"]["url"] = database.url
    settings["log"]["path"] = str(tmp_path / "log")
    (tmp_path / "cdcflow.yaml").write_text(yaml.safe_dump(settings))
    config = load(tmp_path / "cdcflow.yaml")

    def rows() -> list[dict[str, object]]:
        wiring.capture(config, backfill=(), once=True).run()
        [(_, found)] = fold_log(wiring.log_reader(config)).items()
        return [dict(found[key].values) for key in sorted(found)]

    [row] = rows()
    [expected] = json.loads(block("json"))
    assert {name: value if isinstance(value, int) else str(value) for name, value in row.items()} == expected
    first, second = re.findall(r"`(UPDATE [^`]*)`", PAGE)[:2]
    database.execute(first)
    assert [row["id"] for row in rows()] == [1, 2]
    database.execute(second)
    assert [row["id"] for row in rows()] == [2]
    database.drop()
