"""Errors as HTTP answers: `application/problem+json` (RFC 9457), with the remedy in a separate field."""

from __future__ import annotations

from cdcflow.errors import CdcflowError, ConfigurationError, HistoryLost, SinkUnavailable, SourceUnavailable

CONTENT_TYPE = "application/problem+json"

_CODES: tuple[tuple[type[CdcflowError], int], ...] = (
    (SourceUnavailable, 503),
    (SinkUnavailable, 503),
    (HistoryLost, 410),
    (ConfigurationError, 400),
)


def problem(code: int, title: str, detail: str, remedy: str | None = None) -> dict[str, object]:
    """A problem's fields. `title` names the kind and is the same for all of that kind, `detail` describes this case."""
    found: dict[str, object] = {"type": "about:blank", "title": title, "status": code, "detail": detail}
    return found if remedy is None else {**found, "remedy": remedy}


def of_error(error: Exception) -> dict[str, object]:
    """The problem for an error that ended an operation. The text of unexpected errors may hold row values."""
    if isinstance(error, CdcflowError):
        code = next((code for kind, code in _CODES if isinstance(error, kind)), 500)
        detail = str(error).removesuffix(f"\n  {error.remedy}")
        return problem(code, type(error).__name__, detail, error.remedy)
    return problem(500, "InvariantViolated", f"the daemon could not answer: {type(error).__name__}")
