"""How a command ends when it fails: one clear block, and an exit code that determines what to do next."""

from __future__ import annotations

import traceback
from types import TracebackType

from cdcflow.daemon.exit_codes import FINDINGS, INTERRUPTED, TOO_SLOW_TO_STOP, UNEXPECTED, exit_code
from cdcflow.errors import CdcflowError, see

__all__ = [
    "FINDINGS",
    "INTERRUPTED",
    "TOO_SLOW_TO_STOP",
    "UNEXPECTED",
    "block",
    "exit_code",
    "trace",
    "unexpected_error",
]


def block(error: CdcflowError) -> str:
    """The message for users: the kind and the text, then indented what to do and where to read more. No traceback."""
    from cdcflow.reports.readable import plain  # `cdcflow --help` does not need it

    message, *rest = plain(error.with_section).split("\n")
    return "\n".join([f"{type(error).__name__}: {message}", *(f"  {line.strip()}" for line in rest)])


def unexpected_error(error: BaseException) -> str:
    """An unexpected error, without its text: that may hold a row's values."""
    return (
        f"{type(error).__name__} in {_line_of(error.__traceback__)}: this is a fault in cdcflow\n"
        "  run it again with `cdcflow --debug …` to see the whole traceback\n"
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
