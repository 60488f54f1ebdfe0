"""The capture process of the simulation: one real `Attempt`, its source and its log, until it ends or is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from queue import SimpleQueue

from tests.simulation.faults import Faults
from tests.simulation.log import ModelLog
from tests.simulation.source import ModelSource
from tests.simulation.steps import Silent, Steps

from cdcflow.capture.attempt import Attempt, LoopIntervals, Orders
from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.messages import Input
from cdcflow.capture.interleave.progress import Progress
from cdcflow.model.position import Epoch

SYNC, SEAL = "cdcflow-sync", "cdcflow-seal"
NO_ORDERS = Orders()


class Process:
    """Everything that a crash ends. Every part is built as `cdcflow.capture.capture` builds it."""

    def __init__(
        self,
        source: ModelSource,
        log: ModelLog,
        *,
        limits: Limits,
        pace: LoopIntervals,
        requests: SimpleQueue[Input],
        clock: Callable[[], float],
        faults: Faults,
        counts: Counter[str],
        orders: Orders = NO_ORDERS,
    ) -> None:
        self._counts = counts
        self.source = source
        self.log = log
        self.steps = Steps()
        log.open(self.steps)
        self.attempt = Attempt(
            source,
            log,
            log_id=log.log_id,
            epoch=Epoch(1) if faults.epoch_forgotten else log.epoch,
            limits=limits,
            orders=orders,
            pace=pace,
            requests=requests,
            waker=Silent(),
            on_event=self._count,
            threads=self.steps,
            clock=clock,
        )

    @property
    def progress(self) -> Progress:
        return self.attempt._machine.progress

    def run(self, between_turns: Callable[[], bool]) -> None:
        """Capture until `between_turns` ends it, as an operator would."""
        self.attempt.run(between_turns)

    def work(self, name: str) -> None:
        """One step of a thread that runs concurrently with the loop."""
        self.steps.workers[name].go()

    def _count(self, event: str, fields: Mapping[str, object]) -> None:
        self._counts[event] += 1
        if event == "chunk given up":
            self._counts[f"{event}: {fields['reason']}"] += 1
        if event == "window closed":
            self._counts["windows closed with transactions held"] += bool(fields["held"])
            self._counts["windows closed with several chunks"] += fields["chunks"] != 1
