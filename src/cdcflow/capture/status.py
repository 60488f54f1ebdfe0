"""How a capture reports an error, and the status of a log that it currently does not write."""

from __future__ import annotations

from cdcflow.capture.interleave.limits import Limits
from cdcflow.capture.interleave.progress import Progress
from cdcflow.errors import CdcflowError
from cdcflow.model.position import Checkpoint


def fields_of(error: BaseException | None) -> dict[str, object]:
    """An error as the fields of an event."""
    remedy = getattr(error, "remedy", None)
    found = {"kind": type(error).__name__, "reason": str(error).split("\n")[0]}
    return {**found, "remedy": remedy} if remedy else {**found}


def error_text(error: Exception) -> str:
    """An error's text; an unexpected error's text is replaced, because it may hold a row's values."""
    return str(error) if isinstance(error, CdcflowError) else "a fault in cdcflow"


def status_of(found: Checkpoint, progress: Progress, limits: Limits) -> dict[str, object]:
    """The status of a log that no attempt has open."""
    return {
        "epoch": found.epoch,
        "cut": found.cut,
        "position": found.position,
        "next_offset": found.next_offset,
        "commit_clock": found.commit_clock,
        "tables": progress.to_status(limits.rows_per_second_max),
    }
