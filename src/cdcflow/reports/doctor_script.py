"""Findings as one SQL script that an administrator can run unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdcflow.capture.ports.findings import Finding
from cdcflow.reports.readable import plain


def script(findings: Sequence[Finding]) -> Iterator[str]:
    """The lines of a SQL script that fixes errors. Statements that warnings propose, and steps that are not SQL, are
    comments."""
    yield "-- created by cdcflow doctor; lines with -- are proposed statements, or steps that no statement can do"
    done: set[str] = set()
    after: list[str] = []
    for finding in findings:
        new = [sql for sql in finding.sql if sql not in done]
        if finding.remedy is None or (finding.sql and not new):
            continue
        done.update(new)
        yield ""
        yield _comment(f"{finding.level}: {finding.subject}: {finding.text}")
        if not finding.sql:
            yield _comment(f"to do: {finding.remedy}")
        yield from (_statement(sql, is_needed=finding.level == "error") for sql in new)
        if finding.then and finding.then not in after:
            after.append(finding.then)
    for then in after:
        yield ""
        yield _comment(f"then: {then}")


def _statement(sql: str, *, is_needed: bool) -> str:
    if plain(sql) != sql:
        return _comment(f"a name in this statement has control characters, so write it yourself: {sql}")
    return f"{sql};" if is_needed else _comment(f"{sql};")


def _comment(text: str) -> str:
    return f"-- {_one_line(text)}"


def _one_line(text: str) -> str:
    return " ".join(plain(text).split())
