"""Deliveries to targets alongside a capture: a separate process for each target, which the daemon supervises.

DeliveryComponent ──▶ DeliverySupervisor (a thread for each target) ──▶ the delivery process (`delivery_child`)

A target that fails, hangs or needs too much memory does not concern the capture, nor other targets.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from cdcflow.config import Config
from cdcflow.daemon.child_process import machine_bytes
from cdcflow.daemon.events import OnEvent
from cdcflow.daemon.merge_component import what_is_read
from cdcflow.daemon.running_components import Running
from cdcflow.daemon.supervisor import STOP_WITHIN_S, Cause, SupervisedWork, Supervisor, gist
from cdcflow.errors import SinkUnavailable
from cdcflow.log.maintenance import state_files

COMMAND = (sys.executable, "-m", "cdcflow.daemon.delivery_child")


class DeliveryComponent:
    """The deliveries of a daemon to the targets that have an interval. `enabled` False: other processes deliver."""

    def __init__(self, tell: OnEvent, *, enabled: bool = True) -> None:
        self._tell = tell
        self._enabled = enabled
        self._lock = threading.Lock()
        self._running: dict[str, tuple[object, DeliverySupervisor]] = {}
        self._ends: defaultdict[str, Counter[Cause]] = defaultdict(Counter)

    def made_of(self, config: Config) -> object:
        return self._targets(config) or None

    def _targets(self, config: Config) -> dict[str, object]:
        """Return the targets to deliver to, each with the settings that its process depends on."""
        if not self._enabled:
            return {}
        read = what_is_read(config)
        return {name: (target, read) for name, target in config.targets.items() if target.every is not None}

    def prepare(self, config: Config) -> Running | None:
        targets = self._targets(config)
        if not targets and not self._running:
            return None
        return _Deliveries(self, {name: (made_of, config) for name, made_of in targets.items()})

    def use(self, wanted: Mapping[str, tuple[object, Config]]) -> None:
        """Deliver to these targets from now on. Deliveries to targets whose settings stay the same are not
        interrupted."""
        with self._lock:
            before, self._running = self._running, {}
            for name, (made_of, config) in wanted.items():
                known = before.pop(name, None)
                if known is not None and known[0] == made_of:
                    self._running[name] = known
                    continue
                new = DeliverySupervisor(name, config, self._tell, self._ends[name])
                self._running[name] = made_of, new
                if known is not None:
                    known[1].end(wait=False)
                new.begin_after(None if known is None else known[1])
            for _, ended in before.values():
                ended.end(wait=False)

    def end(self) -> None:
        """End all deliveries at their next commit, and wait for it."""
        with self._lock:
            running, self._running = self._running, {}
        for _, one in running.values():
            one.stop_soon(STOP_WITHIN_S)
        for _, one in running.values():
            one.end(wait=True)

    def stop_soon(self) -> None:
        """Make each delivery end at its next commit. Safe in a signal handler."""
        for _, one in tuple(self._running.values()):
            one.stop_soon(STOP_WITHIN_S)

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the state of each target's delivery process."""
        return {name: one.status() for name, (_, one) in tuple(self._running.items()) if not one.is_ending}

    def answer(self) -> dict[str, object]:
        """Return, for the commands, whether this daemon may deliver, and the targets to which it does."""
        return {"may_deliver": self._enabled, "delivers": sorted(self.status())}


class _Deliveries:
    """The deliveries under some settings. Those that other settings keep are not interrupted."""

    def __init__(self, component: DeliveryComponent, wanted: Mapping[str, tuple[object, Config]]) -> None:
        self._component = component
        self._wanted = wanted
        self._has_begun = False

    def begin(self) -> None:
        self._has_begun = True
        self._component.use(self._wanted)

    def end(self, *, wait: bool) -> None:
        # Without `wait` new settings follow, and `use` ends what they do not have.
        if wait and self._has_begun:
            self._component.end()


class DeliverySupervisor(Supervisor):
    """Runs one delivery process after another for one target with the same settings."""

    def __init__(self, name: str, config: Config, tell: OnEvent, ends: Counter[Cause]) -> None:
        target = config.targets[name]
        given = {"target": name, "settings": config.model_dump(mode="json")}
        work = SupervisedWork(
            name="delivery",
            command=COMMAND,
            first_line=json.dumps(given).encode(),
            memory_bytes_max=target.memory_max or machine_bytes() // 4,
            progress_timeout_s=target.progress_timeout,
            busy=frozenset(("starting", "delivering")),
            memory_remedy=f"raise targets.{name}.memory_max if the machine has more memory, or deliver on another "
            "machine (`cdcflow deliver`): run --no-deliver here",
            stuck_remedy="check what the target waits for, such as a lock; the next try gets twice the time",
            about={"target": name},
        )
        super().__init__(work, tell, ends)
        self._name = name
        self._config = config
        self._has_delivered = False
        self._stopped: Mapping[str, Mapping[str, str]] = {}

    def status(self) -> dict[str, Any]:
        """Return the status like every supervisor; the states that the process reports are waiting, delivering and
        idle."""
        return {"every_seconds": self._config.targets[self._name].every, **super().status()}

    def _take_line(self, line: Mapping[str, Any]) -> bool:
        delivered = line.get("delivered")
        if delivered is not None:
            stopped = delivered.pop("stopped")
            self._note_delivery(delivered)
            self._note_stopped(stopped)
        return delivered is not None

    def _note_delivery(self, delivered: Mapping[str, Any]) -> None:
        if not self._has_delivered:
            self._has_delivered = True
            self._tell("target is delivered", {**delivered, "every": self._config.targets[self._name].every})
        elif self._failing is not None:
            self._tell("target is delivered again", delivered)

    def _note_stopped(self, stopped: Mapping[str, Mapping[str, str]]) -> None:
        before, self._stopped = self._stopped, stopped
        for table, why in stopped.items():
            if gist(before.get(table, {}).get("reason")) != gist(why["reason"]):
                self._tell("table not delivered", {"table": table, **why})
        for table in before.keys() - stopped.keys():
            self._tell("table is delivered again", {"table": table})

    def _write_failure(self, reason: str) -> None:
        state_files.write_target_failure(self._config.log.folder, self._name, SinkUnavailable(reason))
