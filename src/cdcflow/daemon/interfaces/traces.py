"""Spans as OpenTelemetry traces, sent to a collector by OTLP over HTTP: a span for each cut, window and merge.

Only here is OpenTelemetry imported, and only when `service.traces` is set. Spans are sent by a thread of the
library, from a queue that loses spans when it is full. An unavailable collector costs the capture nothing, and is
reported by one event a minute. Names and numbers only: no span holds a value of a row.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cdcflow.errors import ConfigurationError
from cdcflow.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

EXPORT_WITHIN_S = 2
TOLD_EVERY_S = 60.0

OnEvent = Callable[[str, Mapping[str, object]], None]


class Traces:
    """Sends spans until closed. `exporter`: replaces the collector at `url` as the destination.

    Raises:
        ConfigurationError: the packages are not installed.
    """

    def __init__(self, url: str, tell: OnEvent, exporter: SpanExporter | None = None) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise ConfigurationError(
                "service.traces needs OpenTelemetry, which is not installed", remedy="run pip install 'cdcflow[otel]'"
            ) from None
        _quieten(tell)
        resource = Resource.create({"service.name": "cdcflow", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)  # it is shut down when the process ends
        sent_to = exporter or OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces", timeout=EXPORT_WITHIN_S)
        self._provider.add_span_processor(BatchSpanProcessor(sent_to))
        self._tracer = self._provider.get_tracer("cdcflow", __version__)
        self._is_closed = False

    def on_span(
        self, name: str, began_ns: int, ended_ns: int, about: Mapping[str, int | str], failed: str | None = None
    ) -> None:
        """Record a span that has ended. `failed`: the kind of error that ended it. Ignored after `close`."""
        if self._is_closed:
            return
        span = self._tracer.start_span(name, start_time=began_ns, attributes=dict(about))
        if failed is not None:
            from opentelemetry.trace import Status, StatusCode

            span.set_status(Status(StatusCode.ERROR, failed))
        span.end(end_time=ended_ns)

    def close(self) -> None:
        """Send the queued spans, for a few seconds at most."""
        self._is_closed = True
        self._provider.shutdown()


class _Telling(logging.Handler):
    """Reports trouble at most once a minute, without its text: that contains URLs, which may hold secrets."""

    def __init__(self, tell: OnEvent) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell
        self._told_at = -TOLD_EVERY_S

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            self._tell("spans not sent", {"remedy": "see that the collector at service.traces answers"})


def _quieten(tell: OnEvent) -> None:
    """Redirect the library's log to `tell`, instead of stderr."""
    logger = logging.getLogger("opentelemetry")
    logger.handlers = [_Telling(tell)]
    logger.propagate = False
