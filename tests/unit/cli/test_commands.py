"""Commands as a user sees them: messages, exit codes, and what is never shown."""

from __future__ import annotations

import importlib.util
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

import cdcflow
from cdcflow import errors, wiring
from cdcflow.capture.ports.findings import Finding
from cdcflow.capture.requests import Arguments
from cdcflow.cli import failure
from cdcflow.cli.app import app
from cdcflow.config import MySQL, Postgres, load
from cdcflow.daemon.daemon import answering
from cdcflow.daemon.events import ERRORS, WARNINGS, event_lines, leave_interrupts_out, send_structlog_to
from cdcflow.daemon.interfaces.control_socket import ControlServer
from cdcflow.daemon.requests import backfills
from cdcflow.daemon.status import lag_seconds
from cdcflow.http.operations import operation_of
from cdcflow.model.position import SourceIdentity
from cdcflow.reports import readable
from cdcflow.spark.job import MergeReport, TableMergeReport

CANARY = "c4n4ry-s3cret"
runner = CliRunner()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the settings that `cdcflow init` writes."""
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(app, ["init"]).exit_code == 0
    (tmp_path / "cdcflow-log").mkdir()
    return tmp_path


@pytest.fixture
def daemon(folder: Path) -> Iterator[list[Mapping[str, Any]]]:
    """A fake daemon that reads a table while its status is polled three times; yields the requests
    that it got."""
    asked: list[Mapping[str, Any]] = []
    generation = 1

    def answer(request: Mapping[str, Any], asked_by: str) -> object:
        nonlocal generation
        asked.append(request)
        if request["op"] == "status":
            looks = sum(r["op"] == "status" for r in asked)
            state = "done" if generation == 1 or looks > 3 else "reading"
            table = {"state": state, "generation": generation, "units": 9, "units_done": 3, "rows": 42}
            return {"state": "capturing", "cut": 3, "lag_bytes": 5000, "tables": {"public.orders": table}}
        if "tables" not in request:
            return {"op": request["op"], "capture": {"outcome": "paused"}, "tables": {}, "number": 1, "durable": True}
        if "public.nothing" in request["tables"]:
            raise errors.ConfigurationError("table public.nothing is not captured")
        generation += request["op"] == "backfill"
        tables = {name: outcome(name) for name in request["tables"] or ["public.orders"]}
        return {"op": request["op"], "tables": tables, "number": 1, "durable": True}

    def outcome(name: str) -> dict[str, str]:
        if "done" in name:
            return {"outcome": "nothing to do", "reason": f"{name} is done: nothing to pause"}
        return {"outcome": "ordered"}

    server = ControlServer(folder / "cdcflow-log", answer)
    server.start()
    yield asked
    server.close()


# ── init ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [None, "postgres", "mysql", "mariadb"])
def test_written_settings_are_valid_without_edits(tmp_path: Path, kind: str | None) -> None:
    """The first thing a user does after `init` must not be an error about cdcflow's own file."""
    path = tmp_path / "new.yaml"
    result = runner.invoke(app, ["init", str(path), *(["--kind", kind] if kind else [])])
    assert result.output == f"wrote {path}; set source.url and source.tables in it, then run `cdcflow doctor`\n"
    config = load(path)
    assert isinstance(config.database, Postgres | MySQL)
    assert config.source.kind == (kind or "postgres")
    assert config.database.tables == (("public.*",) if config.source.kind == "postgres" else ("mydatabase.*",))
    assert config.database.url.startswith(f"{'postgresql' if config.source.kind == 'postgres' else kind}://")


@pytest.mark.parametrize("kind", ["postgres", "mysql", "mariadb"])
def test_every_commented_setting_of_the_template_is_valid_too(tmp_path: Path, kind: str) -> None:
    """A user should not have to guess why an example line from cdcflow's own file is refused."""
    path = tmp_path / "all.yaml"
    runner.invoke(app, ["init", str(path), "--kind", kind])
    lines = path.read_text().splitlines()
    assert '    # - "!' in path.read_text()  # the pattern that excludes a table is in `tables:`, in quotes
    path.write_text("\n".join(x.replace("# ", "", 1) if x.lstrip().startswith("# ") else x for x in lines[3:]))
    config = load(path)
    assert config.service.listen == "127.0.0.1:8079"
    assert isinstance(config.database, Postgres | MySQL)
    assert config.database.backfill.rows_per_second_max == 50_000
    assert config.database.password is not None
    assert [t[0] for t in config.database.tables[1:]] == ["!"]
    assert len({line.index(" # ", 5) for line in lines[5:10] if " # " in line[5:]}) == 1  # comments are aligned


def test_unknown_kind_is_a_usage_error(tmp_path: Path) -> None:
    """The choice is named; nothing is written."""
    result = runner.invoke(app, ["init", str(tmp_path / "x.yaml"), "--kind", "oracle"])
    assert result.exit_code == 2
    assert all(kind in result.output for kind in ("postgres", "mysql", "mariadb"))
    assert not (tmp_path / "x.yaml").exists()


def test_existing_settings_are_never_overwritten(folder: Path) -> None:
    """A second `init` in the wrong window would cost a morning."""
    (folder / "cdcflow.yaml").write_text("mine")
    result = runner.invoke(app, ["init"])
    assert result.exit_code == 78
    assert (folder / "cdcflow.yaml").read_text() == "mine"


# ── failures ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ConfigurationError, 78),
        (errors.SourceUnavailable, 69),
        (errors.SinkUnavailable, 74),
        (errors.OutcomeUnknown, 75),
        (errors.HistoryLost, 65),
        (errors.InvariantViolated, 70),
        (errors.SyncFailed, 74),
    ],
)
def test_failure_is_one_block_and_a_code_of_its_kind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: type[errors.CdcflowError], code: int
) -> None:
    """A service manager decides by the code whether to restart; an operator reads the block at night."""

    def fail(config: object) -> list[Finding]:
        raise kind("the slot is gone", remedy="run `cdcflow run --accept-history-loss`")

    monkeypatch.setattr(wiring, "doctor", fail)
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == code
    assert result.stderr.splitlines() == [
        f"{kind.__name__}: the slot is gone",
        "  run `cdcflow run --accept-history-loss`",
        f"  read more: cdcflow explain-error {kind.section}",
    ]
    assert "Traceback" in runner.invoke(app, ["--debug", "doctor"]).stderr


def test_unforeseen_error_does_not_show_its_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S03: the text of another library's exception may quote a row or a password; --debug is the user's own choice."""

    def fail(config: object) -> list[Finding]:
        raise KeyError(CANARY)

    monkeypatch.setattr(wiring, "doctor", fail)
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == failure.UNEXPECTED
    assert "KeyError" in result.stderr
    assert CANARY not in result.output


def test_wrong_option_is_a_usage_error() -> None:
    """Scripts distinguish a typing mistake (2) from a failure."""
    assert runner.invoke(app, ["run", "--nope"]).exit_code == 2


def test_rows_are_kept_only_where_a_loss_is_accepted(folder: Path) -> None:
    """By itself the option would have no effect, and a user would believe that it had."""
    result = runner.invoke(app, ["run", "--keep-rows"])
    assert result.exit_code == 78
    assert "--accept-history-loss" in result.stderr


@pytest.mark.parametrize(("keep_rows", "accepted"), [(False, True), (True, False)])
def test_rows_that_the_log_itself_has_lost_are_never_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, keep_rows: bool, accepted: bool
) -> None:
    """A comparison with a log that lacks rows itself would prove nothing."""
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(wiring.captures, "open_log", lambda *_, **named: asked.append(named))
    settings = wiring.captures.capture_settings(load(folder / "cdcflow.yaml"), keep_rows=keep_rows)
    settings.open_log(SourceIdentity("postgres", "1", "shop"), True)
    assert (asked[0]["accept_history_loss"], asked[0]["accept_rows_lost"]) == (True, accepted)


@pytest.mark.parametrize("command", [["run"], ["doctor"], ["status"], ["backfill"], ["merge"], ["log", "ls"]])
def test_wrong_setting_stops_every_command_with_its_place(folder: Path, command: list[str]) -> None:
    """The same one line everywhere, before anything is connected or started."""
    path = folder / "cdcflow.yaml"
    path.write_text(path.read_text().replace("tables:", "tabels:"))
    result = runner.invoke(app, command)
    assert result.exit_code == 78
    assert "cdcflow.yaml:8:3: unknown setting source.tabels; did you mean source.tables?" in result.stderr


@pytest.mark.parametrize("command", [["merge"], ["log", "ls"], ["log", "show"], ["log", "check"]])
def test_missing_log_is_named(folder: Path, command: list[str]) -> None:
    """Usually the command was started in the wrong folder."""
    result = runner.invoke(app, command)
    assert result.exit_code == 78
    assert "there is no change log at" in result.stderr


def test_merge_that_skips_a_table_reports_it_and_ends_with_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tables have their cut; a user who waits for this table must learn why it is not in the cut, and what
    to do."""
    tables = (
        TableMergeReport("public.orders", 0, 7, False, 0.0, left_out="column v was int\n  move the folder away"),
        TableMergeReport("public.products", 3, 9, True, 0.1, state="cancelled"),
    )
    left_out = MergeReport(5, 50, True, 0.2, tables)
    whole = MergeReport(5, 50, True, 0.2, tables[1:])
    for report, code in ((left_out, 1), (whole, 0)):
        monkeypatch.setattr("cdcflow.cli.merge.prepare_merge", lambda *_, report=report, **__: lambda: report)
        result = runner.invoke(app, ["merge"])
        assert result.exit_code == code
        assert "yes (cancelled)" in result.stdout
        assert "cut 5 published" in result.stdout
        assert ("public.orders is not in the cut: column v was int" in result.stderr) is bool(code)
        assert ("move the folder away" in result.stderr) is bool(code)


def test_secret_shows_nowhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S03: the canary in the environment must not appear in output, settings or errors of a failing connection."""
    monkeypatch.setenv("CDCFLOW_PASSWORD", CANARY)
    path = folder / "cdcflow.yaml"
    text = path.read_text().replace("# password: ${env:CDCFLOW_PASSWORD}", "password: ${env:CDCFLOW_PASSWORD}")
    path.write_text(text.replace("localhost:5432", "127.0.0.1:1"))
    said = [
        runner.invoke(app, [*debug, command]).output for debug in ([], ["--debug"]) for command in ("doctor", "status")
    ]
    assert CANARY not in "".join(said)
    assert CANARY not in repr(load(path))
    assert CANARY.encode() not in Path(f"/proc/{os.getpid()}/cmdline").read_bytes()


# ── doctor ──────────────────────────────────────────────────────────────────────────────────────────────────

FINDINGS = [
    Finding("ok", "wal_level", "logical"),
    Finding("error", "public.[odd]", "has no key", "ALTER TABLE public.odd REPLICA IDENTITY FULL"),
]


def test_doctor_prints_the_remedy_and_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact SQL is what the reader came for; names with brackets are no markup."""
    monkeypatch.setattr(wiring, "doctor", lambda config: FINDINGS)
    result = runner.invoke(app, ["doctor"])
    assert result.exit_code == failure.FINDINGS
    assert "public.[odd]: has no key" in result.stdout
    assert "ALTER TABLE public.odd REPLICA IDENTITY FULL" in result.stdout


def test_doctor_without_errors_succeeds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deployments run it before they start the daemon."""
    monkeypatch.setattr(wiring, "doctor", lambda config: FINDINGS[:1])
    result = runner.invoke(app, ["doctor", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [{"level": "ok", "subject": "wal_level", "text": "logical", "remedy": None}]


# ── with a daemon ───────────────────────────────────────────────────────────────────────────────────────────


def test_status_queries_the_daemon(folder: Path, daemon: list[Mapping[str, Any]]) -> None:
    """A running daemon has more information than its files."""
    result = runner.invoke(app, ["status"])
    assert result.exit_code == 0
    assert "capturing" in result.stdout
    assert "public.orders" in result.stdout
    assert json.loads(runner.invoke(app, ["status", "--json"]).stdout)["cut"] == 3


def test_backfill_is_followed_to_its_end(
    folder: Path, daemon: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must wait for the new generation: the old one was done already before the command."""
    monkeypatch.setattr(backfills, "LOOK_EVERY_S", 0.01)
    result = runner.invoke(app, ["backfill", "public.orders", "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["public.orders"] == {
        "state": "done",
        "generation": 2,
        "units": 9,
        "units_done": 3,
        "rows": 42,
    }
    assert {"op": "backfill", "tables": ["public.orders"]} in daemon


def test_error_about_an_unknown_table_is_the_daemon_s(folder: Path, daemon: list[Mapping[str, Any]]) -> None:
    """Same message and exit code as if the command had checked itself."""
    result = runner.invoke(app, ["backfill", "public.nothing"])
    assert result.exit_code == 78
    assert "public.nothing is not captured" in result.stderr


@pytest.mark.parametrize("op", ["pause", "resume", "cancel"])
def test_table_orders_reach_the_daemon(folder: Path, daemon: list[Mapping[str, Any]], op: str) -> None:
    """Each command is the request of the same name."""
    assert runner.invoke(app, ["table", op, "public.orders"]).exit_code == 0
    assert daemon[-1] == {"op": op, "tables": ["public.orders"]}


def test_adjust_sends_only_the_given_options(folder: Path, daemon: list[Mapping[str, Any]]) -> None:
    """A limit of 0 removes the limit; an omitted option leaves it."""
    result = runner.invoke(app, ["table", "adjust", "public.orders", "--rows-per-second-max", "0"])
    assert result.exit_code == 0
    assert daemon[-1] == {"op": "adjust", "tables": ["public.orders"], "rows_per_second_max": 0}


def test_adjust_is_undone_by_a_reset(folder: Path, daemon: list[Mapping[str, Any]]) -> None:
    """0 means no limit, so it cannot also mean what the settings say."""
    assert runner.invoke(app, ["table", "adjust", "public.orders", "--reset"]).exit_code == 0
    assert daemon[-1] == {"op": "adjust", "tables": ["public.orders"], "reset": True}
    assert runner.invoke(app, ["ctl", "throttle", "--reset"]).exit_code == 0
    assert daemon[-1] == {"op": "adjust", "tables": [], "reset": True}


@pytest.mark.parametrize(
    ("words", "request_"),
    [
        (["table", "backfill", "a.b"], {"op": "backfill", "tables": ["a.b"]}),
        (["table", "reread", "a.b", "--key", "17", "--key", "18"], {"keys": [["17"], ["18"]]}),
        (["table", "reread", "a.b", "--key", "eu,17"], {"keys": [["eu", "17"]]}),
        (["table", "reread", "a.b", "--key", '["a,b", 17]'], {"keys": [["a,b", "17"]]}),
        (["table", "reread", "a.b", "--where", "id < 3"], {"where": "id < 3"}),
        (["table", "repair", "a.b", "--key", "eu,17"], {"op": "repair", "tables": ["a.b"], "keys": [["eu", "17"]]}),
        (
            ["table", "repair", "a.b", "--key", "1", "--key", "2", "--known-until", "0/9"],
            {"op": "repair", "tables": ["a.b"], "keys": [["1"], ["2"]], "known_until": "0/9"},
        ),
        (["ctl", "throttle", "500"], {"op": "adjust", "tables": [], "rows_per_second_max": 500}),
        (["ctl", "throttle", "0", "--table", "a.b"], {"op": "adjust", "tables": ["a.b"], "rows_per_second_max": 0}),
        (["ctl", "pause"], {"op": "pause-capture"}),
        (["ctl", "resume"], {"op": "resume-capture"}),
        (["ctl", "stop"], {"op": "stop"}),
    ],
)
def test_commands_are_requests(
    folder: Path, daemon: list[Mapping[str, Any]], words: list[str], request_: dict[str, Any]
) -> None:
    """And each of them is in the list of operations."""
    assert runner.invoke(app, words).exit_code == 0
    expected = request_ if "op" in request_ else {"op": "reread", "tables": ["a.b"], **request_}
    assert daemon[-1] == expected
    assert operation_of(daemon[-1]).name == expected["op"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table", "reread", "a.b"], "by --key or by --where"),
        (["table", "reread", "a.b", "--key", "1", "--where", "true"], "by --key or by --where"),
        (["table", "reread", "a.b", "--key", "[1"], "is a JSON list"),
        (["table", "reread", "a.b", "--key", "[]"], "is a JSON list"),
        (["table", "repair", "a.b", "--key", "[1"], "is a JSON list"),
        (["ctl", "throttle"], "neither a rate nor --reset"),
        (["ctl", "throttle", "3", "--reset"], "neither a rate nor --reset"),
    ],
)
def test_commands_with_too_few_or_too_many_options_are_refused(
    folder: Path, daemon: list[Mapping[str, Any]], words: list[str], said: str
) -> None:
    """Before any request reaches the daemon."""
    result = runner.invoke(app, words)
    assert (result.exit_code, daemon) == (78, [])
    assert said in result.stderr


def test_command_that_changes_nothing_explains_why_and_exits_with_1(
    folder: Path, daemon: list[Mapping[str, Any]]
) -> None:
    """A script must not consider it done."""
    result = runner.invoke(app, ["table", "pause", "public.done"])
    assert result.exit_code == 1
    assert result.stdout == "public.done: nothing to do (public.done is done: nothing to pause)\n"
    both = runner.invoke(app, ["table", "pause", "public.done", "public.orders"])
    assert both.exit_code == 0
    assert both.stdout.splitlines()[1] == "public.orders: ordered"
    many = [f"public.done{n}" for n in range(21)]
    result = runner.invoke(app, ["table", "pause", *many, "public.orders"])
    assert result.stdout.splitlines() == [
        "public.orders: ordered",
        "21 more tables: nothing to do (--json names them)",
    ]


def test_table_orders_need_a_daemon(folder: Path) -> None:
    """Nothing is being read that could be paused."""
    result = runner.invoke(app, ["table", "pause", "public.orders"])
    assert result.exit_code == 78
    assert "no daemon runs" in result.stderr


# ── pieces ──────────────────────────────────────────────────────────────────────────────────────────────────


class Asked:
    """A capture that only records the requests that it gets."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def stop(self) -> None:
        self.calls.append(("stop",))

    def request(self, op: str, tables: list[str], arguments: Arguments, *, asked_by: str) -> dict[str, object]:
        self.calls.append((op, tables, arguments, asked_by))
        return {"op": op, "tables": tables}

    def status(self, **_: float) -> dict[str, object]:
        return {"state": "capturing"}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"op": "pause", "tables": ["a.b"]}, ("pause", ["a.b"], Arguments(), "ann")),
        ({"op": "adjust", "tables": ["a.b"], "priority": 3}, ("adjust", ["a.b"], Arguments(priority=3), "ann")),
        ({"op": "stop"}, ("stop", [], Arguments(), "ann")),
    ],
)
def test_socket_requests_become_calls(request_: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """The capture does exactly what the socket passes on."""
    asked: Any = Asked()
    answering(asked, asked)(request_, "ann")
    assert asked.calls == [expected]


def test_log_names_who_requested_an_operation_and_no_values() -> None:
    """S03: an operator reads in the daemon's log who paused a table; keys are values of rows."""
    asked: Any = Asked()
    events: list[tuple[str, dict[str, object]]] = []
    answer = answering(asked, asked, tell=lambda event, fields: events.append((event, dict(fields))))
    answer({"op": "status"}, "HTTP, token dashboard")
    answer({"op": "repair", "tables": ["a.b"], "keys": [["ann@example.com"]]}, "HTTP, token ops")
    answer({"op": "pause"}, "ann (uid 7)")
    assert events == [
        ("operation requested", {"op": "repair", "tables": "a.b", "by": "HTTP, token ops"}),
        ("operation requested", {"op": "pause", "tables": None, "by": "ann (uid 7)"}),
    ]


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"op": 3},
        {"op": "pause", "tables": "a.b"},
        {"op": "pause", "tables": [1]},
        {"op": "pause", "priority": 3},
        {"op": "adjust", "priority": -1},
        {"op": "adjust", "evil": 1},
    ],
)
def test_malformed_request_is_refused(request_: dict[str, Any]) -> None:
    """A table name taken letter by letter would pause 26 tables."""
    asked: Any = Asked()
    with pytest.raises(errors.ConfigurationError):
        answering(asked, asked)(request_, "ann")
    assert asked.calls == []


def test_event_is_one_line_whatever_its_fields_hold() -> None:
    """A message with a line break or a quote must not look like two events, nor forge a third."""
    file = io.StringIO()
    tell = event_lines(as_json=False, file=file)
    tell(
        "chunk read",
        {"table": "public.orders", "rows": 5, "seconds": 0.4123, "reason": 'a "b"\nchunk read', "none": ""},
    )
    (line,) = file.getvalue().splitlines()
    assert line.split("Z ", 1)[1] == (
        'chunk read table=public.orders rows=5 seconds=0.4123 reason="a \\"b\\"\\nchunk read" none=""'
    )


def test_event_as_json_is_one_document() -> None:
    """Log shippers parse it line by line."""
    file = io.StringIO()
    event_lines(as_json=True, file=file)("cut", {"number": 3})
    found = json.loads(file.getvalue())
    assert (found["event"], found["number"]) == ("cut", 3)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("capture started", "info"),
        ("table done", "info"),
        ("capture interrupted", "warning"),
        ("publishing waits", "warning"),
        ("table failed", "error"),
        ("capture failed", "error"),
        ("capture did not stop in time", "error"),
    ],
)
def test_event_as_json_has_a_level_and_no_empty_fields(event: str, expected: str) -> None:
    """An alert on errors must not wake an operator for a retry; `reason=None` looks like a reason. Plain lines, too."""
    for as_json in (True, False):
        file = io.StringIO()
        event_lines(as_json=as_json, file=file)(event, {"table": "a.b", "reason": None, "rows": 0})
        if as_json:
            assert list(json.loads(file.getvalue())) == ["time", "level", "event", "table", "rows"]
            assert json.loads(file.getvalue())["level"] == expected
        else:
            assert file.getvalue().split("Z ", 1)[1] == f"{event} table=a.b rows=0\n"


def test_every_event_with_a_special_level_is_one_that_is_logged() -> None:
    """An event that was renamed elsewhere would be logged as info, and no test would notice."""
    source = "\n".join(
        path.read_text() for path in Path(cdcflow.__file__).parent.rglob("*.py") if path.name != "events.py"
    )
    of_processes = {f"{name} {what}" for name in ("merge", "delivery") for what in ("failed", "process ended")}
    assert of_processes <= ERRORS | WARNINGS
    for event in (ERRORS | WARNINGS) - {"table failed"} - of_processes:
        assert f'"{event}"' in source, event
    for text in ('f"table {state}"', 'f"{name} process ended"', 'f"{self._work.name} failed"'):
        assert text in source
    assert all(f'name="{event.split()[0]}"' in source for event in of_processes)


def test_lines_of_other_parts_are_json_with_their_own_level_where_lines_are_json() -> None:
    """The line about a postponed upload had another form than the JSON lines around it."""
    file = io.StringIO()
    send_structlog_to(file, as_json=True)
    structlog.get_logger("cdcflow").warning("upload put off", tries=2)
    found = json.loads(file.getvalue())
    assert (found["level"], found["event"], found["tries"]) == ("warning", "upload put off", 2)


# ── Ctrl-C ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("command", [["doctor"], ["--debug", "doctor"]])
def test_interrupted_command_reports_it_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """A traceback looks like a fault; 130 is what a shell expects of a command that was interrupted."""

    def interrupted(config: object) -> list[Finding]:
        raise KeyboardInterrupt

    monkeypatch.setattr(wiring, "doctor", interrupted)
    before = signal.getsignal(signal.SIGINT)
    try:
        result = runner.invoke(app, command)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (result.exit_code, result.stderr, result.stdout) == (130, "interrupted\n", "")


def test_traceback_that_a_library_logs_at_an_interrupt_is_dropped() -> None:
    """py4j logs what Ctrl-C interrupted, as an error of the root logger, before any handler can catch it; others
    stay."""
    root, file = logging.Logger("root"), io.StringIO()
    root.addHandler(logging.StreamHandler(file))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cdcflow.daemon.events.logging.getLogger", lambda: root)
        leave_interrupts_out()
    for kind in (KeyboardInterrupt, ValueError):
        try:
            raise kind
        except (KeyboardInterrupt, ValueError):
            root.exception("while sending %s", kind.__name__)
    root.error("plain")
    assert "while sending KeyboardInterrupt" not in file.getvalue()
    assert "while sending ValueError" in file.getvalue()
    assert file.getvalue().endswith("plain\n")


def test_command_that_is_interrupted_during_its_import_reports_it_too(tmp_path: Path) -> None:
    """Half a second after Enter is when most users see their typing mistake."""
    # The import of a part hangs, and a user who finds it too slow interrupts it.
    (tmp_path / "typer.py").write_text(
        # A test run in the background may have been started with the signal ignored.
        "import os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "cdcflow.cli", "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_interrupted_backfill_reports_that_the_daemon_continues(
    folder: Path, daemon: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who pressed Ctrl-C thought that this ends the reading, and the source was read all night."""

    right = time.sleep

    def interrupted(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():  # some of Spark's threads sleep, too
            right(seconds)
            return
        raise KeyboardInterrupt

    monkeypatch.setattr("cdcflow.daemon.requests.backfills.time.sleep", interrupted)
    result = runner.invoke(app, ["backfill", "public.orders"])
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == (
        "the daemon continues reading public.orders; `cdcflow status` shows how far it is, and `cdcflow table cancel "
        "public.orders` ends it"
    )
    assert "Traceback" not in result.output
    assert runner.invoke(app, ["table", "cancel", "public.orders"]).exit_code == 0


def test_lost_reader_of_events_does_not_stop_the_capture() -> None:
    """`cdcflow run | head` ends head, not the capture."""
    file = io.StringIO()
    tell = event_lines(as_json=False, file=file)
    file.close()
    tell("cut", {"number": 3})


@pytest.mark.parametrize(
    ("status", "still_s", "expected"),
    [
        ({"lag_bytes": None, "commit_clock": 5}, 3.0, None),
        ({"lag_bytes": 100, "commit_clock": 5}, 3.0, 3.0),
        ({"lag_bytes": 10**9, "commit_clock": 0}, 3.0, 3.0),
    ],
)
def test_lag_of_an_idle_source_is_not_the_age_of_its_last_change(
    status: dict[str, Any], still_s: float, expected: float | None
) -> None:
    """Otherwise every quiet night would raise an alarm."""
    assert lag_seconds(status, still_s) == expected


def test_lag_of_a_source_that_is_ahead_is_the_age_of_the_latest_change() -> None:
    """While a backlog is read the position moves continuously, and yet the changes are old."""
    behind = lag_seconds({"lag_bytes": 10**9, "commit_clock": 1_000_000}, 0.1)
    assert behind is not None
    assert behind > 10**8


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"state": "reading", "units": 200, "units_done": 199}, "99%"),
        ({"state": "reading", "units": 10, "units_done": 10}, "99%"),
        ({"state": "done", "units": 0, "units_done": 0}, "100%"),
        ({"state": "waiting", "units": 0, "units_done": 0}, "0%"),
    ],
)
def test_only_a_done_table_shows_hundred_percent(fields: dict[str, Any], expected: str) -> None:
    """After the last page there are still moved rows to read: 100% means that the backfill is over."""
    assert readable.percent(fields) == expected


@pytest.mark.parametrize(
    ("say", "value", "expected"),
    [
        (readable.size, None, "?"),
        (readable.size, 999, "999 B"),
        (readable.size, 1500, "1.5 kB"),
        (readable.size, 3e13, "30.0 TB"),
        (readable.age, 3.14, "3.1 s"),
        (readable.age, 600, "10 min"),
        (readable.age, 10800, "3 h"),
        (readable.number, 1234567, "1,234,567"),
    ],
)
def test_numbers_read_well(say: Callable[[float | None], str], value: float | None, expected: str) -> None:
    """Status is read in a hurry."""
    assert say(value) == expected


@pytest.mark.spread(1)
@pytest.mark.parametrize("command", ["status", "log check"])
def test_commands_about_a_log_do_without_pandas(command: str, tmp_path: Path) -> None:
    """pyarrow imports it with its first array, half a second at each start. It is installed here, and could be."""
    assert importlib.util.find_spec("pandas") is not None
    path = tmp_path / "cdcflow.yaml"
    path.write_text("source: {kind: postgres, url: 'postgresql://u@127.0.0.1:1/d'}\nlog: {path: log}\n")
    code = (
        "import sys; from cdcflow.cli.__main__ import main\n"
        "try: main()\n"
        "finally: print('pyarrow' in sys.modules, 'pandas' in sys.modules, file=sys.stderr)"
    )
    arguments = [sys.executable, "-c", code, *command.split(), "-c", str(path)]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stderr.splitlines()[-1] == "True False", done.stderr
