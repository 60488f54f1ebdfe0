"""Names and reasons that a command prints: what a terminal library, a template or a log could turn them into."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

import cdcflow
from cdcflow.cli import output
from cdcflow.cli.backfill import BackfillProgress
from cdcflow.daemon.events import event_lines, send_structlog_to
from cdcflow.http.metrics import exposition
from cdcflow.reports.parts import TextTable
from cdcflow.tables.merge.refusals import rebuilt

TEXTS = (
    "public.[red]red[/red]",
    "public.[/]",
    "public.:smile:",
    "public.{0} {} {x} %s %(x)s",
    "public.{{ 7 * 7 }}",
    "public.${env:HOME} $HOME `id`",
    "public.[link=https://example.org]here[/link]",
)


@pytest.mark.parametrize("text", TEXTS)
def test_table_shows_a_name_unchanged(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rich takes `[red]` for a colour, and ends a command at a `[/]` that closes nothing."""
    output.show([TextTable(("table", text), [(text, 1)])])
    printed = capsys.readouterr().out
    assert printed.count(text) == 2


@pytest.mark.parametrize("text", TEXTS)
def test_bars_of_a_backfill_show_a_name_unchanged(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where stderr is a terminal."""
    file = io.StringIO()
    on_terminal = Console(file=file, force_terminal=True, width=200, highlight=False, color_system=None)
    monkeypatch.setattr(output, "stderr", lambda: on_terminal)
    with BackfillProgress() as shown:
        shown.show({text: {"state": "done", "rows": 1}})
    assert text in file.getvalue()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("as_json", [False, True])
def test_daemons_log_has_a_name_unchanged(text: str, as_json: bool) -> None:
    """Log lines are not formatted again with their contents."""
    file = io.StringIO()
    event_lines(as_json=as_json, file=file)("table failed", {"table": text})
    send_structlog_to(file, as_json=as_json)
    structlog.get_logger().warning("table skipped", table=text)
    for line in file.getvalue().splitlines():
        shown = json.loads(line)["table"] if as_json else line.partition("table=")[2]
        assert shown in (text, json.dumps(text, ensure_ascii=False))


def test_metrics_have_a_name_unchanged() -> None:
    """A label is quoted, whatever is in it."""
    status = {"tables": {text + '"\\\n': {"state": "done", "rows": 1} for text in TEXTS}}
    families = text_string_to_metric_families(exposition(status))
    labels = {sample.labels.get("table") for family in families for sample in family.samples}
    assert {text + '"\\\n' for text in TEXTS} <= labels


def test_a_command_that_is_printed_names_the_table_to_a_shell() -> None:
    """`$(…)` in a table's name is run by the shell into which a user pastes the remedy."""
    for name in ("public.$(touch x)", "public.`id`", "public.a b", "public.it's", "public.$HOME", "public.a;b"):
        printed = rebuilt(name).split("`cdcflow ", 1)[1].rsplit("` and `cdcflow merge`", 1)[0]
        assert shlex.split(f"cdcflow {printed}") == ["cdcflow", "backfill", name]
    assert "`cdcflow backfill public.orders`" in rebuilt("public.orders")


def test_every_command_that_names_a_table_does_so() -> None:
    """Wherever it is printed."""
    command = re.compile(
        r"cdcflow (?:table )?(?:backfill|repair|verify|attach) \{(?!word\(|' '\.join\(map\(word)[^}]*\}"
    )
    found = {path.name: command.findall(path.read_text()) for path in Path(cdcflow.__file__).parent.rglob("*.py")}
    assert {name: commands for name, commands in found.items() if commands} == {}
