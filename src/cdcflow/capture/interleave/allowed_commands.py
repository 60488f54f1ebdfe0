"""Which command fits which state: one rule for every interface and for the machine itself."""

from __future__ import annotations

from cdcflow.capture.interleave.messages import (
    Adjust,
    Attach,
    Backfill,
    Cancel,
    Outcome,
    OutcomeKind,
    Pause,
    PauseCapture,
    Proven,
    Repair,
    Reread,
    Resume,
    ResumeCapture,
)
from cdcflow.capture.interleave.progress import Gap, Progress, TableProgress
from cdcflow.model.table import TableId

REREAD_BYTES_MAX = 1 << 20
"""The most bytes of keys per table that may be requested and not yet read, because every checkpoint contains these
keys."""

TableOrder = Backfill | Pause | Resume | Cancel | Adjust | Reread | Repair | Proven | Attach

_VERBS = {
    Backfill: "read",
    Pause: "pause",
    Resume: "resume",
    Cancel: "cancel",
    Adjust: "adjust",
    Reread: "read again",
    Repair: "repair",
    Proven: "prove",
    Attach: "attach",
}


def outcome_of_capture(order: PauseCapture | ResumeCapture, progress: Progress) -> Outcome:
    """Return what a command to pause or resume the capture would do."""
    pauses = isinstance(order, PauseCapture)
    if pauses == progress.capture_paused:
        reason = "the capture is paused already" if pauses else "the capture is not paused: nothing to resume"
        return Outcome(None, "nothing to do", reason)
    return Outcome(None, "paused" if pauses else "resumed")


def outcome_of(order: TableOrder, table: TableId, known: TableProgress | None) -> Outcome:
    """Return what a command would do to a table in this state."""
    if known is None or known.state == "forgotten":
        return Outcome(table, "refused", f"{table} is not captured")
    if (fits := _fitting(order, known)) is not None:
        return Outcome(table, fits)
    if isinstance(order, Reread | Repair):
        return Outcome(table, "refused", _why_not_read_again(table, known))
    if isinstance(order, Proven):
        return _unproven(order, table, known)
    if isinstance(order, Attach):
        return Outcome(
            table, "refused", f"the log already has every row of {table}, and a merge builds the table from them"
        )
    verb = _VERBS[type(order)]
    if isinstance(order, Adjust) and known.active:
        return Outcome(table, "nothing to do", f"{table} already has the priority and rate of the settings")
    if isinstance(order, Pause) and known.state == "paused":
        return Outcome(table, "nothing to do", f"{table} is paused already")
    return Outcome(table, "nothing to do", f"{table} is {known.state}: nothing to {verb}")


def _fitting(order: TableOrder, known: TableProgress) -> OutcomeKind | None:
    """Return the outcome of a command that fits the table's state; None if it does not fit."""
    match order:
        case Backfill():
            return "ordered"
        case Pause() if known.state in ("waiting", "reading"):
            return "paused"
        case Resume() if known.state == "paused":
            return "resumed"
        case Cancel() if known.active:
            return "cancelled"
        case Adjust() if known.active and _changes(order, known):
            return "adjusted"
        case Reread() | Repair() if _can_be_read_again(known):
            return "ordered"
        case Proven() if known.gap is not None and known.in_doubt and _is_of(order, known.gap):
            return "proven"
        case Attach() if known.state != "done" or known.has_base:
            return "attached"
        case _:
            return None


def _is_of(order: Proven, gap: Gap) -> bool:
    """Whether the comparison compared the rows that are now unverified, and began after they became unverified."""
    return order.epoch >= gap.epoch and order.base == gap.base


def _unproven(order: Proven, table: TableId, known: TableProgress) -> Outcome:
    if known.gap is not None and known.in_doubt and order.base != known.gap.base:
        return Outcome(table, "refused", f"other rows of {table} were compared than those that it has now")
    if known.in_doubt:
        return Outcome(table, "refused", f"the comparison of {table} began before its changes were lost")
    return Outcome(table, "nothing to do", f"{table} has no unverified rows")


def _changes(order: Adjust, known: TableProgress) -> bool:
    is_adjusted = known.priority != 0 or known.rows_per_second_max is not None
    return order.priority is not None or order.rows_per_second_max is not None or (order.reset and is_adjusted)


def _can_be_read_again(known: TableProgress) -> bool:
    is_read = known.state in ("done", "waiting", "reading")
    return is_read and not known.whole and known.keys_bytes <= REREAD_BYTES_MAX


def _why_not_read_again(table: TableId, known: TableProgress) -> str:
    if known.state == "paused":
        return f"{table} is paused: resume it first"
    if known.whole:
        return f"{table} has no key to find rows by: read the whole table by a backfill"
    if known.state in ("cancelled", "failed"):
        return f"{table} is {known.state}, its rows were never all read: read the whole table by a backfill"
    return f"too many keys of {table} wait to be read: request these later, or read the whole table by a backfill"
