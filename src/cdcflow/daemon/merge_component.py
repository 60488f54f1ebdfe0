"""Merges alongside a capture: a separate process, which the daemon supervises (`supervisor`).

MergeComponent ──▶ MergeSupervisor (a thread) ──▶ the merge process (`merge_child`) ──▶ Java, if Spark merges
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from cdcflow.config import Config, FileLog
from cdcflow.daemon.child_process import machine_bytes
from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.running_components import Running
from cdcflow.daemon.supervisor import STOP_WITHIN_S, Cause, SupervisedWork, Supervisor
from cdcflow.errors import SinkUnavailable
from cdcflow.log.maintenance import state_files

COMMAND = (sys.executable, "-m", "cdcflow.daemon.merge_child")


class MergeComponent:
    """The merges of a daemon whose settings have `merge.every`. `enabled` False: another process merges.

    `seal_soon` is called when a merge process waits for a segment: once for each merge. It must not wait.
    """

    def __init__(self, tell: OnEvent, seal_soon: Callable[[], None] = lambda: None, *, enabled: bool = True) -> None:
        self._tell = tell
        self._seal_soon = seal_soon
        self._enabled = enabled
        self._latest: MergeSupervisor | None = None
        self._ends: Counter[Cause] = Counter()

    def made_of(self, config: Config) -> object:
        if not self._enabled or config.merge.every is None:
            return None
        return (
            config.merge,
            what_is_read(config),
            config.service.traces,
            config.source.kind,
            config.service.cut_receivers,
        )

    def prepare(self, config: Config) -> Running | None:
        if self.made_of(config) is None:
            return None
        return MergeSupervisor(config, self._tell, self._seal_soon, self._ends, self._replace)

    def _replace(self, new: MergeSupervisor) -> MergeSupervisor | None:
        before, self._latest = self._latest, new
        return before

    def stop_soon(self) -> None:
        """Make a merge end at its next commit. Safe in a signal handler."""
        if self._latest is not None:
            self._latest.stop_soon(STOP_WITHIN_S)

    def notify(self) -> None:
        """Notify the merge process that the log has a new segment. Any thread may call it; it does not wait."""
        if (latest := self._latest) is not None:
            latest.notify()

    def status(self) -> dict[str, Any] | None:
        """Return the state of the merge process; `None` if this daemon does not merge."""
        return None if self._latest is None or self._latest.is_ending else self._latest.status()

    def answer(self) -> dict[str, object]:
        """Return, for the commands, whether this daemon may merge, and whether it does."""
        return {"may_merge": self._enabled, "merges": self.status() is not None}


def what_is_read(config: Config) -> object:
    """Return the settings of the log that a process which reads it depends on."""
    if not isinstance(config.log, FileLog):
        return config.log
    return config.log.model_copy(update=dict.fromkeys(("retention", "seal", "index", "compact")))


class MergeSupervisor(Supervisor):
    """Runs one merge process after another with the same settings."""

    def __init__(
        self,
        config: Config,
        tell: OnEvent,
        seal_soon: Callable[[], None],
        ends: Counter[Cause],
        replace: Callable[[MergeSupervisor], MergeSupervisor | None],
    ) -> None:
        work = SupervisedWork(
            name="merge",
            command=COMMAND,
            first_line=config.model_dump_json().encode(),
            memory_bytes_max=config.merge.memory_max or machine_bytes() // 2,
            progress_timeout_s=config.merge.progress_timeout,
            busy=frozenset(("starting", "merging")),
            memory_remedy=_MEMORY,
            stuck_remedy=_STUCK,
        )
        super().__init__(work, tell, ends)
        self._config = config
        self._seal_soon = seal_soon
        self._replace = replace
        self._has_merged = False

    def begin(self) -> None:
        self.begin_after(self._replace(self))

    def status(self) -> dict[str, Any]:
        """Return the status like every supervisor; the states that the process reports are waiting (for a log), merging
        and idle."""
        return {"every_seconds": self._config.merge.every, **super().status()}

    def _take_line(self, line: Mapping[str, Any]) -> bool:
        merged = line.get("merged")
        if merged is not None:
            self._note_merge(merged)
        if "ready" in line and not self.is_ending:
            self._seal_soon()
        return merged is not None

    def _note_merge(self, merged: Mapping[str, Any]) -> None:
        if merged.get("cut") and not self._has_merged:
            self._has_merged = True
            self._tell("tables are merged", {**merged, "every": self._config.merge.every})
        elif self._failing is not None:
            self._tell("tables are merged again", merged)

    def _write_failure(self, reason: str) -> None:
        state_files.write_merge_failure(self._config.log.folder, SinkUnavailable(reason))


_MEMORY = "raise merge.memory_max if the machine has more memory, or merge on another machine: run --no-merge here"
_STUCK = "check what it waits for, such as a store or a cluster; the next try gets twice the time"
