"""A capture in a thread, until the expected rows are in the log."""

from __future__ import annotations

import threading
import time

from cdcflow import wiring
from cdcflow.config import Config


class Capturing:
    """A capture in a thread, until what was waited for is in the log. A context manager."""

    def __init__(self, config: Config) -> None:
        self._log = wiring.log_reader(config)
        self._capture = wiring.capture(config, on_event=lambda event, fields: None)
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._capture.run()
        except BaseException as error:  # noqa: BLE001  raised when the capture ends
            self._failures.append(error)

    def __enter__(self) -> Capturing:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._capture.stop()
        self._thread.join(60)
        if self._failures:
            raise self._failures[0]

    def until(self, table: str, count: int) -> None:
        """Wait until the log has this many rows of a table."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not self._failures:
            if self._rows(table) >= count:
                return
            time.sleep(0.05)
        raise AssertionError(f"{table} has {self._rows(table)} rows in the log, not {count}; {self._failures}")

    def _rows(self, table: str) -> int:
        if not self._log.exists():
            return 0
        return sum(rows.num_rows for t, _, rows in self._log.read_rows() if str(t.id) == table)
