"""The settings of a backfill that change while a daemon runs: each of them is observed by the chunks that it reads."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.daemon.running_shop import DaemonFolder

from cdcflow.errors import SourceUnavailable

LONG = {"chunk_time_target_ms": 60_000, "chunk_time_live_ms": 60_000, "chunk_time_busy_ms": 60_000}
"""With these each chunk has twice the rows of the one before."""

HELD = "too many changes were held back"

Execute = Callable[[str], object]


@dataclass(frozen=True)
class Sizes:
    """Rows of a chunk. `slow`: the first chunks, which are held back by a rate; `capped`: a limit that is tried;
    `few`: more than a millisecond is enough for; `many`: what chunks grow to."""

    slow: int
    capped: int
    few: int
    many: int


class Backfilled:
    """A daemon with a table `big` of wide rows and a small table `other`. `session` opens one to write with."""

    def __init__(
        self, here: DaemonFolder, sizes: Sizes, session: Callable[[], contextlib.AbstractContextManager[Execute]]
    ) -> None:
        self.here = here
        self.sizes = sizes
        self.slow = {"chunk_rows_max": sizes.slow, "rows_per_second_max": sizes.slow}
        self._session = session
        self._schema = here.table.partition(".")[0]
        self._generation = 1

    @contextlib.contextmanager
    def writing(self, table: str | None) -> Iterator[None]:
        """Commit changes of a table one after another (None: of none)."""
        if table is None:
            yield
            return
        ending = threading.Event()

        def write() -> None:
            with self._session() as execute:
                for number in itertools.count():
                    if ending.is_set():
                        return
                    execute(f"UPDATE {table} SET n = {number} WHERE id = 1")

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield
        finally:
            ending.set()
            writer.join()

    def chunks(self) -> list[int]:
        """The rows of each chunk of `big` so far."""
        return [c["rows"] for c in self.here.events("range chunk read") if c["table"].endswith(".big")]

    def overflows(self) -> int:
        """How many chunks were abandoned because too much was held back."""
        return sum(event["reason"] == HELD for event in self.here.events("chunk given up"))

    def use(self, settings: dict[str, Any]) -> None:
        """Have the running daemon apply these settings of the backfill."""
        self.here.write(backfill=settings)
        answer = self.here.ask("reload")
        assert {change["taken"] for change in answer["plan"]["settings"]} <= {"running"}

    def begin(self, slow: dict[str, Any], chunks: int = 1) -> int:
        """Read `big` again, slowly. Return how many chunks there were when this many of them were read."""
        self.use(slow)
        before = len(self.chunks())
        with contextlib.suppress(SourceUnavailable):  # a busy machine: the command is accepted a little later
            self.here.ask("backfill", tables=[f"{self._schema}.big"])  # type: ignore[arg-type]
        self._generation += 1
        self.here.wait_until(lambda _: len(self.chunks()) >= before + chunks, "the first chunks")
        return before

    def end(self, before: int, settings: dict[str, Any]) -> list[int]:
        """Continue with other settings to the end of the table. Return the rows of all chunks after the first
        `before`."""
        self.use(settings)
        self.here.wait_until(self._is_done, "the table to be read")
        return self.chunks()[before:]

    def _is_done(self, status: dict[str, Any]) -> bool:
        table = status.get("tables", {}).get(f"{self._schema}.big", {})
        return (table.get("state"), table.get("generation")) == ("done", self._generation)

    def stay_short(self, settings: dict[str, Any], written: str | None = None) -> bool:
        """Read `big` while another session writes to a table: whether chunks do not grow with these settings."""
        with self.writing(written):
            # Changes that arrive while a chunk is read shorten the next 20: the first two see some of them.
            before = self.begin(LONG | self.slow, chunks=1 if written is None else 2)
            self.use(settings)
            # If each had twice the rows of the one before, nine would be enough to exceed `few`.
            self.here.wait_until(lambda s: len(self.chunks()) >= before + 11 or self._is_done(s), "more chunks")
            rows = self.chunks()[before:]
            self.end(before, LONG)
        return max(rows) <= self.sizes.few


def each_setting_applies(daemon: Backfilled) -> None:
    """One after another, in one daemon: what each of them changes of the chunks."""
    sizes = daemon.sizes
    slow = daemon.begin(LONG | {"rows_per_second_max": 4})
    rows = daemon.end(slow, LONG | {"chunk_rows_max": sizes.capped})
    assert rows[0] <= 4, "rows_per_second_max: no chunk has more rows than a second"
    assert max(rows) == sizes.capped, "chunk_rows_max, and the rate that is not set any longer"

    assert daemon.stay_short(LONG | {"chunk_time_target_ms": 1})
    assert daemon.stay_short(LONG | {"chunk_time_live_ms": 1}, "other")
    assert daemon.stay_short(LONG | {"chunk_time_busy_ms": 1}, "big")

    assert not daemon.overflows()
    with daemon.writing("big"):
        slow = daemon.begin(LONG | daemon.slow)
        daemon.use(LONG | {"held_bytes_max": 1})
        daemon.here.wait_until(lambda _: daemon.overflows() > 1, "chunks to be abandoned")
        assert max(daemon.end(slow, LONG)) >= sizes.many, "with long times and room for what is held, chunks grow"
    status = daemon.here.ask("status")
    assert (status["counts"]["attempts"], status["settings"]["number"]) == (1, status["settings"]["given"])
