"""Writes the daemon's events, one per line: `time event key=value …`, or JSON with a level.

An empty field (None) is omitted. The level is for filtering: an error ends something permanently or reports wrong rows,
a warning passes or needs attention.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TextIO

import structlog

OnEvent = Callable[[str, Mapping[str, object]], None]

ERRORS = frozenset(
    (
        *("capture failed", "publishing failed", "serving failed", "table failed", "capture did not stop in time"),
        *("shadow check found a difference", "merge failed", "delivery failed"),
    )
)
WARNINGS = frozenset(
    (
        *("capture interrupted", "publishing waits", "stopped while it was interrupted", "table waits"),
        *(
            "seal put off",
            "left behind",
            "partial rows unknown",
            "rows changed unseen",
            "order ignored",
            "table to be read again",
        ),
        *("keys to be read", "table rewritten", "table skipped"),
        *(
            "merge process ended",
            "delivery process ended",
            "table not in the cut",
            "table changed by another process",
            "upkeep ended early",
        ),
        *("log budget", "log budget unknown", "log released", "changes not captured", "table in doubt"),
        *("gap not repaired", "gap repair postponed", "fleet not informed"),
        *("lease released", "lease does not answer", "command refused", "executors not used"),
        "views of the latest cut were not written",
    )
)

_STAMP = structlog.processors.TimeStamper(fmt="iso", utc=True, key="time")


def event_lines(*, as_json: bool, file: TextIO | None = None) -> OnEvent:
    """Return a function that writes one event as one line to `file` (`None`: stdout). Safe to call from any thread."""
    # Plain lines have no level: a reader sees what happened.
    render = [_with_level, structlog.processors.JSONRenderer()] if as_json else [_line]
    logger = structlog.wrap_logger(
        structlog.WriteLogger(file or sys.stdout),
        processors=[_STAMP, *render],
        wrapper_class=structlog.BoundLogger,
    )

    def tell(event: str, fields: Mapping[str, object]) -> None:
        # Nothing reads the lines now: that is no reason to stop capturing.
        with contextlib.suppress(OSError, ValueError):
            logger.info(event, **{key: value for key, value in fields.items() if value is not None})

    return tell


def send_structlog_to(file: TextIO, *, as_json: bool = False) -> None:
    """From now on, write to `file` what cdcflow logs through structlog, as lines of the same form."""
    render = [_with_level, structlog.processors.JSONRenderer()] if as_json else [_line]
    structlog.configure(processors=[_STAMP, *render], logger_factory=structlog.WriteLoggerFactory(file))


def leave_interrupts_out() -> None:
    """Prevent libraries from logging the operation that Ctrl-C interrupted (py4j logs its traceback): cdcflow handles
    it."""
    logging.getLogger().addFilter(lambda record: not (record.exc_info and record.exc_info[0] is KeyboardInterrupt))


def level(event: str) -> str:
    """Return the level of an event, by its kind: info, warning or error."""
    if event in ERRORS:
        return "error"
    return "warning" if event in WARNINGS else "info"


def _with_level(logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    name = str(event.pop("event"))
    found = method if method in ("warning", "error") else level(name)
    return {"time": event.pop("time"), "level": found, "event": name, **event}


def _line(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    when, name = event.pop("time"), event.pop("event")
    return " ".join([f"{when[:23]}Z", str(name), *(f"{key}={_value(value)}" for key, value in event.items())])


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    plain = text != "" and all(c.isprintable() and c not in ' "=' for c in text)
    return text if plain else json.dumps(text, ensure_ascii=False)
