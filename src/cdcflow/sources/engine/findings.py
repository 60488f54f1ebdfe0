"""The findings of `doctor` about a source: how its checks are run, and words that all dialects share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from cdcflow.capture.ports.findings import Finding, Remedy
from cdcflow.errors import CdcflowError
from cdcflow.sources.engine.connections import Connector

C = TypeVar("C")


def ok(subject: str, text: str) -> Finding:
    return Finding("ok", subject, text)


def warning(subject: str, text: str, remedy: str | Remedy | None = None) -> Finding:
    return _with(Finding("warning", subject, text), remedy)


def problem(subject: str, text: str, remedy: str | Remedy | None = None) -> Finding:
    return _with(Finding("error", subject, text), remedy)


def created_at_first_start(subject: str, name: str = "") -> Finding:
    """Return the finding for an object that does not exist yet. `name`: the object's name, unless the subject
    has it."""
    return at_first_start(ok(subject, f"{name} is created at the first start".lstrip()))


def at_first_start(found: Finding) -> Finding:
    return replace(found, at_first_start=True)


def _with(found: Finding, remedy: str | Remedy | None) -> Finding:
    if isinstance(remedy, Remedy):
        return replace(found, remedy=remedy.text, sql=remedy.sql, then=remedy.then)
    return replace(found, remedy=remedy)


def run(*sql: str, then: str = "", note: str = "") -> Remedy:
    """Return a remedy that consists of SQL. `then`: a step that must follow for it to take effect; `note`: an
    explanation."""
    text = "run " + "; ".join(sql) + (f", and {then}" if then else "") + (f" ({note})" if note else "")
    return Remedy(text, sql, then)


def of_error(subject: str, found: CdcflowError) -> Finding:
    return problem(subject, str(found).split("\n")[0], found.remedy)


def decoders(*, are_compiled: bool, times: str) -> Finding:
    """Return a finding on which decoders run. `times`: how many times as long the reference decoders take per
    change."""
    if are_compiled:
        return ok("decoders", "the compiled ones are in use")
    return warning(
        "decoders",
        f"the reference ones are in use, which need {times} times as long for a change: there was no C compiler "
        f"at install",
        "install a C compiler (Debian: apt install gcc python3-dev), then install cdcflow again",
    )


# ── running the checks ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Checks(Generic[C]):
    """Runs the checks of a dialect on a connection from `connect`; `map_error` translates errors of its client
    library."""

    connector: Connector[C]
    connect: Callable[[], C]
    map_error: Callable[[Exception, str], CdcflowError]

    def run(self, checks: Callable[[C], Iterable[Finding]], *first: Finding) -> list[Finding]:
        """Return the findings `first`, then those of all checks. A connection that cannot be opened is a
        finding, too."""
        found = list(first)
        try:
            connection = self.connect()
        except CdcflowError as error:
            return [*found, of_error("connection", error)]
        try:
            return [*found, *checks(connection)]
        finally:
            self.connector.discard(connection)

    def run_one(self, subject: str, attempted: str, looking: Iterable[Finding]) -> Iterator[Finding]:
        """Return the findings of a check, and, as one more finding, the error that ended it."""
        try:
            yield from looking
        except self.connector.error as error:
            yield of_error(subject, self.map_error(error, attempted))
        except CdcflowError as error:
            yield of_error(subject, error)
