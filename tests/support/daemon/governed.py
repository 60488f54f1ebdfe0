"""A daemon whose reading of existing rows is held, slowed and resumed by the limits of `source.backfill`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.daemon.running_shop import DaemonFolder
from tests.support.polling import PATIENCE_S

CHUNK = {"chunk_rows_max": 100}
ROWS = 3_000
OVER = 60
"""PostgreSQL is read in whole pages: rows of some pages more than the budget has left."""


def closed_hours(now: datetime) -> str:
    """An hour that begins in six hours."""
    first = (now + timedelta(hours=6)).replace(minute=0)
    return f"{first:%H:%M}-{first + timedelta(hours=1):%H:%M} UTC"


class Governed:
    """A daemon that has captured a small table, and the table `big`, which is not selected yet. `waiting`: inside it a
    session of the source waits for a lock."""

    def __init__(self, here: DaemonFolder, big: str, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self.here = here
        self.big = big
        self.waiting = waiting

    def use(self, **backfill: Any) -> None:
        """Have the running daemon apply these settings of the backfill, without a new attempt."""
        self.here.write(backfill=CHUNK | backfill)
        taken = {change["taken"] for change in self.here.ask("reload")["plan"]["settings"]}
        assert taken <= {"running"}

    def select_big(self, **backfill: Any) -> None:
        self.here.write(backfill=CHUNK | backfill, tables=[*self.here.source["tables"], self.big])
        self.here.ask("reload")

    def read_again(self) -> None:
        self.here.ask("backfill", tables=[self.big])  # type: ignore[arg-type]

    def rows(self, status: dict[str, Any]) -> int:
        return int(status["tables"].get(self.big, {}).get("rows", 0))

    def until(self, state: str, limit: str = "") -> dict[str, Any]:
        """Wait until reading is `held` or `slowed` by a limit; return that part of the status."""

        def wished(status: dict[str, Any]) -> bool:
            reading = status.get("reading") or {}
            return reading.get("state") == state and (not limit or limit in [r["limit"] for r in reading["reasons"]])

        return dict(self.here.wait_until(wished, f"reading to be {state} by {limit}")["reading"])

    def until_done(self, generation: int) -> dict[str, Any]:
        def wished(status: dict[str, Any]) -> bool:
            table = status["tables"].get(self.big, {})
            return (table.get("state"), table.get("generation")) == ("done", generation)

        return self.here.wait_until(wished, f"generation {generation} of {self.big}")


def limits_hold_and_resume(governed: Governed) -> None:
    """One limit after another, in one daemon: each holds the backfill, with the reason in the status."""
    here = governed.here
    governed.select_big(hours=closed_hours(datetime.now(UTC)))
    held = governed.until("held", "hours")
    assert datetime.now(UTC) < datetime.fromisoformat(held["until"]) < datetime.now(UTC) + timedelta(hours=7)
    assert governed.rows(here.ask("status")) == 0, "not a row was read outside of the hours"
    governed.use()
    governed.until_done(1)

    with governed.waiting():
        governed.use(limits={"lock_waits": 0})
        governed.read_again()
        held = governed.until("held", "lock_waits")
        assert held["until"] is None
        assert governed.rows(here.ask("status")) == 0
    governed.until_done(2)  # no operator did anything

    governed.use(per_day={"rows": 1_000})
    governed.read_again()
    held = governed.until("held", "rows_per_day")
    assert 900 <= governed.rows(here.ask("status")) <= 1_000 + OVER, "the budget is used up, and reading ends"
    here.end()
    here.start_again()
    held = governed.until("held", "rows_per_day")
    assert governed.rows(here.ask("status")) <= 1_000 + OVER, "a restart gives no new budget"
    governed.use(per_day={"rows": 100_000})
    assert governed.until_done(3)["tables"][governed.big]["rows"] == ROWS

    governed.use(limits={"commit_latency_ratio": 1.5})
    governed.read_again()
    governed.until("held", "commit_latency_ratio")  # until enough commits were measured
    governed.until_done(4)
    comparison_waits(governed)
    here.end()


def comparison_waits(governed: Governed) -> None:
    """A comparison is a reading, too: outside of the hours it waits, except with `--now`."""
    governed.use(hours=closed_hours(datetime.now(UTC)))
    command = [sys.executable, "-m", "cdcflow.cli", "verify", governed.big]
    held = subprocess.Popen(
        command, cwd=governed.here.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert held.stdout is not None
    try:
        said = next(line for line in held.stdout if "reading held" in line)
        assert "outside of source.backfill.hours" in said
    finally:
        held.kill()
        held.communicate()
    done = subprocess.run(
        [*command, "--now"], cwd=governed.here.folder, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
