"""Records an attempt's counts, its spans, and the results of its canaries and shadow checks, for monitoring. It decides
nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cdcflow.capture.freshness import Freshness, tables_of
from cdcflow.capture.interleave.machine import Interleave
from cdcflow.capture.interleave.messages import Effect, MarkSeen, WriteMark
from cdcflow.capture.ports.chunks import ChunkSource
from cdcflow.capture.ports.source import Source
from cdcflow.capture.ports.stream import StreamEvent
from cdcflow.capture.shadow import Shadow
from cdcflow.capture.source_tasks import SourceTasks
from cdcflow.capture.spans import OnSpan, Spans
from cdcflow.model.change import HeldRun, Kind, Run, SpooledTransaction
from cdcflow.model.position import Epoch
from cdcflow.model.table import Table

OnEvent = Callable[[str, Mapping[str, object]], None]


class Observed:
    """Counts what an attempt does, and passes events to its canaries, checks and spans, if it has any.

    Used by the loop's thread; `counts` may be read from any.
    """

    def __init__(
        self,
        freshness: Freshness | None,
        on_span: OnSpan | None,
        tables: Sequence[Table],
        epoch: Epoch,
        shadow: Shadow | None = None,
    ) -> None:
        self._freshness = freshness
        self._shadow = shadow
        self._spans = None if on_span is None else Spans(on_span, epoch)
        self._rows = {Kind.SOURCE: 0, Kind.READ: 0}
        self._windows = self._cuts = self._bytes = self._rows_since_cut = 0
        self._looked_at = -1e9
        if freshness is not None:
            freshness.begin(tables, epoch)
        if shadow is not None:
            shadow.begin(tables, epoch)

    def effect_requested(self, effect: Effect) -> None:
        if self._spans is not None and isinstance(effect, WriteMark):
            self._spans.mark_asked_for(effect.token)

    def came(self, event: StreamEvent) -> None:
        """Note that this event of the stream was handled."""
        if self._freshness is not None and isinstance(event, MarkSeen):
            self._freshness.mark_arrived(event.token, self._windows)
        if self._shadow is not None:
            self._shadow.came(event)

    def on_event(self, event: str, fields: Mapping[str, object]) -> None:
        if event == "window closed":
            self._windows += 1
            if self._spans is not None:
                self._spans.window_closed(fields)

    def record_append(self, run: Run | SpooledTransaction | HeldRun) -> int:
        """Count an appended run, and return its size in bytes, which would be slow to compute twice."""
        size = run.bytes
        self._bytes += size
        self._rows[run.kind] += run.rows
        self._rows_since_cut += run.rows
        if self._spans is not None:
            self._spans.record_append(run.rows, size)
        if self._freshness is not None and run.kind is not Kind.READ:
            self._freshness.tables_changed(tables_of(run))
        return size

    def cut(self, number: int) -> None:
        self._cuts += 1
        self._rows_since_cut = 0
        if self._spans is not None:
            self._spans.cut(number)

    def durable(self, cut: int) -> None:
        if self._spans is not None:
            self._spans.durable(cut)

    def prove(self, machine: Interleave, cut: int, durable_cut: int) -> None:
        """Record the proof of a mark that has arrived, if everything before it is durable. `cut` is the latest cut.

        Rows, not bytes, show whether anything was appended after that cut, because a spooled transaction counts no
        bytes.
        """
        if self._freshness is not None and self._freshness.awaits_durability:
            next_cut = cut + (1 if self._rows_since_cut else 0)
            held = machine.held_size[0] > 0
            self._freshness.settle(held=held, windows=self._windows, next_cut=next_cut, durable_cut=durable_cut)

    def look(self, now_s: float, tasks: SourceTasks, source: Source, chunks: ChunkSource, machine: Interleave) -> None:
        """Send the next canary and read the next sample, if it is time."""
        freshness = self._freshness
        if freshness is not None and now_s - self._looked_at >= freshness.every_s:
            self._looked_at = now_s
            tasks.call(lambda: freshness.look(source, chunks, machine.progress))
        if self._shadow is not None:
            self._shadow.look(now_s, tasks, source, chunks, machine.progress)

    @property
    def counts(self) -> dict[str, int]:
        rows = {"rows_captured": self._rows[Kind.SOURCE], "rows_read": self._rows[Kind.READ]}
        return {**rows, "bytes_appended": self._bytes, "cuts": self._cuts}
