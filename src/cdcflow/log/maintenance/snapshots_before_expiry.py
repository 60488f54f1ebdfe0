"""Store the tables of a log before old segments expire, as a state at the last offset that is removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from cdcflow.errors import ConfigurationError, HistoryLost, InvariantViolated
from cdcflow.log.disk.layer import OS_LAYER, FileLayer
from cdcflow.log.files.layout import Layout
from cdcflow.log.files.states import LogState, StateTable
from cdcflow.log.maintenance import state_writer
from cdcflow.log.query.log import ChangeLog
from cdcflow.log.read.reader import list_segments
from cdcflow.log.workers import HERE, AwayLog, Workers
from cdcflow.model.position import position_text


class Keeping:
    """Writes states of one log. `left_out`: after `keep`, the tables that the state does not have, and why.

    `workers` fold the tables. If they are other processes, each opens the log again with `reopened`, which gets the
    layout as that process sees it.
    """

    def __init__(
        self,
        asked: ChangeLog,
        layout: Layout,
        layer: FileLayer = OS_LAYER,
        workers: Workers = HERE,
        reopened: Callable[[Layout], ChangeLog] | None = None,
    ) -> None:
        self._asked = asked
        self._layout = layout
        self._layer = layer
        self._workers = workers
        self._reopened = reopened or (lambda layout: asked)
        self.left_out: dict[str, str] = {}

    def keep_state(self, offset: int) -> str:
        """Write the state at an offset if it can have every table. Return why it cannot; "" if it was written."""
        lacking = self.why_not(offset)
        if not lacking:
            self.keep(offset)
            lacking = self.left_out
        return "; ".join(f"{name}: {why}" for name, why in sorted(lacking.items()))

    def why_not(self, offset: int) -> dict[str, str]:
        """Return the tables whose rows would be incomplete in a state at an offset, and why."""
        return {name: why for name in self._asked.tables() if (why := self._asked.lacks(name, offset))}

    def keep(self, offset: int) -> LogState:
        """Write the state at an offset at which a segment ends, with every table whose rows are all known.

        Durable on return.

        Raises:
            InvariantViolated: no segment ends there.
            SinkUnavailable: no room.
        """
        segment = next((s for s in list_segments(self._layout) if s.last_offset == offset), None)
        if segment is None:
            raise InvariantViolated(f"creating a state of {self._layout.name}: no segment ends at offset {offset}")
        self.left_out = {}
        checkpoint = segment.last_checkpoint()
        position, clock = position_text(checkpoint.position), checkpoint.commit_clock
        state = LogState(segment.log_id, offset, segment.last_cut, position, clock)
        known = checkpoint.progress.get("tables", {})
        backfills = known if isinstance(known, Mapping) else {}
        return state_writer.write(self._layout, state, partial(self._tables, offset), backfills, self._layer)

    def _tables(self, offset: int, room: Path) -> Iterator[StateTable]:
        """Write every table that is whole at an offset into a directory."""
        self.left_out = self.why_not(offset)
        whole = [name for name in self._asked.tables() if name not in self.left_out]
        away = self._workers.away
        work: Callable[[str], StateTable | str]
        if away is None:
            here = self._layout.absolute
            work = partial(_write_table, partial(self._reopened, here), offset, room.resolve(), self._layer)
        else:
            work = partial(_folded_away, away, self._reopened, offset)
        for name, found in zip(whole, self._workers.each(work, whole), strict=True):
            if isinstance(found, str):
                self.left_out[name] = found
                continue
            if away is not None:
                state_writer.take(away, offset, found, room, self._layer)
            yield found


def _write_table(
    opened: Callable[[], ChangeLog], offset: int, room: Path, layer: FileLayer, name: str
) -> StateTable | str:
    """Write a table's rows as of an offset into a directory. Return its entry, or the reason why it cannot be
    written, as text."""
    try:
        return state_writer.put(room, *opened().fold_table(name, offset), layer)
    except (ConfigurationError, HistoryLost) as error:
        return str(error).splitlines()[0]


def _folded_away(away: AwayLog, opened: Callable[[Layout], ChangeLog], offset: int, name: str) -> StateTable | str:
    """Write a table like `_write_table`, but into the store, from a process that can reach only the store."""
    with away.open() as layout:
        found = _write_table(partial(opened, layout), offset, layout.root, OS_LAYER, name)
        if not isinstance(found, str):
            away.put(state_writer.name_before_move(offset, found), layout.root / found.file, found.sha256)
        return found
