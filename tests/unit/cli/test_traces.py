"""Spans of cuts, windows and merges, as a collector gets them."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.servers.http_threads import PostReceiver
from tests.support.capture.small_source import ORDERS, Small, committed

from cdcflow.capture import attempt as attempts
from cdcflow.capture.attempt import LoopIntervals, Orders
from cdcflow.capture.capture import Capture
from cdcflow.capture.interleave.limits import Limits
from cdcflow.daemon.interfaces.traces import Traces
from cdcflow.errors import SinkUnavailable
from cdcflow.sinks.memory import Memory, MemoryLog

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(attempts, "IDLE_WAIT_S", 0.001)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    logger = logging.getLogger("opentelemetry")
    before = logger.handlers, logger.propagate
    yield
    logger.handlers, logger.propagate = before


def captured(traces: Traces) -> None:
    """A backfill of one table, with a change during it."""
    source: Any = Small(ORDERS)
    source.coming.append(committed(1))
    given: Any = lambda _identity, _accepted: MemoryLog(Memory())  # noqa: E731
    Capture(
        open_source=lambda: source,
        open_log=given,
        limits=Limits(),
        orders=Orders((), once=True),
        pace=LoopIntervals(heartbeat_s=1e9, tables_look_s=1e9),
        on_event=lambda *_: None,
        on_span=traces.on_span,
    ).run()


def test_each_cut_and_each_window_is_a_span() -> None:
    """With its subject, and no value of a row."""
    exporter = InMemorySpanExporter()
    traces = Traces("http://127.0.0.1:1", lambda *_: None, exporter)
    captured(traces)
    traces.close()
    spans = exporter.get_finished_spans()
    cuts = [dict(s.attributes or {}) for s in spans if s.name == "cut"]
    windows = [dict(s.attributes or {}) for s in spans if s.name == "window"]
    assert sum(int(str(c["cdcflow.rows"])) for c in cuts) == 2
    numbers = [int(str(c["cdcflow.cut"])) for c in cuts]
    assert numbers == sorted(set(numbers))
    assert windows == [{"cdcflow.epoch": 1, "cdcflow.window": 1, "cdcflow.chunks": 1, "cdcflow.held": 0}]
    assert all(s.start_time is not None and s.end_time is not None and s.start_time <= s.end_time for s in spans)
    assert {name for s in spans for name in (s.attributes or {})} <= {
        f"cdcflow.{n}" for n in ("cut", "epoch", "rows", "bytes", "window", "chunks", "held")
    }


class Collector(PostReceiver):
    """A receiver of OTLP over HTTP."""

    @property
    def names(self) -> list[str]:
        """Those of all spans so far."""
        found = [ExportTraceServiceRequest.FromString(request.body) for request in self.got]
        scopes = [scope for sent in found for of in sent.resource_spans for scope in of.scope_spans]
        return [span.name for scope in scopes for span in scope.spans]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def settings_with(collector: Collector, folder: Path) -> Any:
    from cdcflow.config import Config

    return Config.model_validate(
        {
            "source": {"kind": "postgres", "url": "postgresql://nobody@127.0.0.1:1/none"},
            "log": {"path": str(folder)},
            "service": {"traces": collector.uri},
        }
    )


def test_spans_reach_a_collector(collector: Collector, tmp_path: Path) -> None:
    """Cuts and windows of the daemon, and merges of the other process; a failed merge with its kind."""
    from cdcflow.daemon.merge_process import send_spans
    from cdcflow.tables.job.reports import MergeReport

    traces = Traces(collector.uri, lambda *_: None)
    captured(traces)
    traces.close()
    merged = send_spans(settings_with(collector, tmp_path), lambda: MergeReport(7, 99, True, 0.1, ()))
    assert merged().cut == 7

    def fails() -> MergeReport:
        raise SinkUnavailable("no room")

    with pytest.raises(SinkUnavailable):
        send_spans(settings_with(collector, tmp_path), fails)()
    collector.wait_for(lambda: collector.names.count("merge") == 2)
    assert {"cut", "window", "merge"} == set(collector.names)
    assert {request.path for request in collector.got} == {"/v1/traces"}


def test_unreachable_collector_is_reported_once_and_without_its_address() -> None:
    """Without a stack trace per second on stderr."""
    told: list[tuple[str, Mapping[str, object]]] = []
    traces = Traces("http://127.0.0.1:1/s3cret", lambda *event: told.append(event))
    for number in range(3):
        traces.on_span("cut", number, number + 1, {"cdcflow.cut": number})
    traces.close()
    assert [event for event, _ in told] == ["spans not sent"]
    assert "s3cret" not in repr(told)


def test_nothing_of_it_is_imported_unless_it_is_set() -> None:
    """Its import costs more time and memory than a daemon's own."""
    program = (
        "import sys; from cdcflow import wiring; from cdcflow.cli import run, merge, status as command\n"
        "from cdcflow.daemon import daemon, status\n"
        "print([m for m in sys.modules if m.partition('.')[0] in ('opentelemetry', 'prometheus_client', 'requests')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
