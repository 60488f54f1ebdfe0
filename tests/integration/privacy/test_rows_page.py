"""The example of docs/rows.md, run as a reader runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.servers.postgres import PostgresServer
from tests.support.docs.pages import DOCS, first_of

from cdcflow import wiring
from cdcflow.capture.interleave.progress import Progress
from cdcflow.config import load
from cdcflow.model.table import TableId
from cdcflow.testing.folded import fold_log

pytestmark = pytest.mark.postgres
PAGE = DOCS / "rows.md"


def test_example_of_the_page_gives_what_the_page_shows(private_server: PostgresServer, tmp_path: Path) -> None:
    database = private_server.create_database("rows_page")
    database.execute(first_of(PAGE, "sql"))
    settings = yaml.safe_load(first_of(PAGE, "yaml"))
    settings["source"]["url"] = database.url
    settings["log"]["path"] = str(tmp_path / "log")
    (tmp_path / "cdcflow.yaml").write_text(yaml.safe_dump(settings))
    config = load(tmp_path / "cdcflow.yaml")

    def rows() -> list[dict[str, object]]:
        wiring.capture(config, backfill=(), once=True).run()
        [(_, found)] = fold_log(wiring.log_reader(config)).items()
        return [dict(found[key].values) for key in sorted(found)]

    [row] = rows()
    [expected] = json.loads(first_of(PAGE, "json"))
    assert {name: value if isinstance(value, int) else str(value) for name, value in row.items()} == expected
    first, second = re.findall(r"`(UPDATE [^`]*)`", PAGE.read_text())[:2]
    database.execute(first)
    assert [row["id"] for row in rows()] == [1, 2]
    database.execute(second)
    assert [row["id"] for row in rows()] == [2]
    database.drop()


def test_changed_condition_reads_the_table_again_and_rows_that_no_longer_fit_disappear(
    private_server: PostgresServer, tmp_path: Path
) -> None:
    """And a value that an expression cannot be applied to makes the table fail until the remedy is followed."""
    database = private_server.create_database("rows_changed")
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n text); INSERT INTO t VALUES (1, '1'), (2, '2'), (3, '3')")
    file = tmp_path / "cdcflow.yaml"

    def rows(*names: str, **rules: object) -> list[dict[str, object]]:
        source = {"kind": "postgres", "url": database.url, "tables": ["public.t"]}
        settings = {"source": source, "log": {"path": str(tmp_path / "log")}, "tables": {"public.t": rules}}
        file.write_text(yaml.safe_dump(settings))
        wiring.capture(load(file), backfill=names, once=True).run()
        found = fold_log(wiring.log_reader(load(file)))
        return sorted((dict(row.values) for row in found[TableId("public", "t")].values()), key=repr)

    assert rows() == [{"id": i, "n": str(i)} for i in (1, 2, 3)]
    assert rows(where="id > 1") == [{"id": 2, "n": "2"}, {"id": 3, "n": "3"}]
    assert rows(where="id < 3", columns={"n": {"rename": "N"}}) == [{"N": "1", "id": 1}, {"N": "2", "id": 2}]
    given = {"where": "id < 3", "computed": {"m": "CAST(n AS integer) + 1"}}
    assert [row["m"] for row in rows(**given)] == [2, 3]
    database.execute("UPDATE t SET n = 'c4n4ry' WHERE id = 2")
    rows(**given)
    (known,) = Progress.from_json(wiring.log_reader(load(file)).newest_checkpoint().progress).tables.values()
    assert known.state == "failed"
    reason = str(known.reason)
    assert "the computed column m cannot be applied" in reason
    assert "CASE WHEN" in reason
    assert "c4n4ry" not in reason
    given["computed"] = {"m": "CASE WHEN n <> 'c4n4ry' THEN CAST(n AS integer) + 1 END"}
    assert rows("public.t", **given) == [{"id": 1, "n": "1", "m": 2}, {"id": 2, "n": "c4n4ry", "m": None}]
    database.drop()
