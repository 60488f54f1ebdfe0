"""The merge of one table: its range of the log, in as few commits as it takes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cdcflow.merge import statement
from cdcflow.merge.evolution import Evolution
from cdcflow.warehouse.foldings import folding
from cdcflow.warehouse.port import CurrentTable, Engine, Snapshot
from cdcflow.warehouse.positions import Positions, overtaken
from cdcflow.warehouse.ranges import TableRange, grouped
from cdcflow.warehouse.segments import Range, offsets_of, shapes_of


class TableMerge:
    """One table, one range. `origin` is what each commit tells besides."""

    def __init__(
        self,
        log: Range,
        positions: Positions,
        engine: Engine,
        there: CurrentTable,
        range_: TableRange,
        since: int,
        origin: Mapping[str, object],
    ) -> None:
        """`since`: the offset before which nothing is needed of the log (0: none)."""
        self._log = log
        self._cut = log.checkpoint.cut
        self._positions = positions
        self._engine = engine
        self._there = there
        self._since = since
        self._origin = origin
        table, before = range_.table, range_.before
        # Where the range begins behind something, nothing of before it is known to live.
        sweep = max(positions.sweep_due(table), since if before is not None else 0)
        self._range = replace(range_, sweep=0 if range_.mode.keeps_changes else sweep)
        self._app = positions.app(table)

    @property
    def sweeps(self) -> bool:
        """Rows may be there that a backfill did not find."""
        return self._range.sweep > 0

    def sweep(self) -> None:
        """Nothing new, but a backfill is done: remove what it did not find."""
        generation = self._positions.backfill(self._range.table).finished
        ended = self._range.mode.ended
        self._there.sweep(self._range.sweep, self._metadata(), f"{self._app}/sweep", generation, ended)

    def run(self) -> None:
        """Bring the range into the table."""
        layout = self._log.layout
        with tempfile.TemporaryDirectory(
            prefix="cdcflow-merge-", dir=None if layout.store is None else layout.store.room
        ) as room:
            files = self._engine.located(layout, self._range.files, Path(room))
            self._range = replace(self._range, files=files)
            self._merge()

    def _merge(self) -> None:
        there, evolutions = self._range.before, list[Evolution]()
        for shapes in grouped(shapes_of(self._range.files), self._range.mode):
            if evolutions:
                there = self._looked_at_again()
            evolutions.append(self._range.evolution(there, shapes, self._engine.rules))
            self._evolve(evolutions[-1])
        with folding(self._range, self._there.session, evolutions, self._there.standing) as found:
            self._there.fold(found, self._metadata(), self._app, self._cut)

    def _looked_at_again(self) -> Snapshot | None:
        """The table after an evolution, to which the next one adds. Rows that came meanwhile are somebody else's."""
        found, before = self._there.snapshot(), self._range.before
        came_to = 0 if found is None else found.transactions.get(self._app, 0)
        if came_to != (0 if before is None else before.transactions.get(self._app, 0)):
            raise overtaken(self._range.table, came_to, self._cut)
        return found

    def _evolve(self, evolution: Evolution) -> None:
        """Bring the table into the shape that the range needs."""
        table, before = self._range.table, self._range.before
        if evolution.before is None:
            source = json.dumps(self._positions.source(table), separators=(",", ":"))
            self._there.make(evolution.target, source, self._since, self._metadata(), self._range.mode)
        elif before is not None and not before.transactions.get(self._app):
            self._there.begin(self._since, self._metadata())
        for act in evolution.acts():
            once = statement.transaction(act, evolution.target.incarnation)
            app = f"{self._app}/{once}" if once else ""
            self._there.follow(act, self._metadata(), app, 1 if once else 0)

    def _metadata(self) -> dict[str, object]:
        first, last = offsets_of(self._range.files)
        return {
            "log": self._log.log_id,
            "table": str(self._range.table),
            "cut": self._cut,
            "offsets": [first, last],
            "generation": self._positions.backfill(self._range.table).generation if self._range.sweep else 0,
            **self._origin,
        }
