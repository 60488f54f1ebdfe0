"""Each published cut reaches the receivers that asked for it, from the process that merged."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.servers.http_threads import PostReceiver
from tests.support.polling import wait_until

from cdcflow.config import Config, load
from cdcflow.daemon.interfaces import notifications
from cdcflow.daemon.merge_component import MergeComponent
from cdcflow.daemon.merge_process import notify_of_cuts
from cdcflow.errors import ConfigurationError, SinkUnavailable
from cdcflow.tables.job.reports import MergeReport, TableMergeReport

SETTINGS = """\
source: {kind: postgres, url: postgresql://cdcflow@db/shop}
log: {path: log}
merge: {warehouse: warehouse, every: 2s}
service:
  notify:
"""


@pytest.fixture
def hook() -> Iterator[PostReceiver]:
    with PostReceiver() as made:
        yield made


def settings(folder: Path, *receivers: str) -> Config:
    file = folder / "cdcflow.yaml"
    file.write_text(SETTINGS + "".join(f"    - {{{one}}}\n" for one in receivers))
    return load(file)


def report(cut: int, *, published: bool = True) -> MergeReport:
    changes = 7 if published else 0
    tables = (
        TableMergeReport("public.orders", changes, 3, True, 0.1),
        TableMergeReport("public.idle", 0, 1, True, 0.1),
        TableMergeReport("public.broken", 0, 1, False, 0.1, left_out="it has no key"),
    )
    return MergeReport(cut, 100, published, 0.2, tables)


def merges(*reports: MergeReport) -> Callable[[], MergeReport]:
    rest = iter(reports)
    return lambda: next(rest)


def bodies(hook: PostReceiver) -> list[dict[str, Any]]:
    return [json.loads(request.body) for request in hook.got]


def run(config: Config, reports: Sequence[MergeReport], *, repeats: bool) -> None:
    merge = notify_of_cuts([config], merges(*reports), repeats=repeats)
    for _ in reports:
        merge()


def test_published_cut_is_sent_with_the_tables_that_changed(tmp_path: Path, hook: PostReceiver) -> None:
    """A job that follows reads these tables at these versions, and no others."""
    run(settings(tmp_path, f"on: [cut_published], webhook: '{hook.uri}/x'"), [report(5)], repeats=False)
    (body,) = bodies(hook)
    assert body.pop("at")
    assert body.pop("host")
    assert body == {
        "event": "cut_published",
        "active": True,
        "text": "cut 5 is published: 7 changes in 1 of 2 tables",
        "cut": 5,
        "warehouse": str(tmp_path / "warehouse"),
        "tables": [{"name": "public.orders", "version": 3, "whole": True, "rows": 7}],
        "excluded": ["public.broken"],
        "rows": 7,
    }


def test_each_cut_is_sent_once_and_one_that_was_published_before_is_not(tmp_path: Path, hook: PostReceiver) -> None:
    """Without news there is nothing to do."""
    config = settings(tmp_path, f"on: [cut_published], webhook: '{hook.uri}/x'")
    run(config, [report(5), report(5, published=False), report(6)], repeats=True)
    hook.wait_for(lambda: len(hook.got) == 2)
    assert [body["cut"] for body in bodies(hook)] == [5, 6]


def test_first_merge_of_a_process_sends_the_latest_cut_again(tmp_path: Path, hook: PostReceiver) -> None:
    """The process that published it may have been killed before it sent anything: a job would wait for the next one."""
    config = settings(tmp_path, f"on: [cut_published], webhook: '{hook.uri}/x'")
    run(config, [report(5, published=False), report(5, published=False)], repeats=True)
    hook.wait_for(lambda: len(hook.got) == 1)
    (body,) = bodies(hook)
    assert (body["cut"], "rows" in body) == (5, False)
    assert [one["name"] for one in body["tables"]] == ["public.orders", "public.idle"]
    run(config, [report(5, published=False)], repeats=False)
    assert len(hook.got) == 1, "a merge alone that published nothing"


def test_log_without_a_cut_sends_nothing(tmp_path: Path, hook: PostReceiver) -> None:
    """Nothing is sealed yet."""
    config = settings(tmp_path, f"on: [cut_published], webhook: '{hook.uri}/x'")
    run(config, [report(0, published=False)], repeats=True)
    run(config, [report(0, published=False)], repeats=False)
    assert hook.got == []


def test_file_has_the_latest_cut_as_a_whole(tmp_path: Path) -> None:
    """A scheduler polls it: it must never see half of an object."""
    config = settings(tmp_path, "on: [cut_published], file: latest.json")
    run(config, [report(5), report(6)], repeats=True)
    file = tmp_path / "latest.json"
    wait_until(lambda: file.exists() and json.loads(file.read_text())["cut"] == 6, "the second cut")
    assert [path.name for path in tmp_path.iterdir() if "latest" in path.name] == ["latest.json"]


def test_command_gets_the_cut_before_a_merge_alone_returns(tmp_path: Path) -> None:
    """`cdcflow merge && echo done` in a script."""
    script = "import json,sys; open('said','a').write(str(json.load(sys.stdin)['cut']))"
    command = json.dumps([sys.executable, "-c", script.replace("'said'", repr(str(tmp_path / "said")))])
    run(settings(tmp_path, f"on: [cut_published], command: {command}"), [report(5)], repeats=False)
    assert (tmp_path / "said").read_text() == "5"


def test_receiver_that_fails_is_tried_again_and_never_fails_a_merge(
    tmp_path: Path, hook: PostReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge is worth more than a message about it."""
    monkeypatch.setattr(notifications, "PAUSES_S", (0.01, 0.01, 0.01))
    hook.answers = [500, 500]
    config = settings(tmp_path, f"on: [cut_published], webhook: '{hook.uri}/x'", "on: [cut_published], file: no/a.json")
    run(config, [report(5)], repeats=False)
    assert [body["cut"] for body in bodies(hook)] == [5, 5, 5]


def test_failed_merge_sends_nothing_and_stays_a_failure(tmp_path: Path, hook: PostReceiver) -> None:
    """The error is the daemon's to report."""

    def failing() -> MergeReport:
        raise SinkUnavailable("the warehouse does not answer")

    merge = notify_of_cuts([settings(tmp_path, f"on: [cut_published], webhook: '{hook.uri}/x'")], failing, repeats=True)
    with pytest.raises(SinkUnavailable):
        merge()
    assert hook.got == []


def test_receivers_of_other_events_get_no_cut_and_start_no_thread(tmp_path: Path, hook: PostReceiver) -> None:
    """The merge is returned unchanged."""
    merge = merges(report(5))
    config = settings(tmp_path, f"on: [lag], webhook: '{hook.uri}/x'")
    assert notify_of_cuts([config], merge, repeats=True) is merge


def test_new_receiver_of_cuts_replaces_the_process_that_merges(tmp_path: Path) -> None:
    """It runs with the settings that it was started with."""
    component = MergeComponent(lambda event, fields: None)
    made = [
        component.made_of(settings(tmp_path, one))
        for one in ("on: [lag], command: [x]", "on: [lag], command: [y]", "on: [cut_published], command: [x]")
    ]
    assert made[0] == made[1]
    assert made[1] != made[2]


@pytest.mark.parametrize(
    ("receiver", "said"),
    [
        ("on: [lag], file: a.json, command: [x]", "needs webhook, command or file"),
        ("on: [lag, cut_published], file: a.json", "has a file, which holds one event only"),
    ],
)
def test_settings_that_no_receiver_can_have_are_refused(tmp_path: Path, receiver: str, said: str) -> None:
    """A file that is replaced by another event has lost the first one."""
    with pytest.raises(ConfigurationError, match=said):
        settings(tmp_path, receiver)
