"""The status around a capture: it answers when the source does not, and includes what other processes left."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cdcflow.cli import output
from cdcflow.cli.app import app
from cdcflow.config import Config, Postgres
from cdcflow.daemon import merge_process
from cdcflow.daemon import status as watch
from cdcflow.daemon.status import Watch, lag_seconds
from cdcflow.errors import HistoryLost, SinkUnavailable
from cdcflow.log.maintenance import state_files
from cdcflow.reports.status import freshness_text, status_parts
from cdcflow.tables.job.reports import MergeReport, TableMergeReport


class Capture:
    """A capture that returns the status that a test sets."""

    def __init__(self) -> None:
        self.says: dict[str, Any] = {"state": "capturing", "position": "1", "cut": 7, "next_offset": 101, "tables": {}}

    def status(self) -> dict[str, Any]:
        return dict(self.says)

    def last_known(self) -> dict[str, Any]:
        return {}

    def counts(self) -> dict[str, Any]:
        return {"cuts": 7}

    def freshness(self) -> dict[str, dict[str, Any]]:
        return {}

    def shadow(self) -> dict[str, dict[str, Any]]:
        return {"public.orders": {"shadow_difference": "a row differs"}}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    source = {"kind": "postgres", "url": "postgresql://nobody@127.0.0.1:1/none"}
    return Config.model_validate({"source": source, "log": {"path": str(tmp_path)}})


@pytest.fixture
def capture() -> Any:  # Any: it replaces the pipeline's
    return Capture()


def test_a_source_that_does_not_answer_holds_up_no_scrape(
    config: Config, capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prometheus allows ten seconds per page, and a connection may take minutes to fail. The source is queried once
    at a time."""
    answers, asked = threading.Event(), []

    def asks(_config: Config, position: object, _log_id: str) -> dict[str, object]:
        asked.append(position)
        answers.wait(60)
        return {"lag_bytes": 5, "retained_bytes": 6, "source": {}}

    monkeypatch.setattr(watch, "source_status", asks)
    monkeypatch.setattr(watch, "ANSWER_WITHIN_S", 0.01)
    on = Watch(config, capture)
    assert [on.status().get("lag_bytes") for _ in range(3)] == [None, None, None]
    assert asked == ["1"]
    answers.set()
    monkeypatch.setattr(watch, "ANSWER_WITHIN_S", 60.0)
    assert on.status(at_most_old_s=0.0)["lag_bytes"] == 5


def test_source_s_last_status_stays_when_it_reports_no_more(
    config: Config, capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the stream still runs: a changed login fails in the status first."""
    said: list[dict[str, object]] = [{"lag_bytes": 5, "retained_bytes": 6, "source": {"safe_wal_bytes": "9"}}]
    monkeypatch.setattr(watch, "source_status", lambda *_: said[-1])
    on = Watch(config, capture)
    assert on.status(at_most_old_s=0.0)["source_up"] is True
    said.append({"source_error": "refused"})
    away = on.status(at_most_old_s=0.0)
    assert (away["source_up"], away["source_error"]) == (False, "refused")
    assert (away["lag_bytes"], away["retained_bytes"], away["source"]) == (5, 6, {"safe_wal_bytes": "9"})
    said.append(said[0])
    assert "source_error" not in on.status(at_most_old_s=0.0)


def test_broken_contracts_are_in_the_status_and_stay_while_the_log_cannot_be_read(
    config: Config, capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of reading would otherwise be the notice that all is well again."""
    answers: list[dict[str, str] | None] = [{"public.a": "column v is int"}, None, {}]
    monkeypatch.setattr(watch, "source_status", lambda *_: {"source": {}})
    monkeypatch.setattr(watch, "SCHEMAS_EVERY_S", 0.0)
    monkeypatch.setattr(watch, "broken_contracts", lambda _: answers.pop(0))
    on = Watch(config, capture)
    found = [on.status(at_most_old_s=0.0).get("broken_contracts") for _ in range(3)]
    assert found == [{"public.a": "column v is int"}, {"public.a": "column v is int"}, None]


@pytest.mark.parametrize("state", ["waiting", "halted"])
def test_the_lag_of_a_source_that_never_answered_is_the_time_since_then(state: str) -> None:
    """An unknown lag would fire no alert, and 0 would be false."""
    assert lag_seconds({"state": state}, 77.0) == 77.0
    assert lag_seconds({"state": "capturing"}, 77.0) is None


def report(cut: int = 6, left_out: str | None = None) -> MergeReport:
    tables = (
        TableMergeReport("public.a", 30, 2, True, 0.1),
        TableMergeReport("public.b", 4, 1, False, 0.1, left_out=left_out),
    )
    return MergeReport(cut, 90, True, 1.5, tables)


def test_merge_writes_a_note_for_the_daemon(config: Config, capture: Any, tmp_path: Path) -> None:
    """Two processes, one folder: the lag of the tables is the daemon's metric."""
    assert "merge" not in Watch(config, capture).status()
    merge_process.write_result(config, lambda: report(left_out="no key"))()
    merged = Watch(config, capture).status()["merge"]
    expected = {"cut": 6, "offset": 90, "behind_rows": 10, "rows": 34, "left_out": 1, "seconds": 1.5, "failed": False}
    assert {name: merged[name] for name in expected} == expected

    def fails() -> MergeReport:
        raise SinkUnavailable("merging into /w: another merge works there\n  canary")

    with pytest.raises(SinkUnavailable):
        merge_process.write_result(config, fails)()
    after = Watch(config, capture).status()["merge"]
    assert (after["failed"], after["error"], after["cut"], after["ended_at"]) == (
        True,
        "SinkUnavailable",
        6,
        merged["ended_at"],
    )
    written = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.json"))
    assert list(map(str, written)) == ["activity/merges.json", "merge.json"]
    assert not any("canary" in (tmp_path / path).read_text() for path in written)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 2, "nothing half written is left"


def test_merge_that_may_not_write_its_note_continues(config: Config, tmp_path: Path) -> None:
    """The merge does not depend on this note: on another machine the folder does not exist."""
    elsewhere = config.model_copy(update={"log": config.log.model_copy(update={"path": tmp_path / "not" / "here"})})
    assert merge_process.write_result(elsewhere, report)().cut == 6


def test_status_reports_that_the_last_daemon_was_halted(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the process has ended, `stopped` would suggest that it only needs a restart."""
    state_files.write_halt(tmp_path, HistoryLost("slot gone", remedy="run it with --accept-history-loss"))
    settings = tmp_path / "cdcflow.yaml"
    assert isinstance(config.database, Postgres)
    settings.write_text(
        f"source: {{kind: postgres, url: '{config.database.url}'}}\nlog: {{path: '{tmp_path}'}}\n",
    )
    said = " ".join(CliRunner().invoke(app, ["status", "-c", str(settings)]).output.split())
    assert "capture halted HistoryLost slot gone" in said
    assert "remedy run it with --accept-history-loss" in said
    state_files.clear_halt(tmp_path)
    assert "halted" not in CliRunner().invoke(app, ["status", "-c", str(settings)]).output


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ""),
        ({"freshness": "fresh", "fresh_as_of": 1_700_000_000.0}, "as of 2023-11-14 22:13:20Z"),
        ({"freshness": "quiet", "fresh_as_of": 1_700_000_000.0}, "as of 2023-11-14 22:13:20Z, quiet"),
        ({"freshness": "not proven", "freshness_reason": "x", "fresh_as_of": None}, "not proven: x"),
        (
            {"freshness": "not proven", "freshness_reason": "x", "fresh_as_of": 1_700_000_000.0},
            "not proven since 2023-11-14 22:13:20Z: x",
        ),
    ],
)
def test_freshness_is_reported_in_a_few_words(fields: dict[str, Any], expected: str) -> None:
    """One column of a table on a terminal."""
    assert freshness_text(fields) == expected


def test_an_outage_has_one_line_under_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """A reason at each of twelve tables made the printed table too wide for any terminal."""
    away = {"state": "done", "freshness": "not proven", "freshness_reason": "no answer", "fresh_as_of": 0.0}
    output.show(status_parts({"state": "waiting", "tables": {f"shop.t{n}": away for n in range(3)}}))
    text = capsys.readouterr().out
    assert text.count("no answer") == 1
    assert "3 tables are not proven fresh since 1970-01-01 00:00:00Z: no answer" in text


def test_table_that_is_not_in_the_cut_is_in_the_status(
    config: Config, capture: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The merge succeeds and the cut is new, so nothing else shows that a table is out of date."""
    why = "its column n was int and is string now\n  run `cdcflow backfill public.b`\n  read more: explain-error"
    merge_process.write_result(config, lambda: report(left_out=why))()
    output.show(
        status_parts({"tables": {"public.a": {}, "public.b": {}}, "merge": state_files.of_merge(config.log.folder)})
    )
    text = " ".join(capsys.readouterr().out.split())
    assert "without 1 table" in text
    assert text.count("not in the cut") == 1
    assert "was int and is string" in text
    merge_process.write_result(config, report)()
    output.show(status_parts({"tables": {"public.b": {}}, "merge": state_files.of_merge(config.log.folder)}))
    assert "not in the cut" not in capsys.readouterr().out


def test_why_the_last_merge_failed_is_in_the_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It reported only that the last merge failed. Of a library's error only the kind is kept."""
    state_files.write_merge_failure(tmp_path, SinkUnavailable("merging into /w: another merge works there"))
    output.show(status_parts({"state": "capturing", "tables": {}, "merge": state_files.of_merge(tmp_path)}))
    assert "no cut yet; the last merge failed: merging into /w: another merge works there" in capsys.readouterr().out
    state_files.write_merge(tmp_path, cut=3, offset=9, seconds=1, rows=5, excluded={})
    state_files.write_merge_failure(tmp_path, ValueError("row (7, 'secret')"))
    output.show(status_parts({"state": "capturing", "tables": {}, "merge": state_files.of_merge(tmp_path)}))
    text = capsys.readouterr().out
    assert "; the last merge failed: ValueError" in text
    assert "secret" not in (tmp_path / state_files.MERGE_NAME).read_text()


def test_a_row_that_a_shadow_check_found_is_in_the_status(
    config: Config, capture: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its table, and with what to do."""
    monkeypatch.setattr(watch, "source_status", lambda *_: {})
    capture.says["tables"] = {"public.orders": {"state": "done"}, "public.items": {"state": "done"}}
    status = Watch(config, capture).status()
    assert status["tables"]["public.orders"]["shadow_difference"] == "a row differs"
    assert "shadow_difference" not in status["tables"]["public.items"]
    output.show(status_parts(status))
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "a row differs" in line)
    assert line.startswith("public.orders")
