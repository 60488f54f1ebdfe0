"""How a command ends when it fails: one clear block, and an exit code that determines what to do next.

The codes follow sysexits.h, so that a service manager can distinguish "try again" from "an operator must act".
"""

from __future__ import annotations

import traceback
from types import TracebackType

from cdcflow.errors import (
    CdcflowError,
    ConfigurationError,
    HistoryLost,
    InvariantViolated,
    OutcomeUnknown,
    SinkUnavailable,
    SourceUnavailable,
    SyncFailed,
    see,
)

FINDINGS = 1
"""The command worked and found something wrong (`doctor`, `log check`, `demo`, a failed backfill)."""
UNEXPECTED = 70
TOO_SLOW_TO_STOP = 75
INTERRUPTED = 130
"""Ctrl-C when no orderly stop was possible: a shell's code for a process ended by SIGINT."""

_CODES: tuple[tuple[type[CdcflowError], int, str], ...] = (
    (HistoryLost, 65, "somebody must decide to read the tables again"),
    (SourceUnavailable, 69, "nothing is in doubt; start again later"),
    (SyncFailed, 74, "nothing is in doubt; make room or fix the disk, then start again"),
    (InvariantViolated, 70, "cdcflow contradicted itself; keep the log and the trace"),
    (SinkUnavailable, 74, "nothing is in doubt; make room or fix the disk, then start again"),
    (OutcomeUnknown, 75, "start again; the next start checks the log first"),
    (ConfigurationError, 78, "something must be changed before a new start"),
)


def exit_code(error: BaseException) -> int:
    """The exit code for an error; see the table in docs/commands.md."""
    return next((code for kind, code, _ in _CODES if isinstance(error, kind)), UNEXPECTED)


def block(error: CdcflowError) -> str:
    """The message for users: the kind and the text, then indented what to do and where to read more. No traceback."""
    from cdcflow.cli.output import plain  # `cdcflow --help` does not need it

    message, *rest = plain(error.with_section).split("\n")
    return "\n".join([f"{type(error).__name__}: {message}", *(f"  {line.strip()}" for line in rest)])


def unexpected(error: BaseException) -> str:
    """An unexpected error, without its text: that may hold a row's values."""
    return (
        f"{type(error).__name__} in {_line_of(error.__traceback__)}: this is a fault in cdcflow\n"
        "  run it again with `cdcflow --debug …` to see the whole trace\n"
        f"  {see(CdcflowError.section)}"
    )


def trace(error: BaseException) -> str:
    """The whole traceback, for --debug."""
    return "".join(traceback.format_exception(error)).rstrip()


def _line_of(trace: TracebackType | None) -> str:
    frames = traceback.extract_tb(trace)
    ours = [frame for frame in frames if "cdcflow" in frame.filename] or frames
    if not ours:
        return "an unknown line"
    return f"{ours[-1].filename.rpartition('cdcflow/')[2]}:{ours[-1].lineno}"
