"""A change log with its consumers: the result of `cdcflow.open`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cdcflow.log.files.layout import Layout
from cdcflow.log.query.consumer import Consumer, States
from cdcflow.log.query.consumers import Consumers
from cdcflow.log.query.cursors import Definition
from cdcflow.log.query.log import AsOf, ChangeLog, CurrentRows
from cdcflow.log.read.log_reader import LogReader


class SubscribedLog(ChangeLog):
    """A log with queries and named consumers."""

    def __init__(
        self,
        reader: LogReader,
        layout: Layout,
        current: Callable[[], CurrentRows],
        files_max: int | None,
        states: Callable[[Path | str | None], States],
    ) -> None:
        """`states`: returns the storage of consumers in a folder (`None`: in the log's own). The other arguments are as
        for `ChangeLog`."""
        super().__init__(reader, layout, current, files_max)
        self._states = states

    def consumers(self, state: Path | str | None = None) -> Consumers:
        """Return the consumers of the log that are stored in a folder (`None`: in the log's own).

        Raises:
            ConfigurationError: the log has no folder on this machine, and no folder is given.
        """
        return Consumers(self, self._states(state))

    def consumer(
        self,
        name: str,
        tables: Sequence[str] | None = None,
        *,
        ops: str | None = None,
        start: AsOf = "current",
        wait: float | None = 0.0,
        batch_rows: int = 10_000,
        state: Path | str | None = None,
    ) -> Consumer:
        """Return a named consumer of the log, for a `with` block, in which only this process reads it. It is created if
        it does not exist, for these tables (`None`: all) and ops (of "crudt"; `None`: all), beginning at `start`: with
        the rows of its tables ("current"), after the latest change ("now"), with the oldest change that has not expired
        ("beginning"), or after a point in time. Its batches end when nothing new has arrived for `wait` seconds;
        `None`: never. `state`: as for `consumers`."""
        wanted = Definition(name, None if tables is None else tuple(tables), ops)
        return self.consumers(state).open(name, wait=wait, batch_rows=batch_rows, definition=wanted, start=start)
