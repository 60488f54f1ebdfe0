"""The findings of `doctor` about a source, in words that all dialects share."""

from __future__ import annotations

from dataclasses import replace

from cdcflow.capture.ports.findings import Finding, Remedy
from cdcflow.errors import CdcflowError


def ok(subject: str, text: str) -> Finding:
    return Finding("ok", subject, text)


def warning(subject: str, text: str, remedy: str | Remedy | None = None) -> Finding:
    return _with(Finding("warning", subject, text), remedy)


def problem(subject: str, text: str, remedy: str | Remedy | None = None) -> Finding:
    return _with(Finding("error", subject, text), remedy)


def created_at_first_start(subject: str, name: str = "") -> Finding:
    """An object that does not exist yet. `name`: unless the subject has it."""
    return at_first_start(ok(subject, f"{name} is created at the first start".lstrip()))


def at_first_start(found: Finding) -> Finding:
    return replace(found, at_first_start=True)


def _with(found: Finding, remedy: str | Remedy | None) -> Finding:
    if isinstance(remedy, Remedy):
        return replace(found, remedy=remedy.text, sql=remedy.sql, then=remedy.then)
    return replace(found, remedy=remedy)


def run(*sql: str, then: str = "", note: str = "") -> Remedy:
    """A remedy that consists of SQL. `then`: what else must be done for it to take effect; `note`: for the reader."""
    text = "run " + "; ".join(sql) + (f", and {then}" if then else "") + (f" ({note})" if note else "")
    return Remedy(text, sql, then)


def of_error(subject: str, found: CdcflowError) -> Finding:
    return problem(subject, str(found).split("\n")[0], found.remedy)


def decoders(*, are_compiled: bool, times: str) -> Finding:
    """A finding on which decoders run. `times`: how many times as long the reference decoders take per change."""
    if are_compiled:
        return ok("decoders", "the compiled ones are in use")
    return warning(
        "decoders",
        f"the reference ones are in use, which need {times} times as long for a change: there was no C compiler "
        f"at install",
        "install a C compiler (Debian: apt install gcc python3-dev), then install cdcflow again",
    )
