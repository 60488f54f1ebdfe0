"""What happens to an operator's command: the answer, the audit record in the log, and a paused capture."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest
from tests.support.capture.small_capture import Stage, paused, stages
from tests.support.capture.small_source import ORDERS, Small
from tests.support.polling import wait_for, wait_until

from cdcflow.capture import requests
from cdcflow.capture.attempt import Attempt, LoopIntervals, Orders
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import Command, Input, PauseCapture, ResumeCapture
from cdcflow.capture.interleave.progress import Progress, RepairOrder, TableProgress, commands_of, repairs_of
from cdcflow.capture.log_writes import OnAnswer
from cdcflow.capture.requests import Arguments
from cdcflow.capture.settings import CaptureSettings
from cdcflow.capture.waker import Waker
from cdcflow.errors import ConfigurationError, SourceUnavailable
from cdcflow.model.change import KeySet
from cdcflow.model.position import Checkpoint, Offset, position_text
from cdcflow.sinks.memory import Memory, MemoryLog


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Stage]]:
    """Start captures; they are stopped after the test."""
    with stages(monkeypatch) as start:
        yield start


def test_command_that_does_not_fit_is_answered_with_the_reason(stage: Callable[..., Stage]) -> None:
    """An `ordered` for a done table that nothing follows is worse than no answer."""
    on = stage()
    on.until_done("public.items")
    on.until_done()
    found = on.capture.request("pause", ["public.items"], asked_by="ann")
    reason = "public.items is done: nothing to pause"
    assert found["tables"] == {"public.items": {"outcome": "nothing to do", "reason": reason}}
    assert (found["number"], found["durable"]) == (1, True)
    assert on.commands() == [("ann", "pause", {"public.items": f"nothing to do: {reason}"})]


def test_an_order_to_adjust_nothing_is_refused(stage: Callable[..., Stage]) -> None:
    """An operator who forgot the option must not read that everything matches the settings."""
    on = stage()
    on.until_done()
    with pytest.raises(ConfigurationError, match="nothing to adjust is given"):
        on.capture.request("adjust", ["public.orders"])


def test_answer_is_sent_when_its_audit_record_is_durable(stage: Callable[..., Stage]) -> None:
    """What a crash could still undo is not reported as done: the log has the audit record when the answer is sent."""
    on = stage()
    on.until_done()
    for number in range(1, 4):
        found = on.capture.request("backfill", ["public.orders"], asked_by="ann")
        assert (found["number"], found["durable"]) == (number, True)
        assert len(on.commands()) == number


def test_a_throttle_shows_in_the_status_and_ends_with_its_backfill(stage: Callable[..., Stage]) -> None:
    """A throttle that no status shows, or that stays after its reason is gone, makes a later backfill crawl."""
    on = stage()
    on.until_done()
    entry: Any = on.capture.status()["tables"]
    assert (entry["public.orders"]["rate_limit"], entry["public.orders"]["rate_limit_from"]) == (500, "settings")
    throttled = TableProgress("reading", 1, Offset(1), rows_per_second_max=7, priority=2)
    assert throttled.to_status(ORDERS.id, 500)["rate_limit"] == 7
    assert throttled.to_status(ORDERS.id, 500)["rate_limit_from"] == "order"
    assert replace(throttled, rows_per_second_max=0).to_status(ORDERS.id, 500)["rate_limit"] == 0


# ── pausing the capture ─────────────────────────────────────────────────────────────────────────────────────


def test_a_paused_capture_reads_nothing_until_it_is_resumed(stage: Callable[..., Stage]) -> None:
    """During the pause the source's connections are closed, the status still shows the last position, and commands
    report why they wait."""
    on = stage()
    on.until_done()
    first = on.opened.get(timeout=30)
    assert on.capture.request("pause-capture", asked_by="ann")["capture"] == {"outcome": "paused"}
    on.until("capture stopped")
    wait_for(lambda: on.capture.status()["state"], lambda state: state == "paused", "the pause")
    assert first.closed
    status = on.capture.status()
    assert (status["position"], status["cut"]) == (
        position_text(on.memory.checkpoint.position),
        on.memory.checkpoint.cut,
    )
    with pytest.raises(SourceUnavailable, match="the capture is paused"):
        on.capture.request("backfill", ["public.orders"])
    again: Any = on.capture.request("pause-capture")["capture"]
    assert again == {"outcome": "nothing to do", "reason": "the capture is paused already"}
    assert on.opened.empty()
    found = on.capture.request("resume-capture", asked_by="bob")
    assert (found["capture"], found["durable"]) == ({"outcome": "resumed"}, True)
    # Earlier requests are answered first.
    assert on.commands() == [
        ("ann", "pause-capture", {"capture": "paused"}),
        ("this program", "backfill", {"capture": "refused: the capture is paused"}),
        ("this program", "pause-capture", {"capture": "nothing to do: the capture is paused already"}),
        ("bob", "resume-capture", {"capture": "resumed"}),
    ]
    assert on.capture.status()["state"] == "capturing"
    assert not Progress.from_json(on.memory.checkpoint.progress).capture_paused
    nothing: Any = on.capture.request("resume-capture")["capture"]
    assert nothing == {"outcome": "nothing to do", "reason": "the capture is not paused: nothing to resume"}


def test_a_pause_outlives_the_process(stage: Callable[..., Stage]) -> None:
    """An operator who paused it for a night's work at the source must not find that a crash has resumed it."""
    on = stage(paused(stage))
    on.until("capture is paused")
    status = on.capture.status()
    assert (status["state"], status["cut"]) == ("paused", on.memory.checkpoint.cut)
    assert on.opened.empty(), "the source is not even connected to"
    assert on.capture.request("resume-capture")["capture"] == {"outcome": "resumed"}
    assert on.opened.get(timeout=30)


def test_settings_given_to_a_paused_capture_are_applied_when_it_is_resumed(stage: Callable[..., Stage]) -> None:
    """An operator who corrects settings during a pause must neither end the pause nor lose the correction."""
    on = stage(paused(stage))
    on.until("capture is paused")
    opened: list[str] = []

    def open_source() -> Any:
        opened.append("second")
        return on._open_source()

    pace = LoopIntervals(heartbeat_s=1e9, tables_look_s=1e9)
    second = CaptureSettings(open_source, lambda *_: MemoryLog(on.memory), Limits(), pace)
    number = on.capture.reload(second, in_place=False)
    given: Any = on.capture.status()
    assert (given["state"], given["settings"]["given"], opened) == ("paused", number, [])
    on.capture.request("resume-capture")
    on.until("settings taken up")
    assert (opened, on.capture.settings_number) == (["second"], number)


def test_an_order_to_resume_that_overtakes_the_pause_is_not_lost(stage: Callable[..., Stage]) -> None:
    """It arrives while the last attempt ends, which accepts no more commands."""
    on = stage()
    on.until_done()
    on.capture._requests.put(Command(98, "pause-capture", "ann", 0, (PauseCapture(),)))
    ended = Attempt._finish

    def resumed_meanwhile(attempt: Attempt) -> None:
        on.capture._requests.put(Command(99, "resume-capture", "bob", 0, (ResumeCapture(),)))
        ended(attempt)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Attempt, "_finish", resumed_meanwhile)
        on.capture._wake()
        on.until("capture stopped")
    on.until("capture resumed")


def test_resume_command_may_arrive_before_the_log_is_read(stage: Callable[..., Stage]) -> None:
    """A script starts the daemon and resumes it in the next line."""
    memory = paused(stage)
    on = Stage(memory)
    asked = threading.Thread(target=lambda: on.answers.append(on.capture.request("resume-capture")))
    asked.start()
    wait_until(lambda: on.capture._resuming is not None, "the request")
    on.thread.start()
    asked.join(30)
    on.capture.stop()
    on.thread.join(30)
    assert [found["capture"] for found in on.answers] == [{"outcome": "resumed"}]


def test_resumed_capture_retries_until_its_source_is_available(stage: Callable[..., Stage]) -> None:
    """The command stays in force although the first attempts fail; only its record in the log ends the pause."""
    on = stage(paused(stage))
    on.until("capture is paused")
    on.down = [SourceUnavailable("away"), SourceUnavailable("away")]
    found = on.capture.request("resume-capture")
    assert (found["capture"], found["durable"]) == ({"outcome": "resumed"}, True)
    assert not on.down


def test_a_backfill_by_itself_does_not_wait_for_a_paused_capture(stage: Callable[..., Stage]) -> None:
    """`cdcflow backfill` would hang indefinitely."""
    on = stage(paused(stage), once=True)
    on.thread.join(30)
    with pytest.raises(ConfigurationError, match=r"paused\n.*cdcflow ctl resume"):
        raise on.failures[0]


def test_stop_by_a_command_leaves_its_audit_record(stage: Callable[..., Stage]) -> None:
    """Who ended the daemon is the first question of the next morning."""
    on = stage()
    on.until_done()
    found = on.capture.request("stop", asked_by="ann")
    assert (found["capture"], found["durable"]) == ({"outcome": "stopping"}, True)
    on.thread.join(30)
    assert on.commands() == [("ann", "stop", {})]
    assert on.capture.request("stop")["capture"] == {"outcome": "stopping"}, "no attempt runs, or is to"


# ── reading rows again ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rows", [{"keys": [["7"], ["7"]]}, {"where": "id = 7"}])
def test_rows_are_read_again_by_their_keys(stage: Callable[..., Stage], rows: dict[str, Any]) -> None:
    """By keys as operators write them, or by those that the source finds for a predicate; neither stays in the audit
    record."""
    on = stage()
    on.until_done("public.items")
    on.until_done()
    before = on.memory.checkpoint.next_offset
    found = on.capture.request("reread", ["public.orders"], Arguments(**rows))
    assert found["tables"] == {"public.orders": {"outcome": "ordered"}}
    on.until_done(behind=before)
    (record,) = commands_of(on.memory.checkpoint.progress)
    assert record.details == {"keys": 1, **({"by_predicate": True} if "where" in rows else {})}


@pytest.mark.parametrize(
    ("tables", "rows", "said"),
    [
        (["public.orders"], {}, "either keys or a predicate"),
        ([], {"keys": [["7"]]}, "name one table"),
        (["public.orders"], {"keys": [["7"]], "where": "id = 7"}, "either keys or a predicate"),
        (["public.orders"], {"keys": [["7", "8"]]}, "key 1 does not have as many values"),
        (["public.orders"], {"keys": [["7"], ["secret"]]}, "column id is int64, and a value is not"),
        (["public.orders"], {"keys": []}, "no row was requested"),
        (["public.orders"], {"keys": [[str(n)] for n in range(requests.REREAD_KEYS_MAX + 1)]}, "more than 10000 keys"),
    ],
)
def test_rows_that_cannot_be_meant_are_refused(
    stage: Callable[..., Stage], tables: list[str], rows: dict[str, Any], said: str
) -> None:
    """And the refusal does not repeat the values (S03)."""
    on = stage()
    on.until_done()
    with pytest.raises(ConfigurationError, match=said) as caught:
        on.capture.request("reread", tables, Arguments(**rows))
    assert "secret" not in str(caught.value)
    assert on.commands() == []


@contextlib.contextmanager
def beginning(progress: TableProgress, on_answer: OnAnswer = lambda answer, durable: None) -> Iterator[Attempt]:
    """An attempt that begins at this progress."""
    memory = Memory()
    log = MemoryLog(memory)
    log.cut(Checkpoint(progress=Progress({ORDERS.id: progress}).to_json(), cut=1))
    log.sync()
    log.close()
    waker, log = Waker(), MemoryLog(memory)
    source: Any = Small(ORDERS)
    attempt = Attempt(
        source,
        log,
        log_id="x",
        epoch=log.epoch,
        limits=Limits(),
        orders=Orders(),
        pace=LoopIntervals(),
        requests=SimpleQueue[Input](),
        waker=waker,
        on_event=lambda event, fields: None,
        on_answer=on_answer,
    )
    try:
        yield attempt
    finally:
        attempt.close()
        waker.close()


def taken_up(progress: TableProgress) -> tuple[int, KeySet | None]:
    """The generation of an attempt that begins at this progress, and what it is to read by key."""
    with beginning(progress) as attempt:
        found = attempt._machine.progress
        return found.tables[ORDERS.id].generation, attempt._partial_keys.of(ORDERS.id, found)


def test_command_is_kept_when_a_durable_checkpoint_has_its_audit_record() -> None:
    """Not when the machine knows it, and not when the disk has written only the earlier cuts."""
    told: list[bool] = []
    with beginning(TableProgress("done", 1, Offset(1), 1), lambda answer, durable: told.append(durable)) as attempt:
        before = attempt._recording.checkpoint
        attempt._handle(Command(7, "pause", "ann", 0, ()))
        attempt._recording._tell_kept(before)
        assert told == [False]
        attempt._recording._tell_kept(attempt._recording.checkpoint)
        attempt._recording._tell_kept(attempt._recording.checkpoint)
        assert told == [False, True]


def test_ordered_keys_are_known_after_a_crash() -> None:
    """The log's rows do not contain them; the checkpoint does. If the key has changed since, they find nothing."""
    keys = KeySet(pa.table({"id": pa.array([3, 5], pa.int64())}))
    waiting = TableProgress("waiting", 1, Offset(1), 1, keys_since=Offset(1), exhausted=True)
    generation, found = taken_up(replace(waiting, keys_ordered=keys.to_text()))
    assert generation == 1
    assert found is not None
    assert found.keys.column("id").to_pylist() == [3, 5]
    other = KeySet(pa.table({"code": pa.array([3], pa.int64())}))
    assert taken_up(replace(waiting, keys_ordered=other.to_text()))[0] == 2, "all of it is read again"
    entry: Any = replace(waiting, keys_ordered=keys.to_text()).to_status(ORDERS.id, 0)
    assert "keys_ordered" not in entry


# ── repairing rows ──────────────────────────────────────────────────────────────────────────────────────────


def test_rows_are_repaired_by_their_keys(stage: Callable[..., Stage]) -> None:
    """The keys stay neither in the command's audit record nor in that of the repair."""
    on = stage()
    on.until_done("public.items")
    on.until_done()
    before = on.memory.checkpoint.next_offset
    found = on.capture.request("repair", ["public.orders"], Arguments(keys=[["7"], ["7"]], known_until="0/9"))
    assert found["tables"] == {"public.orders": {"outcome": "ordered"}}
    on.until_done(behind=before)
    (command,) = commands_of(on.memory.checkpoint.progress)
    assert (command.op, command.details) == ("repair", {"keys": 1, "known_until": "0/9"})
    (record,) = repairs_of(on.memory.checkpoint.progress)
    assert (record.number, record.table, record.keys, record.left) == (1, ORDERS.id, 1, 0)
    assert (record.first_offset, record.known_until) == (before, "0/9")


@pytest.mark.parametrize(
    ("tables", "rows", "said"),
    [
        (["public.orders"], {}, "name one table, and keys"),
        ([], {"keys": [["7"]]}, "name one table"),
        (["public.orders"], {"keys": [["secret"]]}, "repairing rows of public.orders: column id is int64"),
        (["public.orders"], {"keys": []}, "no row was requested"),
        (["public.orders"], {"keys": [[str(n)] for n in range(requests.REREAD_KEYS_MAX + 1)]}, "more than 10000 keys"),
    ],
)
def test_rows_that_cannot_be_repaired_are_refused(
    stage: Callable[..., Stage], tables: list[str], rows: dict[str, Any], said: str
) -> None:
    """And the refusal does not repeat the values (S03)."""
    on = stage()
    on.until_done()
    with pytest.raises(ConfigurationError, match=said) as caught:
        on.capture.request("repair", tables, Arguments(**rows))
    assert "secret" not in str(caught.value)
    assert on.commands() == []


def test_repair_commands_survive_a_crash() -> None:
    """The checkpoint has them. If the key has changed since, the whole table is read again, which repairs it too."""
    keys = KeySet(pa.table({"id": pa.array([3, 5], pa.int64())}))
    order = RepairOrder(4, keys.to_text(), "0/9")
    waiting = TableProgress("waiting", 1, Offset(1), 1, keys_since=Offset(1), exhausted=True, to_repair=(order,))
    stored = Progress.from_json(json.loads(json.dumps(Progress({ORDERS.id: waiting}).to_json())))
    assert stored.tables[ORDERS.id] == waiting
    assert stored.next_repair == 5
    assert taken_up(waiting)[0] == 1
    other = replace(order, keys=KeySet(pa.table({"code": pa.array([3], pa.int64())})).to_text())
    assert taken_up(replace(waiting, to_repair=(other,)))[0] == 2
    entry: Any = waiting.to_status(ORDERS.id, 0)
    assert "to_repair" not in entry
