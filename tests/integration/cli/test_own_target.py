"""The page about own targets, executed: the package that `cdcflow new target` writes passes its suite and gets rows."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from tests.support.docs.pages import ROOT, blocks
from tests.support.log.hand_log import HandLog
from tests.support.merge.histories import make_table
from tests.support.plugins import install_target_of_the_template, on_path
from typer.testing import CliRunner

from cdcflow.cli.app import app
from cdcflow.cli.new import target_package
from cdcflow.config import load

PAGE = ROOT / "docs" / "own-target.md"
ORDERS, ODD = make_table("orders", id="int64", name="string"), make_table("it's", id="int64")
FIRST_SCENARIOS = "whole or refused or replaces or moves or read_back"


def run(*words: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, list(words))
    return found.exit_code, found.output


def rows(file: Path, table: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file)) as database:
        return sorted(database.execute(f'SELECT * FROM "{table}"'))


def test_code_on_the_page_is_the_package_s() -> None:
    """Who follows the page sees what the command wrote."""
    files = [without_indent(text) for text in target_package("mydb").values()]
    shown = [block.text for block in blocks(PAGE) if block.language in ("python", "toml")]
    assert len(shown) == 5
    assert [text for text in shown if not any(without_indent(text) in file for file in files)] == []


def without_indent(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandLog:
    monkeypatch.chdir(tmp_path)
    made = HandLog(tmp_path / "shop-log", has_transactions=True)
    made.state(ORDERS)
    made.segment([(ORDERS, "r", {"id": 1, "name": "one"}), (ORDERS, "r", {"id": 2, "name": None})])
    settings, _ = [yaml.safe_load(block.text) for block in blocks(PAGE) if block.language == "yaml"]
    Path("cdcflow.yaml").write_text(yaml.safe_dump(settings))
    return made


def test_target_of_the_page_has_the_rows_of_the_log(log: HandLog, tmp_path: Path) -> None:
    """With the page's settings: all rows first, then changes; a table that cannot be delivered does not stop others."""
    with on_path(*install_target_of_the_template(tmp_path / "mydb")):
        assert run("deliver", "--once") == (0, "copy: public.orders: all 2 rows, through offset 2\n")
        log.segment([(ORDERS, "u", {"id": 1, "name": "uno"}), (ORDERS, "d", {"id": 2}), (ODD, "c", {"id": 5})])
        code, text = run("deliver", "copy", "--once", "--json")
        found = {one["table"]: one for one in map(json.loads, text.splitlines())}
        assert (code, found["public.orders"]["rows"], found["public.orders"]["deleted"]) == (1, 1, 1)
        assert "not all rows of the table are in the log" in found["public.it's"]["problem"]
        log.state(ODD)
        log.segment([(ODD, "c", {"id": 6})])
        assert run("deliver", "--once") == (0, "copy: public.it's: all 2 rows, through offset 6\n")
        assert run("deliver", "--once") == (0, "")
        assert "did you mean copy?" in run("deliver", "copi", "--once")[1]
    assert rows(tmp_path / "copy.sqlite", "public.orders") == [(1, "uno")]
    assert rows(tmp_path / "copy.sqlite", "public.it's") == [(5,), (6,)]


def change_by_hand(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def test_target_of_the_page_may_be_left_to_the_command(log: HandLog, tmp_path: Path) -> None:
    """Its settings on the page are settings, and `cdcflow deliver` still has an interval."""
    settings, alone = [yaml.safe_load(block.text) for block in blocks(PAGE) if block.language == "yaml"]
    Path("cdcflow.yaml").write_text(yaml.safe_dump(settings | alone))
    with on_path(*install_target_of_the_template(tmp_path / "mydb")):
        assert load(Path("cdcflow.yaml")).targets["copy"].every is None
        assert run("deliver", "--once") == (0, "copy: public.orders: all 2 rows, through offset 2\n")


def test_target_is_compared_with_the_log_at_its_place(log: HandLog, tmp_path: Path) -> None:
    """A row that another program changed there is found, and the printed remedy brings it back. What the log has after
    the place is no difference."""
    price = make_table("prices", id="int64", price=pa.decimal128(10, 2), at=pa.timestamp("us"))
    log.state(price)
    log.segment([(price, "r", {"id": 1, "price": Decimal("1.50"), "at": datetime(2026, 1, 1, 12)})])
    with on_path(*install_target_of_the_template(tmp_path / "mydb")):
        assert verdicts(1) == {"public.orders": "not compared", "public.prices": "not compared"}
        assert run("deliver", "--once")[0] == 0
        log.segment([(ORDERS, "u", {"id": 1, "name": "uno"})])
        assert verdicts(0) == {"public.orders": "equal", "public.prices": "equal"}
        assert verdicts(0, "public.orders") == {"public.orders": "equal"}
        change_by_hand(tmp_path / "copy.sqlite", "UPDATE \"public.prices\" SET price = '1.51'")
        change_by_hand(tmp_path / "copy.sqlite", 'DELETE FROM "public.orders" WHERE id = 2')
        assert verdicts(1) == {"public.orders": "different", "public.prices": "different"}
        (line,) = [x for x in run("verify", "--targets", "public.orders")[1].splitlines() if x.startswith("copy: ")]
        assert line == (
            "copy: public.orders: remove the table and its place from the target: "
            "the next delivery applies all of its rows"
        )
        for table in ("orders", "prices"):
            places = f"DELETE FROM cdcflow_places WHERE name = '{table}'"
            change_by_hand(tmp_path / "copy.sqlite", f'DROP TABLE "public.{table}"', places)
        assert run("deliver", "--once")[0] == 0
        assert verdicts(0) == {"public.orders": "equal", "public.prices": "equal"}
        code, text = run("verify", "--targets", "public.orderz")
        assert (code, "no target has such a table" in text) == (78, True)


def test_value_of_another_type_is_a_different_row(log: HandLog, tmp_path: Path) -> None:
    """Another program may have written any text into a column that has no type. The other rows are compared."""
    wide = make_table("wide", id="int64", n=pa.int16(), at=pa.date32())
    log.state(wide)
    log.segment([(wide, "r", {"id": i, "n": None if i == 3 else i, "at": date(2026, 1, 1)}) for i in range(9)])
    with on_path(*install_target_of_the_template(tmp_path / "mydb")):
        assert run("deliver", "--once")[0] == 0
        assert verdicts(0)["public.wide"] == "equal"
        for n, statement in enumerate(
            ("n = 70000 WHERE id = 3 AND n IS NULL", "at = 'tomorrow' WHERE id IN (3, 5)"), 1
        ):
            change_by_hand(tmp_path / "copy.sqlite", f'UPDATE "public.wide" SET {statement}')
            found = json.loads(run("verify", "--targets", "public.wide", "--json")[1])["tables"][0]
            assert (found["verdict"], found["lacks"], found["more"], found["not_compared"]) == ("different", n, n, [])
        assert found["reason"] == "values of n, at do not fit the log's type"
        code, text = run("verify", "--targets", "public.wide")
        assert (code, "values of n, at do not fit the log's type; remove the table" in text) == (1, True)


def test_target_that_cannot_be_read_is_named_as_not_compared(log: HandLog, tmp_path: Path) -> None:
    """Silence would look like equality. Of a column in another type the others are compared."""
    paths = install_target_of_the_template(tmp_path / "mydb")
    file = tmp_path / "mydb" / "project" / "src" / "cdcflow_mydb" / "tables.py"
    whole = file.read_text()
    file.write_text(whole.replace("def read(", "def read_nothing("))
    with on_path(*paths):
        assert run("deliver", "--once")[0] == 0
        code, text = run("verify", "--targets")
        assert (code, "copy: public.orders: its kind cannot be read" in text) == (1, True)
    file.write_text(whole.replace("map(pa.array, columns)", "(pa.array([[v] for v in c]) for c in columns)", 1))
    with on_path(*paths):
        code, text = run("verify", "--targets")
        assert (code, "copy: public.orders: not compared: id, name" in text) == (1, True)
    file.write_text(whole.replace("place = self._place_of(table.id)", "raise ValueError('c4n4ry')"))
    with on_path(*paths):
        code, text = run("verify", "--targets")
        assert (code, "reading it raised ValueError" in text, "c4n4ry" in text) == (1, True, False)


def verdicts(code: int, *tables: str) -> dict[str, str]:
    found, text = run("verify", "--targets", "--json", *tables)
    assert found == code, text
    return {one["table"]: one["verdict"] for one in json.loads(text)["tables"]}


def test_new_package_passes_its_suite(tmp_path: Path) -> None:
    """Then an author knows that what fails later is what was changed."""
    assert passed(tmp_path, "-k", FIRST_SCENARIOS)


@pytest.mark.long
def test_new_package_passes_its_whole_suite(tmp_path: Path) -> None:
    """Also with processes that are killed while they apply a change."""
    assert passed(tmp_path)


@pytest.mark.parametrize(
    ("right", "wrong", "test"),
    [
        ("if self._place_of(table.id) != change.after:", "if False:", "applied_again"),
        pytest.param('execute("BEGIN IMMEDIATE")', 'execute("SELECT 1")', "killed", marks=pytest.mark.long),
    ],
)
def test_suite_finds_a_target_that_forgets_a_check(tmp_path: Path, right: str, wrong: str, test: str) -> None:
    """The suite can fail: a place that is not compared, and rows without their place."""
    install_target_of_the_template(tmp_path)
    file = tmp_path / "project" / "src" / "cdcflow_mydb" / "tables.py"
    assert right in file.read_text()
    file.write_text(file.read_text().replace(right, wrong).replace('"COMMIT"', '"SELECT 1"'))
    assert not passed(tmp_path, "-k", test, install=False)


def passed(folder: Path, *options: str, install: bool = True) -> bool:
    """Whether the package's own tests pass."""
    if install:
        install_target_of_the_template(folder)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:xdist", *options],
        cwd=folder / "project",
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    return done.returncode == 0 and " passed" in done.stdout
