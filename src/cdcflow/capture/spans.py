"""Measures how long a cut and a window took, for tracing. Nothing is recorded while tracing is off.

cut     from its first row, or from the cut itself if it has no rows, until it is durable
window  from its low mark until it is closed
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

from cdcflow.capture.interleave.window import window_number
from cdcflow.model.position import Epoch, Token

OnSpan = Callable[[str, int, int, Mapping[str, int | str]], None]
"""Called with a name, its begin and end in nanoseconds since 1970, and attributes. Must not block."""


class Spans:
    """The cuts and windows of one attempt that have begun and not ended. Used by the loop's thread."""

    def __init__(self, on_span: OnSpan, epoch: Epoch, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._on_span = on_span
        self._epoch = epoch
        self._now_ns = now_ns
        self._began: int | None = None
        self._rows = self._bytes = 0
        self._cuts: deque[tuple[int, int, int, int]] = deque()  # number, begin, rows, bytes
        self._window: tuple[int, int] | None = None  # number, begin

    def record_append(self, rows: int, size: int) -> None:
        if self._began is None:
            self._began = self._now_ns()
        self._rows += rows
        self._bytes += size

    def cut(self, number: int) -> None:
        began = self._began if self._began is not None else self._now_ns()
        self._cuts.append((number, began, self._rows, self._bytes))
        self._began, self._rows, self._bytes = None, 0, 0

    def durable(self, cut: int) -> None:
        """End the spans of all cuts up to this one, which are durable now."""
        while self._cuts and self._cuts[0][0] <= cut:
            number, began, rows, size = self._cuts.popleft()
            about = {"cdcflow.cut": number, "cdcflow.epoch": self._epoch, "cdcflow.rows": rows, "cdcflow.bytes": size}
            self._on_span("cut", began, self._now_ns(), about)

    def mark_asked_for(self, token: Token) -> None:
        """Note that a mark is to be written; a low mark opens a window."""
        number = window_number(token, self._epoch)
        if number is not None and token.text.endswith("/low"):
            self._window = number, self._now_ns()

    def window_closed(self, fields: Mapping[str, object]) -> None:
        window, self._window = self._window, None
        if window is None or window[0] != fields.get("window"):
            return
        about: dict[str, int | str] = {"cdcflow.epoch": self._epoch}
        about |= {f"cdcflow.{name}": int(str(fields[name])) for name in ("window", "chunks", "held") if name in fields}
        self._on_span("window", window[1], self._now_ns(), about)
