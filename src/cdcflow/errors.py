"""Errors, sorted by what happens next.

Every error that cdcflow raises on purpose is one of these kinds, because code that catches it only needs to know what
to do: retry, read the log first, ask an operator, fix a setting, or stop and keep the evidence. A message names the
attempt, its object, the finding and the remedy. It never holds a row's values or a secret. Each error names a section
of the runbook (docs/runbook/errors.md): its kind's, or a more specific one.
"""

from __future__ import annotations

from typing import ClassVar


def see(section: str) -> str:
    """The command that prints a section of the runbook, as it appears in every message."""
    return f"read more: cdcflow explain-error {section}"


class CdcflowError(Exception):
    """The base of every error that cdcflow raises on purpose.

    `remedy` is what the reader can do about it (often the SQL), or None where the message is enough. `runbook` is the
    section of the runbook with more: what the error means, what it costs, how to investigate and how to fix it.
    """

    section: ClassVar[str] = "unexpected"
    """The runbook's section for an error of this kind, unless the error names a more specific one."""

    def __init__(self, message: str, *, remedy: str | None = None, runbook: str | None = None) -> None:
        super().__init__(message if remedy is None else f"{message}\n  {remedy}")
        self.remedy = remedy
        self.runbook = runbook or self.section

    @property
    def with_section(self) -> str:
        """The message, what to do, and on its own line the command that prints the section of the runbook."""
        return f"{self}\n  {see(self.runbook)}"


class SourceUnavailable(CdcflowError):
    """The source cannot be reached at present; the data is not affected. Next: retry with backoff."""

    section = "source-unavailable"


class SinkUnavailable(CdcflowError):
    """The log cannot be written at present; the data is not affected. Next: retry with backoff."""

    section = "sink-unavailable"


class LeaseLost(SinkUnavailable):
    """This process does not hold the lease, so it may not write the log. Next: wait as the standby."""

    section = "lease-lost"


class OutcomeUnknown(CdcflowError):
    """A write may or may not have landed. Next: read the log to find out, then retry."""

    section = "outcome-unknown"


class HistoryLost(CdcflowError):
    """The source discarded log that cdcflow still needed. Next: stop; an operator starts a new backfill."""

    section = "slot-lost"


class ConfigurationError(CdcflowError):
    """A setting, a grant or a table must change. Next: stop, and print the exact remedy."""

    section = "settings"


class TableMisfit(ConfigurationError):
    """The settings do not fit one table, or a value of it. Next: in a stream or a backfill this table fails, and the
    others continue; at a start, stop."""

    section = "row-rules"


class RightMissing(ConfigurationError):
    """A right was not granted, or was revoked. Next: stop if this happens at startup; later, retry with backoff,
    because the right may be granted again and the data is not affected."""

    section = "right-missing"


class KeysUnknown(ConfigurationError):
    """The log no longer records which rows of a table are partial. Next: read the table again from the start."""

    section = "keys-unknown"


class LogGone(ConfigurationError):
    """The log's folder was deleted or moved while its writer ran. Next: stop; an operator restores it or abandons
    it."""

    section = "log-gone"


class InvariantViolated(CdcflowError):
    """Cdcflow contradicted itself. Next: stop at once and keep the evidence; nothing more is written."""

    section = "contradiction"


class WriterReplaced(InvariantViolated):
    """Another process has begun to write the log. Next: stop at once; what this one wrote since then does not count.
    With a lease: wait as the standby."""

    section = "two-daemons"


class SyncFailed(InvariantViolated):
    """The disk may not have what was written. Next: stop at once; a new start counts only what was durable before."""

    section = "sync-failed"
