"""The log that a source keeps for a capture, as seen by the code that limits its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from cdcflow.model.log_budget import KeptLog, LogLimit


@dataclass(frozen=True, slots=True)
class Release:
    """The outcome of a release. released: the source no longer keeps log for the capture; absent: it did not keep any;
    impossible: the server itself decides how long it keeps its log (binary logs). `text` is for operators."""

    outcome: Literal["released", "absent", "impossible"]
    text: str


class BudgetedLog(Protocol):
    """The log that a source keeps for one capture. Used by one thread; connects at the first query.

    Every method raises SourceUnavailable if the server does not answer, and ConfigurationError or RightMissing, with
    the remedy, if cdcflow's user may not query or change it.
    """

    def measure(self) -> KeptLog:
        """Return how much log the server currently keeps for the capture."""
        ...

    def limits(self) -> tuple[LogLimit, ...]:
        """Return the server's own limits on the log that it keeps, even before it keeps any for the capture."""
        ...

    def is_release_begun(self) -> bool:
        """Whether a release was recorded and not finished, because the process that recorded it was killed."""
        ...

    def release(self, why: str, by: str) -> Release:
        """Record durably that the server stops keeping log for the capture, and then have it stop.

        The next start of the capture finds the record. `why` and `by` are for operators.
        """
        ...

    def close(self) -> None: ...
