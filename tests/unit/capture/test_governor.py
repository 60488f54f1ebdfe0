"""The governor: measures while rows are to be read, and holds the reading while it cannot."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.polling import wait_until

from cdcflow.capture.governor import Governor
from cdcflow.errors import SourceUnavailable
from cdcflow.log.maintenance.day_ledger import FileLedger
from cdcflow.model.source_load import DayBudget, DayUse, LoadLimits, ReadingLimits, SourceLoad

LAG = ReadingLimits(LoadLimits(replica_lag=10.0))


def ignore(event: str, fields: Mapping[str, object]) -> None:
    """Take an event."""


class Probe:
    """A source whose lag, and whose answer, a test sets."""

    def __init__(self) -> None:
        self.lag: float | None = 0.0
        self.opened = self.closed = self.measured = 0
        self.error: Exception | None = None

    def open(self) -> Probe:
        self.opened += 1
        return self

    def load(self) -> SourceLoad:
        if self.error is not None:
            raise self.error
        self.measured += 1
        return SourceLoad() if self.lag is None else SourceLoad({"replica_lag": self.lag})

    def commit(self) -> float:
        return 0.001

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def governor(probe: Probe, tmp_path: Path) -> Iterator[Governor]:
    made = Governor(LAG, probe.open, FileLedger(tmp_path), ignore)
    yield made
    made.close()


def want(governor: Governor) -> None:
    governor.observe(is_reading=True, in_window=False)


def until(governor: Governor, state: str) -> dict[str, Any]:
    def wished() -> dict[str, Any] | None:
        found = governor.status()
        return found if found is not None and found["state"] == state else None

    return wait_until(wished, f"reading to be {state}")


def test_nothing_is_read_before_the_first_measurement(governor: Governor, probe: Probe) -> None:
    """A backfill that begins on a busy source would otherwise begin with a full second of reading."""
    assert governor.pace.all_held
    assert probe.opened == 0, "and nothing is measured while nothing is to be read"
    want(governor)
    until(governor, "free")
    assert not governor.pace.all_held


@pytest.mark.parametrize("error", [SourceUnavailable("no answer"), ZeroDivisionError("a secret")], ids=str)
def test_source_that_cannot_be_measured_is_not_read_until_it_can(
    governor: Governor, probe: Probe, error: Exception
) -> None:
    """Unknown is not within the limit. No error may end the thread, and the text of others may be anything."""
    want(governor)
    until(governor, "free")
    probe.error = error
    held = until(governor, "held")
    assert held["unmeasured"] == 1
    assert "secret" not in str(held)
    probe.error = None
    assert until(governor, "free")["unmeasured"] == 0
    assert probe.closed == probe.opened - 1, "the connection that failed is not used again"


def test_reading_that_stays_held_is_reported_once(probe: Probe, tmp_path: Path) -> None:
    """A backfill may be held for a night, and the same line every ten seconds would hide the others."""
    told: list[str] = []
    clock = itertools.count(20.0, 20.0)  # each call is later by more than `TOLD_EVERY_S`
    governor = Governor(
        LAG, probe.open, FileLedger(tmp_path), lambda event, _: told.append(event), clock=clock.__next__
    )

    def measure(times: int) -> None:
        enough = probe.measured + times

        def is_enough() -> bool:
            governor.use(LAG, probe.open)  # wakes its thread
            return probe.measured >= enough

        wait_until(is_enough, "more measurements")

    probe.lag = 20.0
    want(governor)
    measure(4)
    assert told == ["reading held"]
    probe.lag = 0.0
    measure(4)
    assert told == ["reading held", "reading free"]
    governor.close()


def test_measuring_ends_with_the_reading(governor: Governor, probe: Probe) -> None:
    """A connection that nothing uses costs the server something, and an old measurement means nothing later."""
    want(governor)
    until(governor, "free")
    governor.observe(is_reading=False, in_window=False)
    assert governor.status() is None
    wait_until(lambda: probe.closed == 1, "the connection to be closed")
    assert governor.pace.all_held


def test_other_limits_apply_at_once(governor: Governor, probe: Probe) -> None:
    """An operator raises a limit because a backfill waits for it."""
    probe.lag = 20.0
    want(governor)
    until(governor, "held")
    governor.use(ReadingLimits(LoadLimits(replica_lag=100.0)), probe.open)
    until(governor, "free")
    governor.use(ReadingLimits(), probe.open)
    assert governor.pace.share == 1
    assert governor.status() is None


def test_limit_that_is_set_while_rows_are_read_is_measured(probe: Probe, tmp_path: Path) -> None:
    """The operator who sees a backfill hurt sets it then: without a measurement nothing would be read any further."""
    governor = Governor(ReadingLimits(), probe.open, FileLedger(tmp_path), ignore)
    want(governor)
    assert not governor.pace.all_held
    governor.use(LAG, probe.open)
    until(governor, "free")
    governor.close()


def test_processes_share_the_budget_of_a_day(tmp_path: Path) -> None:
    """A comparison and the backfill of the daemon read the same source."""
    limits = ReadingLimits(day=DayBudget(rows=1_000))
    backfill, comparison = (Governor(limits, None, FileLedger(tmp_path), ignore) for _ in range(2))
    for one in (backfill, comparison):
        one.observe(is_reading=True, in_window=False)
    backfill.count(600, 6_000, 0.1)
    status = backfill.status()
    assert status is not None
    assert status["today"] == {"rows": 600, "bytes": 6_000, "seconds": 0.1}
    comparison.count(300, 3_000, 0.1)
    assert not backfill.pace.ranges_held
    backfill.close()
    comparison.count(200, 2_000, 0.1)
    comparison.close()
    again = Governor(limits, None, FileLedger(tmp_path), ignore)
    assert again.pace.ranges_held, "1,100 of 1,000 rows were read"
    assert not again.pace.all_held
    again.close()


def test_caller_that_reads_piece_by_piece_waits_its_turn(governor: Governor, probe: Probe) -> None:
    """A comparison has no loop that could follow the pace."""
    probe.lag = 20.0
    admitted = threading.Event()

    def read() -> None:
        governor.admit()
        admitted.set()

    thread = threading.Thread(target=read)
    thread.start()
    until(governor, "held")
    assert not admitted.is_set()
    probe.lag = 0.0
    assert admitted.wait(60)
    thread.join()


@pytest.mark.parametrize("text", ["", "{", '{"day": 7}', "[]", '{"day": "2026-01-01", "rows": null}'])
def test_damaged_ledger_begins_a_new_day(tmp_path: Path, text: str) -> None:
    """The log does not depend on it: a machine that lost its power while it was written must capture."""
    (tmp_path / "reading.json").write_text(text)
    use = DayUse("2026-01-02", 5, 50, 0.5)
    assert FileLedger(tmp_path).add(use) == use
    assert FileLedger(tmp_path).add(use) == DayUse("2026-01-02", 10, 100, 1.0)


def test_ledger_without_a_folder_counts_in_memory(tmp_path: Path) -> None:
    """A log in Kafka need not keep anything on this machine."""
    ledger = FileLedger(tmp_path / "missing")
    ledger.add(DayUse("2026-01-02", 5))
    assert ledger.add(DayUse("2026-01-02", 6)).rows == 11
    assert ledger.add(DayUse("2026-01-03", 1)).rows == 1
