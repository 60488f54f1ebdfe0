"""What `doctor` says of a source, in the words that all dialects share."""

from __future__ import annotations

from cdcflow.errors import CdcflowError
from cdcflow.ports import Finding


def ok(subject: str, text: str) -> Finding:
    return Finding("ok", subject, text)


def warning(subject: str, text: str, remedy: str | None = None) -> Finding:
    return Finding("warning", subject, text, remedy)


def problem(subject: str, text: str, remedy: str | None = None) -> Finding:
    return Finding("error", subject, text, remedy)


def of_error(subject: str, found: CdcflowError) -> Finding:
    return problem(subject, str(found).split("\n")[0], found.remedy)


def decoders(*, are_compiled: bool, times: str) -> Finding:
    """Which decoders run. `times`: how many times as long the reference decoders need for a change."""
    if are_compiled:
        return ok("decoders", "the compiled ones are in use")
    return warning(
        "decoders",
        f"the reference ones are in use, which need {times} times as long for a change: there was no C compiler "
        f"at install",
        "install a C compiler (Debian: apt install gcc python3-dev), then install cdcflow again",
    )
