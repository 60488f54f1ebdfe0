"""The daemon's events, one line each: `time event key=value …`, or JSON."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TextIO

import structlog

OnEvent = Callable[[str, Mapping[str, object]], None]

_STAMP = structlog.processors.TimeStamper(fmt="iso", utc=True, key="time")


def event_lines(*, as_json: bool, file: TextIO | None = None) -> OnEvent:
    """A function that writes one event as one line to `file` (None: stdout). Safe to call from any thread."""
    render = structlog.processors.JSONRenderer() if as_json else _line
    logger = structlog.wrap_logger(
        structlog.WriteLogger(file or sys.stdout),
        processors=[_STAMP, render],
        wrapper_class=structlog.BoundLogger,
    )

    def tell(event: str, fields: Mapping[str, object]) -> None:
        # Nobody reads our lines any more: that is no reason to stop capturing.
        with contextlib.suppress(OSError, ValueError):
            logger.info(event, **fields)

    return tell


def send_structlog_to(file: TextIO) -> None:
    """What libraries of ours log through structlog goes to `file` from now on, as the same plain lines."""
    structlog.configure(processors=[_STAMP, _line], logger_factory=structlog.WriteLoggerFactory(file))


def _line(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    when, name = event.pop("time"), event.pop("event")
    return " ".join([f"{when[:23]}Z", str(name), *(f"{key}={_value(value)}" for key, value in event.items())])


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    plain = text != "" and all(c.isprintable() and c not in ' "=' for c in text)
    return text if plain else json.dumps(text, ensure_ascii=False)
