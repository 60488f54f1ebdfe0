"""Exit codes of processes, which determine what to do next.

The codes follow sysexits.h, so that a service manager can distinguish "try again" from "an operator must act".
"""

from __future__ import annotations

from cdcflow.errors import (
    CdcflowError,
    ConfigurationError,
    HistoryLost,
    InvariantViolated,
    OutcomeUnknown,
    SinkUnavailable,
    SourceUnavailable,
    SyncFailed,
)

FINDINGS = 1
"""The command worked and found something wrong (`doctor`, `log check`, `demo`, a failed backfill)."""
UNEXPECTED = 70
TOO_SLOW_TO_STOP = 75
INTERRUPTED = 130
"""Ctrl-C when no orderly stop was possible: a shell's code for a process ended by SIGINT."""

_CODES: tuple[tuple[type[CdcflowError], int, str], ...] = (
    (HistoryLost, 65, "an operator must decide to read the tables again"),
    (SourceUnavailable, 69, "nothing is lost; start again later"),
    (SyncFailed, 74, "nothing is lost; make room or fix the disk, then start again"),
    (InvariantViolated, 70, "cdcflow contradicted itself; keep the log and the traceback"),
    (SinkUnavailable, 74, "nothing is lost; make room or fix the disk, then start again"),
    (OutcomeUnknown, 75, "start again; the next start checks the log first"),
    (ConfigurationError, 78, "something must be changed before a new start"),
)


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error; see the table in docs/commands.md."""
    return next((code for kind, code, _ in _CODES if isinstance(error, kind)), UNEXPECTED)
