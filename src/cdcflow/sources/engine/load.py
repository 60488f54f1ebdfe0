"""How busy a server is, measured with the queries of a dialect."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from cdcflow.model.source_load import Gauge, LoadLimits, SourceLoad
from cdcflow.sources.engine.connections import Connector, Session

C = TypeVar("C")
P = TypeVar("P")


class Unknown(Exception):
    """Raised when a gauge cannot be read. The text is the reason and the remedy."""


Reading = Callable[[C], float]
"""Reads one gauge. Raises `Unknown` if it cannot."""


class SqlProbe(Generic[C]):
    """Implements `SourceProbe` on one connection. `readings`: the queries with which this dialect reads its gauges;
    `commit`: commits something small."""

    def __init__(
        self,
        connector: Connector[C],
        connect: Callable[[], C],
        limits: LoadLimits,
        readings: Mapping[Gauge, Reading[C]],
        commit: Callable[[C], object],
    ) -> None:
        self._connector = connector
        self._session: Session[C] = Session(connector, connect)
        self._limits = limits
        self._readings = readings
        self._commit = commit

    def load(self) -> SourceLoad:
        values: dict[Gauge, float] = {}
        unknown: dict[Gauge, str] = {}
        for gauge in self._limits.gauges:
            reading = self._readings.get(gauge)
            if reading is None:
                continue
            try:
                values[gauge] = self._session.ask(f"measuring {gauge} of {self._connector.address}", reading)
            except Unknown as why:
                unknown[gauge] = str(why)
        return SourceLoad(values, unknown)

    def commit(self) -> float:
        return self._session.ask(f"measuring a commit at {self._connector.address}", self._time_commit)

    def _time_commit(self, connection: C) -> float:
        began = time.monotonic()
        self._commit(connection)
        return time.monotonic() - began

    def close(self) -> None:
        self._connector.close()
        self._session.close()


class PassingTimes(Generic[P]):
    """Remembers past ends of a server's log, each with its time, to compute how old the data of another server is.

    `every_s`: the interval between two remembered ends.
    """

    KEPT = 4_000

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._ends: deque[tuple[float, P]] = deque(maxlen=self.KEPT)

    def record(self, end: P) -> None:
        """Remember that the log ends at `end` now."""
        now = self._clock()
        if not self._ends or now - self._ends[-1][0] >= self._every_s:
            self._ends.append((now, end))

    def age_s(self, is_after: Callable[[P], bool]) -> float:
        """Return for how many seconds, at least, the log has had something after a position; 0 if it has nothing.

        `is_after`: whether an end of the log is after the position.
        """
        passed = next((at for at, end in self._ends if is_after(end)), None)
        return 0.0 if passed is None else self._clock() - passed
