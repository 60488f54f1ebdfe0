"""What one sees of the demo: a live table where there is a terminal, plain lines else."""

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

LINE_EVERY_S = 3.0


class Screen:
    """Steps that were done, the one that is going on, and the daemon's newest status. Safe to use from any thread."""

    def __init__(self) -> None:
        self._console = output.stdout()
        self._live = Live(console=self._console, refresh_per_second=5, transient=True)
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._now = ""
        self._status: Mapping[str, Any] = {}
        self._writer: Mapping[str, int] = {}
        self._said_at = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def step(self, text: str) -> None:
        """Something begins."""
        with self._lock:
            self._now = text
            if not self._console.is_terminal:
                self._say(f"… {text}")
        self._refresh()

    def done(self, text: str) -> None:
        """Something is done; stays on the screen."""
        with self._lock:
            self._now = ""
            self._say(f"✓ {text}")
        self._refresh()

    def failed(self, text: str) -> None:
        with self._lock:
            self._say(f"✗ {text}")

    def show(self, status: Mapping[str, Any] | None, writer: Mapping[str, int]) -> None:
        """The daemon's status (None: it does not run), and the writer's transactions by kind."""
        with self._lock:
            self._status, self._writer = status or {}, writer
            if not self._console.is_terminal and time.monotonic() - self._said_at > LINE_EVERY_S:
                self._said_at = time.monotonic()
                self._say("  " + self._line())
        self._refresh()

    def print(self, renderable: object = "") -> None:
        self._console.print(renderable, markup=False)

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────

    def _say(self, text: str) -> None:
        self._console.print(f"{time.monotonic() - self._began:6.1f} s {text}", markup=False)

    def _refresh(self) -> None:
        if self._console.is_terminal:
            self._live.update(self._picture())

    def _line(self) -> str:
        tables: Mapping[str, Mapping[str, Any]] = self._status.get("tables") or {}
        reads = " ".join(f"{name.partition('.')[2]} {output.percent(f)}" for name, f in tables.items())
        return f"{self._numbers()} | {reads}" if tables else self._numbers()

    def _numbers(self) -> str:
        status = self._status
        written = f"writer {output.number(sum(self._writer.values()))} transactions"
        if not status:
            return f"{written} | the daemon is starting"
        events: Mapping[str, int] = status.get("events") or {}
        parts = [
            written,
            f"cut {status.get('cut', 0)}",
            f"{output.number(status.get('rows_per_second', 0))} rows/s",
            f"lag {output.size(status.get('lag_bytes'))}",
            f"{events.get('window closed', 0)} windows",
        ]
        return " | ".join(parts)

    def _picture(self) -> Group:
        tables: Mapping[str, Mapping[str, Any]] = self._status.get("tables") or {}
        rows = [
            (name, f.get("state"), bar(f), output.percent(f), output.number(f.get("rows")))
            for name, f in sorted(tables.items())
        ]
        parts: list[Any] = [Text(self._numbers(), style="dim")]  # Any: whatever rich can render
        if rows:
            parts.append(output.table(None, ("table", "backfill", "", "read", "rows"), rows, numbers=2))
        if self._now:
            parts.append(Text(f"{time.monotonic() - self._began:6.1f} s … {self._now}", style="bold"))
        return Group(*parts)


def bar(fields: Mapping[str, Any], width: int = 24) -> str:
    units = fields.get("units") or 0
    done = fields.get("state") == "done"
    filled = width if done else min(width, width * (fields.get("units_done") or 0) // units) if units else 0
    return "█" * filled + "░" * (width - filled)
