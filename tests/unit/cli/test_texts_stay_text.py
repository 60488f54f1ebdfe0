"""Names and reasons that a command prints: whatever a terminal library, a template or a log could make of them."""

from __future__ import annotations

import io
import json

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from cdcflow.cli import output
from cdcflow.cli.events import event_lines, send_structlog_to
from cdcflow.cli.progress import BackfillProgress
from cdcflow.service.metrics import exposition

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
def test_a_table_shows_a_name_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rich takes `[red]` for a colour, and ends a command at a `[/]` that closes nothing."""
    output.stdout().print(output.table(None, ("table", text), [(text, 1)]))
    printed = capsys.readouterr().out
    assert printed.count(text) == 2


@pytest.mark.parametrize("text", TEXTS)
def test_bars_of_a_backfill_show_a_name_as_it_is(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where stderr is a terminal."""
    file = io.StringIO()
    on_terminal = Console(file=file, force_terminal=True, width=200, highlight=False, color_system=None)
    monkeypatch.setattr(output, "stderr", lambda: on_terminal)
    with BackfillProgress() as shown:
        shown.show({text: {"state": "done", "rows": 1}})
    assert text in file.getvalue()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_daemons_log_has_a_name_as_it_is(text: str, as_json: bool) -> None:
    """Log lines are not formatted again with what they hold."""
    file = io.StringIO()
    event_lines(as_json=as_json, file=file)("table failed", {"table": text})
    send_structlog_to(file, as_json=as_json)
    structlog.get_logger().warning("table left out", table=text)
    for line in file.getvalue().splitlines():
        shown = json.loads(line)["table"] if as_json else line.partition("table=")[2]
        assert shown in (text, json.dumps(text, ensure_ascii=False))


def test_metrics_have_a_name_as_it_is() -> None:
    """A label is quoted, whatever is in it."""
    status = {"tables": {text + '"\\\n': {"state": "done", "rows": 1} for text in TEXTS}}
    families = text_string_to_metric_families(exposition(status))
    labels = {sample.labels.get("table") for family in families for sample in family.samples}
    assert {text + '"\\\n' for text in TEXTS} <= labels
