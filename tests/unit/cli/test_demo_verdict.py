"""When the demo may report that it passed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdcflow.config import load
from cdcflow.demo import demo_run, flights, logs
from cdcflow.demo.command import EngineName, LogName, TableFormat, _program
from cdcflow.demo.command import _commands as look_into
from cdcflow.demo.databases import Digest
from cdcflow.demo.proof import Verdict
from cdcflow.demo.screen import bar
from cdcflow.errors import ConfigurationError

EQUAL = [Verdict(f"public.{table}", Digest(3, "a.b"), Digest(3, "a.b")) for table in flights.TABLES]


def outcome(verdicts: list[Verdict], *failures: str) -> demo_run.DemoOutcome:
    return demo_run.DemoOutcome("demo", verdicts=verdicts, failures=list(failures))


def test_five_equal_tables_pass() -> None:
    """The passing case, so that the others mean something."""
    assert outcome(EQUAL).is_success


@pytest.mark.parametrize(
    "last", [Digest(2, "a.b"), Digest(3, "a.c"), None], ids=["one row fewer", "another hash", "not in the cut"]
)
def test_one_differing_table_fails(last: Digest | None) -> None:
    """Four tables out of five are not a proof."""
    assert not outcome([*EQUAL[:-1], replace(EQUAL[-1], target=last)]).is_success


@pytest.mark.parametrize("verdicts", [[], EQUAL[:-1]])
def test_what_was_not_compared_fails(verdicts: list[Verdict]) -> None:
    """An empty list of differences must not look like success."""
    assert not outcome(verdicts).is_success


def test_demo_with_a_failure_fails_though_all_rows_are_equal() -> None:
    """A daemon that does not stop in time, or a cut with an orphan, is a separate failure."""
    assert not outcome(EQUAL, "the first cut is not consistent").is_success


@pytest.mark.parametrize("log", LogName)
def test_failed_demo_names_only_existing_files(tmp_path: Path, log: LogName) -> None:
    """A demo that failed before its daemon started named seven files to read, none of which existed."""
    delta = TableFormat.DELTA
    assert look_into(tmp_path, log, delta, EngineName.SPARK, "public", tmp_path / "warehouse") == []
    (tmp_path / "demo.json").write_text("{}")
    (tmp_path / "demo.log").touch()
    settings = tmp_path / ("cdcflow.yaml" if log is LogName.FILES else "history.yaml")
    settings.write_text("source: {kind: postgres, url: postgresql://nobody@127.0.0.1/gone}\nlog: {path: log}\n")
    # Settings without a log are not worth reading either.
    assert look_into(tmp_path, log, delta, EngineName.SPARK, "public", tmp_path / "warehouse") == [
        f"less {tmp_path}/demo.log {tmp_path}/demo.json"
    ]
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "log.json").write_text("{}")
    (tmp_path / "warehouse").mkdir()
    ls, show, check, read, less = look_into(tmp_path, log, delta, EngineName.SPARK, "airports", tmp_path / "warehouse")
    assert ls == f"{_program('cdcflow')} log ls -c {settings}"
    assert f"{settings} --table airports.airlines" in show
    assert check.endswith(str(settings))
    assert f"'{tmp_path}/warehouse'" in read
    assert less == f"less {tmp_path}/demo.log {tmp_path}/demo.json"


@pytest.mark.parametrize("kind", ["files", "kafka"])
def test_settings_of_the_demo_are_ordinary_ones(tmp_path: Path, kind: logs.LogKind) -> None:
    """The file that remains is one that a user may copy."""
    path = tmp_path / "cdcflow.yaml"
    log = logs.demo_log(kind, tmp_path)
    lines = [line.replace("brokers: ", "brokers: 127.0.0.1:9092") for line in log.settings()]
    url = "url: postgresql://postgres@127.0.0.1:5432/airports"
    path.write_text(demo_run.settings(["kind: postgres", url], 336_776, lines, "delta", "spark"))
    config = load(path)
    assert config.log.folder == log.folder
    assert config.database.backfill.rows_per_second_max is not None


def test_demo_never_writes_into_a_folder_that_is_in_use(tmp_path: Path) -> None:
    """The folder contains a user's files."""
    (tmp_path / "mine").touch()
    with pytest.raises(ConfigurationError, match="not empty"):
        demo_run.new_directory(tmp_path)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "░░░░"),
        ({"state": "reading", "units": 100, "units_done": 50}, "██░░"),
        ({"state": "reading", "units": 10, "units_done": 99}, "████"),
        ({"state": "done", "units": 0}, "████"),
    ],
)
def test_bar_has_its_width_whatever_the_counts(fields: dict[str, int], expected: str) -> None:
    """A table that moves on the screen cannot be read."""
    assert bar(fields, 4) == expected
