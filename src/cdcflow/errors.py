"""Errors, sorted by what happens next.

Every error that cdcflow raises on purpose is one of these kinds, because the one who catches it only needs to know
what to do: try again, look first, ask an operator, mend a setting, or stop and keep the trace. A message says what
was attempted, on what, what was found and what to do. It never holds a row's values or a secret. Each error names a
section of the runbook (docs/runbook/errors.md): its kind's, or a more exact one.
"""

from __future__ import annotations

from typing import ClassVar


def see(section: str) -> str:
    """The command that prints more: a section of the runbook, as every message names it."""
    return f"read more: cdcflow explain-error {section}"


class CdcflowError(Exception):
    """The base of every error that cdcflow raises on purpose.

    `remedy` is what the reader can do about it (often the SQL), or None where the message says it all. `runbook` is
    the section of the runbook that says more: what it means, what it costs, how to look, how to mend it.
    """

    section: ClassVar[str] = "unexpected"
    """The runbook's section for errors of this kind that name none."""

    def __init__(self, message: str, *, remedy: str | None = None, runbook: str | None = None) -> None:
        super().__init__(message if remedy is None else f"{message}\n  {remedy}")
        self.remedy = remedy
        self.runbook = runbook or self.section

    @property
    def with_section(self) -> str:
        """The message, what to do, and on its own line the command that prints the section of the runbook."""
        return f"{self}\n  {see(self.runbook)}"


class SourceUnavailable(CdcflowError):
    """The source cannot be reached just now; nothing about the data is in doubt. Next: retry with backoff."""

    section = "source-unavailable"


class SinkUnavailable(CdcflowError):
    """The log cannot be written just now; nothing about the data is in doubt. Next: retry with backoff."""

    section = "sink-unavailable"


class OutcomeUnknown(CdcflowError):
    """A write may or may not have landed. Next: read the log to find out, then retry."""

    section = "outcome-unknown"


class HistoryLost(CdcflowError):
    """The source threw away log that we still needed. Next: stop; an operator orders a new backfill."""

    section = "slot-lost"


class ConfigurationError(CdcflowError):
    """A setting, a grant or a table must change. Next: stop, and print the exact remedy."""

    section = "settings"


class RightMissing(ConfigurationError):
    """A right was not granted, or was taken away. Next: stop at the start; later try again with backoff, for it may be
    given back, and nothing about the data is in doubt."""

    section = "right-missing"


class KeysUnknown(ConfigurationError):
    """The log no longer says which rows of a table are partial. Next: read the table again from the start."""

    section = "keys-unknown"


class LogGone(ConfigurationError):
    """The log's folder was deleted or moved under its writer. Next: stop; an operator puts it back, or lets it go."""

    section = "log-gone"


class InvariantViolated(CdcflowError):
    """Cdcflow contradicted itself. Next: stop at once and keep the trace; nothing more is written."""

    section = "contradiction"


class SyncFailed(InvariantViolated):
    """The disk may not have what was written. Next: stop at once; a new start counts only what was durable before."""

    section = "sync-failed"
