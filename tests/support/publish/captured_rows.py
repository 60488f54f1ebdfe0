"""A capture in a thread, until the expected rows are in the log."""

from __future__ import annotations

import threading

from tests.support.polling import wait_for

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

        def rows() -> int:
            assert not self._failures, self._failures
            return self._rows(table)

        wait_for(rows, lambda found: found >= count, f"{count} rows of {table} in the log", patience_s=120)

    def _rows(self, table: str) -> int:
        if not self._log.exists():
            return 0
        return sum(rows.num_rows for t, _, rows in self._log.read_rows() if str(t.id) == table)
