"""cdcflow in a separate process: captures until the log is durable up to a place, or until it is stopped.

Argument: `config` (as in cdcflow.yaml) and one of
    until_rows   stop once this many rows of the log are durable; the clock stops there, and what follows is not counted
    once         true: read all tables into sealed segments and end; the clock stops when the log is closed
    neither      run until SIGTERM
`times` names a file for one line `rows nanoseconds` per sync: how many rows of the log were durable when.
`file_bytes_min`: chunks with at least this many bytes go into separate files (default: cdcflow's own).
`on`: a Spark cluster whose executors read, two at once; its start does not count.
`first_above`: as soon as more than this many rows are durable, print a line `{"first_ns": …}` ahead of the last one.

The clock wraps the log's own `sync`: when it returns, the rows before its checkpoint are on disk, or with the brokers.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from typing import Any

from cdcflow.daemon.lean import end_loading, lean

lean()  # as `cdcflow run` does, before anything of the capture is imported

from bench.children.usage import Clock, Syncs, given, tell  # noqa: E402
from cdcflow import wiring  # noqa: E402
from cdcflow.capture.capture import Capture  # noqa: E402
from cdcflow.capture.ports.log import Log  # noqa: E402
from cdcflow.config import Config, KafkaLog, Postgres  # noqa: E402
from cdcflow.log.maintenance import state_files  # noqa: E402
from cdcflow.model.position import Checkpoint  # noqa: E402


class Durable:
    """Records how many rows are durable when. `reached` is set once `until_rows` rows are."""

    def __init__(self, log: type[Log], until_rows: int | None, first_above: int | None, clock: Clock) -> None:
        self._until = until_rows
        self._first_above = first_above
        self._clock = clock
        self.reached = threading.Event()
        self.figures: dict[str, float] = {}
        self.times: list[tuple[int, int]] = []
        self._watch(log)

    def _watch(self, kind: type[Log]) -> None:
        sync = kind.sync

        def watched(log: Log) -> Checkpoint:
            checkpoint = sync(log)
            self._note(checkpoint.next_offset - 1)
            return checkpoint

        kind.sync = watched  # type: ignore[method-assign]  # the one place where rows become durable

    def _note(self, rows: int) -> None:
        self.times.append((rows, time.monotonic_ns()))
        if self._first_above is not None and rows > self._first_above:
            self._first_above = None
            print(json.dumps({"first_ns": self.times[-1][1]}), flush=True)
        if self._until is not None and rows >= self._until and not self.reached.is_set():
            self.figures = self._clock.stop()
            self.reached.set()


def log_of(config: Config) -> type[Log]:
    """The class of the configured log; who writes files does not load Kafka's library."""
    if isinstance(config.log, KafkaLog):
        from cdcflow.sinks.kafka import log as kafka

        return kafka.KafkaLog
    from cdcflow.sinks.files.log import FileLog

    return FileLog


def main() -> None:
    asked = given()
    config = Config.model_validate(_known(asked["config"]))
    once = bool(asked.get("once"))
    events: dict[str, int] = {}

    def count(event: str, _fields: object) -> None:
        events[event] = events.get(event, 0) + 1

    if isinstance(least := asked.get("file_bytes_min"), int):
        from cdcflow.sinks.files import log as files

        files.FILE_BYTES_MIN = least
    with contextlib.ExitStack() as held:
        master = asked.get("on")
        readers = held.enter_context(wiring.readers(config, master)) if isinstance(master, str) else None
        _measured(wiring.capture(config, once=once, on_event=count, readers=readers), config, asked, events)


def _measured(running: Capture, config: Config, asked: dict[str, object], events: dict[str, int]) -> None:
    until, above = asked.get("until_rows"), asked.get("first_above")
    assert until is None or isinstance(until, int)
    assert above is None or isinstance(above, int)
    times = asked.get("times")
    end_loading()
    signal.signal(signal.SIGTERM, lambda *_: running.stop())
    syncs = Syncs()
    clock = Clock()
    durable = Durable(log_of(config), until, above, clock)
    threading.Thread(target=_stop_when, args=(durable.reached, running.stop), daemon=True).start()
    merges = _Merges(config, running)
    running.run()
    figures = durable.figures or clock.stop()
    merges.end()
    if isinstance(times, str):
        with open(times, "w") as file:
            file.writelines(f"{rows} {ns}\n" for rows, ns in durable.times)
    rows = durable.times[-1][0] if durable.times else 0
    tell({**figures, "rows": rows, "fsyncs": syncs.count, "events": events, "merged_cut": merges.last_cut})


class _Merges:
    """The merge process of `cdcflow run`, if the settings have `merge.every`."""

    def __init__(self, config: Config, capture: Capture) -> None:
        self._folder = config.log.folder
        self._running: Any = None  # Any: an older checkout has no such component
        if config.merge.every is not None:
            from cdcflow.daemon.merge_component import MergeComponent

            component = MergeComponent(lambda *_: None, capture.seal_soon)
            capture.on_sealed = component.notify
            self._running = component.prepare(config)
            self._running.begin()

    def end(self) -> None:
        if self._running is not None:
            self._running.end(wait=True)

    @property
    def last_cut(self) -> int:
        """The cut that was last published: 0 if there was no merge."""
        found = state_files.of_merge(self._folder) or {}
        return int(found.get("cut", 0))


def _known(config: object) -> dict[str, Any]:
    """The settings without those that this cdcflow, which may be an older one (`bench.beside`), does not have yet."""
    assert isinstance(config, dict)
    source = {k: v for k, v in config["source"].items() if k != "catch_up" or "catch_up" in Postgres.model_fields}
    return {**config, "source": source}


def _stop_when(reached: threading.Event, stop: object) -> None:
    reached.wait()
    assert callable(stop)
    stop()


if __name__ == "__main__":
    main()
