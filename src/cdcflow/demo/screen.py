"""The display of the demo: a bar and a live table in a terminal, otherwise a line for each step.

Neither is silent for long: in a terminal the clock runs, and elsewhere a step that takes long is named again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Group
from rich.live import Live
from rich.text import Text

from cdcflow.cli import output
from cdcflow.reports import readable
from cdcflow.reports.parts import TextTable

LINE_EVERY_S = 10.0
"""How often the current step is printed again while nothing else is printed, if there is no terminal."""
BAR_WIDTH = 40


class Screen:
    """The finished steps, the current one, and the daemon's latest status. Safe to use from any thread."""

    def __init__(self, steps: int = 0) -> None:
        """`steps`: the number of steps, for the bar."""
        self._console = output.stdout()
        self._lock = threading.RLock()
        self._steps = steps
        self._step = 0
        self._began = time.monotonic()
        self._now = ""
        self._now_since = self._began
        self._status: Mapping[str, Any] = {}
        self._writer: Mapping[str, int] = {}
        self._said_at = self._began
        self._live = Live(console=self._console, refresh_per_second=5, transient=True, get_renderable=self._picture)
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._remind, name="demo-clock", daemon=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        else:
            self._clock.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._live.stop()
        self._over.set()

    def step(self, text: str) -> None:
        """Begin a step."""
        with self._lock:
            self._now, self._now_since = text, time.monotonic()
            self._step = min(self._step + 1, self._steps)
            if not self._console.is_terminal:
                self._say(f"… {text}")

    def finish_step(self, text: str) -> None:
        """End the current step; the text stays on the screen."""
        with self._lock:
            self._now = ""
            self._say(f"✓ {text}")

    def fail_step(self, text: str) -> None:
        with self._lock:
            self._say(f"✗ {text}")

    def show(self, status: Mapping[str, Any] | None, writer: Mapping[str, int]) -> None:
        """Show the daemon's status (None if it does not run), and the writer's transactions by kind."""
        with self._lock:
            self._status, self._writer = status or {}, writer

    def print(self, renderable: object = "") -> None:
        self._console.print(renderable, markup=False)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _say(self, text: str) -> None:
        self._said_at = time.monotonic()
        self._console.print(f"{self._said_at - self._began:6.1f} s {text}", markup=False)

    def _remind(self) -> None:
        """Print the current step again, if there is no terminal."""
        while not self._over.wait(0.5):
            with self._lock:
                if self._now and time.monotonic() - self._said_at > LINE_EVERY_S:
                    self._say(f"  still {self._line()}")

    def _line(self) -> str:
        return f"{self._now} ({self._numbers()})" if self._status else self._now

    def _numbers(self) -> str:
        status = self._status
        written = f"{readable.number(sum(self._writer.values()))} transactions written"
        if not status:
            return f"{written} | the daemon is starting"
        events: Mapping[str, int] = status.get("events") or {}
        parts = [
            written,
            f"cut {status.get('cut', 0)}",
            f"{readable.number(status.get('rows_per_second', 0))} rows/s",
            f"lag {readable.size(status.get('lag_bytes'))}",
            f"{events.get('window closed', 0)} windows",
        ]
        return " | ".join(parts)

    def _picture(self) -> Group:
        tables: Mapping[str, Mapping[str, Any]] = self._status.get("tables") or {}
        rows = [
            (name, f.get("state"), bar(f), readable.percent(f), readable.number(f.get("rows")))
            for name, f in sorted(tables.items())
        ]
        parts: list[Any] = [Text(self._progress(), style="bold")]  # Any: whatever rich can render
        if self._writer or self._status:
            parts.append(Text(self._numbers(), style="dim"))
        if rows:
            parts.append(output.table(TextTable(("table", "backfill", "", "read", "rows"), rows, numbers=2)))
        return Group(*parts)

    def _progress(self) -> str:
        """Return a bar of all steps, and the current one with its seconds."""
        now = time.monotonic()
        filled = BAR_WIDTH * max(0, self._step - 1) // self._steps if self._steps else 0
        step = f"step {self._step} of {self._steps}: {self._now}" if self._now else ""
        taken = f" ({now - self._now_since:.0f} s)" if self._now and now - self._now_since > 3 else ""
        return f"{now - self._began:6.1f} s {'█' * filled}{'░' * (BAR_WIDTH - filled)} {step}{taken}"


def bar(fields: Mapping[str, Any], width: int = 24) -> str:
    units = fields.get("units") or 0
    done = fields.get("state") == "done"
    filled = width if done else min(width, width * (fields.get("units_done") or 0) // units) if units else 0
    return "█" * filled + "░" * (width - filled)
