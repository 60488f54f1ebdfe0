"""Who is notified of what, once per change, through a real server and a real command."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.servers.http_threads import PostReceiver
from tests.support.daemon.notified import notifying
from tests.support.polling import wait_until

from cdcflow.config import Config, Notify, load
from cdcflow.daemon.interfaces.notices import Noticing, of_the_end
from cdcflow.daemon.interfaces.notifications import Notifier
from cdcflow.errors import ConfigurationError, HistoryLost

WAIT_S = 30.0
CANARY = "c4n4ry-s3cret"


def status(**fields: Any) -> dict[str, Any]:
    return {"state": "capturing", "lag_seconds": 1.0, "tables": {}, **fields}


def events(noticing: Noticing, *statuses: Mapping[str, Any]) -> list[list[tuple[str, bool]]]:
    return [[(n.event, n.active) for n in noticing.of(one)] for one in statuses]


def test_lag_is_notified_when_it_begins_and_when_it_is_over() -> None:
    """Not at every check in between."""
    late = status(lag_seconds=301.0)
    assert events(Noticing(300, 0.25, {}), status(), late, late, status(), status(), late) == [
        [],
        [("lag", True)],
        [],
        [("lag", False)],
        [],
        [("lag", True)],
    ]


def test_shortage_of_room_is_notified_before_the_room_is_gone() -> None:
    """The next steps are a lost slot, or a purged binary log."""
    wide = status(retained_bytes=10, source={"safe_wal_bytes": "90"})
    near = status(retained_bytes=80, source={"safe_wal_bytes": "20"})
    assert events(Noticing(300, 0.25, {}), wide, near, near, wide) == [
        [],
        [("headroom", True)],
        [],
        [("headroom", False)],
    ]
    unlimited = status(retained_bytes=80, source={"safe_wal_bytes": "unlimited"})
    assert events(Noticing(300, 0.25, {}), unlimited) == [[]]
    purged_next = status(lag_seconds=3601.0, source={"files_until_lost": "0"})
    at_the_end = status(source={"files_until_lost": "0"})
    assert events(Noticing(1e9, 0.25, {}), at_the_end, purged_next) == [[], [("headroom", True)]]


def test_each_level_of_the_logs_budget_and_its_release_are_notified_once() -> None:
    """There is time to act at 50 %, and a gap to know of after a release."""

    def used(percent: int, **fields: object) -> dict[str, Any]:
        return status(log_budget={"percent": percent, "used": percent / 100, "then": "release", **fields})

    released = used(0, released_at=1.0, released_why="much is kept")
    begun, over = [("log_budget", True)], [("log_budget", False)]
    statuses = (used(0), used(50), used(50), used(80), used(50), used(100), released, released, status())
    assert events(Noticing(300, 0.25, {}), *statuses) == [[], begun, [], begun, [], begun, over + begun, [], []]


def test_each_successful_backfill_is_notified_once() -> None:
    """Problems that were over when the daemon began are not reported, and an outage creates none."""

    def reading(state: str, generation: int = 1) -> dict[str, Any]:
        return status(tables={"public.a": {"state": state, "generation": generation, "rows": 7}})

    noticing = Noticing(300, 0.25, reading("done")["tables"])
    done = [("backfill_done", True)]
    outage = {"state": "waiting", "tables": {}}
    assert events(noticing, reading("done"), reading("reading", 2), reading("done", 2), reading("done", 2), outage) == [
        [],
        [],
        done,
        [],
        [],
    ]
    assert events(noticing, reading("done", 2), reading("done", 3), reading("failed", 4)) == [[], done, []]
    assert events(Noticing(300, 0.25, {}), reading("done")) == [done], "a small table, read before the first check"


def test_end_is_notified_with_its_reason_and_what_to_do() -> None:
    """Of a fault in cdcflow only the kind: its text may contain a row's values."""
    lost = of_the_end(HistoryLost("slot gone\nat 0/1", remedy="run it again"))
    assert lost.fields == {"kind": "HistoryLost", "reason": "slot gone", "remedy": "run it again"}
    assert "canary" not in str(of_the_end(ValueError("canary")))
    assert of_the_end(None).text == "the capture was stopped by a command"


def test_end_of_a_standby_is_not_reported_as_the_end_of_the_capture() -> None:
    """Another daemon captures, and an operator who is woken up would look for a fault that does not exist."""
    assert of_the_end(None, is_standby=True).text == "the standby was stopped by a command"
    ended = of_the_end(HistoryLost("slot gone"), is_standby=True)
    assert ended.text == "the standby has ended: HistoryLost: slot gone"


class Hook(PostReceiver):
    """A receiver of notifications."""

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.got]

    def events(self) -> list[str]:
        return [body["event"] for body in self.bodies]


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as made:
        yield made


def test_webhook_gets_the_events_of_its_settings(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """By POST, as JSON, at a URL that is a secret."""
    monkeypatch.setenv("HOOK", f"{hook.uri}/{CANARY}")
    told: list[object] = []
    now = status()
    receiver = Notify(on=("lag", "stopped"), webhook="${env:HOOK}")
    with notifying([receiver], lambda: now, lambda *event: told.append(event), look_every_s=0.01):
        now = status(lag_seconds=400.0, source={"safe_wal_bytes": "1"}, retained_bytes=99)
        hook.wait_for(lambda: "lag" in hook.events())
    hook.wait_for(lambda: "stopped" in hook.events())
    first = hook.bodies[0]
    assert hook.got[0].path == f"/{CANARY}"
    assert (first["event"], first["active"], first["lag_seconds"]) == ("lag", True, 400.0)
    assert hook.events() == ["lag", "stopped"], "headroom was not asked for"
    assert told == []


def test_a_command_gets_the_same_on_its_standard_input(tmp_path: Path) -> None:
    """For users who have no webhook."""
    file = tmp_path / "said"
    script = f"import sys; open({str(file)!r}, 'a').write(sys.stdin.read() + chr(10))"
    receiver = Notify(on=("stopped",), command=(sys.executable, "-c", script))
    error = HistoryLost("slot gone", remedy="run it again")
    with pytest.raises(HistoryLost), notifying([receiver], status, lambda *_: None):
        raise error
    (said,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert (said["event"], said["kind"], said["remedy"]) == ("stopped", "HistoryLost", "run it again")


def test_failed_delivery_to_a_receiver_is_tried_again(hook: Hook) -> None:
    """A webhook that restarts must not cost the only message of the night."""
    hook.answers = [500, 503]
    now = status(lag_seconds=400.0)
    with notifying(
        [Notify(on=("lag",), webhook=hook.uri)], lambda: now, lambda *_: None, look_every_s=0.01, pauses_s=(0.01, 0.01)
    ):
        hook.wait_for(lambda: len(hook.got) == 3)


def test_unreachable_receiver_is_abandoned_without_its_url(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event goes to a log that many may read; and the other receiver is not delayed."""
    monkeypatch.setenv("HOOK", f"{hook.uri}/{CANARY}")
    hook.answers = [500] * 20
    told: list[tuple[str, Mapping[str, object]]] = []
    given_up = threading.Event()

    def tell(event: str, fields: Mapping[str, object]) -> None:
        told.append((event, fields))
        given_up.set()

    now = status(lag_seconds=400.0)
    receivers = [Notify(on=("lag",), webhook="${env:HOOK}"), Notify(on=("lag",), command=("/nowhere/at-all",))]
    with notifying(receivers, lambda: now, tell, look_every_s=0.01, pauses_s=(0.01,)):
        assert given_up.wait(WAIT_S)
        hook.wait_for(lambda: len(hook.got) >= 2)
    assert {(event, fields["about"]) for event, fields in told} == {("notification given up", "lag")}
    assert {fields["reason"] for _, fields in told} <= {
        "it answered 500",
        "it cannot be run: No such file or directory",
    }
    assert CANARY not in repr(told)
    assert hook.uri not in repr(told)


def test_receivers_are_added_and_removed_while_the_capture_runs(hook: Hook) -> None:
    """A receiver that stays is not notified again of a known problem; one that was removed is not notified of the
    end."""
    late = status(lag_seconds=400.0, tables={"public.a": {"state": "done", "generation": 1, "rows": 7}})
    stays, goes = (Notify(on=("lag", "stopped"), webhook=f"{hook.uri}/{name}") for name in "sg")
    notifier = Notifier(lambda: late, lambda *_: None, look_every_s=0.01)
    notifier.use([stays, goes], {})
    hook.wait_for(lambda: len(hook.got) == 2)
    comes = Notify(on=("lag", "backfill_done", "stopped"), webhook=f"{hook.uri}/c")
    notifier.use([comes, stays], late["tables"])
    hook.wait_for(lambda: len(hook.got) == 3)
    notifier.end(None)
    hook.wait_for(lambda: len(hook.got) == 5)
    assert sorted((request.path, body["event"]) for request, body in zip(hook.got, hook.bodies, strict=True)) == [
        ("/c", "lag"),
        ("/c", "stopped"),
        ("/g", "lag"),
        ("/s", "lag"),
        ("/s", "stopped"),
    ]


def test_daemon_that_ends_permanently_reports_why(hook: Hook, tmp_path: Path) -> None:
    """From the settings to the webhook, and to a user who reads the status afterwards."""
    from cdcflow.daemon import daemon
    from cdcflow.log.maintenance import state_files

    config = Config.model_validate(
        {
            "source": {"kind": "postgres", "url": "postgresql://nobody@127.0.0.1:1/none"},
            "log": {"path": str(tmp_path)},
            "service": {"notify": [{"on": ["stopped"], "webhook": hook.uri}]},
        }
    )

    class Ends:
        """A capture that a lost slot ends."""

        waits_for_lease = False

        def run(self) -> None:
            raise HistoryLost("slot gone", remedy="run it again")

        def seal_soon(self) -> None:
            """Nothing is captured."""

        def stop(self) -> None:
            pass

        def status(self) -> dict[str, object]:
            return {"state": "halted"}

    given: Any = Ends()
    with pytest.raises(HistoryLost):
        daemon.run(config, given, lambda *_: None, serve=False)
    hook.wait_for(lambda: hook.events() == ["stopped"])
    assert hook.bodies[0]["reason"] == "slot gone"
    halted = state_files.of_halt(tmp_path)
    assert halted is not None
    assert (halted["kind"], halted["remedy"]) == ("HistoryLost", "run it again")


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("{on: [lag]}", "needs webhook, command or file"),
        ("{on: [lag], webhook: 'https://h/x', command: [x]}", "needs webhook, command or file"),
        ("{on: [lag], webhook: 'https://me:pw@h/x'}", "holds a secret"),
        ("{on: [lag], webhook: 'https://h/x?token=abc'}", "holds a secret"),
        ("{on: [lag], webhook: 'ftp://h/x'}", "must be a URL"),
        ("{on: [], webhook: 'https://h/x'}", "service.notify[0].on is empty"),
        ("{on: [lags], webhook: 'https://h/x'}", "must be 'lag'"),
        ("{on: [lag], webhok: 'https://h/x'}", "did you mean service.notify[0].webhook?"),
    ],
)
def test_a_mistake_in_the_settings_is_named(tmp_path: Path, setting: str, complaint: str) -> None:
    """With a receiver that is never notified, nothing seems to have happened."""
    path = tmp_path / "cdcflow.yaml"
    path.write_text(
        "source: {kind: postgres, url: 'postgresql://me@db/shop'}\nlog: {path: log}\n"
        f"service:\n  notify:\n    - {setting}\n"
    )
    with pytest.raises(ConfigurationError) as error:
        load(path)
    assert complaint in str(error.value)
    assert "abc" not in str(error.value)


def test_what_each_receiver_got_is_counted(hook: Hook) -> None:
    """A receiver that answers nothing cannot report it; a metric can."""
    now = status(lag_seconds=400.0)
    made = Notifier(lambda: now, lambda *_: None, look_every_s=0.01, pauses_s=())
    made.use([Notify(on=("lag",), webhook=hook.uri), Notify(on=("lag",), command=("/nowhere/at-all",))], {})
    wanted = {
        "webhook 1": {"sent": 1, "failed": 0, "waiting": 0},
        "command 2": {"sent": 0, "failed": 1, "waiting": 0},
    }
    wait_until(lambda: made.counts() == wanted, "both to be counted", more=made.counts)
    made.end(None)
