"""The status of a capture, with the source's view, and the surroundings of the daemon.

Facts that were known before an outage stay in the status during it: the log's position, how much the source retains.
The lag in seconds keeps growing during it, so that an alert on it fires. The source is queried in a separate thread:
one that does not answer must not delay a scrape.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cdcflow import wiring
from cdcflow.capture.capture import Capture
from cdcflow.config import Config
from cdcflow.errors import CdcflowError
from cdcflow.log.maintenance import state_files
from cdcflow.model.position import Checkpoint, Position, position_text

CAUGHT_UP_BYTES = 1 << 20
"""A capture that is less than this far from the end of the source's log counts as caught up: an idle source writes
log, too."""
SCHEMAS_EVERY_S = 15.0
"""How often schemas in the log are compared with contracts."""
ANSWER_WITHIN_S = 1.0
"""How long the status waits for the source; after that it reports the source's last answer."""


class Watch:
    """The capture's status, with how far the source is ahead. Any thread may call it.

    `in_use` returns the settings, if they may change; `merging` the state of the merge process, if there is one;
    `delivering` that of the delivery process of each target; `budget` the last measurement of the log's budget, if the
    settings have one.
    """

    def __init__(
        self,
        config: Config,
        capture: Capture,
        in_use: Callable[[], Config] | None = None,
        merging: Callable[[], Mapping[str, Any] | None] = lambda: None,
        delivering: Callable[[], Mapping[str, Mapping[str, Any]]] = dict,
        budget: Callable[[], Mapping[str, Any] | None] = lambda: None,
    ) -> None:
        self._merging = merging
        self._delivering = delivering
        self._budget = budget
        self._in_use = in_use or (lambda: config)
        self._capture = capture
        self._started_at = time.time()
        self._lock = threading.Lock()
        self._source: dict[str, object] = {}
        self._asking: threading.Thread | None = None
        self._asked_at = -60.0
        self._broken: Mapping[str, str] = {}
        self.notified: Callable[[], Mapping[str, Mapping[str, int]]] = dict
        """Returns how many notices each receiver of notifications got, by outcome. Replaced by the daemon."""
        self._schemas_at = -SCHEMAS_EVERY_S
        self._in_log: dict[str, object] | None = None
        self._log_id = ""
        self._position: object = None
        self._moved_at = time.monotonic()

    def status(self, *, at_most_old_s: float = 2.0) -> dict[str, Any]:
        """Return the status; the source is queried again if its last answer is older than `at_most_old_s`."""
        status = self._of_capture()
        self._note_position(status.get("position"))
        self._ask_source(at_most_old_s)
        with self._lock:
            still_s = round(time.monotonic() - self._moved_at, 1)
            status |= self._source
            if self._broken:
                status["broken_contracts"] = dict(self._broken)
        limit_s = max(30.0, 4 * self._in_use().database.heartbeat)
        status |= {"heartbeat_age_seconds": still_s, "heartbeat_age_seconds_max": limit_s}
        status["lag_seconds"] = lag_seconds(status, still_s)
        next_offset = status.get("next_offset")
        if isinstance(next_offset, int):
            status["durable_offset"] = next_offset - 1
        return status | self._surroundings(status.get("durable_offset"))

    def _of_capture(self) -> dict[str, Any]:
        now = self._capture.status()
        known: dict[str, Any] = self._capture.last_known()
        if now.get("state") == "standby":
            known = {}  # the position that this process knows is outdated: another daemon captures
        elif now.get("state") != "capturing" and not known and now.get("reason") != "starting":
            known = self._from_log()
        status: dict[str, Any] = known | now
        status["counts"] = self._capture.counts()
        tables: Mapping[str, Mapping[str, Any]] = status.get("tables") or {}
        fresh, shadow = self._capture.freshness(), self._capture.shadow()
        status["tables"] = {
            name: {**fields, **fresh.get(name, {}), **shadow.get(name, {})} for name, fields in tables.items()
        }
        return status

    def tables_in_log(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the tables' entries in the log, before this process captures anything."""
        found: Any = self._from_log().get("tables", {})
        self._in_log = None  # no longer needed: the capture continues from these entries
        return dict(found)

    def _from_log(self) -> dict[str, object]:
        """Return the log's status, if this process has not begun to capture yet."""
        if self._in_log is None:
            self._in_log = {}
            with contextlib.suppress(CdcflowError, OSError):
                reader = wiring.log_reader(self._in_use())
                if reader.exists():
                    self._in_log = in_log(reader.newest_checkpoint())
        return self._in_log

    def _note_position(self, position: object) -> None:
        with self._lock:
            if position == self._position:
                return
            if self._position is None:
                self._asked_at = -60.0  # without a position the source could not report the lag
            self._position, self._moved_at = position, time.monotonic()

    def _ask_source(self, at_most_old_s: float) -> None:
        """Query the source, by one thread at a time, if its last answer is too old."""
        with self._lock:
            if self._asking is None and time.monotonic() - self._asked_at >= at_most_old_s:
                self._asking = threading.Thread(target=self._answer, name="ask-source", daemon=True)
                self._asking.start()
            asking = self._asking
        if asking is not None:
            asking.join(ANSWER_WITHIN_S)

    def _answer(self) -> None:
        found: dict[str, object] = {"source_up": False, "source_error": "asking failed"}
        try:
            self._log_id = self._log_id or known_log_id(self._in_use())
            found = source_status(self._in_use(), self._position, self._log_id)
            if time.monotonic() - self._schemas_at >= SCHEMAS_EVERY_S:
                broken = broken_contracts(self._in_use())
                self._broken, self._schemas_at = self._broken if broken is None else broken, time.monotonic()
        finally:
            with self._lock:
                kept = {k: v for k, v in self._source.items() if k != "source_error"}
                self._source = {**kept, **found, "source_up": "source_error" not in found}
                if found.get("lag_bytes") == 0:  # idle, the position of such a source does not move
                    self._moved_at = time.monotonic()
                self._asking, self._asked_at = None, time.monotonic()

    def _surroundings(self, durable_offset: object) -> dict[str, object]:
        folder = self._in_use().log.folder
        found: dict[str, Any] = {
            "pid": os.getpid(),
            "started_at": self._started_at,
            "source_kind": self._in_use().source.kind,
            "metrics_per_table": self._in_use().service.metrics_per_table,
            **wiring.upload_status(self._in_use()),
        }
        with contextlib.suppress(OSError):
            disk = shutil.disk_usage(folder)
            found["disk"] = {"free_bytes": disk.free, "size_bytes": disk.total}
        if (merged := state_files.of_merge(folder)) is not None:
            found["merge"] = merge_status(merged, durable_offset)
        if (process := self._merging()) is not None:
            found["merge"] = {**found.get("merge", {}), "process": process}
        if targets := targets_status(self._in_use(), durable_offset, self._delivering()):
            found["targets"] = targets
        if notified := self.notified():
            found["notifications"] = notified
        if transforms := wiring.transform_counts():
            found["transforms"] = transforms
        if budget := self._budget():
            found["log_budget"] = dict(budget)
        found["verified"] = state_files.of_verified(folder)
        if consumers := wiring.consumers_status(self._in_use(), durable_offset):
            found["consumers"] = consumers
        return found


def merge_status(merged: Mapping[str, Any], durable_offset: object) -> dict[str, Any]:
    """Return the result of the last merge, and how many rows the log has that the merge's cut does not show."""
    offset = merged.get("offset")
    if isinstance(offset, int) and isinstance(durable_offset, int):
        return {**merged, "behind_rows": max(0, durable_offset - offset)}
    return dict(merged)


def targets_status(
    config: Config, durable_offset: object, processes: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return, for each target of the settings, the result of the last delivery that this machine knows of, how many
    rows the log has after it, and the state of the target's delivery process, if this daemon delivers to it.

    `is_failing`: the last delivery failed, or its process did since. Nothing is known of a target to which only another
    machine delivers.
    """
    found = {}
    for name, target in config.targets.items():
        known: dict[str, Any] = {"kind": target.kind, **(state_files.of_target(config.log.folder, name) or {})}
        offset = known.get("offset")
        if isinstance(offset, int) and isinstance(durable_offset, int):
            known["behind_rows"] = max(0, durable_offset - offset)
        process = processes.get(name)
        if process is not None:
            known["process"] = process
        failing = known.get("failed", False) if process is None else process["failing"] is not None
        found[name] = {**known, "is_failing": failing}
    return found


def verified_of(status: Mapping[str, Any], table: str) -> dict[str, Any]:
    """Return the results of comparisons of a table.

    `verified_at`: the older one of the times when log and tables were last found equal (`None`: one never was);
    `different`: how many of its keys are known to differ; `not_compared`: the columns that the copy did not have.
    """
    known = (status.get("verified") or {}).get(table, {}).values()
    times = [one["at"] for one in known if "at" in one]
    return {
        "verified_at": min(times) if times else None,
        "different": max((one.get("different", 0) for one in known), default=0),
        "not_compared": sorted({column for one in known for column in one.get("not_compared", ())}),
    }


def in_log(checkpoint: Checkpoint) -> dict[str, object]:
    """Return a log's status, with the field names of a running capture's status."""
    return {
        "epoch": checkpoint.epoch,
        "cut": checkpoint.cut,
        "position": position_text(checkpoint.position),
        "next_offset": checkpoint.next_offset,
        "commit_clock": checkpoint.commit_clock,
        "tables": checkpoint.progress.get("tables", {}),
    }


def broken_contracts(config: Config) -> dict[str, str] | None:
    """Return the contracts that schemas in the log break, by table; `None` if the log cannot be read, which the
    status reports separately."""
    try:
        return wiring.schema_breaks(config)
    except (CdcflowError, OSError):
        return None


def known_log_id(config: Config) -> str:
    """Return the log's id; "" if there is no log, or it cannot be read."""
    try:
        return wiring.log_id(config)
    except CdcflowError:
        return ""


def source_status(config: Config, position: object, log_id: str) -> dict[str, object]:
    """Return the source's own status: lag and retained log, or why it cannot be queried."""
    try:
        source = wiring.open_source(config)
        try:
            found = source.status(Position(str(position)) if position is not None else None, log_id)
        finally:
            source.close()
    except CdcflowError as error:
        return {"source_error": str(error).split("\n")[0]}
    return {
        "lag_bytes": found.lag_bytes,
        "retained_bytes": found.retained_bytes,
        "log_lost": found.is_lost,
        "source": dict(found.details),
    }


def lag_seconds(status: Mapping[str, Any], still_s: float) -> float | None:
    """Return the lag: while the source is ahead, the time since the latest change's commit; otherwise the time since
    the position last moved.

    Heartbeats move the position while nothing else happens. A source that never answered, or a log that nothing is
    captured into, lags for as long as that has been the case.
    """
    ahead, clock = status.get("lag_bytes"), status.get("commit_clock")
    if not isinstance(ahead, int):
        return still_s if status.get("state") in ("waiting", "halted") else None
    if ahead < CAUGHT_UP_BYTES or not clock:
        return still_s
    return round(max(0.0, time.time() - int(clock) / 1e6), 1)
